"""What a view keeps on disk: shards to which several bring one batch, tables in versions."""

import multiprocessing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millrace.errors import BatchOvertaken, UsageError
from millrace.spark.pipelines.view.documents import DocumentShard, pack_rows
from millrace.spark.pipelines.view.groups import GroupShard
from millrace.spark.pipelines.view.order import encode
from millrace.spark.pipelines.view.reduces import Count
from millrace.spark.pipelines.view.table import (
    VERSIONS_KEPT,
    ResultTable,
    newest_version,
    write_part,
)

ATTEMPTS = 4


def bring(state: str, attempt: int) -> bytes:
    """An attempt at batch 0, each with an input of its own."""
    rows = pack_rows([encode(f"of attempt {attempt}"), b""])
    return DocumentShard.open(Path(state), 0).take(0, {b"document": rows}).changes


def test_of_attempts_at_one_batch_at_once_one_counts_and_all_answer_the_same(
    tmp_path: Path,
) -> None:
    with multiprocessing.get_context("spawn").Pool(ATTEMPTS) as pool:
        answers = pool.starmap(bring, [(str(tmp_path), at) for at in range(ATTEMPTS)])
        pool.close()
        pool.join()
    assert len(set(answers)) == 1
    assert (
        DocumentShard.open(tmp_path, 0).take(1, {b"document": b""}).table()["times"][0].as_py()
        == -1
    )


class Table:
    """A table of two shards, each of its batches given as the keys that come to the first shard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = ResultTable(folder / "table")
        self.shards = [GroupShard.open(folder / "state", at, Count()) for at in range(2)]

    def batch(self, number: int, *keys: str) -> None:
        version = self.table.begin(number)
        changes = [(encode(key), b"", 1) for key in keys]
        for at, mine in ((0, changes), (1, [])):
            if self.shards[at].take(number, mine).results:
                write_part(version, at, self.shards[at], number)
        self.table.publish(number, 2)

    def rows(self, version: str | None = None) -> set[str]:
        return set(pq.read_table(version or newest_version(self.table.folder))["key"].to_pylist())


def test_a_version_stays_as_it_is_while_others_come(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.batch(0, "a")
    first = newest_version(table.table.folder)
    for number in range(1, VERSIONS_KEPT):
        table.batch(number, str(number))
    assert table.rows(first) == {'"a"'}
    assert table.rows() == {'"a"', '"1"', '"2"', '"3"'}
    table.batch(VERSIONS_KEPT, "b")
    assert not Path(first).exists(), "it was kept long enough"


def test_a_batch_that_changes_nothing_makes_no_version(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.batch(0, "a")
    first = newest_version(table.table.folder)
    table.batch(1)
    assert newest_version(table.table.folder) == first


def test_a_batch_that_runs_again_makes_the_same_version(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.batch(0, "a")
    table.batch(1, "b")
    table.batch(1, "something else")
    assert table.rows() == {'"a"', '"b"'}


def test_a_task_that_was_overtaken_writes_nothing(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.batch(0, "a")
    version = Path(newest_version(table.table.folder))
    table.batch(1, "b")
    with pytest.raises(BatchOvertaken):
        write_part(version, 0, table.shards[0], 0)
    assert table.rows(str(version)) == {'"a"'}


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(UsageError, match="is not empty: choose a new folder"):
        ResultTable(tmp_path).check()
    with pytest.raises(UsageError, match="has no version yet"):
        newest_version(tmp_path)
