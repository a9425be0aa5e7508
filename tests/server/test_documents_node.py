"""The documents of a node put together: its store on a real disk, its port, its tasks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from msgspec.structs import replace

from millrace.codec.memcached.binary import Response
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.codec.memcached.streams import decode_answer, encode_message
from millrace.core.documents.document import (
    SEQ_MAX,
    Cas,
    Document,
    FailoverId,
    PartitionId,
    PartitionState,
    Seq,
)
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.messages import (
    ConsumerRequest,
    FailoverLogGot,
    GetFailoverLog,
    Open,
    Repair,
)
from millrace.core.messages import Message
from millrace.core.messages.documents import (
    CasMismatch,
    PartitionOrder,
    PartitionsSet,
    SetPartitions,
)
from millrace.errors import NotConnected
from millrace.limits import MIB
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.server.partitions import node_documents
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.node_documents import NodeDocuments
from millrace.types import NodeId
from tests.support.clusters import eventually
from tests.support.memcached_wire import WireClient

ONE = NodeId(1)
NAME, BUCKET = "default", 1
P0 = PartitionId(0)
CAFE = FailoverId(0xCAFE)
NO_EXPIRY = bytes(8)
LARGE = bytes(MIB // 2)
TIME_LIMIT_S = 30.0


async def nobody(node: NodeId, message: Message, timeout_ms: int) -> Message:
    raise NotConnected(f"there is no node {node}")


class Rig:
    """A node of its own; `failures` are what its tasks ended with."""

    def __init__(self, folder: Path, map_bytes: int, partitions: int) -> None:
        self.attributes = BucketAttributes(partitions, 0)
        self.failures: list[BaseException] = []
        self._directory = ClusterDirectory(MemoryRepository())
        self.documents = NodeDocuments(ONE, folder, map_bytes, self._directory, nobody, lambda: 1)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        seats = (Seat(1, CAFE, ONE),) * self.attributes.partitions
        await self._directory.replace_bucket(BucketRecord(BUCKET, NAME, self.attributes, seats), 0)
        await self.documents.start("127.0.0.1", 0)

    def run(self) -> None:
        self.documents.run(self._begin)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.documents.close()

    async def lead(self, term: int = 1, *replicas: NodeId) -> None:
        """All partitions, by order."""
        orders = tuple(
            PartitionOrder(
                PartitionId(number), PartitionState.ACTIVE, term, CAFE, replicas=replicas
            )
            for number in range(self.attributes.partitions)
        )
        cas = getattr(self.documents._partitions.get(BUCKET), "cas", 0)
        answers: list[Message] = []
        order = SetPartitions(BUCKET, NAME, self.attributes, cas, orders)
        self.documents.handle(order, answers.append)
        await until(lambda: bool(answers))
        assert isinstance(answers[0], PartitionsSet), answers

    async def make_next(self) -> BucketRecord:
        """The bucket is deleted, and another made under its name, before anything is dropped."""
        await self._directory.remove_bucket(NAME)
        record = BucketRecord(BUCKET + 1, NAME, self.attributes, (Seat(1, CAFE, ONE),))
        assert await self._directory.replace_bucket(record, 0)
        orders = (PartitionOrder(P0, PartitionState.ACTIVE, 1, CAFE),)
        answers: list[Message] = []
        made = SetPartitions(record.id, NAME, self.attributes, 0, orders)
        self.documents.handle(made, answers.append)
        await until(lambda: bool(answers))
        assert isinstance(answers[0], PartitionsSet), answers
        await until(lambda: self.documents._fronts[NAME].record.id == record.id)
        return record

    async def put_in_its_place(self, record: BucketRecord) -> None:
        """Between two looks at the map."""
        await self._directory.remove_bucket(NAME)
        assert await self._directory.replace_bucket(record, 0)

    async def ask(self, client: WireClient, *args: Any) -> Response:
        return await asyncio.to_thread(client.ask, *args)

    async def asked(self, client: WireClient, message: ConsumerRequest) -> Response:
        def ask() -> Response:
            client.send(encode_message(message))
            return client.response()

        return await asyncio.to_thread(ask)

    @property
    def hosted(self) -> dict[int, BucketPartitions]:
        return self.documents._partitions

    @contextlib.contextmanager
    def client(self) -> Iterator[WireClient]:
        with WireClient(int(self.documents.address.rpartition(":")[2])) as client:
            yield client


async def until(is_so: Callable[[], bool]) -> None:
    async def look() -> bool:
        return is_so()

    await eventually(look, timeout_s=TIME_LIMIT_S)


@contextlib.asynccontextmanager
async def node(path: Path, map_bytes: int = 64 * MIB, partitions: int = 1) -> AsyncIterator[Rig]:
    rig = Rig(path / "documents", map_bytes, partitions)
    await rig.start()
    rig.run()
    try:
        await until(lambda: rig.documents._hosted.is_warm)
        await rig.lead()
        yield rig
    finally:
        await rig.stop()


# -- What a peer sends ----------------------------------------------------------------------------


def test_a_repair_with_a_key_that_no_disk_can_file_costs_nobody_anything(tmp_path: Path) -> None:
    """It ended the store of every holder until a restart, for all buckets."""

    async def body() -> None:
        async with node(tmp_path) as rig:
            with rig.client() as client:
                await rig.asked(client, Open("client:1", NAME))
                asking = GetFailoverLog(P0)
                log = decode_answer(await rig.asked(client, asking), asking)
                assert isinstance(log, FailoverLogGot)
                long = Document(b"k" * 600, b"v", Seq(1), Cas(1))
                repair = Repair(P0, log.log.newest, SEQ_MAX, (long,))
                refused = await rig.asked(client, repair)
                assert refused.status == Status.INVALID_ARGUMENTS
            with rig.client() as client:
                await rig.ask(client, Opcode.SET, b"later", b"v", NO_EXPIRY)
            store = rig.documents.store
            await until(lambda: store.get(BUCKET, P0, b"later") is not None)
            assert store.failure is None

    asyncio.run(body())


@pytest.mark.parametrize(
    ("id", "status"),
    [(0, Status.SUCCESS), (BUCKET, Status.SUCCESS), (BUCKET + 1, Status.NO_BUCKET)],
    ids=["whichever has the name", "this one", "another of its name"],
)
def test_a_stream_is_of_the_bucket_that_is_meant(tmp_path: Path, id: int, status: Status) -> None:
    async def body() -> None:
        async with node(tmp_path) as rig:
            with rig.client() as client:
                assert (await rig.asked(client, Open("replica:2", NAME, id))).status == status

    asyncio.run(body())


# -- Another bucket of the same name --------------------------------------------------------------


@pytest.mark.parametrize("name", ["", NAME], ids=["to drop it", "on its way for long"])
def test_a_refused_order_about_a_deleted_bucket_leaves_clients_with_the_next_of_its_name(
    tmp_path: Path, name: str
) -> None:
    async def body() -> None:
        async with node(tmp_path) as rig:
            next = await rig.make_next()
            drop = PartitionOrder(P0, PartitionState.DEAD, 1, is_dropped=True)
            old = rig.documents._partitions[BUCKET]
            answers: list[Message] = []
            order = SetPartitions(BUCKET, name, rig.attributes, old.cas + 1, (drop,))
            rig.documents.handle(order, answers.append)
            assert isinstance(answers[0], CasMismatch)
            assert rig.documents._fronts[NAME].record.id == next.id
            with rig.client() as client:
                stored = await rig.ask(client, Opcode.SET, b"k", b"v", NO_EXPIRY)
                assert stored.status == Status.SUCCESS
            copies = rig.documents._partitions
            assert b"k" in copies[next.id].held[P0].partition.table
            assert b"k" not in copies[BUCKET].held[P0].partition.table

    asyncio.run(body())


def test_an_old_read_of_the_map_leaves_clients_with_the_next_bucket_of_its_name(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with node(tmp_path) as rig:
            before = await rig.documents._read_records()
            listing = rig.documents._listings
            next = await rig.make_next()
            rig.documents._take_records(before, listing)
            assert rig.documents._fronts[NAME].record.id == next.id

    asyncio.run(body())


def test_an_old_read_of_the_map_does_not_hide_a_bucket_that_was_made_since(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with node(tmp_path) as rig:
            listing = rig.documents._listings
            await rig.make_next()
            rig.documents._take_records([], listing)
            assert rig.documents.bucket(NAME) is not None

    asyncio.run(body())


def test_a_bucket_whose_id_was_drawn_before_that_of_a_deleted_one_is_served(
    tmp_path: Path,
) -> None:
    """Its maker stalled between drawing the id and storing the bucket; another made one of the name
    meanwhile, and deleted it.  Clients got that one until the node was started again."""

    async def body() -> None:
        async with node(tmp_path) as rig:
            made = await rig.documents._read_records()
            deleted = await rig.make_next()
            await rig.put_in_its_place(*made)
            await until(lambda: rig.documents._fronts[NAME].record.id == BUCKET)
            with rig.client() as client:
                stored = await rig.ask(client, Opcode.SET, b"k", b"v", NO_EXPIRY)
                assert stored.status == Status.SUCCESS
            copies = rig.documents._partitions
            assert b"k" in copies[BUCKET].held[P0].partition.table
            assert b"k" not in copies[deleted.id].held[P0].partition.table

    asyncio.run(body())


def test_a_stream_by_name_is_of_the_bucket_that_has_the_name(tmp_path: Path) -> None:
    """Of a deleted one with a larger id there are partitions here still."""

    async def body() -> None:
        async with node(tmp_path) as rig:
            made = await rig.documents._read_records()
            await rig.make_next()
            await rig.put_in_its_place(*made)
            await until(lambda: rig.documents._fronts[NAME].record.id == BUCKET)
            with rig.client() as client:
                await rig.asked(client, Open("client:1", NAME))
                sessions = {id: len(list(each.sessions)) for id, each in rig.hosted.items()}
                assert sessions == {BUCKET: 1, BUCKET + 1: 0}

    asyncio.run(body())


def test_the_map_of_a_restored_repository_is_followed(tmp_path: Path) -> None:
    """It is older than what was known, and stays so."""

    async def body() -> None:
        async with node(tmp_path) as rig:
            (restored,) = await rig.documents._read_records()
            seats = (Seat(2, CAFE, NodeId(2)),)
            await rig.put_in_its_place(replace(restored, seats=seats, revision=9))
            await until(lambda: rig.documents._fronts[NAME].record.revision == 9)
            await rig.put_in_its_place(restored)
            await until(lambda: rig.documents._fronts[NAME].record == restored)

    asyncio.run(body())


# -- A full disk ----------------------------------------------------------------------------------


def test_a_full_disk_is_told_obeys_the_keeper_and_comes_back_when_documents_are_deleted(
    tmp_path: Path,
) -> None:
    """It was stuck for good, and reported nothing."""

    async def body() -> None:
        async with node(tmp_path, map_bytes=16 * MIB, partitions=2) as rig:
            documents = rig.documents
            with rig.client() as client:
                stored = 0
                while not documents._flusher.is_full:
                    answer = await rig.ask(client, Opcode.SET, b"%d" % stored, LARGE, NO_EXPIRY)
                    if answer.status == Status.SUCCESS:
                        stored += 1
                    await asyncio.sleep(0.02)
                    assert stored < 1_000, "it never gets full"
                await until(lambda: documents._fronts[NAME].is_congested)
                assert documents.failure is not None and documents.is_full
                assert "delete documents" in documents.failure.detail
                refused = await rig.ask(client, Opcode.SET, b"more", b"v", NO_EXPIRY)
                assert refused.status == Status.TEMPORARY_FAILURE
                await rig.lead(2, NodeId(2))
                assert (await rig.ask(client, Opcode.GET, b"0")).value == LARGE
                for at in range(stored // 2):
                    deleted = await rig.ask(client, Opcode.DELETE, b"%d" % at)
                    assert deleted.status == Status.SUCCESS
                await until(lambda: not documents._fronts[NAME].is_congested)
                assert documents.failure is None
                taken = await rig.ask(client, Opcode.SET, b"more", b"v", NO_EXPIRY)
                assert taken.status == Status.SUCCESS
            copies = [held.partition for held in documents._partitions[BUCKET].held.values()]
            await until(lambda: all(not copy.queue.count for copy in copies))
            assert not rig.failures

    asyncio.run(body())


# -- What goes on in the background ---------------------------------------------------------------


def test_a_disk_that_does_not_say_what_it_holds_is_the_nodes_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task ended in silence; the lease was kept, so nobody took over, ever."""

    async def body() -> None:
        rig = Rig(tmp_path / "documents", 64 * MIB, 1)
        await rig.start()
        monkeypatch.setattr(rig.documents.store, "buckets", damaged)
        rig.run()
        await until(lambda: bool(rig.failures))
        await rig.stop()

    asyncio.run(body())


def test_a_round_of_upkeep_that_cannot_go_on_is_the_nodes_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with node(tmp_path) as rig:
            monkeypatch.setattr(rig.documents.store, "tombstones", damaged)
            await until(lambda: bool(rig.failures))

    asyncio.run(body())


def test_a_repository_that_is_away_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_documents, "FOLLOW_S", 0.01)

    async def body() -> None:
        rig = Rig(tmp_path / "documents", 64 * MIB, 1)
        await rig.start()
        looked: list[None] = []
        read = rig._directory.buckets

        async def away() -> list[BucketRecord]:
            looked.append(None)
            if len(looked) < 3:
                raise NotConnected("the repository is away")
            return await read()

        monkeypatch.setattr(rig._directory, "buckets", away)
        rig.run()
        await until(lambda: rig.documents._hosted.is_warm)
        assert not rig.failures
        await rig.stop()

    asyncio.run(body())


def damaged(*_: object) -> Any:
    raise lmdb.CorruptedError("a page of the tree of trees")
