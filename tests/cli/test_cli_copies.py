import pytest

from millrace.cli.copies import Copy, agree

GOOD = Copy(1, "data", 1, 3, 77, 256)


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        pytest.param([GOOD, Copy(2, "data", 1, 3, 77, 256)], True, id="the same"),
        pytest.param([GOOD, Copy(2, "data", 1, 3, 78, 256)], False, id="another checksum"),
        pytest.param([GOOD, Copy(2, "hole", 1, 3, 5, 64)], False, id="junk instead"),
        pytest.param([GOOD, Copy(2, "corrupt")], False, id="damaged"),
        pytest.param([Copy(1, "nothing"), Copy(2, "nothing")], False, id="nowhere"),
    ],
)
def test_copies_agree_when_all_are_the_same_block(copies: list[Copy], expected: bool) -> None:
    assert agree(copies) == expected
