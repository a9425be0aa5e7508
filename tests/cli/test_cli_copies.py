"""`log get --copies`: three outcomes."""

import pytest

from millrace.cli.copies import Agreement, Copy, compare, verdict_on

GOOD = Copy(1, "data", 1, 3, 77, 256)
SILENT = Copy(3, "no answer: gone", is_answered=False)
AGREE, DISAGREE, UNTOLD, NO_COPY = Agreement


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        pytest.param([GOOD, Copy(2, "data", 1, 3, 77, 256)], AGREE, id="the same"),
        pytest.param([GOOD, Copy(2, "data", 1, 3, 78, 256)], DISAGREE, id="another checksum"),
        pytest.param([GOOD, Copy(2, "hole", 1, 3, 5, 64)], DISAGREE, id="junk instead"),
        pytest.param([GOOD, Copy(2, "corrupt")], DISAGREE, id="damaged"),
        pytest.param([Copy(1, "nothing"), Copy(2, "nothing")], DISAGREE, id="nowhere"),
        pytest.param(
            [GOOD, Copy(2, "nothing", is_needed=False)], AGREE, id="not all nodes have a copy"
        ),
        pytest.param([Copy(1, "nothing", is_needed=False)], NO_COPY, id="needed nowhere"),
        pytest.param([GOOD, SILENT], UNTOLD, id="one is silent"),
        pytest.param([SILENT], UNTOLD, id="all are silent"),
        pytest.param([GOOD, Copy(2, "corrupt"), SILENT], DISAGREE, id="silent beside damaged"),
    ],
)
def test_copies_agree_when_all_are_the_same_block(copies: list[Copy], expected: Agreement) -> None:
    assert compare(copies) is expected


def test_who_did_not_answer_is_named() -> None:
    found = verdict_on([GOOD, SILENT], UNTOLD)
    assert found == "the copies that were found agree, but not all nodes answered: 3"
    assert verdict_on([SILENT], UNTOLD) == "no copy was found, but not all nodes answered: 3"
