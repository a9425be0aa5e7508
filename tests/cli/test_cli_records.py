import msgspec
import pytest

from millrace.cli.records import Renderer, json_of, renderer_of, show_gap
from millrace.errors import UsageError
from millrace.lsn import lsn_of, show
from millrace.types import Epoch, Gap, GapKind, Lsn, Record

RECORD = Record(Lsn(47), b"hello", b"k", 1_767_225_600_123_456, (("a", b"1"), ("b", b"2")))
GAP = Gap(GapKind.HOLE, Lsn(120), Lsn(131))


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("raw", b"hello\n"),
        ("%l", b"47\n"),
        ("%l %k=%v", b"47 k=hello\n"),
        ("%t", b"2026-01-01T00:00:00.123Z\n"),
        ("%h 100%%", b"a=1,b=2 100%\n"),
        (r"%v\t%l\n", b"hello\t47\n"),
        (r"%v\0", b"hello\0"),
        ("table", b"      47  2026-01-01T00:00:00.123Z  k         hello\n"),
    ],
)
def test_formats(format: str, expected: bytes) -> None:
    assert renderer_of(format)(RECORD) == expected


@pytest.mark.parametrize("format", ["yaml", "", "%z", "%l %"])
def test_what_is_not_a_format(format: str) -> None:
    if format == "%l %":
        assert renderer_of(format)(RECORD) == b"47 %\n"
        return
    with pytest.raises(UsageError):
        renderer_of(format)


def test_json_of_text() -> None:
    assert json_of(RECORD) == {
        "lsn": 47,
        "timestamp_us": 1_767_225_600_123_456,
        "key": "k",
        "value": "hello",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}],
    }


def test_json_of_bytes() -> None:
    shown = json_of(Record(Lsn(1), b"\xff\x00"))
    assert shown["value_base64"] == "/wA="
    assert shown["key"] is None


def test_a_terminal_gets_no_control_characters() -> None:
    line = renderer_of("table")(Record(Lsn(1), b"\x1b[31mred\nnext \xff", b"k"))
    assert line.endswith(b"\\x1b[31mred\\nnext \\xff\n")


def test_gaps_are_lines_of_their_own() -> None:
    assert show_gap(GAP) == "gap 120..131 hole"
    assert Renderer("table").gap(GAP) == b"gap 120..131 hole\n"
    shown = msgspec.json.decode(Renderer("ndjson").gap(GAP))
    assert shown == {"gap": {"kind": "hole", "first": 120, "last": 131}}
    assert not Renderer("raw").shows_gaps
    assert not Renderer("%v").shows_gaps


SEQUENCED = Record(lsn_of(Epoch(7), 42), b"hello", b"k", 1_767_225_600_123_456)
BRIDGE = Gap(GapKind.BRIDGE, lsn_of(Epoch(1), 5), lsn_of(Epoch(2), 0))


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("%l %v", b"e7n42 hello\n"),
        ("table", b"   e7n42  2026-01-01T00:00:00.123Z  k         hello\n"),
        ("raw", b"hello\n"),
    ],
)
def test_positions_of_sequenced_logs(format: str, expected: bytes) -> None:
    assert renderer_of(format, show)(SEQUENCED) == expected


def test_in_json_they_are_numbers_with_the_text_beside_them() -> None:
    shown = json_of(SEQUENCED, show)
    assert (shown["lsn"], shown["position"]) == (7 << 32 | 42, "e7n42")
    gap = msgspec.json.decode(Renderer("ndjson", show=show).gap(BRIDGE))["gap"]
    assert gap == {
        "kind": "bridge",
        "first": 1 << 32 | 5,
        "last": 2 << 32,
        "positions": "e1n5..e2n0",
    }
    assert Renderer("table", show=show).gap(BRIDGE) == b"gap e1n5..e2n0 bridge\n"


def test_json_is_one_array_also_when_it_is_empty() -> None:
    renderer = Renderer("json")
    text = renderer.begin() + renderer.gap(GAP) + renderer.record(RECORD) + renderer.end()
    assert len(msgspec.json.decode(text)) == 2
    empty = Renderer("json")
    assert msgspec.json.decode(empty.begin() + empty.end()) == []


def test_following_never_ends_an_array() -> None:
    assert Renderer("json", is_endless=True).begin() == b""
