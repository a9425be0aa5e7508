"""The text protocol: what each line means, and memcached's words for what is wrong with it."""

import pytest

from millrace.codec.memcached import text
from millrace.codec.memcached.text import TextDecoder
from millrace.codec.memcached.text_commands import (
    BAD_DELETE,
    BAD_DELTA,
    BAD_EXPIRY,
    BAD_LINE,
    ERROR,
    Command,
    Count,
    Delete,
    FlushAll,
    Get,
    Quit,
    Rejected,
    Stats,
    Store,
    StoreVerb,
    Touch,
    Verbosity,
    Version,
    parse_line,
)

KEY_MAX = b"k" * 250
KEY_TOO_LONG = b"k" * 251


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"get a", Get((b"a",))),
        (b"get a bb  ccc ", Get((b"a", b"bb", b"ccc"))),
        (b"gets a", Get((b"a",), has_cas=True)),
        (b"get " + KEY_MAX, Get((KEY_MAX,))),
        (b"gat 30 a b", Get((b"a", b"b"), expiry=30)),
        (b"gats 0 a", Get((b"a",), has_cas=True, expiry=0)),
        (b"set k 7 0 5", Store(StoreVerb.SET, b"k", 7, 0, 5)),
        (b"add k 0 -1 0 noreply", Store(StoreVerb.ADD, b"k", 0, -1, 0, is_quiet=True)),
        (b"replace k 4294967295 9 1", Store(StoreVerb.REPLACE, b"k", 2**32 - 1, 9, 1)),
        (b"append k 0 0 2", Store(StoreVerb.APPEND, b"k", 0, 0, 2)),
        (b"prepend k 0 0 2", Store(StoreVerb.PREPEND, b"k", 0, 0, 2)),
        (b"cas k 0 0 2 18446744073709551615", Store(StoreVerb.CAS, b"k", 0, 0, 2, 2**64 - 1)),
        (b"cas k 0 0 2 5 noreply", Store(StoreVerb.CAS, b"k", 0, 0, 2, 5, is_quiet=True)),
        (b"delete k", Delete(b"k")),
        (b"delete k 0", Delete(b"k")),
        (b"delete k noreply", Delete(b"k", is_quiet=True)),
        (b"delete k 0 noreply", Delete(b"k", is_quiet=True)),
        (b"incr k 3", Count(b"k", 3, is_decrement=False)),
        (b"decr k 18446744073709551615 noreply", Count(b"k", 2**64 - 1, True, is_quiet=True)),
        (b"touch k 60", Touch(b"k", 60)),
        (b"touch k -1 noreply", Touch(b"k", -1, is_quiet=True)),
        (b"flush_all", FlushAll()),
        (b"flush_all 10", FlushAll(10)),
        (b"flush_all noreply", FlushAll(is_quiet=True)),
        (b"flush_all 0 noreply", FlushAll(is_quiet=True)),
        (b"verbosity 1", Verbosity()),
        (b"verbosity 1 noreply", Verbosity(is_quiet=True)),
        (b"stats", Stats()),
        (b"stats upr 3", Stats(b"upr 3")),
        (b"version", Version()),
        (b"quit", Quit()),
    ],
    ids=lambda each: each[:24].decode() if isinstance(each, bytes) else "",
)
def test_a_line_is_a_command(line: bytes, command: Command) -> None:
    assert parse_line(line) == command


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"", ERROR),
        (b"   ", ERROR),
        (b"GET a", ERROR),
        (b"nonsense a b", ERROR),
        (b"get", ERROR),
        (b"gat 0", ERROR),
        (b"set k 0 0", ERROR),
        (b"set k 0 0 1 noreply more", ERROR),
        (b"cas k 0 0 1", ERROR),
        (b"incr k", ERROR),
        (b"touch k", ERROR),
        (b"delete", ERROR),
        (b"flush_all 1 2 3", ERROR),
        (b"verbosity", ERROR),
        (b"version now", ERROR),
        (b"quit noreply", ERROR),
        (b"get a " + KEY_TOO_LONG, BAD_LINE),
        (b"set " + KEY_TOO_LONG + b" 0 0 1", BAD_LINE),
        (b"delete " + KEY_TOO_LONG, BAD_LINE),
        (b"incr " + KEY_TOO_LONG + b" 1", BAD_LINE),
        (b"touch " + KEY_TOO_LONG + b" 1", BAD_LINE),
        (b"set k 4294967296 0 1", BAD_LINE),
        (b"set k -1 0 1", BAD_LINE),
        (b"set k 0 soon 1", BAD_LINE),
        (b"set k 0 0 -1", BAD_LINE),
        (b"set k 0 0 1_0", BAD_LINE),
        (b"set k 0 0 2147483648", BAD_LINE),
        (b"cas k 0 0 1 18446744073709551616", BAD_LINE),
        (b"flush_all later", BAD_LINE),
        (b"verbosity loud", BAD_LINE),
        (b"delete k 5", BAD_DELETE),
        (b"delete k noreply 0", BAD_DELETE),
        (b"incr k one", BAD_DELTA),
        (b"decr k -1", BAD_DELTA),
        (b"touch k soon", BAD_EXPIRY),
        (b"gat soon k", BAD_EXPIRY),
        (b"gat " + b"9" * 5000 + b" k", BAD_EXPIRY),  # More digits than int() takes.
    ],
    ids=lambda each: each[:24].decode() if isinstance(each, bytes) else "",
)
def test_a_bad_line_is_answered_in_memcacheds_words(line: bytes, answer: bytes) -> None:
    assert parse_line(line) == Rejected(answer)


@pytest.mark.parametrize(
    "line",
    [
        b"set k 0 soon 1 noreply",
        b"delete k 5 noreply",
        b"incr k one noreply",
        b"touch k soon noreply",
        b"flush_all later noreply",
        b"verbosity noreply",
    ],
)
def test_noreply_keeps_errors_back(line: bytes) -> None:
    command = parse_line(line)
    assert isinstance(command, Rejected)
    assert command.is_quiet


SESSION = (
    b"set a 5 0 3\r\nabc\r\n"
    b"get a b\r\n"
    b"set b 0 0 0\n\r\n"
    b"set c 0 0 4 noreply\r\n\r\n\r\n\r\n"
    b"incr n 1\r\n"
)
SESSION_COMMANDS: list[Command] = [
    Store(StoreVerb.SET, b"a", 5, 0, 3, value=b"abc"),
    Get((b"a", b"b")),
    Store(StoreVerb.SET, b"b", 0, 0, 0, value=b""),
    Store(StoreVerb.SET, b"c", 0, 0, 4, is_quiet=True, value=b"\r\n\r\n"),
    Count(b"n", 1, is_decrement=False),
]


@pytest.mark.parametrize("step", [1, 2, 5, 16, 1000])
def test_lines_and_values_may_arrive_in_pieces(step: int) -> None:
    decoder = TextDecoder()
    found: list[Command] = []
    for at in range(0, len(SESSION), step):
        found += decoder.feed(SESSION[at : at + step])
    assert found == SESSION_COMMANDS
    assert decoder.held_bytes == 0


def test_a_value_of_another_size_costs_itself_and_what_is_left_of_it() -> None:
    commands = TextDecoder().feed(b"set a 0 0 3\r\nabcdef\r\nget a\r\n")
    assert commands == [Rejected(text.BAD_DATA), Rejected(ERROR), Get((b"a",))]


@pytest.mark.parametrize("step", [1, 100, 5000])
def test_a_value_that_is_too_large_is_read_past(step: int) -> None:
    decoder = TextDecoder(value_bytes_max=100)
    data = b"set a 0 0 1000\r\n" + b"\n" * 1000 + b"\r\nget a\r\n"
    found: list[Command] = []
    for at in range(0, len(data), step):
        found += decoder.feed(data[at : at + step])
        assert decoder.held_bytes <= 102
    assert found == [Rejected(text.TOO_LARGE), Get((b"a",))]


def test_a_value_too_large_to_be_read_past_ends_the_connection() -> None:
    decoder = TextDecoder()
    assert decoder.feed(b"set a 0 0 2000000000\r\nx") == [Rejected(text.TOO_LARGE, is_fatal=True)]
    assert decoder.is_over


@pytest.mark.parametrize("end", [b"", b"\r\n"], ids=["endless", "ended"])
def test_a_line_that_is_too_long_ends_the_connection(end: bytes) -> None:
    decoder = TextDecoder()
    line = b"set " + b"k" * text.LINE_BYTES_MAX
    assert decoder.feed(line + end) == [Rejected(text.LINE_TOO_LONG, is_fatal=True)]
    assert decoder.feed(b"version\r\n") == []


def test_an_endless_line_is_cut_off_while_it_arrives() -> None:
    decoder = TextDecoder()
    fed = 0
    while not decoder.feed(b"x" * 100):
        fed += 100
        assert decoder.held_bytes <= text.LINE_BYTES_MAX
    assert fed <= text.LINE_BYTES_MAX


def test_a_get_may_name_more_keys_than_fit_in_an_ordinary_line() -> None:
    keys = tuple(b"key-%d" % number for number in range(10_000))
    decoder = TextDecoder()
    line = b"get " + b" ".join(keys) + b"\r\n"
    assert decoder.feed(line[:50_000]) == []
    assert decoder.feed(line[50_000:]) == [Get(keys)]


def test_nothing_is_read_behind_quit() -> None:
    decoder = TextDecoder()
    assert decoder.feed(b"quit\r\nversion\r\n") == [Quit()]
    assert decoder.feed(b"version\r\n") == []


@pytest.mark.parametrize(
    ("made", "golden"),
    [
        (text.encode_value(b"a", 5, b"abc"), b"VALUE a 5 3\r\nabc\r\n"),
        (text.encode_value(b"a", 5, b"", 77), b"VALUE a 5 0 77\r\n\r\n"),
        (text.encode_number(2**64 - 1), b"18446744073709551615\r\n"),
        (text.encode_stat("pid", "1"), b"STAT pid 1\r\n"),
        (text.encode_version("1.0"), b"VERSION 1.0\r\n"),
    ],
    ids=["value", "value-with-cas", "number", "stat", "version"],
)
def test_answers_are_memcacheds(made: bytes, golden: bytes) -> None:
    assert made == golden
