"""What memcached's commands mean on a partition."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.documents.document import Cas, ChangeKind, Document, FailoverId, PartitionId
from millrace.core.documents.operations import (
    COUNTER_LIMIT,
    RELATIVE_EXPIRY_S_MAX,
    Command,
    DurabilityLevel,
    Operations,
    OperationStatus,
    Outcome,
    ValueUnavailable,
    Verb,
    absolute_expiry_s,
    parse_counter,
)
from millrace.core.documents.partition import Partition

NOW_S = 1_700_000_000
NOW_US = NOW_S * 1_000_000
ID = FailoverId(0xCAFE)
OTHER_CAS = Cas(77)
VALUE_BYTES_MAX = 100
Status = OperationStatus


class Bench:
    """One partition, a disk, and a clock that the test moves."""

    def __init__(self) -> None:
        self.partition = Partition(PartitionId(0))
        self.partition.promote(1, ID, is_takeover=False)
        self.now_us = NOW_US
        self.disk: dict[bytes, Document] = {}
        self._operations = Operations(VALUE_BYTES_MAX, self._load, self._fetch)

    def _load(self, document: Document) -> Document:
        if document.key not in self.disk:
            raise ValueUnavailable(document.key)
        return self.disk[document.key]

    def _fetch(self, number: PartitionId, keys: Sequence[bytes]) -> list[Document]:
        return [self.disk[key] for key in keys if key in self.disk]

    def do(self, command: Command) -> Outcome:
        return self._operations.execute(self.partition, command, self.now_us)

    def store(self, value: bytes = b"old", flags: int = 5, expiry_s: int = 0) -> Document:
        outcome = self.do(Command(Verb.SET, b"k", value, flags, expiry_s))
        assert outcome.document is not None
        return outcome.document

    def value(self) -> bytes | None:
        document = self.do(Command(Verb.GET, b"k")).document
        return None if document is None else document.value

    def evict(self) -> None:
        flush = self.partition.take_flush()
        assert flush is not None
        self.disk |= {document.key: document for document in flush.snapshot.after(0)}
        self.partition.flushed(flush)
        self.partition.evict(1 << 30)
        held = self.partition.peek(b"k")
        assert held is not None and held.value is None


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- Which commands are taken -----------------------------------------------------------------

MISSING, HELD = False, True


@pytest.mark.parametrize(
    ("verb", "is_held", "cas", "status"),
    [
        pytest.param(Verb.GET, MISSING, "none", Status.NOT_FOUND, id="get a missing one"),
        pytest.param(Verb.GET, HELD, "none", Status.OK, id="get one"),
        pytest.param(Verb.SET, MISSING, "none", Status.OK, id="set a new one"),
        pytest.param(Verb.SET, HELD, "none", Status.OK, id="set again"),
        pytest.param(Verb.SET, HELD, "right", Status.OK, id="set with its cas"),
        pytest.param(Verb.SET, HELD, "wrong", Status.EXISTS, id="set with another cas"),
        pytest.param(Verb.SET, MISSING, "wrong", Status.NOT_FOUND, id="set a missing one with cas"),
        pytest.param(Verb.ADD, MISSING, "none", Status.OK, id="add a new one"),
        pytest.param(Verb.ADD, HELD, "none", Status.EXISTS, id="add one that exists"),
        pytest.param(Verb.ADD, MISSING, "wrong", Status.NOT_FOUND, id="add a new one with cas"),
        pytest.param(Verb.REPLACE, HELD, "none", Status.OK, id="replace"),
        pytest.param(Verb.REPLACE, HELD, "right", Status.OK, id="replace with its cas"),
        pytest.param(Verb.REPLACE, HELD, "wrong", Status.EXISTS, id="replace with another cas"),
        pytest.param(Verb.REPLACE, MISSING, "none", Status.NOT_FOUND, id="replace a missing one"),
        pytest.param(Verb.APPEND, HELD, "none", Status.OK, id="append"),
        pytest.param(Verb.APPEND, HELD, "wrong", Status.EXISTS, id="append with another cas"),
        pytest.param(Verb.APPEND, MISSING, "none", Status.NOT_STORED, id="append to a missing one"),
        pytest.param(Verb.PREPEND, HELD, "right", Status.OK, id="prepend with its cas"),
        pytest.param(Verb.PREPEND, MISSING, "none", Status.NOT_STORED, id="prepend to none"),
        pytest.param(Verb.DELETE, HELD, "none", Status.OK, id="delete"),
        pytest.param(Verb.DELETE, HELD, "right", Status.OK, id="delete with its cas"),
        pytest.param(Verb.DELETE, HELD, "wrong", Status.EXISTS, id="delete with another cas"),
        pytest.param(Verb.DELETE, MISSING, "none", Status.NOT_FOUND, id="delete a missing one"),
        pytest.param(Verb.INCREMENT, HELD, "wrong", Status.EXISTS, id="count with another cas"),
        pytest.param(Verb.INCREMENT, MISSING, "wrong", Status.NOT_FOUND, id="count none with cas"),
        pytest.param(Verb.INCREMENT, HELD, "none", Status.BAD_DELTA, id="count text"),
        pytest.param(Verb.TOUCH, HELD, "none", Status.OK, id="touch"),
        pytest.param(Verb.TOUCH, MISSING, "none", Status.NOT_FOUND, id="touch a missing one"),
        pytest.param(Verb.GET_AND_TOUCH, HELD, "none", Status.OK, id="get and touch"),
    ],
)
def test_a_refused_command_changes_nothing_and_takes_no_seq(
    bench: Bench, verb: Verb, is_held: bool, cas: str, status: Status
) -> None:
    held = bench.store() if is_held else None
    given_cas = {
        "none": Cas(0),
        "right": held.cas if held is not None else Cas(0),
        "wrong": OTHER_CAS,
    }[cas]
    high, table = bench.partition.high, dict(bench.partition.table)
    outcome = bench.do(Command(verb, b"k", b"new", cas=given_cas, delta=1, initial=None))
    assert outcome.status is status
    is_change = status is Status.OK and verb is not Verb.GET
    assert bench.partition.high == high + is_change
    if is_change:
        assert outcome.document is not None and outcome.document.seq == high + 1
        assert outcome.id == ID, "with the seq it names the change"
    else:
        assert bench.partition.table == table
        assert outcome.id == 0


@pytest.mark.parametrize(
    ("key", "status"),
    [
        pytest.param(b"", Status.INVALID, id="empty"),
        pytest.param(b"k" * 250, Status.OK, id="250 bytes"),
        pytest.param(b"k" * 251, Status.INVALID, id="251 bytes"),
    ],
)
def test_keys_have_1_to_250_bytes(bench: Bench, key: bytes, status: Status) -> None:
    assert bench.do(Command(Verb.SET, key, b"v")).status is status


@pytest.mark.parametrize(
    ("verb", "size", "status"),
    [
        pytest.param(Verb.SET, VALUE_BYTES_MAX, Status.OK, id="the largest"),
        pytest.param(Verb.SET, VALUE_BYTES_MAX + 1, Status.TOO_LARGE, id="one byte more"),
        pytest.param(Verb.APPEND, VALUE_BYTES_MAX - 3, Status.OK, id="together the largest"),
        pytest.param(Verb.APPEND, VALUE_BYTES_MAX - 2, Status.TOO_LARGE, id="together too large"),
    ],
)
def test_values_have_a_largest_size(bench: Bench, verb: Verb, size: int, status: Status) -> None:
    bench.store(b"old")
    assert bench.do(Command(verb, b"k", bytes(size))).status is status
    if status is Status.TOO_LARGE:
        assert bench.value() == b"old"


# -- What they leave --------------------------------------------------------------------------


def test_a_set_replaces_value_flags_and_expiry(bench: Bench) -> None:
    bench.store(b"old", flags=5, expiry_s=60)
    outcome = bench.do(Command(Verb.SET, b"k", b"new", flags=6, datatype=1))
    assert outcome.document == bench.partition.peek(b"k")
    assert outcome.document is not None
    assert (outcome.document.value, outcome.document.flags) == (b"new", 6)
    assert (outcome.document.expiry_s, outcome.document.datatype) == (0, 1)


@pytest.mark.parametrize(
    ("verb", "value"), [(Verb.APPEND, b"old+"), (Verb.PREPEND, b"+old")], ids=["append", "prepend"]
)
def test_joining_keeps_flags_and_expiry(bench: Bench, verb: Verb, value: bytes) -> None:
    bench.store(b"old", flags=5, expiry_s=60)
    document = bench.do(Command(verb, b"k", b"+", flags=9, expiry_s=7)).document
    assert document is not None
    assert (document.value, document.flags, document.expiry_s) == (value, 5, NOW_S + 60)


def test_a_deletion_leaves_a_tombstone_that_nobody_reads(bench: Bench) -> None:
    bench.store()
    outcome = bench.do(Command(Verb.DELETE, b"k"))
    assert outcome.document is not None and outcome.document.kind is ChangeKind.DELETION
    assert bench.do(Command(Verb.GET, b"k")).status is Status.NOT_FOUND


def test_a_touch_is_a_change_of_the_expiry_alone(bench: Bench) -> None:
    before = bench.store(b"old", flags=5)
    after = bench.do(Command(Verb.TOUCH, b"k", expiry_s=60)).document
    assert after is not None
    assert after == msgspec.structs.replace(
        before, expiry_s=NOW_S + 60, seq=after.seq, cas=after.cas
    )
    assert after.seq > before.seq and after.cas > before.cas


# -- Counters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "value", "delta", "number"),
    [
        pytest.param(Verb.INCREMENT, b"10", 5, 15, id="up"),
        pytest.param(Verb.DECREMENT, b"10", 5, 5, id="down"),
        pytest.param(Verb.DECREMENT, b"3", 5, 0, id="no further down than 0"),
        pytest.param(Verb.INCREMENT, b"18446744073709551615", 1, 0, id="round at 2^64"),
        pytest.param(Verb.INCREMENT, b"18446744073709551615", 3, 2, id="round and on"),
        pytest.param(Verb.INCREMENT, b"007", 1, 8, id="leading zeros"),
        pytest.param(Verb.INCREMENT, b"7", 0, 7, id="by nothing"),
    ],
)
def test_counters_are_decimal_text(
    bench: Bench, verb: Verb, value: bytes, delta: int, number: int
) -> None:
    bench.store(value, flags=5, expiry_s=60)
    outcome = bench.do(Command(verb, b"k", delta=delta, initial=99, expiry_s=1))
    assert (outcome.status, outcome.number) == (Status.OK, number)
    assert outcome.document is not None
    assert outcome.document.value == str(number).encode()
    assert (outcome.document.flags, outcome.document.expiry_s) == (5, NOW_S + 60)


@pytest.mark.parametrize(
    "value",
    [b"", b"x", b"-1", b"+1", b" 1", b"1 ", b"1_0", b"1.0", b"18446744073709551616", b"0" * 21],
)
def test_what_is_no_number_cannot_be_counted(bench: Bench, value: bytes) -> None:
    bench.store(value)
    assert bench.do(Command(Verb.INCREMENT, b"k", delta=1)).status is Status.BAD_DELTA
    assert bench.value() == value


def test_a_counter_begins_with_its_initial_value(bench: Bench) -> None:
    outcome = bench.do(Command(Verb.INCREMENT, b"k", delta=5, initial=100, expiry_s=60))
    assert (outcome.status, outcome.number) == (Status.OK, 100)
    assert outcome.document is not None
    assert (outcome.document.value, outcome.document.expiry_s) == (b"100", NOW_S + 60)


def test_a_counter_without_an_initial_value_is_not_made(bench: Bench) -> None:
    assert bench.do(Command(Verb.DECREMENT, b"k", delta=5)).status is Status.NOT_FOUND


@given(start=st.integers(0, COUNTER_LIMIT - 1), deltas=st.lists(st.integers(0, COUNTER_LIMIT - 1)))
def test_counting_is_arithmetic_modulo_2_to_the_64(start: int, deltas: list[int]) -> None:
    bench = Bench()
    bench.store(b"%d" % start)
    for delta in deltas:
        outcome = bench.do(Command(Verb.INCREMENT, b"k", delta=delta))
    expected = (start + sum(deltas)) % COUNTER_LIMIT
    assert bench.value() == b"%d" % expected
    assert not deltas or outcome.number == expected


@given(st.binary(max_size=30))
def test_only_what_prints_the_same_is_a_counter(value: bytes) -> None:
    number = parse_counter(value)
    assert number is None or b"%d" % number == (value.lstrip(b"0") or b"0")


# -- Expiry -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_s", "absolute_s"),
    [
        pytest.param(0, 0, id="never"),
        pytest.param(1, NOW_S + 1, id="in a second"),
        pytest.param(RELATIVE_EXPIRY_S_MAX, NOW_S + RELATIVE_EXPIRY_S_MAX, id="in 30 days"),
        pytest.param(RELATIVE_EXPIRY_S_MAX + 1, RELATIVE_EXPIRY_S_MAX + 1, id="a date long ago"),
        pytest.param(NOW_S + 5, NOW_S + 5, id="a date to come"),
        pytest.param(-1, 1, id="negative is over"),
    ],
)
def test_an_expiry_is_relative_up_to_30_days(given_s: int, absolute_s: int) -> None:
    assert absolute_expiry_s(given_s, NOW_US + 999_999) == absolute_s


@pytest.mark.parametrize("expiry_s", [-1, RELATIVE_EXPIRY_S_MAX + 1], ids=["negative", "past"])
def test_what_expired_before_it_was_stored_is_stored_and_gone(bench: Bench, expiry_s: int) -> None:
    assert bench.do(Command(Verb.SET, b"k", b"v", expiry_s=expiry_s)).status is Status.OK
    assert bench.value() is None


@pytest.mark.parametrize(
    ("verb", "status"),
    [
        pytest.param(Verb.ADD, Status.OK, id="add"),
        pytest.param(Verb.REPLACE, Status.NOT_FOUND, id="replace"),
        pytest.param(Verb.APPEND, Status.NOT_STORED, id="append"),
        pytest.param(Verb.DELETE, Status.NOT_FOUND, id="delete"),
        pytest.param(Verb.TOUCH, Status.NOT_FOUND, id="touch"),
    ],
)
def test_an_expired_document_does_not_exist(bench: Bench, verb: Verb, status: Status) -> None:
    bench.store(expiry_s=10)
    bench.now_us += 10_000_000
    assert bench.do(Command(verb, b"k", b"new")).status is status


def test_a_touched_document_lives_on(bench: Bench) -> None:
    bench.store(b"old", expiry_s=10)
    bench.do(Command(Verb.TOUCH, b"k", expiry_s=20))
    bench.now_us += 15_000_000
    assert bench.value() == b"old"
    bench.now_us += 5_000_000
    assert bench.value() is None


# -- Values on disk ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "value"),
    [
        pytest.param(Command(Verb.GET, b"k"), b"41", id="get"),
        pytest.param(Command(Verb.APPEND, b"k", b"!"), b"41!", id="append"),
        pytest.param(Command(Verb.PREPEND, b"k", b"!"), b"!41", id="prepend"),
        pytest.param(Command(Verb.INCREMENT, b"k", delta=1), b"42", id="increment"),
        pytest.param(Command(Verb.TOUCH, b"k", expiry_s=9), b"41", id="touch"),
        pytest.param(Command(Verb.GET_AND_TOUCH, b"k", expiry_s=9), b"41", id="get and touch"),
    ],
)
def test_an_evicted_value_is_loaded(bench: Bench, command: Command, value: bytes) -> None:
    bench.store(b"41")
    bench.evict()
    document = bench.do(command).document
    assert document is not None and document.value == value


@pytest.mark.parametrize("verb", [Verb.SET, Verb.REPLACE, Verb.DELETE], ids=lambda verb: verb.name)
def test_what_does_not_need_the_old_value_does_not_load_it(bench: Bench, verb: Verb) -> None:
    bench.store()
    bench.evict()
    bench.disk.clear()
    assert bench.do(Command(verb, b"k", b"new")).status is Status.OK


def test_a_value_that_cannot_be_read_changes_nothing(bench: Bench) -> None:
    bench.store()
    bench.evict()
    bench.disk.clear()
    high = bench.partition.high
    with pytest.raises(ValueUnavailable):
        bench.do(Command(Verb.APPEND, b"k", b"new"))
    assert bench.partition.high == high


# -- Between nodes ----------------------------------------------------------------------------


def test_commands_and_outcomes_travel_between_nodes(bench: Bench) -> None:
    command = Command(
        Verb.SET, b"k\xff", b"\x00v", 1, 2, Cas(0), level=DurabilityLevel.MAJORITY, timeout_ms=5
    )
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=Command)
    assert decoded == command
    outcome = bench.do(command)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(outcome), type=Outcome) == outcome
