"""What a consumer keeps between its lives."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.changes import (
    ChangeConsumer,
    ConsumerState,
    FileConsumerState,
    MemoryConsumerState,
)
from millrace.client.changes.offsets import decode_offset, encode_offset
from millrace.client.changes.states import AddEntries, Kept, MoveOffset, ReplaceAll, StateChange
from millrace.core.documents.consumer_effects import FollowerState
from millrace.core.documents.document import FailoverId, PartitionId, Seq
from millrace.core.documents.failover_log import FailoverEntry, FailoverLog
from millrace.core.documents.ring_buffer import RingEntry
from millrace.errors import Corruption, DirectoryInUse
from tests.support.served_bucket import ServedBucket, with_bucket

FIRST, SECOND = PartitionId(0), PartitionId(257)
LOG = FailoverLog((FailoverEntry(FailoverId(0xBEEF), Seq(5)), FailoverEntry(FailoverId(1), Seq(0))))
STATE = FollowerState(LOG, Seq(10), Seq(12), Seq(15))
MakeState = Callable[[Path, int], ConsumerState]


def entries(first: int, last: int) -> tuple[RingEntry, ...]:
    return tuple(RingEntry(Seq(seq), b"key-%d" % seq) for seq in range(first, last + 1))


def write(state: ConsumerState, *changes: StateChange) -> None:
    asyncio.run(state.write(changes))


@pytest.fixture(
    params=[
        pytest.param(lambda folder, most: MemoryConsumerState(most), id="memory"),
        pytest.param(FileConsumerState, id="file"),
    ]
)
def make(request: pytest.FixtureRequest) -> MakeState:
    found: MakeState = request.param
    return found


def test_of_an_unknown_partition_nothing_is_kept(make: MakeState, tmp_path: Path) -> None:
    assert make(tmp_path, 10).load(FIRST) == Kept()


def test_partitions_are_kept_apart(make: MakeState, tmp_path: Path) -> None:
    state = make(tmp_path, 10)
    state.load(FIRST)
    state.load(SECOND)
    write(state, AddEntries(FIRST, entries(1, 2)), MoveOffset(SECOND, STATE))
    write(state, AddEntries(SECOND, entries(7, 7)))
    assert state.load(FIRST) == Kept(entries=entries(1, 2))
    assert state.load(SECOND) == Kept(STATE, entries(7, 7))


def test_the_ring_buffer_is_bounded_and_says_what_it_lost(make: MakeState, tmp_path: Path) -> None:
    state = make(tmp_path, 10)
    state.load(FIRST)
    for first in range(1, 100, 4):
        write(state, AddEntries(FIRST, entries(first, first + 3)))
    ring = state.load(FIRST).ring(10)
    assert ring.entries == entries(91, 100)
    assert ring.floor == 90
    assert len(state.load(FIRST).entries) < 10 + 4


def test_a_rollback_replaces_offset_and_ring_buffer_together(
    make: MakeState, tmp_path: Path
) -> None:
    state = make(tmp_path, 10)
    state.load(FIRST)
    write(state, AddEntries(FIRST, entries(1, 9)), MoveOffset(FIRST, STATE))
    lowered = FollowerState(LOG, Seq(3), Seq(3), Seq(3), undo=Seq(3))
    write(state, ReplaceAll(FIRST, lowered, entries(2, 3), Seq(1)))
    assert state.load(FIRST) == Kept(lowered, entries(2, 3), Seq(1))
    write(state, AddEntries(FIRST, entries(4, 4)))
    assert state.load(FIRST).entries == entries(2, 4)


def test_another_process_finds_what_was_written(tmp_path: Path) -> None:
    state = FileConsumerState(tmp_path, 10)
    state.load(FIRST)
    write(state, AddEntries(FIRST, entries(1, 30)), MoveOffset(FIRST, STATE))
    write(state, AddEntries(FIRST, entries(31, 40)))
    state.close()
    again = FileConsumerState(tmp_path, 10)
    assert again.load(FIRST) == Kept(STATE, entries(31, 40), Seq(30))
    write(again, AddEntries(FIRST, entries(41, 41)))
    assert again.load(FIRST).entries == entries(31, 41)
    again.close()


def test_a_folder_has_one_consumer_at_a_time(tmp_path: Path) -> None:
    state = FileConsumerState(tmp_path)
    with pytest.raises(DirectoryInUse):
        FileConsumerState(tmp_path)
    state.close()
    FileConsumerState(tmp_path).close()


def test_a_damaged_offset_is_told_and_not_taken_for_none(tmp_path: Path) -> None:
    state = FileConsumerState(tmp_path)
    state.load(FIRST)
    write(state, MoveOffset(FIRST, STATE))
    state.close()
    with lmdb.open(str(tmp_path), max_dbs=3) as env:
        offsets = env.open_db(b"offsets")
        with env.begin(write=True) as txn:
            txn.put(bytes(2), b'{"seq": 1', db=offsets)
    state = FileConsumerState(tmp_path)
    with pytest.raises(Corruption, match="partition 0"):
        state.load(FIRST)
    state.close()


# -- Offsets ----------------------------------------------------------------------------------


def test_an_offset_is_json_that_people_can_read() -> None:
    assert json.loads(encode_offset(STATE)) == {
        "seq": 12,
        "snapshot_first": 10,
        "snapshot_last": 15,
        "log": [["000000000000beef", 5], ["0000000000000001", 0]],
    }


@given(
    st.lists(
        st.tuples(st.integers(1, 2**64 - 1), st.integers(0, 100)),
        max_size=5,
        unique_by=lambda p: p[0],
    ),
    st.integers(0, 2**63 - 1),
    st.one_of(st.none(), st.integers(0, 100)),
)
def test_offsets_come_back_as_they_were(
    log: list[tuple[int, int]], seq: int, undo: int | None
) -> None:
    log.sort(key=lambda pair: -pair[1])
    entries = tuple(FailoverEntry(FailoverId(id), Seq(at)) for id, at in log)
    lowered = None if undo is None else Seq(undo)
    state = FollowerState(FailoverLog(entries), Seq(seq // 2), Seq(seq), Seq(seq), lowered)
    assert decode_offset(encode_offset(state), "here") == state


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="list"),
        pytest.param(b'{"seq": "a", "snapshot_first": 0, "snapshot_last": 0}', id="text"),
        pytest.param(
            b'{"seq":1,"snapshot_first":0,"snapshot_last":1,"log":[["0",0]]}', id="id-of-zero"
        ),
        pytest.param(
            b'{"seq":1,"snapshot_first":0,"snapshot_last":1,"log":[["x",0]]}', id="id-not-hex"
        ),
    ],
)
def test_what_is_no_offset_is_corruption(text: bytes) -> None:
    with pytest.raises(Corruption, match="there"):
        decode_offset(text, "there")


def test_a_consumer_goes_on_from_its_folder(tmp_path: Path) -> None:
    async def work(served: ServedBucket) -> None:
        await served.bucket.set_many({b"key-%d" % at: b"1" for at in range(100)})
        for wanted in (100, 1, 0):
            state = FileConsumerState(tmp_path)
            async with ChangeConsumer(served.bucket, "test:1", state, is_finite=True) as consumer:
                taken = [document async for batch in consumer for document in batch.documents]
            state.close()
            assert len(taken) == wanted
            if wanted == 100:
                await served.bucket.set(b"key-0", b"2")

    with_bucket(work)
