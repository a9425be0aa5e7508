"""A pipeline with a streaming query, run by the command: stopped, killed, moved to a cluster."""

import pyarrow.parquet as pq
import pytest

from millrace import sync
from millrace.local import LocalCluster
from millrace.spark.pipelines import control
from millrace.spark.pipelines.control import State
from tests.cli.commands import Command
from tests.spark.filled_logs import fill, stored
from tests.spark.pipelines.pipeline_commands import kill_process, millrace, status
from tests.support.clusters import soon
from tests.support.spark import StandaloneCluster, driver_env

__all__ = ["millrace"]

EXPORT = "tests.spark.pipelines.own_kinds:export"
WAIT_S = 240.0
BATCH_ROWS = 500
BATCHES = 8  # More than are done before a stop is heard.


@pytest.fixture
def quick_spark(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    for name, value in driver_env().items():
        monkeypatch.setenv(name, value)
    return ("--conf", "spark.driver.memory=1g")


def says(name: str, words: str, times: int = 1) -> None:
    """Waits for a line in the pipeline's log."""
    folder = control.folder_named(name)

    def log() -> str:
        state = status(name).state
        text = folder.log_file.read_text()
        assert state is State.RUNNING, (state, text, folder.spark_log_file.read_text()[-3_000:])
        return text

    soon(log, lambda text: text.count(words) >= times, what=repr(words), timeout_s=WAIT_S)


def exported(name: str) -> list[tuple[int, bytes | None, bytes]]:
    rows = pq.read_table(control.folder_named(name).home / "state").to_pylist()
    return sorted((row["lsn"], row["key"], row["value"]) for row in rows)


@pytest.mark.timeout(900)
def test_every_row_comes_once_through_a_stop_a_kill_and_a_move_to_a_cluster(
    millrace: Command,
    quick_spark: tuple[str, ...],
    calm_cluster: LocalCluster,
    log: sync.SyncLog,
    standalone: StandaloneCluster,
) -> None:
    fill(log, BATCHES * BATCH_ROWS)
    asked = ("--log", log.name, "--batch-rows", str(BATCH_ROWS), "--pause-ms", "1000")
    addresses = ("--cluster", ",".join(calm_cluster.addresses))
    assert millrace("run", EXPORT, "one", *addresses, *asked, *quick_spark, "--detach").code == 0

    says("one", "batch 1 begins")
    assert millrace("stop", "one").code == 0
    assert status("one").state is State.STOPPED
    progress = status("one").progress
    assert progress is not None
    assert progress.rows == (progress.batch + 1) * BATCH_ROWS, "whole batches"
    assert f"batch {progress.batch} is done" in control.folder_named("one").log_file.read_text()

    assert millrace("run", EXPORT, "one", "--detach").code == 0
    says("one", f"batch {progress.batch + 1} begins")
    kill_process("one")

    fill(log, BATCH_ROWS, first=BATCHES * BATCH_ROWS)
    assert millrace("run", EXPORT, "one", "--master", standalone.master, "--detach").code == 0
    says("one", f"batch {BATCHES} is done")
    assert millrace("stop", "one").code == 0
    assert exported("one") == stored(log)
    assert standalone.applications() == ["millrace one"]


@pytest.mark.timeout(600)
def test_an_error_of_a_query_is_told_in_its_own_words(
    millrace: Command, quick_spark: tuple[str, ...], calm_cluster: LocalCluster
) -> None:
    addresses = ("--cluster", ",".join(calm_cluster.addresses))
    ran = millrace("run", EXPORT, "one", *addresses, "--log", "no-such-log", *quick_spark)
    assert ran.code == 1
    end = status("one").end
    assert end is not None
    assert end.error.startswith("the cluster 'local' has no log 'no-such-log'")
    assert end.error_code == "unknown_log"
    assert f"error: {end.error}\n" in ran.err
    assert "Traceback" not in ran.err
