"""A whole small cluster for scenarios: real cores and shells, a network that is a function call.

Every exchange is written down as in a sequence diagram: `A -> SN1 write 1=x epoch 1`, then
`SN1 -> A written`.  Nothing happens by itself: no time passes, nobody works in the background.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any

from millrace.core import procedure as p
from millrace.core.effects import RunLearn
from millrace.core.learn import learn
from millrace.core.messages import Message
from millrace.core.projection import Projection
from millrace.scenario import speech
from millrace.scenario import words as w
from millrace.scenario.memory_store import MemoryStore
from millrace.scenario.procedure_words import node_info
from millrace.server.shell import NodeShell, Release
from millrace.types import NodeId


class Health(Enum):
    """What the network does with requests to a node."""

    WELL = "well"
    FAILED = "failed"  # Nobody listens: the request is certainly not carried out.
    HANGS = "hangs"  # The request is lost; whoever sent it cannot know.
    MUTE = "mute"  # The request is carried out, its answer is lost.


class ScenarioNode:
    """A node's shell on a store in memory; its answers are kept for whoever asked."""

    def __init__(self, cluster: "Cluster", node: NodeId) -> None:
        self.id = node
        self.health = Health.WELL
        self.store = MemoryStore()
        self._cluster = cluster
        self._answers: dict[int, Message] = {}
        self._requests = 0
        self._open()

    def _open(self) -> None:
        self.shell = NodeShell(self.store, self, self._run_learn)

    def ask(self, message: Message) -> Message | None:
        self._requests += 1
        number = self._requests
        self.shell.handle(1, number, message)
        self.store.run()
        return self._answers.pop(number, None)

    def crash(self) -> None:
        self.store.crash()
        self._open()
        self.health = Health.FAILED

    def wipe(self) -> None:
        self.store = MemoryStore()
        self._open()

    def answer(
        self, session: int, request: int, message: Message, release: Release | None = None
    ) -> None:
        self._answers[request] = message

    def push(self, session: int, message: Message, release: Release | None = None) -> None:
        """Read streams are not part of these scenarios."""

    def is_writable(self, session: int) -> bool:
        return True

    def after_others(self, call: Callable[[], None]) -> None:
        """As `push`."""

    def _run_learn(self, order: RunLearn) -> None:
        running = learn(order.log, order.epoch, order.source, self.id, order.others)
        name = w.show_node(self.id)
        effect = next(running)
        while True:
            answer: Any = None
            if isinstance(effect, p.Ask):
                answer = self._cluster.ask(name, effect.node, effect.message)
            try:
                effect = running.send(answer)
            except StopIteration as stop:
                self.answer(*order.ticket, stop.value)
                return


class Cluster:
    def __init__(self) -> None:
        self.nodes: dict[NodeId, ScenarioNode] = {}
        self.projection: Projection | None = None
        self.version = 0
        self.is_metadata_up = True
        self.exchanges: list[str] = []

    def add(self, node: NodeId) -> None:
        self.nodes[node] = ScenarioNode(self, node)

    def say(self, line: str) -> None:
        self.exchanges.append(line)

    def ask(self, who: str, node: NodeId, message: Message) -> p.Answer:
        name = w.show_node(node)
        self.say(f"{who} -> {name} {speech.show(message)}")
        target = self.nodes.get(node)
        if target is None:
            return self._no_answer(who, name, p.FailureKind.UNKNOWN_NODE)
        if target.health is Health.FAILED:
            return self._no_answer(who, name, p.FailureKind.CONNECT)
        if target.health is Health.HANGS:
            return self._no_answer(who, name, p.FailureKind.TIMED_OUT)
        answer = target.ask(message)
        if answer is None or target.health is Health.MUTE:
            return self._no_answer(who, name, p.FailureKind.TIMED_OUT)
        self.say(f"{name} -> {who} {speech.show(answer)}")
        return answer

    def _no_answer(self, who: str, name: str, kind: p.FailureKind) -> p.Failure:
        self.say(f"{name} -x {who} fails {kind.value}")
        return p.Failure(kind)

    # -- Metadata repository ------------------------------------------------------------------

    def read_projection(self, who: str) -> tuple[Projection | None, int] | p.Failure:
        self.say(f"{who} -> MR get")
        if not self.is_metadata_up:
            return self._no_answer(who, "MR", p.FailureKind.METADATA)
        shown = "nothing" if self.projection is None else w.show_projection(self.projection)
        self.say(f"MR -> {who} {shown}")
        return self.projection, self.version

    def replace_projection(
        self, who: str, projection: Projection, expected: int
    ) -> bool | p.Failure:
        self.say(f"{who} -> MR replace {w.show_projection(projection)}")
        if not self.is_metadata_up:
            return self._no_answer(who, "MR", p.FailureKind.METADATA)
        if expected != self.version:
            self.say(f"MR -> {who} conflict")
            return False
        self.projection, self.version = projection, self.version + 1
        self.say(f"MR -> {who} ok")
        return True

    def view(self) -> p.ClusterView:
        live = {node.id for node in self.nodes.values() if node.health is not Health.FAILED}
        return p.ClusterView(tuple(map(node_info, sorted(self.nodes))), frozenset(live))

    # -- What a person sees -------------------------------------------------------------------

    def state(self) -> str:
        """As below the boxes of the seed's figures."""
        assert self.projection is not None
        shown = f"epoch={self.projection.epoch} chain={w.show_chain(self.projection.chain)}"
        if self.projection.sequencer != w.FIRST_SEQUENCER:
            shown += f" sequencer={w.show_node(self.projection.sequencer)}"
        for node in self.nodes.values():
            if node.health is not Health.WELL:
                shown += f" {w.show_node(node.id)} {node.health.value}"
        if self.projection.is_sealed:
            shown += " sealed"
        return shown + ("" if self.projection.is_redundant else " WARN: no redundancy!")

    def contents(self) -> list[str]:
        lines = []
        for node in self.nodes.values():
            state = node.store.state(w.LOG)
            if state is None:
                continue
            held = node.store.scan(w.LOG, state.trim_end, state.end, 1 << 30).blocks
            shown = " ".join(map(w.show_block, held)) or "nothing"
            trimmed = f" trimmed below {state.trim_end}" if state.trim_end > 1 else ""
            marks = f"epoch={state.fence.epoch} {state.fence.standing.value}{trimmed}"
            lines.append(f"{w.show_node(node.id)} {marks}: {shown}")
        return lines
