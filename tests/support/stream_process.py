"""Processes that are nodes with replicas of a commit log's streams; made to be killed.

A life takes less time than it takes to start an interpreter, so there is one process which has
everything imported and forks another one for each life.
"""

import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from millrace.core.commit.record import stream_log_of
from millrace.limits import MIB
from millrace.types import FIRST_LSN
from tests.store.rig import LmdbRig
from tests.support.played_appends import Appending, ContextFirst
from tests.support.played_learning import LEARNER, Learning
from tests.support.played_node import LOG, Begun, Life, Over, Task, tell

MAP_BYTES: Final = 64 * MIB


def live(life: Life) -> None:
    tell(Begun(os.getpid()))
    rig = LmdbRig(Path(life.path), MAP_BYTES)
    if life.task is Task.LEARN:
        state = rig.store.state(stream_log_of(LOG, LEARNER))
        Learning(rig, life).learn_for_ever(FIRST_LSN if state is None else state.end)
    if life.task is Task.APPEND_CONTEXT_FIRST:
        rig.store.__class__ = ContextFirst
    appending = Appending(rig, life)
    appending.open_streams()
    appending.append_for_ever()


def fork_lives() -> None:
    """One after another, as they are asked for."""
    for line in sys.stdin.buffer:
        life = msgspec.json.decode(line, type=Life)
        process_id = os.fork()
        if process_id == 0:
            live(life)
        os.waitpid(process_id, 0)
        tell(Over())


if __name__ == "__main__":
    fork_lives()
