"""The committer of a log: gives what all replicas of a stream hold its place in the log (seed 004).

It is driven by reports.  When nothing is being written to the repository, whatever can be committed
is, in one new record; what is reported meanwhile goes with the next one.  So a tick is as long as
the repository takes, and an idle log has none.

  I1  Nothing is told to a node before the record that says it is in the repository.
  I2  At most one write, and at most one Commit to each node, are under way.
  I3  Nothing of a stream is committed while it is reformed.
  I4  Every replica hears of every version, or of a later one: a node that did not answer is told
      again, until it is no replica any more.
  I5  At most SYNCS_AT_ONCE nodes are being brought to where their streams are: readers and appends
      of the nodes that send it come first.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from millrace.core.commit import arithmetic
from millrace.core.commit import committer_effects as e
from millrace.core.commit.care import REFUSED_MS, SILENT_MS, Nodes, StreamCare
from millrace.core.commit.explaining import explain_stream
from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.core.commit.reform import CannotReform, OpenedReplicas, ReformPlan, SealedReplicas
from millrace.core.commit.reports import Reports, ReportVerdict
from millrace.core.effects import Ticket
from millrace.core.messages import (
    Commit,
    CommitTaken,
    CommitVerdict,
    Message,
    Refusal,
    Refused,
    Report,
    Reported,
    StreamReport,
    StreamSynced,
)
from millrace.core.procedure import Answer, Failure
from millrace.types import Lsn, NodeId, StreamId, Version

COMMIT_TIMEOUT_MS: Final = 1_000
RETRY_MS: Final = 100  # After a node did not answer.
CHANGES_MAX: Final = 1_024
SYNCS_AT_ONCE: Final = 4
QUIET_MS: Final = 12_000  # After which a node that says nothing is asked: reports come oftener.
NEVER: Final = Version(-1)

Change = Callable[[CommitRecord], CommitRecord]


class _Pending(msgspec.Struct):
    """A change that waits to be written, and what follows then."""

    change: Change
    ticket: Ticket | None = None
    answer: Message | None = None
    follow_up: Callable[[], e.CommitterEffect] | None = None


class _Link(msgspec.Struct):
    """What is known of one node; `told` is of the newest Commit that it answered."""

    is_asking: bool = False
    told: Version = NEVER
    told_trim: Lsn = Lsn(0)
    heard_ms: int = 0
    failing_since_ms: int | None = None
    is_refused: bool = False  # It could not even be connected to.
    retry_ms: int = 0

    @property
    def away_ms(self) -> int | None:
        """When it is to be given up."""
        if self.failing_since_ms is None:
            return None
        return self.failing_since_ms + (REFUSED_MS if self.is_refused else SILENT_MS)

    def lower(self, version: Version, retry_ms: int) -> None:
        """It knows no more than this: it is told again, not before `retry_ms`."""
        if version < self.told:
            self.told = version
            self.retry_ms = max(self.retry_ms, retry_ms)


class Committer:
    def __init__(self, record: CommitRecord) -> None:
        """`record` is in the repository, and names this node."""
        self.record = record
        self.care: dict[StreamId, StreamCare] = {}
        self.verdicts: dict[ReportVerdict, int] = {}
        self.refusals: dict[CommitVerdict, int] = {}  # Of commits, by replicas.
        self._live: frozenset[NodeId] = frozenset()
        self._drained: frozenset[NodeId] = frozenset()
        self.takers: tuple[NodeId, ...] = ()
        self._reports: dict[StreamId, Reports] = {}
        self._links: dict[NodeId, _Link] = {}
        self._writing: CommitRecord | None = None
        self._written_with: list[_Pending] = []
        self._changes: list[_Pending] = []
        self._is_over = False
        self._follow(record)

    # -- What happens -------------------------------------------------------------------------

    def begin(self, now_ms: int) -> list[e.CommitterEffect]:
        """All nodes hear of the term, and say what they hold."""
        return self.next(now_ms)

    def reported(self, ticket: Ticket, report: Report, now_ms: int) -> list[e.CommitterEffect]:
        strangers = [
            each.stream for each in report.reports if self._is_stranger(report.node, each.stream)
        ]
        self._heard(report.node, report.reports)
        if report.node in self._links:
            self._links[report.node].heard_ms = now_ms
        answer = Reported(self.record.term, tuple(sorted(strangers)))
        return [e.Answer(ticket, answer), *self.next(now_ms)]

    def _is_stranger(self, node: NodeId, number: StreamId) -> bool:
        """What a former replica has is worth keeping while the stream lacks one."""
        record = self.record.stream(number)
        if record is None or node in record.replicas:
            return record is None
        is_whole = len(record.replicas) >= self.record.copies
        return is_whole and node not in self.care[number].coming

    def answered(
        self, node: NodeId, commit: Commit, answer: Answer, now_ms: int
    ) -> list[e.CommitterEffect]:
        """To a Commit."""
        link = self._links.get(node)
        if link is None:
            return []
        link.is_asking = False
        if isinstance(answer, CommitTaken):
            link.told, link.told_trim = commit.version, commit.trim_end
            link.failing_since_ms = None
            link.heard_ms = now_ms
            for refused in answer.refused:
                self.refusals[refused.verdict] = self.refusals.get(refused.verdict, 0) + 1
            self._heard(node, answer.reports, now_ms + RETRY_MS)
            self._tell_again(link, answer, now_ms + RETRY_MS)
            self._miss(node, commit, answer)
        elif isinstance(answer, Refused) and answer.reason is Refusal.EPOCH:
            return self._end()  # It has heard of a later term.
        else:
            link.retry_ms = now_ms + RETRY_MS
            link.is_refused = isinstance(answer, Failure) and answer.is_definite
            if link.failing_since_ms is None:
                link.failing_since_ms = now_ms
        return self.next(now_ms)

    def _tell_again(self, link: _Link, taken: CommitTaken, retry_ms: int) -> None:
        """Replicas that are open and could not take the Commit."""
        refused = {each.stream for each in taken.refused}
        for report in taken.reports:
            if report.local and report.stream in refused:
                link.lower(report.version, retry_ms)

    def _miss(self, node: NodeId, commit: Commit, taken: CommitTaken) -> None:
        """Replicas that the node was told of, and knows nothing of: it has lost its disk."""
        known = {each.stream for each in taken.reports}
        for told in commit.streams:
            record = self._stream(told.stream)
            is_same = told.generation == record.generation > 0
            if is_same and told.stream not in known and node in record.replicas:
                self._reports[told.stream].lose(node)

    def doubted(self, now_ms: int) -> list[e.CommitterEffect]:
        """Somebody cannot append: look whether all replicas answer."""
        for link in self._links.values():
            link.told = NEVER
        return self.next(now_ms)

    def written(self, is_mine: bool, now_ms: int) -> list[e.CommitterEffect]:
        """The record is in the repository, or somebody else's is."""
        if not is_mine or self._writing is None:
            return self._end()
        before, self.record, self._writing = self.record, self._writing, None
        done, self._written_with = self._written_with, []
        self._follow(before)
        effects: e.Effects = []
        for each in done:
            if each.ticket is not None and each.answer is not None:
                effects.append(e.Answer(each.ticket, each.answer))
            if each.follow_up is not None:
                effects.append(each.follow_up())
        return [*effects, *self.next(now_ms)]

    def sealed(
        self, number: StreamId, result: SealedReplicas | CannotReform, now_ms: int
    ) -> list[e.CommitterEffect]:
        care = self.care[number]
        if isinstance(result, CannotReform):
            care.failed(result.why, now_ms)
            self._begin_elsewhere(self._stream(number))
            return self.next(now_ms)
        if not result.waiting:
            return self.joined(number, result, now_ms)
        plan = self._plan(self._stream(number), care, self._nodes())
        return [e.RunJoin(number, plan, result), *self.next(now_ms)]

    def _begin_elsewhere(self, stream: StreamRecord) -> None:
        """A stream that was never open is nowhere yet: others may have it."""
        takers = self.takers[: self.record.copies]
        if stream.generation or len(takers) < len(stream.replicas) or takers == stream.replicas:
            return
        moved = msgspec.structs.replace(stream, replicas=takers)
        self._changes.append(_Pending(lambda current: arithmetic.with_stream(current, moved)))

    def joined(
        self, number: StreamId, result: SealedReplicas, now_ms: int
    ) -> list[e.CommitterEffect]:
        """They are the stream's replicas as soon as the record says so."""
        care, before = self.care[number], self._stream(number)
        if result.is_lossy:
            before = arithmetic.without_lost(before, result.end, result.last, self.record.version)
        is_open = before.is_open if care.should_be_open is None else care.should_be_open
        after = msgspec.structs.replace(
            before, generation=result.generation, replicas=result.replicas, is_open=is_open
        )
        # A stream that is closed, or was, keeps what is committed and nothing else (M6).
        end = result.end if is_open and before.is_open else before.local_end

        def reform(current: CommitRecord) -> CommitRecord:
            return arithmetic.with_stream(current, after)

        def open_it() -> e.CommitterEffect:
            return e.RunOpen(self._stream(number), end)

        self._changes.append(_Pending(reform, follow_up=open_it))
        return self.next(now_ms)

    def opened(
        self, number: StreamId, result: OpenedReplicas, now_ms: int
    ) -> list[e.CommitterEffect]:
        self.care[number].opened(self._stream(number), result.failed, now_ms)
        for node, report in result.reports.items():
            self._heard(node, (report,))
        return self.next(now_ms)

    def synced(
        self, number: StreamId, result: StreamSynced | CannotReform, now_ms: int
    ) -> list[e.CommitterEffect]:
        why_not = result.why if isinstance(result, CannotReform) else ""
        self.care[number].synced(why_not, now_ms)
        return self.next(now_ms)

    def live_changed(
        self,
        live: Collection[NodeId],
        takers: Sequence[NodeId],
        now_ms: int,
        drained: Collection[NodeId] = (),
    ) -> list[e.CommitterEffect]:
        """`takers` are the live nodes that may get a replica, the best first; those that are
        `drained` should have none."""
        self._live = frozenset(live)
        self._drained = frozenset(drained)
        self.takers = tuple(takers)
        for node, link in self._links.items():
            if node not in self._live or now_ms > link.heard_ms + QUIET_MS:
                link.told = NEVER
        return self.next(now_ms)

    def change(
        self, ticket: Ticket, change: Change, answer: Message, now_ms: int
    ) -> list[e.CommitterEffect]:
        """Somebody wants the record to be otherwise: answered when it is."""
        if len(self._changes) >= CHANGES_MAX:
            busy = Refused(Refusal.BUSY, detail="many changes wait to be written already")
            return [e.Answer(ticket, busy)]
        self._changes.append(_Pending(change, ticket, answer))
        return self.next(now_ms)

    # -- What follows -------------------------------------------------------------------------

    def next(self, now_ms: int) -> list[e.CommitterEffect]:
        """Whatever is due now."""
        if self._is_over:
            return []
        effects = self._look_after_streams(now_ms)
        effects += self._write()
        effects += self._tell(now_ms)
        return [*effects, *self._wake(now_ms)]

    def _stream(self, number: StreamId) -> StreamRecord:
        record = self.record.stream(number)
        assert record is not None, "streams are never forgotten"
        return record

    def _follow(self, before: CommitRecord) -> None:
        """Streams and nodes of the record as it is now."""
        for each in self.record.streams:
            care = self.care.setdefault(each.stream, StreamCare())
            self._reports.setdefault(each.stream, Reports()).follow(each)
            old = before.stream(each.stream)
            if old is not None:
                care.replaced(old, each)
            if self.record.is_sealed and each.is_open:
                care.should_be_open = False
        self._links = {node: self._links.get(node) or _Link() for node in self.record.nodes}

    def _heard(self, node: NodeId, reports: Collection[StreamReport], retry_ms: int = 0) -> None:
        """What a replica was told and does not report need not be durable yet.  One that says less
        than it said before, or says something for the first time in its generation, may have begun
        anew, and is told again: not before `retry_ms` if that was its answer.  A report that comes
        by itself may only be late, overtaken by the answer to a Commit: nothing has to wait for
        it."""
        for report in reports:
            record, before = self.record.stream(report.stream), None
            verdict = ReportVerdict.NOT_A_REPLICA
            if record is not None:
                known = self._reports[report.stream]
                before = known.taken.get(node)
                verdict = known.take(node, report, record, self.record.version)
            self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
            link = self._links.get(node)
            if link is None or verdict is ReportVerdict.NOT_A_REPLICA or not report.local:
                continue
            if before is None or report.version < before.version:
                link.lower(report.version, retry_ms)

    def _write(self) -> list[e.CommitterEffect]:
        """Keeps I2 and I3."""
        if self._writing is not None:
            return []
        changes, self._changes = self._changes, []
        record = self.record
        for each in changes:
            record = each.change(record)
        reports = {
            number: taken.taken
            for number, taken in self._reports.items()
            if not self.care[number].is_reforming
        }
        record = arithmetic.next_record(record, reports) or record
        if record == self.record and not changes:
            return []
        self._writing, self._written_with = record, changes
        return [e.Write(record)]

    def _tell(self, now_ms: int) -> list[e.CommitterEffect]:
        """Keeps I1 and I4."""
        record = self.record
        effects: e.Effects = []
        for node, link in self._links.items():
            knows_all = link.told >= record.version and link.told_trim >= record.trim_end
            if link.is_asking or knows_all or now_ms < link.retry_ms:
                continue
            link.is_asking = True
            effects.append(e.AskCommit(node, self._commit_for(node), COMMIT_TIMEOUT_MS))
        return effects

    def _commit_for(self, node: NodeId) -> Commit:
        versions = {
            number: report.version
            for number, reports in self._reports.items()
            if (report := reports.heard.get(node)) is not None and report.local
        }
        return arithmetic.commits_for(self.record, node, versions)

    def _wake(self, now_ms: int) -> list[e.CommitterEffect]:
        """When something is due although nothing happens."""
        due = [each.retry_ms for each in self._links.values()]
        due += [ms for care in self.care.values() for ms in care.due_ms()]
        due += [ms for each in self._links.values() if (ms := each.away_ms) is not None]
        later = [ms for ms in due if ms > now_ms]
        return [e.SetTimer(min(later) - now_ms)] if later else []

    # -- Looking after streams ----------------------------------------------------------------

    def _look_after_streams(self, now_ms: int) -> list[e.CommitterEffect]:
        if self._writing is not None:
            return []  # It may commit entries of the stream: who goes on must have those too (I3).
        nodes = self._nodes()
        effects: e.Effects = []
        for record in self.record.streams:
            care, reports = self.care[record.stream], self._reports[record.stream]
            care.review(record, self.record.copies, nodes)
            is_broken = reports.has_regressed or bool(self._suspects(record))
            if care.needs_reform(record, self.record.copies, is_broken, nodes, now_ms):
                care.is_reforming = True
                effects.append(e.RunSeal(record.stream, self._plan(record, care, nodes)))
        return [*effects, *self._teach(nodes, now_ms)]

    def _teach(self, nodes: Nodes, now_ms: int) -> list[e.CommitterEffect]:
        """Keeps I5."""
        effects: e.Effects = []
        learning = sum(care.learner is not None for care in self.care.values())
        for record in self.record.streams:
            if learning >= SYNCS_AT_ONCE:
                break
            care = self.care[record.stream]
            learner = care.next_learner(record, self.record.copies, nodes, now_ms)
            if learner is not None:
                learning += 1
                care.learner = learner
                nodes.loads[learner] += 1
                effects.append(e.RunSync(record, learner))
        return effects

    def _nodes(self) -> Nodes:
        away = {node: ms for node, link in self._links.items() if (ms := link.away_ms) is not None}
        return Nodes(self._live, self.takers, away, self._drained, self._loads())

    def _loads(self) -> Counter[NodeId]:
        loads = Counter(node for each in self.record.streams for node in each.replicas)
        loads.update(node for care in self.care.values() for node in care.coming)
        return loads

    def choose_takers(self) -> tuple[NodeId, ...]:
        """For a new stream: those with the fewest replicas of the log."""
        loads = self._loads()
        return tuple(sorted(self.takers, key=lambda node: loads[node])[: self.record.copies])

    def _plan(self, record: StreamRecord, care: StreamCare, nodes: Nodes) -> ReformPlan:
        alone = msgspec.structs.replace(self.record, streams=(record,))
        catch_up = arithmetic.commits_for(alone, record.replicas[0], {})
        joining = care.who_joins()
        leaving = (*care.who_leaves(record), *self._suspects(record))
        yielding = care.who_yields(record, nodes)
        return ReformPlan(
            self.record.log,
            record,
            catch_up,
            joining,
            leaving,
            yielding,
            self.record.copies,
            care.gives_up,
        )

    def _suspects(self, record: StreamRecord) -> tuple[NodeId, ...]:
        """Backups that the primary cannot reach, whoever else can."""
        heard = self._reports[record.stream].taken.get(record.replicas[0])
        return () if heard is None else heard.suspects

    # -- Ending -------------------------------------------------------------------------------

    def _end(self) -> list[e.CommitterEffect]:
        return [*self.close(), e.Over()]

    def close(self) -> list[e.CommitterEffect]:
        """Whoever waits may ask again: what was not written is not done, as far as we know."""
        self._is_over = True
        waiting = [*self._written_with, *self._changes]
        self._written_with, self._changes = [], []
        gone = Refused(Refusal.UNAVAILABLE, self.record.term, "another committer took over")
        return [e.Answer(each.ticket, gone) for each in waiting if each.ticket is not None]

    # -- For people ---------------------------------------------------------------------------

    def explain(self, now_ms: int) -> dict[str, object]:
        return {
            "term": self.record.term,
            "version": self.record.version,
            "high_watermark": self.record.high_watermark,
            "is_writing": self._writing is not None,
            "streams": {each.stream: self._explain(each, now_ms) for each in self.record.streams},
            "reports": {verdict.value: count for verdict, count in self.verdicts.items()},
            "refusals": {verdict.value: count for verdict, count in self.refusals.items()},
        }

    def _explain(self, record: StreamRecord, now_ms: int) -> dict[str, object]:
        care, reports = self.care[record.stream], self._reports[record.stream]
        silent_ms = {
            node: now_ms - link.failing_since_ms
            for node, link in self._links.items()
            if link.failing_since_ms is not None
        }
        copies, nodes = self.record.copies, self._nodes()
        return explain_stream(record, copies, care, reports, nodes, silent_ms)
