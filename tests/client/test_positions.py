"""How people write positions."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.positions import Anchor, ParsedPosition, Position, exact, parse, resolve
from millrace.errors import UsageError
from millrace.lsn import EPOCH_MAX, OFFSET_MAX, lsn_of, show
from millrace.types import Epoch, Lsn

START, END = Lsn(10), Lsn(20)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("start", ParsedPosition(Anchor.START)),
        ("end", ParsedPosition(Anchor.END)),
        ("47", ParsedPosition(Anchor.LSN, 47)),
        (47, ParsedPosition(Anchor.LSN, 47)),
        ("e7n42", ParsedPosition(Anchor.LSN, 7 << 32 | 42)),
        (" e1n0 ", ParsedPosition(Anchor.LSN, 1 << 32)),
        ("-3", ParsedPosition(Anchor.END, -3)),
        ("+2", ParsedPosition(Anchor.START, 2)),
        ("@1", ParsedPosition(Anchor.TIME, 1_000_000)),
        (datetime.datetime(1970, 1, 1, 0, 0, 2), ParsedPosition(Anchor.TIME, 2_000_000)),
    ],
)
def test_positions(written: Position, expected: ParsedPosition) -> None:
    assert parse(written) == expected


@pytest.mark.parametrize(
    "written", ["sideways", "e7", "n42", "e7n", "en4", "-e7n42", "e7n99999999999", "", "4.5", -1]
)
def test_what_is_no_position(written: Position) -> None:
    with pytest.raises(UsageError, match="not a position"):
        parse(written)


@pytest.mark.parametrize("written", ["@1724230000000000000", "@yesterday"])
def test_what_is_no_time(written: str) -> None:
    with pytest.raises(UsageError, match="not a time"):
        parse(written)


@given(st.integers(1, EPOCH_MAX), st.integers(0, OFFSET_MAX))
def test_what_is_shown_can_be_given_back(epoch: int, offset: int) -> None:
    lsn = lsn_of(Epoch(epoch), offset)
    assert parse(show(lsn)) == parse(lsn) == ParsedPosition(Anchor.LSN, lsn)


@pytest.mark.parametrize(
    ("written", "expected"), [("start", 10), ("end", 20), ("+3", 13), ("+30", 20), ("5", 5)]
)
def test_positions_in_a_log(written: str, expected: int) -> None:
    assert resolve(parse(written), START, END) == expected


@pytest.mark.parametrize(
    ("written", "expected"), [(0, 0), (47, 47), ("0", 0), ("47", 47), ("e7n42", 7 << 32 | 42)]
)
def test_what_names_one_position(written: int | str, expected: int) -> None:
    assert exact(written, "if_tail") == expected


@pytest.mark.parametrize("written", ["start", "end", "-3", "+2", "@1", b"e7n42", 4.5, "sideways"])
def test_what_names_no_position_by_itself(written: str) -> None:
    with pytest.raises(UsageError, match="position"):
        exact(written, "if_tail")
