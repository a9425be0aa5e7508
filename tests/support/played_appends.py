"""A client appends to the streams of a commit log whose only node this is, and a committer commits.

The committer decides by the product's arithmetic.  Its repository is the pipe to whoever started
the process: a record is told there before the node hears of it.
"""

import itertools
import random
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from millrace.codec.blocks import draft, place
from millrace.core.commit.arithmetic import commits_for, next_record, with_stream
from millrace.core.commit.record import CommitContext, CommitRecord, StreamCommit, StreamRecord
from millrace.core.effects import AskCommitter, OutwardEffect, ReportSoon
from millrace.core.messages import (
    AppendStream,
    CommitTaken,
    Message,
    OpenStream,
    Reported,
    SealStream,
    StreamAppended,
    StreamOpened,
    StreamReport,
    StreamSealed,
)
from millrace.store.layout import decode_row, encode, number_key
from millrace.store.lmdb_store import LmdbStore
from millrace.types import FIRST_LSN, Ack, Epoch, LogId, Lsn, StreamId, Token
from tests.store.rig import NODE, LmdbRig
from tests.support.played_node import LOG, Acknowledged, Decided, Life, PlayedNode, tell

STREAMS: Final = (StreamId(1), StreamId(2))
TERM: Final = Epoch(1)
APPENDS_AT_ONCE: Final = 6
POSITIONS_KEPT: Final = 120
TRIM_EVERY: Final = 40
NEW_LOG: Final = CommitRecord(
    LOG, TERM, NODE, 1, tuple(StreamRecord(stream, Epoch(0), (NODE,)) for stream in STREAMS)
)


class Appending(PlayedNode):
    """A client appends, and the committer commits."""

    def __init__(self, rig: LmdbRig, life: Life) -> None:
        super().__init__(rig)
        self._life = life
        self._record = life.record
        self._choices = random.Random(life.number)
        self._tokens = itertools.count(1)
        self._reports: dict[StreamId, StreamReport] = {}
        self._appending = 0
        self._is_committing = False
        self._shell.begin_streams(self._carry_out)

    def _carry_out(self, effect: OutwardEffect) -> None:
        if isinstance(effect, AskCommitter):
            self._rig.calls.put(partial(self._reported, effect))
        elif isinstance(effect, ReportSoon):
            self._rig.calls.put(partial(self._report_due, effect))

    def _report_due(self, due: ReportSoon) -> None:
        self._shell.perform(self._shell.core.report_due(due.log))

    # -- The committer --------------------------------------------------------------------------

    def open_streams(self) -> None:
        """As after every restart: a new generation, which begins with all that is there."""
        for stream in self._record.streams:
            generation = Epoch(stream.generation + 1)
            sealed = self._answer_to(SealStream(LOG, stream.stream, generation))
            assert isinstance(sealed, StreamSealed) and sealed.is_valid, sealed
            reformed = msgspec.structs.replace(stream, generation=generation)
            self._decide(with_stream(self._record, reformed))
            opening = OpenStream(LOG, stream.stream, generation, (NODE,), sealed.end)
            opened = self._answer_to(opening)
            assert isinstance(opened, StreamOpened), opened
            self._heard((opened.report,))

    def _decide(self, record: CommitRecord) -> None:
        self._record = record
        tell(Decided(record))

    def _reported(self, order: AskCommitter) -> None:
        answer = Reported(TERM)
        self._heard(order.message.reports)
        self._shell.perform(self._shell.core.reported(order, answer))
        self._commit()

    def _heard(self, reports: tuple[StreamReport, ...]) -> None:
        self._reports |= {each.stream: each for each in reports if each.local}

    def _commit(self) -> None:
        """Whatever can be; one at a time, and what the node has not taken yet with it."""
        if self._is_committing or len(self._reports) < len(STREAMS):
            return
        record = next_record(
            self._record, {stream: {NODE: report} for stream, report in self._reports.items()}
        )
        if record is not None:
            self._decide(_trimmed(record))
        versions = {stream: report.version for stream, report in self._reports.items()}
        if min(versions.values()) < self._record.version:
            self._is_committing = True
            self._ask(commits_for(self._record, NODE, versions), self._taken)

    def _taken(self, answer: Message) -> None:
        assert isinstance(answer, CommitTaken), answer
        self._is_committing = False
        self._heard(answer.reports)
        self._rig.calls.put(self._commit)

    # -- The client -----------------------------------------------------------------------------

    def append_for_ever(self) -> None:
        while True:
            while self._appending < APPENDS_AT_ONCE:
                self._append()
            self._rig.run_until(lambda: self._appending < APPENDS_AT_ONCE)

    def _append(self) -> None:
        stream = self._choices.choice(self._record.streams)
        token = Token(self._life.number, next(self._tokens))
        count = self._choices.randrange(1, 4)
        size = self._choices.choice((10, 900, 5_000))
        values = tuple(f"{token.client}.{token.request}.{each}" for each in range(count))
        made = draft([f"{each}:".encode().ljust(size, b".") for each in values], timestamps_us=0)
        block = place(made, LOG, Epoch(0), FIRST_LSN, token)
        self._appending += 1
        request = AppendStream(LOG, stream.stream, stream.generation, block, Ack.DISK)
        self._ask(request, partial(self._appended, stream.stream, values))

    def _appended(self, stream: StreamId, values: tuple[str, ...], answer: Message) -> None:
        assert isinstance(answer, StreamAppended), answer
        self._appending -= 1
        tell(Acknowledged(stream, answer.local, answer.first, values))


def _trimmed(record: CommitRecord) -> CommitRecord:
    """Now and then the oldest entries go."""
    end = Lsn(record.high_watermark - POSITIONS_KEPT)
    if end < record.trim_end + TRIM_EVERY:
        return record
    return msgspec.structs.replace(record, trim_end=end)


class ContextFirst(LmdbStore):
    """Has a bug: contexts are written in a transaction of their own, before the runs."""

    def commit(
        self, log: LogId, context: CommitContext | None, runs: Sequence[StreamCommit]
    ) -> None:
        key, table = number_key(log), self.directory.tables.logs
        with self.directory.environment.begin(write=True, db=table) as transaction:
            row = transaction.get(key)
            if row is not None:
                changed = msgspec.structs.replace(decode_row(row), context=context)
                transaction.put(key, encode(changed))
        super().commit(log, context, runs)
