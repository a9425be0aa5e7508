"""Machine `commit-log`: replicas of streams, their committer, and what is reported, committed,
lost, recovered and synced (seed 004)."""

from collections.abc import Callable
from typing import Final

from millrace.codec import blocks
from millrace.core import messages as m
from millrace.core.commit.operating import Operation
from millrace.core.commit.record import StreamRecord, stream_log_of
from millrace.core.procedure import Answer
from millrace.scenario import commit_speech as speech
from millrace.scenario import commit_words as cw
from millrace.scenario import words as w
from millrace.scenario.commit_cluster import CommitCluster, CommitterSeat, Repository
from millrace.scenario.commit_node import CommitNode
from millrace.scenario.machine import Command, Machine, Setting
from millrace.scenario.text import Words
from millrace.types import (
    FIRST_LSN,
    LSN_MAX,
    NO_NODE,
    Ack,
    Epoch,
    LogId,
    Lsn,
    NodeId,
    StreamId,
    Token,
)

CLIENT: Final = "A"
OPERATOR: Final = "operator"
FIRST_STREAM: Final = StreamId(1)
_DEFAULT_REPLICAS: Final = (NodeId(1), NodeId(2))


class CommitLogMachine(Machine):
    name = "commit-log"

    def __init__(self) -> None:
        self._nodes = 3
        self._copies = 1
        self._streams: list[tuple[NodeId, ...]] = []
        self._made: CommitCluster | None = None
        self._appends = 0
        self._told: dict[str, dict[str, int]] = {}  # What `explain` has said.

    def settings(self) -> list[Setting]:
        return [
            Setting("nodes N", self._set_nodes),
            Setting("stream NODE,...", self._add_stream),
            Setting("copies N", self._set_copies),
        ]

    def commands(self) -> list[Command]:
        actions: list[tuple[str, Callable[[Words], list[str]]]] = [
            ("append VALUE[|VALUE...] [stream N] [ack memory]", self._shown(self._append)),
            ("send NODE MESSAGE", self._shown(self._send)),
            ("report NODE REPORT...", self._shown(self._report)),
            ("operator ACTION", self._shown(self._operate)),
            ("after MS", self._shown(self._after)),
            ("hold NODE|committer|metadata", self._shown(self._hold)),
            ("go NODE|committer|metadata", self._shown(self._go)),
            ("fail NODE", self._shown(self._fail)),
            ("heal NODE", self._shown(self._heal)),
            ("crash NODE", self._shown(self._crash)),
            ("restart NODE", self._shown(self._restart)),
            ("tamper NODE CHANGE [stream N]", self._shown(self._tamper)),
            ("quietly EVENT", self._quietly),
            ("state", self._state),
            ("disk NODE [stream N]", self._disk),
            ("counts NODE", lambda words: self._take_node(words).show_counts()),
            ("explain", self._explain),
        ]
        return [Command(usage, run) for usage, run in actions]

    # -- Set-up -------------------------------------------------------------------------------

    def _set_nodes(self, words: Words) -> None:
        self._nodes = words.number("a number of nodes")

    def _add_stream(self, words: Words) -> None:
        self._streams.append(words.parse("replicas such as SN1,SN2", w.parse_nodes))

    def _set_copies(self, words: Words) -> None:
        self._copies = words.number("a number of replicas")

    @property
    def _cluster(self) -> CommitCluster:
        if self._made is None:
            streams = self._streams or [_DEFAULT_REPLICAS]
            nodes = max(self._nodes, *(node for replicas in streams for node in replicas))
            self._made = CommitCluster(nodes, streams, self._copies)
        return self._made

    def _shown(self, event: Callable[[Words], None]) -> Callable[[Words], list[str]]:
        """Carry it out with all that follows, and say what happened."""

        def run(words: Words) -> list[str]:
            event(words)
            self._cluster.rest()
            shown = list(self._cluster.exchanges)
            self._cluster.exchanges.clear()
            return shown

        return run

    def _quietly(self, words: Words) -> list[str]:
        self.perform(words)
        return []

    # -- Taking words ---------------------------------------------------------------------------

    def _take_node(self, words: Words) -> CommitNode:
        node = words.parse("a node such as SN1", w.parse_node)
        if node not in self._cluster.nodes:
            words.fail(f"there is no {w.show_node(node)}")
        return self._cluster.nodes[node]

    def _take_stream(self, words: Words) -> StreamId:
        if not words.option("stream"):
            return FIRST_STREAM
        return StreamId(words.number("a stream"))

    def _stream(self, words: Words, number: StreamId) -> StreamRecord:
        record = self._cluster.repository.record.stream(number)
        if record is None:
            words.fail(f"there is no stream {number}")
        return record

    # -- What people and other machines do ------------------------------------------------------

    def _append(self, words: Words) -> None:
        values = words.take("a value").split("|")
        record = self._stream(words, self._take_stream(words))
        ack = words.parse("disk or memory", Ack) if words.option("ack") else Ack.DISK
        self._appends += 1
        body = blocks.draft([each.encode() for each in values], timestamps_us=0, compress=False)
        block = blocks.place(body, w.LOG, Epoch(0), FIRST_LSN, Token(1, self._appends))
        request = m.AppendStream(w.LOG, record.stream, record.generation, block, ack)
        self._cluster.send(CLIENT, record.replicas[0], request, _hear)

    def _send(self, words: Words) -> None:
        node = self._take_node(words).id
        self._cluster.send(CLIENT, node, speech.take_message(words), _hear)

    def _report(self, words: Words) -> None:
        node = self._take_node(words)
        reports = []
        while words:
            reports.append(words.parse("a report such as 1(v1,2,0)", cw.parse_report))
        message = m.Report(w.LOG, self._cluster.repository.record.term, node.id, tuple(reports))
        self._cluster.send(node.name, cw.COMMITTER, message, _hear)

    def _operate(self, words: Words) -> None:
        operation = self._take_operation(words)
        self._cluster.committer.handle(operation, self._operated)

    def _operated(self, answer: Answer) -> None:
        self._cluster.say(f"{cw.COMMITTER_NAME} -> {OPERATOR} {speech.show_answer(answer)}")

    def _take_operation(self, words: Words) -> Operation:
        match words.take("trim, join, leave, close or open"):
            case "trim":
                return m.TrimCommits(w.LOG, Lsn(words.number("a position")))
            case "join":
                node = words.parse("a node such as SN3", w.parse_node)
                return m.MoveReplica(w.LOG, self._take_stream(words), NO_NODE, node)
            case "leave":
                node = words.parse("a node such as SN3", w.parse_node)
                return m.MoveReplica(w.LOG, self._take_stream(words), node, NO_NODE)
            case "close":
                return m.SetStreamOpen(w.LOG, self._take_stream(words), is_open=False)
            case "open":
                return m.SetStreamOpen(w.LOG, self._take_stream(words), is_open=True)
            case word:
                return words.fail(f"expected one of: {'; '.join(ACTIONS)}, found {word!r}")

    def _after(self, words: Words) -> None:
        self._cluster.pass_time(words.number("milliseconds"))

    # -- What goes wrong ------------------------------------------------------------------------

    def _hold(self, words: Words) -> None:
        self._take_part(words).is_held = True

    def _go(self, words: Words) -> None:
        self._take_part(words).go()

    def _take_part(self, words: Words) -> CommitNode | CommitterSeat | Repository:
        if words.option("committer"):
            return self._cluster.committer
        return self._cluster.repository if words.option("metadata") else self._take_node(words)

    def _fail(self, words: Words) -> None:
        self._cluster.failed.add(self._take_node(words).id)

    def _heal(self, words: Words) -> None:
        self._cluster.failed.discard(self._take_node(words).id)

    def _crash(self, words: Words) -> None:
        self._take_node(words).crash()

    def _restart(self, words: Words) -> None:
        """What recovery says comes first, before anybody hears of it."""
        node = self._take_node(words)
        if node.is_up:
            node.crash()
        node.start()
        for line in node.show_state():
            self._cluster.say(line)

    def _tamper(self, words: Words) -> None:
        """Something that no program does, or an old backup that was put back."""
        node = self._take_node(words)
        if node.is_up:
            words.fail(f"{node.name} is up: crash it first")
        change = words.take("lose, context or runs")
        argument = words.take("a range, a context, a commit or none")
        log = stream_log_of(w.LOG, self._take_stream(words))
        _tamper(words, node, log, change, argument)
        node.store.flush()
        self._cluster.exchanges.clear()

    # -- What people see ------------------------------------------------------------------------

    def _state(self, words: Words) -> list[str]:
        record = cw.show_record(self._cluster.repository.record)
        nodes = self._cluster.nodes.values()
        return [f"MR {record}", *(line for node in nodes for line in node.show_state())]

    def _disk(self, words: Words) -> list[str]:
        node = self._take_node(words)
        return [node.show_disk(self._take_stream(words))]

    def _explain(self, words: Words) -> list[str]:
        """What the committer did not simply take since this was asked last; whom it waits for."""
        told = self._cluster.committer.explain()
        lines = [f"{self._news(kind, told[kind])}" for kind in ("reports", "refusals")]
        for stream, each in told["streams"].items():
            for node, why in each["silent"].items():
                lines.append(f"{stream} waits for {w.show_node(node)}: {why.partition(':')[0]}")
        return lines

    def _news(self, kind: str, counts: dict[str, int]) -> str:
        before, self._told[kind] = self._told.get(kind, {}), counts
        more = {why: count - before.get(why, 0) for why, count in counts.items()}
        shown = [f"{why} {count}" for why, count in more.items() if count and why != "taken"]
        return f"{kind}: {', '.join(shown) or 'none'}"


ACTIONS = (
    "trim LSN",
    "join NODE [stream N]",
    "leave NODE [stream N]",
    "close [stream N]",
    "open [stream N]",
)
CHANGES = ("lose [FIRST,END)", "context CONTEXT|none", "runs COMMIT|none")


def _hear(answer: Answer) -> None:
    """It was written down when it was said."""


def _tamper(words: Words, node: CommitNode, log: LogId, change: str, argument: str) -> None:
    store = node.store
    state = store.state(log)
    if state is None:
        words.fail(f"{node.name} has nothing of the stream")
    try:
        match change:
            case "lose":
                first, end = w.parse_range(argument)
                lost = store.index(log, first, end, LSN_MAX)
                store.remove(log, [extent.first for extent in lost])
            case "context":
                context = None if argument == "none" else cw.parse_context(argument)
                store.commit(log, context, ())
            case "runs":
                store.uncommit(log)
                store.commit(
                    log, state.context, [] if argument == "none" else [cw.parse_commit(argument)]
                )
            case _:
                words.fail(f"expected one of: {'; '.join(CHANGES)}")
    except ValueError:
        words.fail(f"expected one of: {'; '.join(CHANGES)}, found {argument!r}")
