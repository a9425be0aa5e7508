"""The keeper's loop for buckets, on a repository in memory and nodes that are played."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from millrace.codec.blocks import junk
from millrace.core.documents.calmness import CALM_MS
from millrace.core.documents.document import PartitionId
from millrace.core.documents.failing_over import CannotReason
from millrace.core.documents.failover_request import ask_for
from millrace.core.documents.map import BucketAttributes, BucketRecord
from millrace.core.documents.placement import Copies
from millrace.core.documents.rebalance import RebalanceRecord, RebalanceState
from millrace.core.documents.seats import fenced, new_seats
from millrace.core.messages import Message
from millrace.core.messages.documents import DescribeBuckets
from millrace.core.procedure import ClusterView
from millrace.core.statuses import drain
from millrace.errors import NotConnected
from millrace.meta import keys
from millrace.meta.contract import ANY_VERSION
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.runtime.procedures import ProcedureRunner
from millrace.server.documents.cluster_keeping import ClusterKeeping, draw_ids, surroundings
from millrace.types import NO_NODE, NodeId, NodeInfo, Role
from tests.core.documents.seat_cluster import BUCKET, NAME, SeatCluster, nodes
from tests.support.clusters import eventually, run

A, B, C, D = nodes(1, 2, 3, 4)
P0 = PartitionId(0)


class Rig:
    """Nodes answer at once, and their streams go on with every request."""

    def __init__(self, cluster: SeatCluster, replace_after_ms: int) -> None:
        self.cluster = cluster
        self.directory = ClusterDirectory(MemoryRepository())
        self.looks = 0  # At a node.
        self.runner = ProcedureRunner(self._ask, self.directory, junk)
        self.keeping = self.new_keeper(replace_after_ms)

    def new_keeper(self, replace_after_ms: int = 60_000, calm_ms: int = CALM_MS) -> ClusterKeeping:
        return ClusterKeeping(self.directory, self.runner, 50, replace_after_ms, calm_ms)

    async def _ask(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        held = self.cluster.nodes[node]
        if not held.is_up:
            raise NotConnected(f"node {node} is down")
        self.looks += isinstance(message, DescribeBuckets)
        self.cluster.replicate()
        return held.answer(message)

    def view(self) -> ClusterView:
        around = self.cluster.around()
        infos = tuple(
            NodeInfo(id, f"host:{id}", "", (Role.DOCUMENTS,)) for id in self.cluster.nodes
        )
        return ClusterView(infos, around.live, around.lives)

    async def looks_in_a_round(self) -> int:
        before = self.looks
        await self.round()
        return self.looks - before

    async def calm_down(self) -> None:
        await self.round()
        assert await self.looks_in_a_round() == 0

    async def round(self) -> None:
        await self.keeping.look(self.view())
        record, _ = await self.directory.read_bucket(NAME)
        if record is not None:
            self.cluster.record = record

    async def until(self, is_done: Callable[[], bool], what: str) -> None:
        async def look() -> bool:
            await self.round()
            return is_done()

        await eventually(look, what=what, timeout_s=20)

    async def rebalance(self) -> RebalanceRecord:
        record, _ = await self.directory.read_rebalance(NAME)
        assert record is not None
        return record

    async def ask_for(self, *wanted: NodeId) -> None:
        _, version = await self.directory.read_rebalance(NAME)
        assert await self.directory.replace_rebalance(NAME, RebalanceRecord(wanted), version)

    async def rebalanced(self, state: RebalanceState) -> RebalanceRecord:
        async def look() -> RebalanceRecord:
            await self.round()
            return await self.rebalance()

        what = f"a rebalance that is {state.value}"
        return await eventually(look, lambda seen: seen.state is state, what=what, timeout_s=20)

    def masters(self) -> list[NodeId]:
        return [seat.active for seat in self.cluster.record.seats]


def on_a_rig(
    body: Callable[[Rig], Awaitable[None]],
    *,
    partitions: int = 6,
    node_count: int = 4,
    replace_after_ms: int = 60_000,
) -> None:
    """A bucket on nodes 1 to 3, each partition with a replica, settled, with some documents."""

    async def work() -> None:
        trio = nodes(1, 2, 3)
        wanted = [Copies(trio[n % 3], (trio[(n + 1) % 3],)) for n in range(partitions)]
        cluster = SeatCluster(wanted, node_count=node_count)
        rig = Rig(cluster, replace_after_ms)
        assert await rig.directory.replace_bucket(cluster.record, 0)
        await rig.round()
        for number in range(partitions):
            cluster.write(5, number)
        cluster.replicate()
        cluster.flush()
        try:
            await body(rig)
        finally:
            await rig.keeping.close()

    run(work(), 30)


def test_a_new_bucket_is_served() -> None:
    async def body(rig: Rig) -> None:
        assert all(rig.cluster.serving(number) == [rig.masters()[number]] for number in range(6))

    on_a_rig(body)


def test_masters_of_a_dead_node_fail_over_in_one_round() -> None:
    async def body(rig: Rig) -> None:
        rig.cluster.nodes[A].stop()
        await rig.round()
        for number in range(6):
            (serving,) = rig.cluster.serving(number)
            assert serving != A and len(rig.cluster.copy(serving, number).changes) == 5

    on_a_rig(body)


def test_a_partition_without_a_master_is_told_about() -> None:
    async def body(rig: Rig) -> None:
        rig.cluster.nodes[A].stop()
        rig.cluster.nodes[B].stop()
        await rig.round()
        (stuck,) = rig.keeping.stuck.values()
        assert stuck[P0].reason is CannotReason.TOO_FEW_ANSWERS
        rig.cluster.nodes[A].restart(is_clean=True)
        rig.cluster.nodes[B].restart(is_clean=True)
        await rig.until(lambda: not rig.keeping.stuck, "a master of every partition")

    on_a_rig(body)


def test_lost_replicas_are_made_elsewhere() -> None:
    async def body(rig: Rig) -> None:
        rig.cluster.nodes[A].stop()

        def is_whole() -> bool:
            seats = rig.cluster.record.seats
            return all(A not in seat.holders and len(seat.replicas) == 1 for seat in seats)

        await rig.until(is_whole, "a replica of every partition on another node")
        assert rig.keeping.moves_done >= 4 and rig.keeping.moves_undone == 0

    on_a_rig(body, replace_after_ms=20)


def test_a_rebalance_to_another_node_and_back() -> None:
    async def body(rig: Rig) -> None:
        await rig.ask_for(A, B, C, D)
        there = await rig.rebalanced(RebalanceState.DONE)
        assert there.done == there.moves > 0
        assert {rig.masters().count(node) for node in (A, B, C, D)} <= {1, 2}
        await rig.ask_for(A, B, C)
        back = await rig.rebalanced(RebalanceState.DONE)
        assert back.done == back.moves and D not in rig.masters()
        await rig.until(lambda: not rig.cluster.nodes[D].copies, "the end of the last copy there")
        for number, master in enumerate(rig.masters()):
            assert len(rig.cluster.copy(master, number).changes) == 5
            assert len(rig.cluster.copy(master, number).log.entries) == 1

    on_a_rig(body)


def test_another_keeper_goes_on_with_a_rebalance() -> None:
    async def body(rig: Rig) -> None:
        await rig.ask_for(A, B, C, D)
        await rig.round()
        await rig.round()
        await rig.keeping.close()
        rig.keeping = rig.new_keeper()
        await rig.rebalanced(RebalanceState.DONE)
        assert all(not seat.pending for seat in rig.cluster.record.seats)

    on_a_rig(body, partitions=24)


def test_a_rebalance_ends_when_one_of_its_nodes_dies() -> None:
    async def body(rig: Rig) -> None:
        await rig.ask_for(A, B, C, D)
        await rig.round()
        rig.cluster.nodes[D].stop()
        failed = await rig.rebalanced(RebalanceState.FAILED)
        assert "nodes 4 do not live" in failed.detail
        await rig.until(
            lambda: all(
                len(rig.cluster.serving(n)) == 1 and not rig.cluster.seat(n).pending
                for n in range(24)
            ),
            "a master everywhere, and nobody pending",
        )

    on_a_rig(body, partitions=24)


def test_a_rebalance_can_be_stopped() -> None:
    async def body(rig: Rig) -> None:
        await rig.ask_for(A, B, C, D)
        await rig.round()
        record, version = await rig.directory.read_rebalance(NAME)
        assert record is not None
        stopped = RebalanceRecord(record.nodes, RebalanceState.STOPPED)
        assert await rig.directory.replace_rebalance(NAME, stopped, version)
        await rig.round()
        assert await rig.rebalance() == stopped

    on_a_rig(body, partitions=24)


def test_what_deleted_buckets_left_is_dropped() -> None:
    async def body(rig: Rig) -> None:
        await rig.keeping.drop_leftovers(rig.view())
        assert all(rig.cluster.nodes[node].copies for node in (A, B, C))
        await rig.directory.remove_bucket(NAME)
        await rig.keeping.drop_leftovers(rig.view())
        assert any(node.copies for node in rig.cluster.nodes.values()), "a repository that forgot"
        while await rig.directory.next_bucket_id() < BUCKET:
            pass
        await rig.keeping.drop_leftovers(rig.view())
        assert not any(node.copies for node in rig.cluster.nodes.values())
        await rig.keeping.look(rig.view())
        assert rig.keeping.stuck == {}

    on_a_rig(body)


def test_a_bucket_with_which_all_is_well_is_left_alone_for_a_while() -> None:
    async def body(rig: Rig) -> None:
        await rig.calm_down()
        rig.keeping = rig.new_keeper(calm_ms=0)
        assert [await rig.looks_in_a_round() for _ in range(3)] == [4, 4, 4]

    on_a_rig(body)


def test_a_node_that_restarts_within_its_lease_is_looked_at_at_once() -> None:
    async def body(rig: Rig) -> None:
        await rig.calm_down()
        rig.cluster.nodes[A].restart(is_clean=False)
        assert len(rig.cluster.serving(0)) == 0
        await rig.round()
        assert all(len(rig.cluster.serving(number)) == 1 for number in range(6))

    on_a_rig(body)


def test_a_node_that_loads_its_documents_is_looked_at_until_it_has() -> None:
    async def body(rig: Rig) -> None:
        await rig.calm_down()
        rig.cluster.nodes[A].restart(is_clean=True)
        rig.cluster.nodes[A].is_warm = False
        assert await rig.looks_in_a_round() and await rig.looks_in_a_round()
        rig.cluster.nodes[A].is_warm = True
        await rig.round()
        assert all(len(rig.cluster.serving(number)) == 1 for number in range(6))
        await rig.calm_down()

    on_a_rig(body)


def test_a_seat_that_somebody_else_changed_is_looked_at_at_once() -> None:
    async def body(rig: Rig) -> None:
        await rig.calm_down()
        record, version = await rig.directory.read_bucket(NAME)
        assert record is not None
        seats = (fenced(record.seats[0]), *record.seats[1:])
        changed = msgspec.structs.replace(record, seats=seats, revision=record.revision + 1)
        assert await rig.directory.replace_bucket(changed, version)
        await rig.round()
        assert rig.masters()[0] != NO_NODE and rig.cluster.seat(0).term > seats[0].term

    on_a_rig(body)


def test_a_bucket_that_is_deleted_and_made_again_is_looked_at_at_once() -> None:
    async def body(rig: Rig) -> None:
        await rig.calm_down()
        record = rig.cluster.record
        await rig.directory.remove_bucket(NAME)
        seats = new_seats([Copies(A)])
        anew = BucketRecord(BUCKET + 1, NAME, BucketAttributes(1, 0), seats, record.revision)
        assert await rig.directory.replace_bucket(anew, 0)
        assert await rig.looks_in_a_round()

    on_a_rig(body)


def test_what_operators_want_is_begun_at_once() -> None:
    async def body(rig: Rig) -> None:
        await rig.calm_down()
        request = ask_for(rig.cluster.record, [P0], NO_NODE, False, 0)
        assert await rig.directory.replace_failover(NAME, request, 0)
        before = rig.cluster.seat(0)
        await rig.round()
        assert rig.cluster.seat(0).id != before.id
        await rig.calm_down()
        await rig.ask_for(A, B, C, D)
        await rig.round()
        assert (await rig.rebalance()).state is RebalanceState.RUNNING

    on_a_rig(body)


def test_what_was_wanted_of_a_deleted_bucket_is_not_done_to_the_next_of_its_name() -> None:
    """It was asked for while that was deleted."""

    async def body(rig: Rig) -> None:
        deleted = msgspec.structs.replace(rig.cluster.record, id=BUCKET - 1)
        failover = ask_for(deleted, [P0], NO_NODE, True, 0)
        rebalance = RebalanceRecord((A, B, C, D), bucket=deleted.id)
        assert await rig.directory.replace_failover(NAME, failover, 0)
        assert await rig.directory.replace_rebalance(NAME, rebalance, 0)
        before = rig.cluster.record
        await rig.calm_down()
        assert rig.cluster.record == before
        assert (await rig.directory.read_failover(NAME))[0] == failover
        assert await rig.rebalance() == rebalance

    on_a_rig(body)


@pytest.mark.parametrize("bucket", ["unrelated", NAME])
@pytest.mark.parametrize("family", [keys.REBALANCES, keys.FAILOVERS], ids=["rebalance", "failover"])
def test_a_wish_that_cannot_be_read_is_none(
    family: keys.KeyFamily[str, object], bucket: str
) -> None:
    """Of a version to come, perhaps.  No bucket had failovers any more."""

    async def body(rig: Rig) -> None:
        wish = b'{"nodes": [1], "partitions": [0], "state": "paused"}'
        await rig.directory.repository.set(family.key(bucket), wish, 0)
        rig.cluster.nodes[A].stop()
        await rig.round()
        assert all(rig.cluster.serving(number) not in ([], [A]) for number in range(6))
        assert (await rig.directory.repository.get(family.key(bucket))).value == wish

    on_a_rig(body)


def test_a_drain_of_a_node_is_looked_at_at_once() -> None:
    async def body(rig: Rig) -> None:
        await rig.calm_down()
        await rig.directory.change_status(D, lambda entry: drain(entry, "disk", 0))
        assert await rig.looks_in_a_round()
        await rig.calm_down()

    on_a_rig(body)


def test_a_bucket_is_not_calm_again_because_the_nodes_are_as_they_were() -> None:
    async def body(rig: Rig) -> None:
        await rig.calm_down()
        await rig.directory.change_status(D, lambda entry: drain(entry, "disk", 0))
        rig.cluster.nodes[B].is_up = False  # Nobody misses it yet.
        assert await rig.looks_in_a_round()
        await rig.directory.repository.delete(keys.STATUSES.key(D), ANY_VERSION)
        assert await rig.looks_in_a_round()

    on_a_rig(body)


def test_while_a_rebalance_is_open_nothing_is_calm() -> None:
    async def body(rig: Rig) -> None:
        await rig.ask_for(A, B, C, D)
        await rig.rebalanced(RebalanceState.RUNNING)
        while (await rig.rebalance()).is_open:
            assert await rig.looks_in_a_round()
        await rig.calm_down()

    on_a_rig(body)


def test_who_gets_copies() -> None:
    infos = (
        NodeInfo(A, "host:1", "r.d.c.w.k"),
        NodeInfo(B, "host:2", roles=(Role.STORAGE,)),
        NodeInfo(C, "host:3"),
        NodeInfo(D, "host:4"),
    )
    draining = drain(None, "disk", 0)
    assert draining is not None
    around = surroundings(ClusterView(infos, frozenset((A, B, D))), {D: draining})
    assert around.live == {A, D}
    assert around.usable == {A}
    assert around.locations[A] == "r.d.c.w.k"


def test_ids_are_drawn_and_never_zero() -> None:
    ids = draw_ids()
    drawn = {next(ids) for _ in range(1_000)}
    assert len(drawn) == 1_000
    assert all(0 < id < 2**64 for id in drawn)
