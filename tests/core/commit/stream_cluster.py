"""Nodes with replicas of one stream, on stores in memory, and a committer that does its sums alone.

Nothing happens by itself: messages and timers wait until `run`, and disks work when they are told
to.  Reports are taken, and commits and reforms made, when a test says so.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from millrace.core import messages as m
from millrace.core.commit import arithmetic
from millrace.core.commit.record import CommitRecord, StreamCommit, StreamRecord
from millrace.core.commit.replica import StreamReplica
from millrace.core.effects import Ticket
from millrace.core.procedure import (
    Answer,
    Ask,
    ClusterView,
    Failure,
    FailureKind,
    ListNodes,
    Procedure,
    ReadCommits,
)
from millrace.scenario.memory_store import MemoryStore
from millrace.server.hosted import Surroundings
from millrace.server.shell import NodeShell
from millrace.server.streams import StreamOrders
from millrace.types import LSN_MAX, Ack, Block, Epoch, Lsn, NodeId, NodeInfo, Token
from tests.core.commit.stream_samples import LOG, STREAM, STREAM_LOG, draft

COMMITTER = NodeId(99)
CLIENT = 1  # The session of whoever asks from outside.
PEER = 2
NO_ANSWER = Failure(FailureKind.LOST, "the node is down")
Done = Callable[[Answer], None]


class Node:
    """One process; its disk outlives it."""

    def __init__(self, node: NodeId, cluster: "Cluster") -> None:
        self.id = node
        self.cluster = cluster
        self.store = MemoryStore()
        self.is_up = False
        self.is_slow = False  # Its disk does nothing.
        self.start()

    def start(self) -> None:
        self.is_up = True
        self.waiting: dict[Ticket, Done] = {}
        self.pushed: list[m.Message] = []
        self._requests = 0
        self.shell = NodeShell(self.store, self, lambda order: None, me=self.id)
        around: Surroundings = _Surroundings(self)  # type: ignore[assignment]
        self.orders = StreamOrders(self.shell, around)

    def crash(self) -> None:
        self.is_up = False
        self.store.crash()
        waiting, self.waiting = self.waiting, {}
        for done in waiting.values():
            done(NO_ANSWER)

    def ask(self, message: m.Message, done: Done, session: int = PEER) -> None:
        if not self.is_up:
            done(NO_ANSWER)
            return
        self._requests += 1
        self.waiting[session, self._requests] = done
        self.shell.handle(session, self._requests, message)

    @property
    def replica(self) -> StreamReplica:
        """As its process knows it."""
        (part,) = self.shell.core._commits
        (replica,) = part.streams
        return replica

    def committed(self) -> list[tuple[Lsn, Token]]:
        """Position in the log, and writer, of each block that is committed and not trimmed."""
        state = self.store.state(STREAM_LOG)
        if state is None or state.context is None:
            return []
        scan = self.store.scan(STREAM_LOG, state.trim_end, state.context.local_end, LSN_MAX)
        return [(self._place(each, state.trim_end), each.token) for each in scan.blocks]

    def _place(self, block: Block, trim_end: Lsn) -> Lsn:
        """Of its first entry, which may be trimmed."""
        local = max(block.first, trim_end)
        place = self.store.locate(STREAM_LOG, local)
        assert place is not None, f"{block!r} is committed, but has no place"
        return Lsn(place + block.first - local)

    # -- What its shell needs -----------------------------------------------------------------

    def answer(self, session: int, request: int, message: m.Message, release: Any = None) -> None:
        done = self.waiting.pop((session, request), None)
        if done is not None:
            done(message)

    def push(self, session: int, message: m.Message, release: Any = None) -> None:
        self.pushed.append(message)

    def is_writable(self, session: int) -> bool:
        return True

    def after_others(self, call: Callable[[], None]) -> None:
        self.cluster.queue.append(call)


class _Surroundings:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._shell = node.shell

    def _is_gone(self) -> bool:
        return not self._node.is_up or self._node.shell is not self._shell

    def ask(self, node: NodeId, message: m.Message, timeout_ms: int, done: Done) -> None:
        def heard(answer: Answer) -> None:
            self._node.cluster.queue.append(lambda: None if self._is_gone() else done(answer))

        self._node.cluster.queue.append(Delivery(self._node.cluster, node, message, heard))

    def later(self, ms: int, call: Callable[[], None]) -> None:
        cluster = self._node.cluster
        waiting = cluster.timers if ms else cluster.queue
        waiting.append(lambda: None if self._is_gone() else call())

    def run(self, procedure: Procedure[Any], timeout_ms: int, done: Callable[[Any], None]) -> None:
        Running(self._node.cluster, procedure, lambda it: None if self._is_gone() else done(it))

    def answer(self, ticket: Ticket, message: m.Message) -> None:
        self._node.answer(*ticket, message)


class Delivery:
    """A request on its way."""

    def __init__(self, cluster: "Cluster", node: NodeId, message: m.Message, done: Done) -> None:
        self._cluster = cluster
        self._node = node
        self._message = message
        self._done = done

    def __call__(self) -> None:
        self._cluster.deliver(self._node, self._message, self._done)

    def lose(self) -> None:
        self._done(NO_ANSWER)


class Running:
    """A procedure that asks nodes of the cluster."""

    def __init__(
        self, cluster: "Cluster", procedure: Procedure[Any], done: Callable[[Any], None]
    ) -> None:
        self._cluster = cluster
        self._procedure = procedure
        self._done = done
        self._resume(None)

    def _resume(self, answer: Any) -> None:
        try:
            effect = self._procedure.send(answer)
        except StopIteration as stop:
            self._done(stop.value)
            return
        match effect:
            case Ask(node, message):
                delivery = Delivery(self._cluster, node, message, self._resume)
                self._cluster.queue.append(delivery)
            case ReadCommits():
                self._resume((self._cluster.record, 1))
            case ListNodes():
                live = frozenset((COMMITTER, *self._cluster.nodes))
                self._resume(ClusterView(tuple(NodeInfo(node, "") for node in live), live))
            case _:
                raise AssertionError(f"no answer to {effect}")


class Cluster:
    def __init__(self, count: int = 3, replicas: int = 3) -> None:
        self.queue: deque[Callable[[], None]] = deque()
        self.timers: list[Callable[[], None]] = []
        names = tuple(NodeId(number) for number in range(1, count + 1))
        stream = StreamRecord(STREAM, Epoch(0), names[:replicas])
        self.record = CommitRecord(LOG, Epoch(1), COMMITTER, replicas, (stream,))
        self.reports: dict[NodeId, m.StreamReport] = {}
        self.appended: dict[Token, Lsn] = {}
        self.refused: set[Token] = set()
        self.strangers: dict[NodeId, tuple[Any, ...]] = {}
        self.nodes = {name: Node(name, self) for name in names}
        self.reform()

    @property
    def stream(self) -> StreamRecord:
        return self.record.streams[0]

    @property
    def primary(self) -> Node:
        return self.nodes[self.stream.replicas[0]]

    # -- Time ---------------------------------------------------------------------------------

    def deliver(self, node: NodeId, message: m.Message, done: Done) -> None:
        if node == COMMITTER:
            assert isinstance(message, m.Report)
            self._hear(message.node, message.reports)
            done(m.Reported(self.record.term, self.strangers.get(message.node, ())))
        else:
            self.nodes[node].ask(message, done)

    def step(self) -> None:
        if self.queue:
            self.queue.popleft()()

    def lose(self) -> None:
        """The next request does not arrive."""
        lost = next((each for each in self.queue if isinstance(each, Delivery)), None)
        if lost is not None:
            self.queue.remove(lost)
            lost.lose()

    def work(self) -> None:
        """Disks of nodes that are up do what they were told."""
        for node in self.nodes.values():
            if node.is_up and not node.is_slow:
                node.store.run()

    def fire(self) -> None:
        """All pauses are over."""
        timers, self.timers = self.timers, []
        for each in timers:
            each()

    def run(self) -> None:
        """Until nothing waits but timers."""
        for _ in range(10_000):
            self.work()
            if not self.queue:
                return
            self.step()
        raise AssertionError("it does not come to rest")

    # -- Clients ------------------------------------------------------------------------------

    def append(self, number: int, count: int = 1, **fields: Any) -> None:
        """Of a client with a token of its own."""
        token = Token(5, number)
        stream = self.stream
        request = m.AppendStream(
            LOG, STREAM, stream.generation, draft(count, token), Ack.DISK, **fields
        )
        self.nodes[stream.replicas[0]].ask(request, partial(self._answered, token), CLIENT)

    def _answered(self, token: Token, answer: Answer) -> None:
        if isinstance(answer, m.StreamAppended):
            self.appended[token] = answer.first
            self.refused.discard(token)
        elif isinstance(answer, m.Refused) and token not in self.appended:
            self.refused.add(token)

    def ask(self, node: NodeId, message: m.Message) -> Answer:
        answers: list[Answer] = []
        self.nodes[node].ask(message, answers.append, CLIENT)
        self.run()
        return answers[0] if answers else NO_ANSWER

    # -- The committer ------------------------------------------------------------------------

    def _hear(self, node: NodeId, reports: tuple[m.StreamReport, ...]) -> None:
        for report in reports:
            is_counted = report.generation == self.stream.generation and report.local
            known = self.reports.get(node)
            if is_counted and (known is None or report.end >= known.end):
                self.reports[node] = report

    def decide(self) -> None:
        """The next version, if there is something to commit."""
        record = arithmetic.next_record(self.record, {STREAM: self.reports})
        if record is not None:
            self.record = record

    def tell(self, only: NodeId | None = None) -> None:
        """Every replica hears of the newest version, or only one does."""
        for node in self.stream.replicas:
            if only not in (None, node):
                continue
            report = self.reports.get(node)
            versions = {} if report is None else {STREAM: report.version}
            commit = arithmetic.commits_for(self.record, node, versions)
            self.nodes[node].ask(commit, partial(self._told, node))

    def _told(self, node: NodeId, answer: Answer) -> None:
        if isinstance(answer, m.CommitTaken):
            self._hear(node, answer.reports)

    def commit(self) -> None:
        self.run()
        self.decide()
        self.tell()
        self.run()

    def trim(self, end: int) -> None:
        trim_end = max(Lsn(end), self.record.trim_end)
        self.record = msgspec.structs.replace(self.record, trim_end=trim_end)

    def reform(self, joining: NodeId | None = None, opened_max: int = LSN_MAX) -> bool:
        """With all replicas that answer and can go on; False if there is none.  A committer that
        dies meanwhile has opened no more than `opened_max` of them."""
        before = self.stream
        generation = Epoch(before.generation + 1)
        while True:
            answers = self._seal(generation, before.replicas, joining)
            fences = [each.epoch for each in answers.values() if isinstance(each, m.Refused)]
            if not fences:
                break
            generation = Epoch(max(*fences, generation) + 1)
        ends = {
            node: _counted_end(answer, before)
            for node, answer in answers.items()
            if node != joining and isinstance(answer, m.StreamSealed) and answer.is_valid
        }
        stays = {node: end for node, end in ends.items() if end >= before.local_end}
        if not stays:
            return False
        if joining is not None and isinstance(answers[joining], m.StreamSealed):
            source = next(iter(stays))
            commit = arithmetic.commits_for(self.record, source, {})
            self.ask(source, commit)
            synced = self.ask(source, m.SyncStream(LOG, STREAM, generation, joining))
            if isinstance(synced, m.StreamSynced):
                assert synced.local_end == before.local_end
                stays[joining] = synced.local_end
        self._go_on(generation, tuple(stays), min(stays.values()), opened_max)
        return True

    def _seal(
        self, generation: Epoch, replicas: tuple[NodeId, ...], joining: NodeId | None
    ) -> dict[NodeId, Answer]:
        nodes = replicas if joining is None else (*replicas, joining)
        message = m.SealStream(LOG, STREAM, generation)
        return {node: self.ask(node, message) for node in nodes}

    def _go_on(
        self, generation: Epoch, replicas: tuple[NodeId, ...], end: Lsn, opened_max: int
    ) -> None:
        stream = msgspec.structs.replace(self.stream, generation=generation, replicas=replicas)
        self.record = arithmetic.with_stream(self.record, stream)
        self.reports.clear()
        message = m.OpenStream(LOG, STREAM, generation, replicas, end)
        for node in replicas[:opened_max]:
            opened = self.ask(node, message)
            if isinstance(opened, m.StreamOpened):
                self._hear(node, (opened.report,))

    # -- What must hold -----------------------------------------------------------------------

    def check(self) -> None:
        """Replicas agree about all that is committed, and answers were true."""
        held = [node.committed() for node in self.nodes.values() if _is_whole(node)]
        places: dict[Lsn, Token] = {}
        for each in held:
            for place, token in each:
                assert places.setdefault(place, token) == token, f"replicas differ at {place}"
        tokens = list(places.values())
        assert len(tokens) == len(set(tokens)), "an append is in the log twice"

    def check_answers(self) -> None:
        """All replicas have taken all commits."""
        found = {token: place for place, token in self.primary.committed()}
        for token, place in self.appended.items():
            is_trimmed = place < self.record.trim_end and token not in found
            assert is_trimmed or found[token] == place, f"{token} was acknowledged at {place}"
        assert not self.refused & found.keys(), "what was refused is in the log"


def _counted_end(sealed: m.StreamSealed, stream: StreamRecord) -> Lsn:
    """What a replica holds that missed the last opening proves nothing above the committed end."""
    if sealed.opened == stream.generation:
        return sealed.end
    return min(sealed.end, stream.local_end)


def _is_whole(node: Node) -> bool:
    state = node.store.state(STREAM_LOG)
    return state is not None and (state.context is not None or state.last_run is None)


def runs_of(node: Node) -> list[StreamCommit]:
    return node.store.commit_runs(STREAM_LOG, Lsn(1), LSN_MAX, 1_000)
