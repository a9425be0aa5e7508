"""What memcached's commands mean on a partition, pure.

The binary and the text protocol, and nodes that pass requests on to one another, all speak of a
`Command`; whoever is the master of the key's partition executes it and gives an `Outcome`.  The
protocols differ only in how they word it.

I1  A command that is refused changes nothing and takes no seq (R-F.3).
I2  A CAS that is given must be that of the document: EXISTS if it is another one's, NOT_FOUND if
    there is no document.
I3  Whatever changes a document, its expiry alone included, is a change with a seq and a CAS of
    its own: replicas and consumers must learn of it.
I4  A revision (`revisions.py`) comes with its CAS, and is taken if it ranks above what is there,
    tombstones on disk included; otherwise EXISTS.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from millrace.core.documents.document import NO_CAS, Cas, Document, FailoverId, PartitionId
from millrace.core.documents.partition import Partition
from millrace.core.documents.revisions import Revision, is_possible, not_in_memory, take
from millrace.limits import DOCUMENT_KEY_BYTES_MAX

COUNTER_LIMIT: Final = 2**64  # A counter goes round here.
COUNTER_DIGITS_MAX: Final = 20
RELATIVE_EXPIRY_S_MAX: Final = 30 * 86_400  # Above it an expiry is a time since 1970.
EXPIRED_AT_ONCE_S: Final = 1  # A time that is over, and not 0, which means never.


class Verb(IntEnum):
    """The numbers go between nodes: never renumber."""

    GET = 0
    SET = 1
    ADD = 2
    REPLACE = 3
    APPEND = 4
    PREPEND = 5
    DELETE = 6
    INCREMENT = 7
    DECREMENT = 8
    TOUCH = 9
    GET_AND_TOUCH = 10
    SET_REVISION = 11
    DELETE_REVISION = 12


class DurabilityLevel(IntEnum):
    """When a change is answered; the numbers are the protocol's."""

    NONE = 0  # It is in the master's memory.
    MAJORITY = 1
    MAJORITY_AND_PERSIST_ON_MASTER = 2
    PERSIST_TO_MAJORITY = 3


class OperationStatus(IntEnum):
    """How a command ended; the numbers are the protocol's statuses."""

    OK = 0x00
    NOT_FOUND = 0x01
    EXISTS = 0x02
    TOO_LARGE = 0x03
    INVALID = 0x04
    NOT_STORED = 0x05
    BAD_DELTA = 0x06  # The document is no counter.
    NOT_MY_PARTITION = 0x07
    NO_BUCKET = 0x08
    TEMPORARY_FAILURE = 0x86  # Nothing happened; try again.
    AMBIGUOUS = 0xA3  # It happened here; whether it will last is not known.


class Command(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`expiry_s` is as the client said it (`absolute_expiry_s`), of a revision the time itself;
    `initial` is what a counter that does not exist begins with, None: it is not made; `revision` is
    the CAS that a revision has elsewhere."""

    verb: Verb
    key: bytes
    value: bytes = b""
    flags: int = 0
    expiry_s: int = 0
    cas: Cas = NO_CAS
    delta: int = 0
    initial: int | None = None
    datatype: int = 0
    level: DurabilityLevel = DurabilityLevel.NONE
    timeout_ms: int = 0  # How long durability is waited for; 0: as long as is usual.
    revision: Cas = NO_CAS


class Outcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`document` is what was read, or the change that was made.  `id` is the failover id that it
    was made under: with the document's partition and seq it names the change."""

    status: OperationStatus
    document: Document | None = None
    number: int = 0  # What a counter has become.
    id: FailoverId = FailoverId(0)


class ValueUnavailable(Exception):
    """The value is on disk alone, and cannot be read now."""


_OK: Final = OperationStatus.OK  # A name, for every outcome has it.
MISSING: Final = Outcome(OperationStatus.NOT_FOUND)
OTHER_EXISTS: Final = Outcome(OperationStatus.EXISTS)
NOT_STORED: Final = Outcome(OperationStatus.NOT_STORED)
TOO_LARGE: Final = Outcome(OperationStatus.TOO_LARGE)
INVALID: Final = Outcome(OperationStatus.INVALID)
BAD_DELTA: Final = Outcome(OperationStatus.BAD_DELTA)
TEMPORARY_FAILURE: Final = Outcome(OperationStatus.TEMPORARY_FAILURE)
NOT_MY_PARTITION: Final = Outcome(OperationStatus.NOT_MY_PARTITION)
NO_BUCKET: Final = Outcome(OperationStatus.NO_BUCKET)
AMBIGUOUS: Final = Outcome(OperationStatus.AMBIGUOUS)


def absolute_expiry_s(given_s: int, now_us: int) -> int:
    """0 is never; up to 30 days are counted from now; beyond, it is the time itself; what is
    negative is over."""
    if given_s == 0:
        return 0
    if given_s < 0:
        return EXPIRED_AT_ONCE_S
    if given_s <= RELATIVE_EXPIRY_S_MAX:
        return now_us // 1_000_000 + given_s
    return given_s


def parse_counter(value: bytes) -> int | None:
    """Decimal text of a number below 2^64, and nothing around it."""
    if not value.isdigit() or len(value) > COUNTER_DIGITS_MAX:
        return None
    number = int(value)
    return number if number < COUNTER_LIMIT else None


class Operations:
    """Executes commands on the partitions of one bucket.

    `load` gives a document whose value is on disk alone back with its value; `fetch` gives what the
    disk has of these keys, tombstones included.  Both raise ValueUnavailable."""

    def __init__(
        self,
        value_bytes_max: int,
        load: Callable[[Document], Document],
        fetch: Callable[[PartitionId, Sequence[bytes]], list[Document]],
    ) -> None:
        self.value_bytes_max = value_bytes_max
        self.is_disk_full = False  # Its owner says so: whoever refuses changes lets deletions be.
        self._load = load
        self._fetch = fetch
        self._by_verb: dict[Verb, Callable[[Partition, Command, int], Outcome]] = {
            Verb.GET: self._get,
            Verb.SET: self._set,
            Verb.ADD: self._add,
            Verb.REPLACE: self._replace,
            Verb.APPEND: self._extend,
            Verb.PREPEND: self._extend,
            Verb.DELETE: self._delete,
            Verb.INCREMENT: self._count,
            Verb.DECREMENT: self._count,
            Verb.TOUCH: self._touch,
            Verb.GET_AND_TOUCH: self._touch,
            Verb.SET_REVISION: self._revise,
            Verb.DELETE_REVISION: self._revise,
        }

    def execute(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        """Here and now: the partition is ACTIVE on this node."""
        if not 0 < len(command.key) <= DOCUMENT_KEY_BYTES_MAX:
            return INVALID
        if len(command.value) > self.value_bytes_max:
            return TOO_LARGE
        return self._by_verb[command.verb](partition, command, now_us)

    # -- Reading ------------------------------------------------------------------------------

    def _get(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        document = partition.find(command.key, now_us)
        if document is None:
            return MISSING
        if document.value is None:
            document = self._load(document)
        return Outcome(_OK, document)

    # -- Storing ------------------------------------------------------------------------------

    def _set(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        if command.cas:  # Without one the document before does not matter.
            return self._replace(partition, command, now_us)
        return self._store(partition, command, now_us)

    def _add(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        if partition.find(command.key, now_us) is not None:
            return OTHER_EXISTS
        if command.cas:
            return MISSING
        return self._store(partition, command, now_us)

    def _replace(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        document = partition.find(command.key, now_us)
        if document is None:
            return MISSING
        if command.cas and command.cas != document.cas:
            return OTHER_EXISTS
        return self._store(partition, command, now_us)

    def _store(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        expiry_s = command.expiry_s and absolute_expiry_s(command.expiry_s, now_us)
        document = partition.store(
            command.key, command.value, command.flags, expiry_s, now_us, command.datatype
        )
        return _changed(partition, document)

    def _extend(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        document = partition.find(command.key, now_us)
        if document is None:
            return NOT_STORED
        if command.cas and command.cas != document.cas:
            return OTHER_EXISTS
        value = self._value_of(document)
        if len(value) + len(command.value) > self.value_bytes_max:
            return TOO_LARGE
        is_append = command.verb is Verb.APPEND
        joined = value + command.value if is_append else command.value + value
        changed = partition.store(
            document.key, joined, document.flags, document.expiry_s, now_us
        )  # Without a datatype: what is JSON is none with something at its end.
        return _changed(partition, changed)

    def _delete(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        document = partition.find(command.key, now_us)
        if document is None:
            return MISSING
        if command.cas and command.cas != document.cas:
            return OTHER_EXISTS
        tombstone = partition.delete(command.key, now_us)
        assert tombstone is not None, "it was found"
        return _changed(partition, tombstone)

    # -- Counting -----------------------------------------------------------------------------

    def _count(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        document = partition.find(command.key, now_us)
        if document is None:
            return self._start_counter(partition, command, now_us)
        if command.cas and command.cas != document.cas:
            return OTHER_EXISTS
        number = parse_counter(self._value_of(document))
        if number is None:
            return BAD_DELTA
        if command.verb is Verb.INCREMENT:
            number = (number + command.delta) % COUNTER_LIMIT
        else:
            number = max(number - command.delta, 0)
        changed = partition.store(
            document.key, b"%d" % number, document.flags, document.expiry_s, now_us
        )
        return _changed(partition, changed, number)

    def _start_counter(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        if command.initial is None or command.cas:
            return MISSING
        expiry_s = absolute_expiry_s(command.expiry_s, now_us)
        changed = partition.store(command.key, b"%d" % command.initial, 0, expiry_s, now_us)
        return _changed(partition, changed, command.initial)

    # -- Expiry -------------------------------------------------------------------------------

    def _touch(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        document = partition.find(command.key, now_us)
        if document is None:
            return MISSING
        if command.cas and command.cas != document.cas:
            return OTHER_EXISTS
        changed = partition.store(
            document.key,
            self._value_of(document),
            document.flags,
            absolute_expiry_s(command.expiry_s, now_us),
            now_us,
            document.datatype,
        )
        return _changed(partition, changed)

    # -- Revisions ----------------------------------------------------------------------------

    def _revise(self, partition: Partition, command: Command, now_us: int) -> Outcome:
        if not is_possible(command.revision, now_us):
            return INVALID
        if command.cas:
            held = partition.find(command.key, now_us)
            if held is None:
                return MISSING
            if held.cas != command.cas:
                return OTHER_EXISTS
        is_deletion = command.verb is Verb.DELETE_REVISION
        revision = Revision(
            command.key,
            None if is_deletion else command.value,
            command.revision,
            command.flags,
            command.expiry_s,
            command.datatype,
        )
        (document,) = self.take_revisions(partition, (revision,), now_us)
        return OTHER_EXISTS if document is None else _changed(partition, document)

    def take_revisions(
        self, partition: Partition, revisions: Sequence[Revision], now_us: int
    ) -> list[Document | None]:
        """Of each the change that it made, None: what is there ranks as high, or higher.

        Their sizes and CAS were checked."""
        buried = self._buried(partition, [revision.key for revision in revisions])
        return take(partition, revisions, buried, self._load, now_us)

    def read_revisions(
        self, partition: Partition, keys: Sequence[bytes]
    ) -> Iterator[Document | None]:
        """The newest version of each with its value, or its tombstone; None: nothing is known of
        it.  A value is loaded when its turn comes: who has enough stops asking."""
        buried = self._buried(partition, keys)
        for key in keys:
            newest = partition.table.get(key) or buried.get(key)
            if newest is not None and newest.value is None:
                newest = self._load(newest)
            yield newest

    def _buried(self, partition: Partition, keys: Sequence[bytes]) -> dict[bytes, Document]:
        missing = not_in_memory(partition, keys)
        if not missing:
            return {}
        return {document.key: document for document in self._fetch(partition.number, missing)}

    def _value_of(self, document: Document) -> bytes:
        value = document.value
        if value is None:
            value = self._load(document).value
            assert value is not None, "it was loaded"
        return value


def _changed(partition: Partition, document: Document, number: int = 0) -> Outcome:
    return Outcome(_OK, document, number, partition.log.newest)
