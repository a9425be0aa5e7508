"""Drivers and nodes that die: every record comes once."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace import sync
from millrace.local import LocalCluster
from tests.spark.filled_logs import fill, rows, stored
from tests.support.clusters import MakeCluster, soon
from tests.support.spark import ROOT, driver_env

KILLS = 10
RECORDS = 4_000
RECORDS_PER_TRIGGER = 60
WAIT_S = 90


class Driver:
    """A driver in a process group of its own: its JVM and workers die with it."""

    def __init__(self, cluster: LocalCluster, log: str, folder: Path, mode: str) -> None:
        self._output = folder / "driver.txt"
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.spark.logs.parquet_driver",
                    ",".join(cluster.addresses),
                    log,
                    str(folder),
                    str(RECORDS_PER_TRIGGER),
                    mode,
                ],
                cwd=ROOT,
                env=driver_env(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def check_alive(self) -> None:
        assert self._process.poll() is None, self._output.read_text()[-3_000:]

    def wait(self) -> None:
        try:
            assert self._process.wait(WAIT_S) == 0, self._output.read_text()[-3_000:]
        finally:
            if self._process.poll() is None:
                self.kill()


class Checkpoint:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "checkpoint"

    def planned(self) -> int:
        return self._last("offsets")

    def committed(self) -> int:
        return self._last("commits")

    def _last(self, part: str) -> int:
        """The newest micro-batch; -1: none."""
        folder = self._folder / part
        names = os.listdir(folder) if folder.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)


@pytest.mark.timeout(900)  # Eleven drivers, each with a Java of its own.
def test_a_driver_killed_ten_times_repeats_and_loses_nothing(
    spark: SparkSession, calm_cluster: LocalCluster, tmp_path: Path
) -> None:
    random.seed(20)
    with sync.connect(calm_cluster.addresses) as client:
        log = client.create_log(f"killed-{tmp_path.name}", write_path="chain")
        fill(log, RECORDS // 2)
        checkpoint = Checkpoint(tmp_path)
        moments = {"inside": 0, "between": 0}
        for number in range(KILLS):
            driver = Driver(calm_cluster, log.name, tmp_path, "follow")
            try:
                goal = checkpoint.committed() + random.randint(1, 3)
                is_inside = number % 2 == 0
                soon(
                    lambda driver=driver, goal=goal, is_inside=is_inside: (
                        driver.check_alive(),
                        checkpoint.planned() > max(goal, checkpoint.committed())
                        if is_inside
                        else checkpoint.committed() >= goal,
                    )[1],
                    what=f"micro-batch {goal}",
                    timeout_s=WAIT_S,
                )
            finally:
                driver.kill()
            inside = checkpoint.planned() > checkpoint.committed()
            moments["inside" if inside else "between"] += 1
            fill(log, RECORDS // 2 // KILLS, first=RECORDS // 2 + number * (RECORDS // 2 // KILLS))
        Driver(calm_cluster, log.name, tmp_path, "now").wait()
        assert rows(spark.read.parquet(str(tmp_path / "rows"))) == stored(log)
        assert moments["inside"] >= 3, moments


def test_a_node_killed_in_mid_query_goes_unnoticed(
    spark: SparkSession, make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(4)
    with sync.connect(cluster.addresses) as client:
        log = client.create_log("events", write_path="chain")
        fill(log, 20_000)
        query = (
            spark.readStream.format("millrace")
            .option("cluster", ",".join(cluster.addresses))
            .option("log", "events")
            .option("startingOffsets", "earliest")
            .option("maxRecordsPerTrigger", 4_000)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            soon(lambda: query.recentProgress, what="the first micro-batch", timeout_s=WAIT_S)
            tail = log.projection.tail
            victim = tail if tail != 1 else log.projection.head
            cluster.kill(victim)
            fill(log, 5_000, first=20_000)
            soon(
                lambda: sum(each.numInputRows for each in query.recentProgress),
                lambda count: count >= 25_000,
                what="all rows",
                timeout_s=WAIT_S,
            )
            assert query.isActive
        finally:
            query.stop()
        assert rows(spark.read.parquet(str(tmp_path / "rows"))) == stored(log)
        frame = (
            spark.read.format("millrace")
            .option("cluster", ",".join(cluster.addresses))
            .load("events")
        )
        assert rows(frame) == stored(log)
