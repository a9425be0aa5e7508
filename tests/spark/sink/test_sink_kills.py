"""Drivers and executors that die at any point: each row is in each log once, and a micro-batch is
there as a whole or not at all."""

import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import sync
from millrace.local import LocalCluster
from tests.spark.filled_logs import fill, stored
from tests.support.clusters import soon
from tests.support.spark import ROOT, StandaloneCluster, driver_env, processes_of, run_driver

KINDS = ("chain", "sequenced", "commit")
SEED = 7
DRIVER_KILLS = 7
EXECUTOR_KILLS = 13
RECORDS = 20_000
RECORDS_PER_TRIGGER = 50
DELAY_MS_MAX = 800  # Between a sign of work and the kill: about a micro-batch.
WAIT_S = 300

Row = tuple[bytes | None, bytes]

# The first attempt at partition 0 waits at a gate, which only a second one opens: it ends only if
# both run at once.
TWO_ATTEMPTS = """
import sys
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import functions as f
import millrace.spark
from tests.spark.sink.sink_driver import SETTINGS
from tests.support.spark import wait_for_executors

master, cluster, log, gate = sys.argv[1:]
spark = millrace.spark.session(master=master, **SETTINGS)
wait_for_executors(spark, 2)

@f.udf("string", useArrow=False)
def value(number):
    if number == 0:
        is_first = TaskContext.get().attemptNumber() == 0
        Path(gate).open("rb" if is_first else "wb").close()
    return f"{number:03d}"

rows = spark.range(0, 200, 1, 2).select(value("id").alias("value"))
rows.write.format("millrace").option("cluster", cluster).mode("append").save(log)
"""


class Driver:
    """In a process group of its own: its Java and workers die with it."""

    def __init__(self, arguments: list[str], output: Path) -> None:
        self._output = output
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.sink.sink_driver", *arguments],
                cwd=ROOT,
                env=driver_env(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def check_alive(self) -> None:
        assert self._process.poll() is None, self._output.read_text()[-5_000:]

    def wait(self) -> None:
        assert self._process.wait(WAIT_S) == 0, self._output.read_text()[-5_000:]


class Storm:
    """The targets of one source, and the driver that writes them, if one runs."""

    def __init__(
        self, spark: StandaloneCluster, cluster: LocalCluster, client: sync.SyncClient, folder: Path
    ) -> None:
        name = f"storm-{secrets.token_hex(4)}"
        source = client.create_log(name, write_path="chain")
        fill(source, RECORDS)
        self._rows: list[Row] = [row[1:] for row in stored(source)]
        self._targets = [client.create_log(f"{name}-{each}", write_path=each) for each in KINDS]
        self._spark = spark
        self._folder = folder
        self._driver: Driver | None = None
        names = ",".join(target.name for target in self._targets)
        self._arguments = [spark.master, ",".join(cluster.addresses), name, names, str(folder)]

    def drive(self, records: str) -> Driver:
        if self._driver is None:
            self._driver = Driver([*self._arguments, records], self._folder / "driver.txt")
        return self._driver

    def micro_batches(self) -> int:
        """How many were done."""
        folder = self._folder / "checkpoint" / "commits"
        names = os.listdir(folder) if folder.exists() else []
        return max((int(name) + 1 for name in names if name.isdigit()), default=0)

    def drive_to(self, goal: int, records: str) -> None:
        """Until so many micro-batches are done."""
        driver = self.drive(records)

        def done() -> int:
            driver.check_alive()
            return self.micro_batches()

        soon(done, lambda count: count >= goal, what=f"micro-batch {goal}", timeout_s=WAIT_S)

    def kill_executor(self, chance: random.Random) -> None:
        """One that is there: those of a dead driver end by themselves meanwhile."""

        def is_killed() -> bool:
            victims = self.executors()
            with contextlib.suppress(ProcessLookupError):
                if victims:
                    os.kill(chance.choice(victims), signal.SIGKILL)
                    return True
            return False

        soon(is_killed, what="an executor", timeout_s=WAIT_S)

    def executors(self) -> list[int]:
        found = []
        for process in processes_of(self._spark.folder):
            command = Path(f"/proc/{process}/cmdline")
            if command.exists() and b"CoarseGrainedExecutorBackend" in command.read_bytes():
                found.append(process)
        return sorted(found)

    def kill_driver(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver = None

    def check(self) -> None:
        """Each log has the rows of some whole micro-batches, the first ones, each once."""
        for target in self._targets:
            found = sorted((row[1:] for row in stored(target)), key=lambda row: row[1])
            assert len(found) % RECORDS_PER_TRIGGER == 0, target.name
            assert found == self._rows[: len(found)], target.name

    def check_complete(self) -> None:
        for target in self._targets:
            found = sorted((row[1:] for row in stored(target)), key=lambda row: row[1])
            assert found == self._rows, target.name


@pytest.fixture
def storm(
    standalone: StandaloneCluster, calm_cluster: LocalCluster, tmp_path: Path
) -> Iterator[Storm]:
    with sync.connect(calm_cluster.addresses) as client:
        made = Storm(standalone, calm_cluster, client, tmp_path)
        try:
            yield made
        finally:
            made.kill_driver()


def wait_ms(delay_ms: int) -> None:
    """So that the kill may come anywhere within a micro-batch."""
    moment_s = time.monotonic() + delay_ms / 1000
    soon(lambda: time.monotonic() >= moment_s, what="the moment")


@pytest.mark.timeout(3_000)  # Eight drivers, twenty executors, each with a Java of its own.
def test_twenty_kills_of_drivers_and_executors_lose_and_repeat_nothing(storm: Storm) -> None:
    chance = random.Random(SEED)
    kills = ["driver"] * DRIVER_KILLS + ["executor"] * EXECUTOR_KILLS
    chance.shuffle(kills)
    for kill in kills:
        goal = storm.micro_batches() + chance.randint(1, 3)
        storm.drive_to(goal, str(RECORDS_PER_TRIGGER))
        wait_ms(chance.randint(0, DELAY_MS_MAX))
        if kill == "driver":
            storm.kill_driver()
        else:
            storm.kill_executor(chance)
        storm.check()
    storm.kill_driver()
    storm.drive("all").wait()
    storm.check_complete()


@pytest.mark.timeout(WAIT_S)
def test_rows_of_a_task_that_runs_twice_at_once_are_there_once(
    standalone: StandaloneCluster, calm_cluster: LocalCluster, log: sync.SyncLog, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    addresses = ",".join(calm_cluster.addresses)
    run_driver(TWO_ATTEMPTS, standalone.master, addresses, log.name, str(gate))
    assert [int(value) for _, _, value in stored(log)] == list(range(200))
