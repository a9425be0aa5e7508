"""How a task sends its rows: in good pieces, bounded, and back in their order."""

import secrets
from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pytest

from millrace import sync
from millrace.client.publications import Staged
from millrace.errors import StagedTooOld, UnknownLog
from millrace.limits import BLOCK_BYTES_TARGET
from millrace.local import LocalCluster
from millrace.spark import workers
from millrace.spark.sink import publishing as sink_publishing
from millrace.spark.sink.options import SinkOptions
from millrace.spark.sink.publishing import Publication
from millrace.spark.sink.staging import (
    GATHERED_BYTES_MAX,
    PIECE_BYTES,
    Gathered,
    Staging,
    staging,
)
from tests.spark.filled_logs import stored


def rows(first: int, count: int, size: int = 100) -> pa.RecordBatch:
    values = [f"{number:09d}".encode().ljust(size) for number in range(first, first + count)]
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


# -- Gathering ----------------------------------------------------------------------------------


def test_small_batches_are_joined_because_a_block_holds_rows_of_one() -> None:
    gathered = Gathered()
    for number in range(50):
        gathered.add(rows(number * 10, 10))
    table = gathered.take()
    assert table.column("value").num_chunks == 1
    assert [int(value) for value in table.column("value").to_pylist()] == list(range(500))
    assert (gathered.bytes, gathered.rows) == (0, 0)


def test_batches_of_a_good_size_are_not_copied() -> None:
    batch = rows(0, 2, BLOCK_BYTES_TARGET)
    gathered = Gathered()
    for _ in range(3):
        gathered.add(batch)
    column = gathered.take().column("value")
    assert column.num_chunks == 3
    assert {chunk.buffers()[2].address for chunk in column.chunks} == {
        batch.column("value").buffers()[2].address
    }


# -- Sending ------------------------------------------------------------------------------------


@pytest.fixture
def options(calm_cluster: LocalCluster) -> SinkOptions:
    return SinkOptions(",".join(calm_cluster.addresses))


@pytest.fixture
def work(options: SinkOptions) -> Iterator[Staging]:
    with staging(options) as made:
        yield made


def publish(options: SinkOptions, staged: tuple[Staged, ...]) -> None:
    publications = workers.client(options.cluster).publications
    workers.run(publications.publish(secrets.token_hex(8), 0, staged, is_once=True))


def numbers(log: sync.SyncLog) -> list[int]:
    return [int(value) for _, _, value in stored(log)]


def test_many_pieces_are_published_in_the_order_of_the_rows(
    options: SinkOptions, work: Staging, log: sync.SyncLog
) -> None:
    for number in range(100):
        work.add(log.name, rows(number * 40, 40, 10_000))
    staged = work.finish()
    assert len(staged) == -(-100 * 40 * 10_000 // PIECE_BYTES)
    assert sum(each.rows for each in staged) == 4_000
    assert numbers(log) == []
    publish(options, staged)
    assert numbers(log) == list(range(4_000))


def test_what_waits_is_bounded_however_many_logs_there_are(
    options: SinkOptions, work: Staging, client: sync.SyncClient
) -> None:
    logs = [client.create_log(f"log-{secrets.token_hex(4)}", write_path="chain") for _ in range(12)]
    for number in range(60):
        work.add(logs[number % 12].name, rows(number, 1, PIECE_BYTES // 6))
        assert work.gathered_bytes < GATHERED_BYTES_MAX
    publish(options, work.finish())
    assert [numbers(log) for log in logs] == [list(range(each, 60, 12)) for each in range(12)]


def test_rows_may_be_of_very_different_sizes(
    options: SinkOptions, work: Staging, log: sync.SyncLog
) -> None:
    small, large = rows(0, 10_000), rows(10_000, 100, 1_000_000)
    work.add(log.name, pa.concat_batches([small, large]))  # type: ignore[attr-defined]
    publish(options, work.finish())
    assert numbers(log) == list(range(10_100))


def test_nothing_given_is_nothing_staged(work: Staging) -> None:
    assert work.finish() == ()


def test_a_log_that_is_missing_is_named_with_the_command(work: Staging) -> None:
    work.add("no-such-log", rows(0, 1))
    with pytest.raises(UnknownLog, match="`millrace log create no-such-log` makes it"):
        work.finish()


# -- Publishing ---------------------------------------------------------------------------------


def test_rows_that_wait_too_long_are_not_published_and_the_message_speaks_of_them_alone(
    options: SinkOptions, work: Staging, log: sync.SyncLog
) -> None:
    work.add(log.name, rows(0, 10))
    (staged,) = work.finish()
    assert staged.place is not None
    place = msgspec.structs.replace(staged.place, staged_at_ms=0)
    old = msgspec.structs.replace(staged, place=place)
    publication = Publication(secrets.token_hex(8), 3, "micro-batch 3")
    with pytest.raises(StagedTooOld, match="None of the rows that this attempt staged is in a log"):
        sink_publishing.publish(options, publication, [old])
    sink_publishing.publish(options, publication, [staged])
    sink_publishing.publish(options, publication, [old])  # It was published.
    assert numbers(log) == list(range(10))


def test_a_lone_write_is_forgotten_when_it_is_published(
    options: SinkOptions, work: Staging, log: sync.SyncLog
) -> None:
    work.add(log.name, rows(0, 10))
    publication = Publication(secrets.token_hex(8), 0, "the rows of this write", is_once=True)
    sink_publishing.publish(options, publication, work.finish())
    directory = workers.client(options.cluster).directory
    assert workers.run(directory.read_publication(publication.app)) == (None, 0)
    assert numbers(log) == list(range(10))
