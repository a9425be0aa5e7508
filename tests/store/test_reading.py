"""Reading through memory and disk: scans, their transactions, and a model that knows better."""

import random
from collections.abc import Callable

import pytest

from millrace.errors import CorruptBlock
from millrace.limits import KIB, MIB, SCANS_OUTSTANDING_MAX
from millrace.store.layout import block_key
from millrace.types import Ack, Block, Lsn
from tests.conformance.store_suite import LOG, PLACEMENT, held, known, make_block
from tests.store.rig import LmdbRig

OpenRig = Callable[..., LmdbRig]


def filled(open_rig: OpenRig, count: int, size: int = 10 * KIB) -> LmdbRig:
    rig = open_rig(256 * MIB)
    for first in range(1, count + 1):
        rig.store.put(make_block(first, size=size), PLACEMENT, Ack.DISK)
    rig.settle()
    return rig


def test_fresh_blocks_need_no_transaction(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 5)
    scan = rig.store.scan(LOG, Lsn(1), Lsn(6), MIB)
    assert len(scan.blocks) == 5
    assert not scan.is_mapped
    assert rig.store.scans_outstanding == 0


def test_stored_blocks_lie_in_the_map_until_released(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 5)
    rig.reopen()
    scan = rig.store.scan(LOG, Lsn(1), Lsn(6), MIB)
    assert scan.is_mapped
    assert all(isinstance(block.data, memoryview) for block in scan.blocks)
    rig.store.trim(LOG, Lsn(6))
    rig.settle()
    for first in range(6, 20):
        rig.store.put(make_block(first, size=10 * KIB), PLACEMENT, Ack.DISK)
        rig.settle()
    expected = [bytes(make_block(first, size=10 * KIB).data) for first in range(1, 6)]
    assert [bytes(block.data) for block in scan.blocks] == expected
    scan.release()
    assert rig.store.scans_outstanding == 0


def test_too_many_scans_copy(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 3)
    rig.reopen()
    scans = [rig.store.scan(LOG, Lsn(1), Lsn(4), MIB) for _ in range(SCANS_OUTSTANDING_MAX + 9)]
    assert sum(scan.is_mapped for scan in scans) == SCANS_OUTSTANDING_MAX
    assert {bytes(scan.blocks[0].data) for scan in scans} == {
        bytes(make_block(1, size=10 * KIB).data)
    }
    for scan in scans:
        scan.release()
    assert rig.store.scans_outstanding == 0


def test_a_scan_outlives_the_store(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 3)
    rig.reopen()
    scan = rig.store.scan(LOG, Lsn(2), Lsn(3), MIB)
    rig.store.close()
    assert bytes(scan.blocks[0].data) == bytes(make_block(2, size=10 * KIB).data)
    scan.release()
    rig.store = rig.open()
    assert held(rig.store) == [1, 2, 3]


def test_a_scan_goes_on_from_disk_into_memory(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 5)
    rig.reopen()
    for first in range(6, 9):
        rig.store.put(make_block(first, size=10 * KIB), PLACEMENT, Ack.DISK)
    scan = rig.store.scan(LOG, Lsn(4), Lsn(8), MIB)
    assert [block.first for block in scan.blocks] == [4, 5, 6, 7]
    scan.release()


def test_a_block_under_the_wrong_key_is_not_served(open_rig: OpenRig) -> None:
    rig = filled(open_rig, 3)
    directory = rig.store.directory
    wrong = make_block(9)
    with directory.environment.begin(write=True, db=directory.tables.blocks) as transaction:
        transaction.put(block_key(1, 2), wrong.data)
    rig.reopen()
    with pytest.raises(CorruptBlock, match="position 2 of log 7"):
        rig.store.block_at(LOG, Lsn(2))


def test_the_tail_buffer_keeps_its_bound(open_rig: OpenRig) -> None:
    rig = open_rig(256 * MIB, tail_bytes=MIB)
    for first in range(1, 200):
        rig.store.put(make_block(first, size=100 * KIB), PLACEMENT, Ack.DISK)
        if first % 10 == 0:
            rig.settle()
            assert rig.store.tail_bytes <= MIB
    rig.settle()
    assert len(held(rig.store)) == 199


WEIGHTS = {"put": 60, "trim": 4, "remove": 6, "settle": 20, "reopen": 2, "drop": 1}


class Model:
    """A log as a dictionary, with what is durable beside it."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self.trim_end = 1

    def visible(self) -> list[int]:
        return sorted(one for one, block in self.blocks.items() if block.last >= self.trim_end)

    def contiguous_end(self) -> int:
        end = self.trim_end
        for first in self.visible():
            block = self.blocks[first]
            if block.first > end:
                break
            end = block.end
        return end

    def is_free(self, first: int, last: int) -> bool:
        return last >= self.trim_end and all(
            last < one.first or first > one.last
            for one in (self.blocks[first] for first in self.visible())
        )


@pytest.mark.parametrize("seed", range(24))
def test_any_order_of_mutations_reads_like_the_model(open_rig: OpenRig, seed: int) -> None:
    choices = random.Random(seed)
    rig = open_rig(64 * MIB, tail_bytes=choices.choice([0, 3_000, 64 * MIB]))
    model = Model()
    for _ in range(120):
        _mutate(rig, model, choices)
        _compare(rig, model, choices)
    rig.reopen()
    _compare(rig, model, choices)
    assert known(rig.store).blocks == len(model.visible())


def _mutate(rig: LmdbRig, model: Model, choices: random.Random) -> None:
    top = max([model.trim_end, *(block.end for block in model.blocks.values())])
    match choices.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
        case "put":
            first = choices.randrange(max(1, top - 30), top + 4)
            last = first + choices.randrange(5)
            if choices.random() < 0.5:
                first, last = model.contiguous_end(), model.contiguous_end() + 2
            if model.is_free(first, last):
                size = choices.choice([10, 500, 6_000])
                block = make_block(first, last - first + 1, size=size)
                rig.store.put(block, PLACEMENT, choices.choice(list(Ack)))
                model.blocks[first] = block
        case "trim":
            end = choices.randrange(model.trim_end, top + 3)
            rig.store.trim(LOG, Lsn(end))
            model.trim_end = max(model.trim_end, end)
        case "remove":
            firsts = [one for one in model.visible() if choices.random() < 0.2]
            rig.store.remove(LOG, [Lsn(one) for one in firsts])
            for one in firsts:
                del model.blocks[one]
        case "settle":
            assert rig.settle(choices.choice(list(Ack))) is None
        case "reopen":
            rig.reopen()
        case "drop":
            rig.store.drop(LOG)
            model.blocks.clear()
            model.trim_end = 1
            rig.store.trim(LOG, Lsn(1))


def _compare(rig: LmdbRig, model: Model, choices: random.Random) -> None:
    visible, store = model.visible(), rig.store
    state = store.state(LOG)
    if state is None:
        assert not visible
        return
    assert held(store) == visible
    assert (state.trim_end, state.contiguous_end) == (model.trim_end, model.contiguous_end())
    above = [one for one in visible if one >= state.contiguous_end]
    assert [extent.first for extent in state.sparse] == above
    lsn = choices.randrange(1, state.end + 2)
    end = lsn + choices.randrange(1, 20)
    wanted = [
        model.blocks[one]
        for one in visible
        if one < end and model.blocks[one].last >= max(lsn, model.trim_end)
    ]
    scan = store.scan(LOG, Lsn(lsn), Lsn(end), MIB)
    assert [bytes(block.data) for block in scan.blocks] == [bytes(one.data) for one in wanted]
    scan.release()
    found = store.block_at(LOG, Lsn(lsn))
    holders = [one for one in wanted if one.first <= lsn and lsn >= model.trim_end]
    assert (found and bytes(found.data)) == (bytes(holders[0].data) if holders else None)
