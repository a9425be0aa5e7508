"""The demo's proof fails when Spark's counts are not what was appended."""

from collections import Counter

import pytest

from millrace.core.append import Appended
from millrace.demo.ledger import Counts, Ledger
from millrace.demo.proof import different_counts
from millrace.types import Lsn

SECOND = 1_700_000_000
RIGHT: Counts = Counter(
    {
        **{(SECOND, f"sensor-{key:02}"): 2 for key in range(16)},
        **{(SECOND + 1, f"sensor-{key:02}"): 1 for key in range(8)},
    }
)


@pytest.fixture
def ledger() -> Ledger:
    """32 records in one second, 8 in the next."""
    ledger = Ledger(40)
    ledger.acknowledge(0, SECOND * 1_000_000, [Appended(Lsn(1), Lsn(32))])
    ledger.acknowledge(32, (SECOND + 1) * 1_000_000, [Appended(Lsn(33), Lsn(40))])
    return ledger


@pytest.mark.parametrize(
    ("change", "different"),
    [
        ({}, 0),
        ({(SECOND, "sensor-03"): 1}, 1),
        ({(SECOND, "sensor-03"): 3}, 1),
        ({(SECOND + 1, "sensor-03"): 0}, 1),
        ({(SECOND + 1, "sensor-08"): 1}, 1),
        ({(SECOND, "sensor-00"): 1, (SECOND + 1, "sensor-00"): 2}, 2),
    ],
    ids=["equal", "lost", "doubled", "window lost", "foreign", "in the wrong second"],
)
def test_every_count_is_compared(
    ledger: Ledger, change: dict[tuple[int, str], int], different: int
) -> None:
    assert different_counts(Counter({**RIGHT, **change}), ledger) == different
