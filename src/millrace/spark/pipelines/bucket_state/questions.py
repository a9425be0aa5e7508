"""Asking a state that is split into shards.

I1  An answer is of one batch: the shards are read again until all stand at the same.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from millrace.errors import TimedOut

T = TypeVar("T")

QUESTION_TIMEOUT_MS: Final = 60_000
POLL_S: Final = 0.02


def state_of(home: Path | str) -> Path:
    return Path(home) / "state"


def of_one_batch(
    read: Callable[[], list[tuple[int, list[T]]]], timeout_ms: int
) -> tuple[int, list[list[T]]]:
    """Keeps I1: what `read` gives of all shards, when they stand at the same batch."""
    deadline_s = time.monotonic() + timeout_ms / 1000
    while True:
        found = read()
        batches = {batch for batch, _ in found}
        if len(batches) == 1:
            return batches.pop(), [rows for _, rows in found]
        if time.monotonic() > deadline_s:
            raise TimedOut(
                f"batch {max(batches)} is not through within {timeout_ms} ms: if the pipeline was "
                "killed in it, run it again, which ends the batch"
            )
        time.sleep(POLL_S)
