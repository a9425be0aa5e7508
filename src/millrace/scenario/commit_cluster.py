"""A small cluster with one commit log, for scenarios: real nodes and the real committer.

Every exchange is written down as in the sequence diagrams of seed 004.  Nothing happens by itself:
what waits is carried out, in order, until nothing does; then a scenario goes on.  Time passes when
it says so, and what is held (a disk, the committer, the repository) waits until it is let go.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

from millrace.core import messages as m
from millrace.core import procedure as p
from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.core.effects import Ticket
from millrace.scenario import commit_speech as speech
from millrace.scenario import commit_words as cw
from millrace.scenario import words as w
from millrace.scenario.commit_node import CommitNode
from millrace.scenario.commit_surroundings import CommitSurroundings, Done
from millrace.scenario.procedure_words import node_info
from millrace.server.hosted_committer import CommitterRequest, HostedCommitter
from millrace.types import NO_NODE, Epoch, NodeId, StreamId

STEPS_MAX: Final = 10_000  # More than any scenario that comes to rest.
NO_GENERATION: Final = Epoch(0)
NOBODY: Final = p.Failure(p.FailureKind.CONNECT)
_QUIET = (m.Reported(Epoch(1)),)  # Answers that say nothing.


class CommitCluster:
    def __init__(self, nodes: int, streams: list[tuple[NodeId, ...]], copies: int) -> None:
        self.exchanges: list[str] = []
        self.now_ms = 0
        self.failed: set[NodeId] = set()  # Cut off from all others.
        self._queue: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count(1)
        made = tuple(
            StreamRecord(StreamId(number), NO_GENERATION, replicas)
            for number, replicas in enumerate(streams, 1)
        )
        record = CommitRecord(w.LOG, Epoch(0), NO_NODE, copies, made)
        self.repository = Repository(self, record)
        numbers = range(1, nodes + 1)
        self.nodes = {NodeId(number): CommitNode(self, NodeId(number)) for number in numbers}
        self.committer = CommitterSeat(self)
        self.rest()
        self.exchanges.clear()

    # -- What happens ---------------------------------------------------------------------------

    def say(self, line: str) -> None:
        self.exchanges.append(line)

    def rest(self) -> None:
        """Carry out whatever waits, until nothing but time can change anything."""
        for _ in range(STEPS_MAX):
            for node in self.nodes.values():
                node.work()
            if not self._queue:
                return
            self._queue.popleft()()
        raise AssertionError("the cluster does not come to rest")

    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self._timers and self._timers[0][0] <= end_ms:
            self.now_ms, _, call = heappop(self._timers)
            call()
            self.rest()
        self.now_ms = end_ms

    def soon(self, call: Callable[[], None]) -> None:
        self._queue.append(call)

    def later(self, ms: int, call: Callable[[], None]) -> None:
        heappush(self._timers, (self.now_ms + ms, next(self._numbers), call))

    # -- Messages -------------------------------------------------------------------------------

    def send(self, sender: NodeId | str, node: NodeId, message: m.Message, done: Done) -> None:
        """`sender` is a node, or the name of somebody outside."""
        who = sender if isinstance(sender, str) else cw.show_node(sender)
        if sender in self.failed and sender != node:
            self.soon(lambda: done(NOBODY))
        else:
            self.soon(partial(self._deliver, who, node, message, done))

    def _deliver(self, who: str, node: NodeId, message: m.Message, done: Done) -> None:
        name = cw.show_node(node)
        if who != name:
            self.say(f"{who} -> {name} {speech.show(message)}")
        answered = partial(self._answered, who, name, done)
        if node == cw.COMMITTER:
            assert isinstance(message, m.Report), "nodes ask the committer nothing else"
            self.committer.handle(message, answered)
        elif self._is_reachable(node) or who == name:
            self.nodes[node].ask(message, answered)
        else:
            answered(NOBODY)

    def _is_reachable(self, node: NodeId) -> bool:
        return self.nodes[node].is_up and node not in self.failed

    def _answered(self, who: str, name: str, done: Done, answer: p.Answer) -> None:
        arrow = "-x" if isinstance(answer, p.Failure) else "->"
        if who != name and answer not in _QUIET:
            self.say(f"{name} {arrow} {who} {speech.show_answer(answer)}")
        self.soon(lambda: done(answer))

    # -- Procedures -----------------------------------------------------------------------------

    def run(self, me: NodeId, procedure: p.Procedure[Any], done: Callable[[Any], None]) -> None:
        self._go_on(me, procedure, done, None)

    def _go_on(
        self, me: NodeId, procedure: p.Procedure[Any], done: Callable[[Any], None], answer: Any
    ) -> None:
        go_on = partial(self._go_on, me, procedure, done)
        try:
            effect = procedure.send(answer)
        except StopIteration as stop:
            done(stop.value)
            return
        match effect:
            case p.Ask(node, message):
                self.send(me, node, message, go_on)
            case p.AskAll(asks):
                _Gathered(self, me, asks, go_on)
            case p.ReadCommits():
                go_on((self.repository.record, self.repository.version))
            case p.ReplaceCommits(record, expected):
                self.repository.replace(record, expected, go_on)
            case p.ListNodes():
                go_on(self.view())
            case p.Note():
                go_on(None)
            case _:
                raise AssertionError(f"{type(effect).__name__} is no part of these scenarios")

    def view(self) -> p.ClusterView:
        live = filter(self._is_reachable, self.nodes)
        infos = tuple(map(node_info, sorted(self.nodes)))
        return p.ClusterView(infos, frozenset({cw.COMMITTER, *live}))


class _Gathered:
    """Requests at once; goes on when all are answered."""

    def __init__(
        self,
        cluster: CommitCluster,
        me: NodeId,
        asks: Sequence[p.Ask],
        done: Callable[[list[p.Answer | None]], None],
    ) -> None:
        self._answers: list[p.Answer | None] = [None] * len(asks)
        self._done = done
        for at, ask in enumerate(asks):
            cluster.send(me, ask.node, ask.message, partial(self._heard, at))

    def _heard(self, at: int, answer: p.Answer) -> None:
        self._answers[at] = answer
        if None not in self._answers:
            self._done(self._answers)


class Repository:
    """The metadata repository: takes what the committer writes, unless it is held."""

    def __init__(self, cluster: CommitCluster, record: CommitRecord) -> None:
        self.record = record
        self.version = 1
        self.is_held = False
        self._cluster = cluster
        self._waiting: deque[Callable[[], None]] = deque()

    def replace(self, record: CommitRecord, expected: int, done: Callable[[int], None]) -> None:
        """Compare-and-set; 0 if somebody else was first."""
        self._cluster.say(f"{cw.COMMITTER_NAME} -> MR {cw.show_record(record)}")
        self._waiting.append(partial(self._replace, record, expected, done))
        if not self.is_held:
            self._cluster.soon(self.go)

    def go(self) -> None:
        """What waits is done, and what comes is done at once."""
        self.is_held = False
        while self._waiting:
            self._waiting.popleft()()

    def _replace(self, record: CommitRecord, expected: int, done: Callable[[int], None]) -> None:
        is_first = expected == self.version
        if is_first:
            self.record, self.version = record, self.version + 1
        self._cluster.say(f"MR -> {cw.COMMITTER_NAME} {'ok' if is_first else 'conflict'}")
        done(self.version if is_first else 0)


class CommitterSeat:
    """The node that is the committer."""

    def __init__(self, cluster: CommitCluster) -> None:
        self.is_held = False
        self._cluster = cluster
        self._waiting: dict[Ticket, Done] = {}
        self._numbers = count(1)
        self._held: list[tuple[Ticket, CommitterRequest]] = []
        around = CommitSurroundings(cluster, cw.COMMITTER, self._answer)
        self._hosted = HostedCommitter(w.LOG, cw.COMMITTER, around, self._over)
        self.handle(m.ActivateCommitter(w.LOG), lambda answer: None)

    def handle(self, request: CommitterRequest, done: Done) -> None:
        ticket = 1, next(self._numbers)
        self._waiting[ticket] = done
        if self.is_held:
            self._held.append((ticket, request))
        else:
            self._hosted.handle(ticket, request)

    def go(self) -> None:
        """It takes what has arrived meanwhile, and what comes."""
        self.is_held = False
        held, self._held = self._held, []
        for ticket, request in held:
            self._hosted.handle(ticket, request)

    def explain(self) -> dict[str, Any]:
        return self._hosted.explain()

    def _over(self, hosted: HostedCommitter) -> None:
        self._cluster.say(f"{cw.COMMITTER_NAME} is the committer no more")

    def _answer(self, ticket: Ticket, message: m.Message) -> None:
        self._waiting.pop(ticket)(message)
