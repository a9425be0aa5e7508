"""Any order of mutations of a scattered log reads like a dictionary changed the same way."""

import random

import msgspec
import pytest

from millrace.limits import MIB
from millrace.store.contract import Store
from millrace.types import FIRST_LSN, LSN_MAX, Ack, Block, Copy, Epoch, Lsn, NodeId, Placement
from tests.conformance.store_rig import LOG, StoreRig, known, make_block
from tests.conformance.store_scattered_suite import at
from tests.conformance.store_shipping_suite import StoreShippingSuite

STEPS = 150
WEIGHTS = {
    "put": 60,
    "again": 6,
    "amend": 10,
    "remove": 6,
    "trim": 3,
    "settle": 15,
    "reopen": 3,
    "crash": 4,
}


class Kept(msgspec.Struct, frozen=True):
    block: Block
    placement: Placement


class Model:
    """A scattered log by the first positions of its blocks."""

    def __init__(self, kept: dict[Lsn, Kept] | None = None, trim_end: Lsn = FIRST_LSN) -> None:
        self.kept = kept or {}
        self.trim_end = trim_end

    def copy(self) -> "Model":
        return Model(dict(self.kept), self.trim_end)

    def put(self, block: Block, placement: Placement) -> None:
        low = max(block.first, self.trim_end)
        rivals = [
            one for one in self.kept.values() if one.block.end > low and one.block.first < block.end
        ]
        precedence = placement.precedence
        if block.end <= self.trim_end or any(
            rival.placement.precedence > precedence for rival in rivals
        ):
            return
        for rival in rivals:
            del self.kept[rival.block.first]
        self.kept[block.first] = Kept(block, placement)

    def amend(self, first: Lsn, placement: Placement) -> None:
        kept = self.kept.get(first)
        if kept is not None and placement.precedence >= kept.placement.precedence:
            self.kept[first] = Kept(kept.block, placement)

    def remove(self, first: Lsn) -> None:
        self.kept.pop(first, None)

    def trim(self, end: Lsn) -> None:
        self.trim_end = max(self.trim_end, end)
        self.kept = {
            first: one for first, one in self.kept.items() if one.block.end > self.trim_end
        }

    def copies(self) -> list[Copy]:
        return [
            Copy(self.kept[first].block.extent(), self.kept[first].placement)
            for first in sorted(self.kept)
        ]

    def end(self) -> Lsn:
        return max([self.trim_end, *(one.block.end for one in self.kept.values())])


class Trial:
    """A store, its model, and what a crash may leave of it."""

    def __init__(self, rig: StoreRig, seed: int) -> None:
        self.rig = rig
        self.choices = random.Random(seed)
        self.model = Model()
        self.since_settled = [self.model.copy()]  # Keeps I1 checkable: a prefix of the mutations.

    @property
    def store(self) -> Store:
        return self.rig.store

    def step(self) -> None:
        match self.choices.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
            case "put":
                self.put(self.random_block())
            case "again":
                if self.model.kept:
                    first = self.choices.choice(sorted(self.model.kept))
                    self.put(self.model.kept[first].block)
            case "amend":
                self.amend()
            case "remove":
                firsts = self.some(0.15)
                self.store.remove(LOG, firsts)
                for first in firsts:
                    self.model.remove(first)
            case "trim":
                end = self.random_lsn()
                self.store.trim(LOG, end)
                self.model.trim(end)
            case "settle":
                assert self.rig.settle() is None
                self.since_settled.clear()
            case "reopen":
                self.rig.reopen()
                self.since_settled.clear()
            case "crash":
                self.crash()
        self.since_settled.append(self.model.copy())

    def random_lsn(self) -> Lsn:
        return at(self.choices.randrange(1, 4), self.choices.randrange(1, 40))

    def random_block(self) -> Block:
        first = self.random_lsn()
        if self.choices.random() < 0.4:
            first = max(first, self.model.end())
        size = self.choices.choice([10, 500, 6_000])
        epoch = self.choices.randrange(1, 4)
        return make_block(first, self.choices.randrange(1, 8), size=size, epoch=epoch)

    def random_placement(self) -> Placement:
        nodes = tuple(NodeId(one) for one in self.choices.sample(range(1, 9), 3))
        return Placement(nodes, self.choices.randrange(4), Epoch(self.choices.choice([0, 0, 0, 5])))

    def some(self, share: float) -> list[Lsn]:
        return [one for one in sorted(self.model.kept) if self.choices.random() < share]

    def put(self, block: Block) -> None:
        placement = self.random_placement()
        self.store.put(block, placement, Ack.DISK)
        self.model.put(block, placement)

    def amend(self) -> None:
        firsts = {*self.some(0.3), self.random_lsn()}
        amendments = [(first, self.random_placement()) for first in sorted(firsts)]
        missing = self.store.amend(LOG, amendments)
        assert missing == [first for first, _ in amendments if first not in self.model.kept]
        for first, placement in amendments:
            self.model.amend(first, placement)

    def crash(self) -> None:
        self.rig.crash()
        state = self.store.state(LOG)
        if state is None:  # Not even that it is scattered was durable.
            self.store.scatter(LOG)
        left = (self.store.copies(LOG, Lsn(0), LSN_MAX, 10_000), known(self.store).trim_end)
        self.model = next(one for one in self.since_settled if (one.copies(), one.trim_end) == left)
        self.since_settled.clear()

    def compare(self) -> None:
        store, model = self.store, self.model
        state = known(store)
        copies = model.copies()
        assert store.copies(LOG, Lsn(0), LSN_MAX, 10_000) == copies
        assert (state.trim_end, state.end) == (model.trim_end, model.end())
        first = self.random_lsn()
        end = Lsn(first + self.choices.choice([1, 5, 20, 2**33]))
        low = max(first, model.trim_end)
        inside = [
            one for one in copies if one.extent.last >= low and one.extent.first < end and low < end
        ]
        self.compare_shipment(first, end, inside)
        found = store.block_at(LOG, first)
        holders = [one for one in inside if one.extent.first <= first and first >= model.trim_end]
        assert (found and bytes(found.data)) == (self.data(holders[0]) if holders else None)

    def compare_shipment(self, first: Lsn, end: Lsn, inside: list[Copy]) -> None:
        node = self.choices.randrange(1, 9)
        shipment = self.store.ship(
            LOG, first, end, MIB, lambda copy: node in copy.placement.copyset
        )
        chosen = [self.data(one) for one in inside if node in one.placement.copyset]
        assert [bytes(one.data) for one in shipment.blocks] == chosen
        assert shipment.next_lsn == end
        shipment.release()

    def data(self, copy: Copy) -> bytes:
        return bytes(self.model.kept[copy.extent.first].block.data)


class StoreModelSuite(StoreShippingSuite):
    @pytest.mark.parametrize("seed", range(16))
    def test_any_order_of_scattered_mutations_reads_like_the_model(
        self, scattered: StoreRig, seed: int
    ) -> None:
        trial = Trial(scattered, seed)
        for _ in range(STEPS):
            trial.step()
            trial.compare()
        scattered.reopen()
        trial.compare()
        state = known(scattered.store)
        kept = trial.model.kept.values()
        assert (state.blocks, state.bytes) == (len(kept), sum(one.block.size for one in kept))
