import pytest

from millrace.cli.quantities import (
    parse_duration_ms,
    parse_moment_us,
    parse_size_bytes,
    show_duration,
    show_size,
)
from millrace.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 500),
        ("10s", 10_000),
        ("1.5s", 1_500),
        ("30m", 1_800_000),
        ("12h", 43_200_000),
        ("7d", 604_800_000),
        ("2W", 1_209_600_000),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "7", "d", "7x", "-1s", "0s", "1h30m", "0.1ms"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), ("64KiB", 65_536), ("500 MB", 500_000_000), ("1.5gib", 1_610_612_736)],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "10 apples", "-1", "0", "1e3"])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01", 1_000_000),
        ("1970-01-01 00:00:01Z", 1_000_000),
        ("1970-01-01T02:00+02:00", 0),
        ("1969-12-31T23:59:59.999999", -1),
        ("0", 0),
        ("1787306400.123457", 1_787_306_400_123_457),
        (" 1787306400 ", 1_787_306_400_000_000),
        ("20260821.0", 20_260_821_000_000),
    ],
)
def test_moments(text: str, expected: int) -> None:
    assert parse_moment_us(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a time"),
        ("noon", "not a time"),
        ("10:00", "not a time"),
        ("-5", "not a time"),
        ("2026-13-01", "not a time"),
        ("1.1234567", "not a time"),
        ("20260821", "write 2026-08-21 or 20260821.0"),
        ("1787306400000", "give seconds, not milliseconds"),
    ],
)
def test_what_is_not_a_moment(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_moment_us(text)


def test_amounts_are_shown_as_people_write_them() -> None:
    durations = (5, 1_500, 65_000, 3_600_000, 90_061_000)
    assert [show_duration(d) for d in durations] == ["5ms", "1.5s", "1m 5s", "1h", "1d 1h"]
    sizes = (0, 1023, 1536, 10 << 30, 3 << 40)
    assert [show_size(s) for s in sizes] == ["0 B", "1023 B", "1.5 KiB", "10.0 GiB", "3.0 TiB"]
