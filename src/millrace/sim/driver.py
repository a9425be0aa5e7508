"""Runs the core's procedures in virtual time, for one life of one process.

The counterpart of the driver with sockets: same effects, same answers, same rule that one
reconfiguration at a time runs for each log, others waiting for its outcome.

  I1  A procedure is sent exactly one answer for each effect, or DeadlinePassed instead of it; an
      answer that comes later is dropped.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from millrace.codec.blocks import junk, lone_record, values
from millrace.core.messages import MetaEntry, MetaGet, MetaList, MetaListing, MetaSet, Refused
from millrace.core.procedure import (
    Answer,
    AppendNodesetChange,
    Ask,
    AskAll,
    ClusterView,
    DeadlinePassed,
    Effect,
    Failure,
    FailureKind,
    ListNodes,
    Note,
    Pause,
    Procedure,
    ReadBucket,
    ReadCommits,
    ReadEpochs,
    ReadNodesetChanges,
    ReadProjection,
    ReadStatuses,
    Reconfigure,
    Refresh,
    RenewRebuilds,
    ReplaceBucket,
    ReplaceCommits,
    ReplaceEpochs,
    ReplaceProjection,
)
from millrace.core.projection import Projection
from millrace.core.reconfigure import Change, reconfigure
from millrace.core.sequenced.metadata_log import READ_TIMEOUT_MS, append_change, read_changes
from millrace.core.statuses import NodeStatusEntry, renewed
from millrace.meta.contract import Entry
from millrace.meta.keys import (
    BUCKETS,
    COMMITS,
    EPOCHS,
    LIVE,
    NODES,
    PROJECTIONS,
    STATUSES,
    KeyFamily,
)
from millrace.sim.metadata import METADATA_NUMBER
from millrace.sim.process import Process
from millrace.sim.schedule import MS, SECOND
from millrace.types import LogId, NodeId, Token

T = TypeVar("T")
Id = TypeVar("Id")
Resume = Callable[[Any], None]
Read = tuple[Projection | None, int] | Failure
PROPOSERS_PER_CHANGE = 64  # Attempts of one reconfiguration number their proposers on.
NESTED_US = 10 * SECOND  # For a procedure inside one that has all the time of the world.


class Run:
    """One procedure under way."""

    __slots__ = ("_done", "_driver", "_due_us", "_procedure", "_step", "_timer", "waits_for")

    def __init__(
        self, driver: "Driver", procedure: Procedure[Any], done: Resume, deadline_us: int | None
    ) -> None:
        self._driver = driver
        self._procedure = procedure
        self._done: Resume | None = done
        self._step = 0
        self.waits_for = ""
        self._timer: int | None = None
        self._due_us: int | None = None
        if deadline_us is not None:
            self._due_us = driver.process.world.schedule.now_us + deadline_us
            self._timer = driver.process.later(deadline_us, self._deadline)

    def go(self, answer: Any = None) -> None:
        self._advance(self._procedure.send, answer)

    def _deadline(self) -> None:
        self._timer = None
        self._driver.process.world.count("driver.deadline")
        self._advance(self._procedure.throw, DeadlinePassed())

    def _advance(self, move: Callable[[Any], Effect], what: Any) -> None:
        if self._done is None:
            return
        self._step += 1
        try:
            effect = move(what)
            while isinstance(effect, Note):
                self._driver.note(effect)
                effect = self._procedure.send(None)
        except StopIteration as stop:
            self._finish(stop.value)
            return
        self.waits_for = type(effect).__name__
        step = self._step
        self._driver.perform(effect, lambda answer: self._answered(step, answer), self._left_us())

    def _left_us(self) -> int:
        if self._due_us is None:
            return NESTED_US
        return max(1, self._due_us - self._driver.process.world.schedule.now_us)

    def _answered(self, step: int, answer: Any) -> None:
        if step == self._step:
            self.go(answer)

    def _finish(self, result: Any) -> None:
        done, self._done = self._done, None
        if self._timer is not None:
            self._driver.process.world.schedule.cancel(self._timer)
        assert done is not None
        done(result)


class Driver:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.projections: dict[LogId, Projection] = {}  # The newest this process has heard of.
        self._changing: dict[LogId, list[tuple[Reconfigure, Resume]]] = {}
        self._proposals = 0
        self._client = process.number * 10_000 + process.life

    def start(
        self,
        procedure: Procedure[T],
        done: Callable[[T], None],
        deadline_us: int | None = None,
    ) -> Run:
        run = Run(self, procedure, done, deadline_us)
        run.go()
        return run

    def proposer(self) -> Token:
        self._proposals += PROPOSERS_PER_CHANGE
        return Token(self._client, self._proposals)

    def note(self, note: Note) -> None:
        world = self.process.world
        world.count(f"note.{note.event}")
        if "authority" in note.fields:
            world.count(f"note.{note.event}.{note.fields['authority']}")
        self.process.trace(f"notes {note.event} {note.fields}")
        world.noted(self.process.name, note)

    def perform(self, effect: Effect, resume: Resume, left_us: int = NESTED_US) -> None:
        """`left_us` is the time for an effect that is a procedure itself."""
        process = self.process
        match effect:
            case Ask(node, message, timeout_ms):
                process.ask(node, message, timeout_ms, resume)
            case AskAll(asks):
                self._ask_all(list(asks), resume)
            case Pause(ms):
                jitter = 0.5 + process.rng.random()
                process.later(1 + int(ms * MS * jitter), resume, None)
            case ReadProjection(log):
                self._read(log, resume)
            case Refresh(log, _):
                self._read(log, lambda read: resume(_present(read)))
            case ReplaceProjection(projection, expected):
                self._replace(projection, expected, resume)
            case Reconfigure():
                self._reconfigure(effect, resume)
            case ReadEpochs(log):
                self._find(EPOCHS, log, resume)
            case ReplaceEpochs(record, expected):
                self._set(EPOCHS, record.log, record, expected, _told_whether(resume))
            case ReadCommits(log):
                self._find(COMMITS, log, resume)
            case ReplaceCommits(commits, expected):
                self._set(COMMITS, commits.log, commits, expected, resume)
            case ReadBucket(name):
                self._find(BUCKETS, name, resume)
            case ReplaceBucket(bucket, expected):
                self._set(BUCKETS, bucket.name, bucket, expected, resume)
            case ReadNodesetChanges(log):
                self.start(read_changes(log, values), resume, min(left_us, READ_TIMEOUT_MS * MS))
            case AppendNodesetChange(log, change):
                appending = append_change(log, change, self.proposer(), lone_record)
                self.start(appending, resume, left_us)
            case ReadStatuses():
                self._list_statuses(resume)
            case RenewRebuilds(nodes):
                self._renew_rebuilds(nodes, resume)
            case ListNodes():
                self._list_nodes(resume)
            case Note():
                raise AssertionError("a note is performed by its run")

    def _ask_all(self, asks: list[Ask], resume: Resume) -> None:
        answers: list[Answer | None] = [None] * len(asks)
        left = len(asks)

        def answered(at: int, answer: Answer) -> None:
            nonlocal left
            answers[at] = answer
            left -= 1
            if not left:
                resume(answers)

        for at, ask in enumerate(asks):
            self.process.ask(ask.node, ask.message, ask.timeout_ms, partial(answered, at))

    # -- The repository -------------------------------------------------------------------------

    def _read(self, log: LogId, resume: Callable[[Read], None]) -> None:
        def answered(read: Read) -> None:
            if not isinstance(read, Failure) and read[0] is not None:
                self.learn(read[0])
            resume(read)

        self._find(PROJECTIONS, log, answered)

    def _replace(self, projection: Projection, expected: int, resume: Resume) -> None:
        def answered(replaced: bool | Failure) -> None:
            if replaced is True:
                self.learn(projection)
            resume(replaced)

        replaced = _told_whether(answered)
        self._set(PROJECTIONS, projection.log, projection, expected, replaced)

    def _find(self, family: KeyFamily[Id, T], id: Id, resume: Resume) -> None:
        """Resumes with (value or None, version)."""

        def answered(answer: Answer) -> None:
            if isinstance(answer, MetaEntry):
                resume((family.find(_entry(answer)), answer.version))
            else:
                resume(_failure(answer))

        self.process.ask(METADATA_NUMBER, MetaGet(family.key(id)), 0, answered)

    def _set(
        self, family: KeyFamily[Id, T], id: Id, value: T, expected: int, resume: Resume
    ) -> None:
        """Resumes with the new version, or 0 if somebody else was first."""

        def answered(answer: Answer) -> None:
            if isinstance(answer, MetaEntry | Refused):
                resume(answer.version if isinstance(answer, MetaEntry) else 0)
            else:
                resume(_failure(answer))

        message = MetaSet(family.key(id), family.encode(value), expected)
        self.process.ask(METADATA_NUMBER, message, 0, answered)

    def _list_statuses(self, resume: Resume) -> None:
        def answered(answer: Answer) -> None:
            if not isinstance(answer, MetaListing):
                resume(_failure(answer))
                return
            entries = [_entry(entry) for entry in answer.entries]
            resume({STATUSES.id_of(entry.key): STATUSES.decode(entry).status for entry in entries})

        self.process.ask(METADATA_NUMBER, MetaList(STATUSES.prefix), 0, answered)

    def _renew_rebuilds(self, nodes: tuple[NodeId, ...], resume: Resume) -> None:
        """One after the other, each until nobody was in between."""
        if not nodes:
            self._list_statuses(resume)
            return

        def found(read: tuple[NodeStatusEntry | None, int] | Failure) -> None:
            if isinstance(read, Failure):
                resume(read)
                return
            changed = renewed(read[0])
            if changed is None:
                self._renew_rebuilds(nodes[1:], resume)
                return
            self.process.world.count("rebuild.renewed")
            self._set(STATUSES, nodes[0], changed, read[1], stored)

        def stored(version: int | Failure) -> None:
            if isinstance(version, Failure):
                resume(version)
            else:
                self._renew_rebuilds(nodes[1:] if version else nodes, resume)

        self._find(STATUSES, nodes[0], found)

    def learn(self, projection: Projection) -> None:
        known = self.projections.get(projection.log)
        if known is None or projection.epoch > known.epoch:
            self.projections[projection.log] = projection

    def _list_nodes(self, resume: Resume) -> None:
        def listed(answers: list[Answer]) -> None:
            nodes, live = answers
            if not isinstance(nodes, MetaListing) or not isinstance(live, MetaListing):
                resume(_failure(nodes if not isinstance(nodes, MetaListing) else live))
                return
            resume(
                ClusterView(
                    tuple(NODES.decode(_entry(entry)) for entry in nodes.entries),
                    frozenset(LIVE.id_of(entry.key) for entry in live.entries),
                    {LIVE.id_of(entry.key): entry.version for entry in live.entries},
                )
            )

        asks = [Ask(_METADATA, MetaList(NODES.prefix)), Ask(_METADATA, MetaList(LIVE.prefix))]
        self._ask_all(asks, listed)

    # -- Reconfiguration ------------------------------------------------------------------------

    def _reconfigure(self, effect: Reconfigure, resume: Resume) -> None:
        log = effect.seen.log
        known = self.projections.get(log)
        if known is not None and known.epoch > effect.seen.epoch:
            self.process.later(0, resume, known)
            return
        waiting = self._changing.get(log)
        if waiting is not None:
            self.process.world.count("reconfigure.joined")
            waiting.append((effect, resume))
            return
        self._changing[log] = [(effect, resume)]
        self.process.world.count(f"reconfigure.{effect.reason.value}")
        change = Change(log, effect.reason, effect.suspects, only_from=effect.seen.epoch)
        self.change(change, lambda result: self._changed(log, result))

    def change(self, change: Change, done: Callable[[Projection | Failure], None]) -> Run:
        return self.start(reconfigure(change, self.proposer(), junk), done)

    def _changed(self, log: LogId, result: Projection | Failure) -> None:
        if isinstance(result, Projection):
            self.learn(result)
        for effect, resume in self._changing.pop(log):
            is_old = isinstance(result, Projection) and result.epoch <= effect.seen.epoch
            if is_old:
                self._reconfigure(effect, resume)
            else:
                resume(result)


_METADATA: Any = METADATA_NUMBER


def _entry(message: MetaEntry) -> Entry:
    return Entry(message.key, message.value, message.version, message.lease)


def _present(read: Read) -> Projection | Failure:
    if isinstance(read, Failure):
        return read
    projection, _ = read
    return projection or Failure(FailureKind.UNKNOWN_NODE, "the log has no projection")


def _failure(answer: Answer) -> Failure:
    if isinstance(answer, Failure):
        return answer
    return Failure(FailureKind.TIMED_OUT, f"the repository answered {answer}")


def _told_whether(resume: Resume) -> Resume:
    """It is enough to know whether there is a new version."""
    return lambda version: resume(version if isinstance(version, Failure) else version > 0)
