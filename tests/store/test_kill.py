"""kill -9 at random moments: nothing acknowledged is lost, nothing half done is kept."""

import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

from millrace.core.messages import Standing
from tests.conformance.store_suite import LOG, OTHER, known, make_block
from tests.store import writer_child
from tests.store.rig import REPOSITORY, WAIT_S, LmdbRig

ROUNDS = 15
ACKNOWLEDGED_MAX = 60


def run_child(path: Path, acknowledged_wanted: int) -> dict[int, int]:
    """Let a child write until it acknowledged enough; returns the last position of each log."""
    command = [sys.executable, "-m", writer_child.__name__, os.fspath(path)]
    acknowledged: dict[int, int] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as child:
        assert child.stdout is not None
        for _ in range(acknowledged_wanted):
            assert select.select([child.stdout], [], [], WAIT_S)[0], "the child is stuck"
            log, last = child.stdout.readline().split()
            acknowledged[int(log)] = int(last)
        child.send_signal(signal.SIGKILL)
        for line in child.stdout.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                log, last = line.split()
                acknowledged[int(log)] = int(last)
    return acknowledged


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    choices = random.Random(1)
    seen_dirty = 0
    for _ in range(ROUNDS):
        acknowledged = run_child(tmp_path, choices.randrange(1, ACKNOWLEDGED_MAX))
        rig = LmdbRig(tmp_path, writer_child.MAP_BYTES)
        for log in (LOG, OTHER):
            state = known(rig.store, log)
            assert state.sparse == []
            assert state.end == state.contiguous_end
            positions = rig.store.index(log, state.trim_end, state.end, 1_000_000)
            assert [one.first for one in positions] == list(range(state.trim_end, state.end))
            scan = rig.store.scan(log, state.trim_end, state.end, 1 << 30)
            for block in scan.blocks:
                size = writer_child.size_at(block.first)
                expected = make_block(block.first, log=log, size=size)
                assert bytes(block.data) == bytes(expected.data)
            scan.release()
        assert known(rig.store).contiguous_end > acknowledged.get(LOG, 0)
        assert known(rig.store).fence.standing is Standing.MEMBER
        if OTHER in acknowledged:
            seen_dirty += 1
            assert known(rig.store, OTHER).fence.standing is Standing.DIRTY
        rig.store.close()
    assert seen_dirty > 0
