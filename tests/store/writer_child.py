"""A process that writes for ever and prints what was acknowledged; made to be killed.

One log is acknowledged from disk, the other from memory; both are trimmed as they go.
"""

import itertools
import random
import sys
from pathlib import Path

from millrace.core.log_state import Fence
from millrace.core.messages import Standing
from millrace.limits import MIB
from millrace.store.contract import StoreFailed
from millrace.types import Ack, Epoch, LogId, Lsn, Token
from tests.conformance.store_suite import LOG, OTHER, PLACEMENT, make_block
from tests.store.rig import LmdbRig

MAP_BYTES = 256 * MIB
KEPT_POSITIONS = 200


def size_at(first: int) -> int:
    return random.Random(first).choice([10, 900, 5_000, 60_000])


def report(log: LogId, last: int, failure: StoreFailed | None) -> None:
    assert failure is None
    sys.stdout.write(f"{log} {last}\n")
    sys.stdout.flush()


def write_for_ever(rig: LmdbRig) -> None:
    store = rig.store
    for log in (LOG, OTHER):
        store.set_fence(log, Fence(Epoch(1), Token(1, 1), Standing.MEMBER))
    rig.settle()
    for number in itertools.count():
        log, ack = (LOG, Ack.DISK) if number % 3 else (OTHER, Ack.MEMORY)
        state = store.state(log)
        assert state is not None
        first = state.end
        store.put(make_block(first, log=log, size=size_at(first)), PLACEMENT, ack)
        store.barrier(ack, lambda failure, log=log, first=first: report(log, first, failure))  # type: ignore[misc]
        if number % 10 == 0:
            store.trim(log, Lsn(max(1, first - KEPT_POSITIONS)))
        if number % 7 == 0:
            rig.settle()


if __name__ == "__main__":
    write_for_ever(LmdbRig(Path(sys.argv[1]), MAP_BYTES))
