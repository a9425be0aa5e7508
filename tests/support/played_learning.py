"""Another replica of a stream, which is played, brings the node's to where it is (M7)."""

import itertools
from typing import Final

from millrace.codec.blocks import draft, place
from millrace.core.commit.record import CommitContext, StreamCommit, stream_log_of
from millrace.core.messages import (
    SealStream,
    StreamSealed,
    SyncInit,
    SyncRange,
    SyncReplicate,
    SyncTaken,
)
from millrace.types import FIRST_LSN, Block, Epoch, Lsn, NodeId, StreamId, Token, Version
from tests.store.rig import LmdbRig
from tests.support.played_node import LOG, Learned, Life, PlayedNode, tell

LEARNER: Final = StreamId(3)
SOURCE: Final = NodeId(2)
SYNC_ENTRIES: Final = 10
BATCH_ENTRIES: Final = 4


class Learning(PlayedNode):
    """Another replica brings this one to where it is, again and again, as it grows."""

    def __init__(self, rig: LmdbRig, life: Life) -> None:
        super().__init__(rig)
        self._generation = Epoch(life.number)
        self._shell.begin_streams(lambda effect: None)

    def learn_for_ever(self, local_end: Lsn) -> None:
        sealed = self._answer_to(SealStream(LOG, LEARNER, self._generation))
        assert isinstance(sealed, StreamSealed), sealed
        for end in itertools.count(local_end + SYNC_ENTRIES, SYNC_ENTRIES):
            self._learn(Lsn(end))
            tell(Learned(Lsn(end)))

    def _learn(self, end: Lsn) -> None:
        place, context = (LOG, LEARNER, self._generation, SOURCE), source_context(end)
        offered = self._answer_to(SyncInit(*place, FIRST_LSN, end, context))
        assert isinstance(offered, SyncRange) and not offered.is_complete, offered
        for first in range(offered.first, end, BATCH_ENTRIES):
            entries = range(first, min(first + BATCH_ENTRIES, end))
            blocks = tuple(source_block(local) for local in entries)
            runs = tuple(source_run(local) for local in entries)
            last = context if entries[-1] + 1 == end else None
            taken = self._answer_to(SyncReplicate(*place, blocks, runs, last))
            assert isinstance(taken, SyncTaken), taken


def source_run(local: int) -> StreamCommit:
    """Every third position of the log is the stream's: no run continues another."""
    return StreamCommit(Version(local), Lsn(local), Lsn(3 * local), 1)


def source_context(end: int) -> CommitContext:
    run = source_run(end - 1)
    return CommitContext(run.version, run.first, run.local, run.first, run.count, run.first)


def source_block(local: int) -> Block:
    made = draft([f"{local}:".encode().ljust(900, b".")], timestamps_us=0)
    return place(made, stream_log_of(LOG, LEARNER), Epoch(1), Lsn(local), Token(SOURCE, local))
