"""Whatever happens to the nodes, a reader tells the truth, and gets to the end when it can."""

import random
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.core.epochs import EpochRange
from millrace.core.messages import Refusal
from millrace.core.reading.effects import Deliver
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.replication import Replication
from millrace.lsn import epoch_of, show
from millrace.types import (
    AuthoritativeStatus,
    Block,
    EntryKind,
    Epoch,
    Gap,
    GapKind,
    NodeId,
    Placement,
)
from tests.core.reading.read_cluster import Cluster, Node, at, block, nodes

SETTINGS = SequencedReadSettings(
    window_lsns=12,
    window_bytes=2_000,
    sender_bytes_min=300,
    scd_timeout_ms=3_000,
    all_send_all_timeout_ms=6_000,
    started_timeout_ms=500,
    reconnect_ms_max=1_000,
    rewind_ms_max=100,
)
NODES_MAX = 6
EPOCHS = 2
NODE = st.integers(0, NODES_MAX - 1)


class Reading(RuleBasedStateMachine):
    """A log of two epochs whose nodesets may differ; copies are lost in ways that nodes know of."""

    @initialize(
        seed=st.integers(0, 2**32),
        size=st.integers(3, NODES_MAX),
        copies=st.integers(2, 3),
        has_bridge=st.booleans(),
        is_single_copy=st.sampled_from([True, True, True, False]),
    )
    def make(
        self, seed: int, size: int, copies: int, has_bridge: bool, is_single_copy: bool
    ) -> None:
        self.random = random.Random(seed)
        self.replication = copies
        everybody = list(range(1, size + 1))
        nodesets = [everybody, self.random.sample(everybody, max(copies, size - 1))]
        self.ranges = tuple(
            EpochRange(Epoch(e), Epoch(e), nodes(*each), Replication.of(copies))
            for e, each in enumerate(nodesets, 1)
        )
        self.log: list[Block] = []
        for epoch in range(1, EPOCHS + 1):
            self._write_epoch(epoch, has_bridge or epoch == EPOCHS)
        how = {"is_single_copy": is_single_copy}
        settings = SequencedReadSettings(
            **{name: getattr(SETTINGS, name) for name in SETTINGS.__struct_fields__} | how
        )
        self.cluster = Cluster(self.ranges, at(1), self.log[-1].end, settings)
        self.cluster.on_gap = self._gap
        self.gaps: list[Gap] = []
        for each in self.log:
            nodeset = self.ranges[epoch_of(each.first) - 1].nodeset
            self.cluster.store(each, self.random.sample(nodeset, copies))
        self.released = 0
        self.cluster.open()

    def _write_epoch(self, epoch: int, has_bridge: bool) -> None:
        offset = 1
        for _ in range(self.random.randint(5, 25)):
            records = self.random.choice([1, 1, 2, 5])
            kind = self.random.choice([EntryKind.DATA] * 9 + [EntryKind.HOLE])
            size = self.random.choice([40, 100, 700])
            self.log.append(block(at(offset, epoch), records, kind, size))
            offset += records
        if has_bridge:
            self.log.append(block(at(offset, epoch), 1, EntryKind.BRIDGE))

    # -- What happens -------------------------------------------------------------------------

    def node(self, at: int) -> Node:
        everybody = list(self.cluster.nodes.values())
        return everybody[at % len(everybody)]

    @rule(ms=st.sampled_from([1, 3, 10, 50, 200, 1_000, 7_000]))
    def time_passes(self, ms: int) -> None:
        self.cluster.run(ms)

    @rule(blocks=st.integers(1, 20))
    def more_is_released(self, blocks: int) -> None:
        self.released = min(self.released + blocks, len(self.log))
        self.cluster.release(self.log[self.released - 1].last)

    @rule(which=NODE)
    def node_dies(self, which: int) -> None:
        self.cluster.kill(self.node(which).number)

    @rule(which=NODE)
    def node_returns(self, which: int) -> None:
        self.cluster.revive(self.node(which).number)

    @rule(which=NODE)
    def node_hangs(self, which: int) -> None:
        self.cluster.hang(self.node(which).number)

    @rule(which=NODE)
    def node_wakes(self, which: int) -> None:
        self.cluster.wake(self.node(which).number)

    @rule(which=NODE, ms=st.sampled_from([1, 20, 150]))
    def node_gets_slower_or_faster(self, which: int, ms: int) -> None:
        self.node(which).latency_ms = ms

    @rule(which=NODE, refusal=st.sampled_from([None, Refusal.BUSY, Refusal.INCOMPLETE]))
    def node_refuses(self, which: int, refusal: Refusal | None) -> None:
        self.node(which).refusal = refusal

    @rule(which=NODE, share=st.sampled_from([0.05, 0.5]))
    def copies_are_damaged(self, which: int, share: float) -> None:
        node = self.node(which)
        node.damaged |= {first for first in node.copies if self.random.random() < share}

    @rule(which=NODE)
    def node_loses_its_disk(self, which: int) -> None:
        """It comes back, empty, and knows."""
        node = self.node(which)
        self.cluster.kill(node.number)
        node.copies.clear()
        node.is_incomplete = True
        node.is_up = True

    @rule(which=NODE)
    def disk_is_marked_unrecoverable(self, which: int) -> None:
        node = self.node(which)
        if node.is_incomplete:
            lost = {node.number: AuthoritativeStatus.UNDERREPLICATION}
            self.cluster.set_statuses(self.cluster.statuses | lost)

    @rule(which=NODE)
    def node_is_rebuilt_elsewhere(self, which: int) -> None:
        node = self.node(which)
        if node.is_incomplete and not node.copies and self._move_copies(node.number):
            empty = {node.number: AuthoritativeStatus.AUTHORITATIVE_EMPTY}
            self.cluster.set_statuses(self.cluster.statuses | empty)

    def _move_copies(self, gone: NodeId) -> bool:
        """What is left of the blocks of a node gets a new copy; false if one has no room."""
        moves = []
        for each in self.log:
            holders = [n for n in self.cluster.nodes.values() if each.first in n.copies]
            if not holders or gone not in holders[0].copies[each.first][1].copyset:
                continue
            copyset = holders[0].copies[each.first][1].copyset
            nodeset = self.ranges[epoch_of(each.first) - 1].nodeset
            free = [
                n for n in nodeset if n not in copyset and not self.cluster.nodes[n].is_incomplete
            ]
            good = [n for n in holders if each.first not in n.damaged]
            if not free or not good:
                return False
            moves.append((each, copyset, self.random.choice(free)))
        for each, copyset, new in moves:
            placement = Placement(tuple(new if n == gone else n for n in copyset))
            for number in placement.copyset:
                node = self.cluster.nodes[number]
                if number == new or each.first in node.copies:
                    node.copies[each.first] = (each, placement)
        return True

    @rule(is_paused=st.booleans())
    def application_pauses_or_goes_on(self, is_paused: bool) -> None:
        if is_paused:
            self.cluster.pause()
        else:
            self.cluster.resume()

    @precondition(lambda self: self.released > 0)
    @rule(share=st.floats(0, 0.7))
    def log_is_trimmed(self, share: float) -> None:
        end = self.log[int(self.released * share)].first
        for node in self.cluster.nodes.values():
            node.trim_end = max(node.trim_end, end)

    # -- What must hold -----------------------------------------------------------------------

    def _gap(self, gap: Gap) -> None:
        """I2: nothing that could have been had is told as lost."""
        self.gaps.append(gap)
        if gap.kind not in (GapKind.DATALOSS, GapKind.BRIDGE):
            return
        for each in self.log:
            is_covered = each.first <= gap.last and gap.first < each.end
            if is_covered and each.kind is EntryKind.DATA:
                holders = self._holders(each, self._can_serve)
                assert not holders, f"{each} is on {holders}, but {show(gap.first)} is {gap.kind}"

    def _holders(self, each: Block, is_fit: Callable[[Node], bool]) -> list[NodeId]:
        return [
            node.number
            for node in self.cluster.nodes.values()
            if each.first in node.copies and each.first not in node.damaged and is_fit(node)
        ]

    def _can_serve(self, node: Node) -> bool:
        return node.is_up and not node.is_hung and node.refusal is None

    @invariant()
    def blocks_are_those_of_the_log(self) -> None:
        for part in self.cluster.delivered[-50:]:
            if isinstance(part, Deliver):
                assert part.block in self.log
                assert part.block.first <= part.first < part.end <= part.block.end

    @invariant()
    def senders_keep_within_their_credit(self) -> None:
        stream = self.cluster.stream
        assert not stream.hearing.misbehaviours
        for node in stream.read_set.senders:
            held = stream.delivery.buffer.bytes_of(node) + stream.credit.untaken_of(node)
            share = max(300, 2_000 // len(stream.read_set.senders))
            assert held <= 2 * (share + 700)

    @invariant()
    def a_stall_has_a_name(self) -> None:
        told = self.cluster.stream.explain()
        assert told["waits_for"]
        assert set(told["rewinds"]) <= set(self.cluster.rewinds)  # type: ignore[call-overload]

    def teardown(self) -> None:
        """When all nodes serve again, the end is reached, and only what nobody has is lost."""
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        for node in cluster.nodes.values():
            node.refusal, node.latency_ms = None, 1
            cluster.revive(node.number)
            cluster.wake(node.number)
        cluster.resume()
        cluster.release(self.log[-1].last)
        cluster.run(60_000)
        assert cluster.is_finished, cluster.stream.explain()
        assert cluster.next_lsn == self.log[-1].end


Reading.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestReading: Any = Reading.TestCase
