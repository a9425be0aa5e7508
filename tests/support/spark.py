"""Spark for tests: one session for each test process, drivers of their own, standalone clusters.

Nothing outlives the tests, even if they are killed: a Java that PySpark starts ends with its
standard input, and so does each daemon of a cluster (`WATCHED`).
"""

import atexit
import contextlib
import functools
import hashlib
import inspect
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import millrace.spark
from millrace.spark import java, launch, shims
from millrace.spark.launch import launch_environment
from tests.support.clusters import soon
from tests.support.java_archive import archive_environment, archive_options

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
DRIVER_TIMEOUT_S = 150.0
LOG_CHARS_SHOWN = 3_000
MARK = "MILLRACE_TEST_SPARK"  # In the environment of every process of a cluster.
# Little code runs long here: compile it quickly, and share two cores with many others.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# What a driver in this process asks of a standalone cluster; tasks find the functions of tests.
WORKERS = {
    "spark.executor.memory": "640m",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.sql.shuffle.partitions": "2",
}
# Runs a program in a group of its own and kills the whole group when standard input ends.
WATCHED = ("sh", "-c", '"$@" & cat > /dev/null; kill -9 0', "sh")


@functools.cache
def _cache() -> Path:
    """Where shims and the archive of classes are kept: beside the packages they were made from.
    Another source of the shims gets another folder, so that none is older than what is tested."""
    sources = "".join(inspect.getsource(module) for module in (java, launch, shims))
    digest = hashlib.sha256(sources.encode()).hexdigest()[:16]
    folder = Path(sys.prefix, f"spark-archive-{digest}")
    if sys.prefix != sys.base_prefix:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            return folder
    folder = Path(tempfile.mkdtemp(prefix="spark-cache-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def java_options() -> str:
    """For every Java of the tests whose environment is that of `driver_env`."""
    env = user_env()
    more = archive_options(env, QUICK_JAVA, _cache())
    if more is None:
        return QUICK_JAVA
    log_settings = Path(env["SPARK_HOME"], "conf", "log4j2.properties")
    if log_settings.exists():
        more += f" -Dlog4j2.configurationFile={log_settings.as_uri()}"
    return f"{QUICK_JAVA} {more}"


def _quick_env() -> dict[str, str]:
    """What Spark reads itself, so drivers need no settings for a quick start."""
    options = java_options()
    executors = f"-Dspark.executor.defaultJavaOptions={options}"
    env = {"XDG_CACHE_HOME": str(_cache()), "SPARK_SUBMIT_OPTS": f'{options} "{executors}"'}
    return env if options == QUICK_JAVA else env | archive_environment(_cache())


def quick_settings(folder: Path) -> dict[str, str]:
    """For a small driver that leaves nothing outside `folder`."""
    return {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
    }


@contextlib.contextmanager
def driver_session(master: str, **more: str) -> Iterator[SparkSession]:
    """A session in this process; its Java is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="spark-"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in _quick_env().items():
                patch.setenv(name, value)
            session = millrace.spark.session("tests", master, **quick_settings(folder), **more)
        try:
            yield session
        finally:
            session.stop()
            _end_java()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session of this test process, where `--spark` says.  Tasks are tried more than once."""
    if request.config.getoption("--spark") == "local":
        with driver_session("local[2,3]") as session:
            yield session
    else:
        with standalone_cluster() as cluster, driver_session(cluster.master, **WORKERS) as session:
            wait_for_executors(session, 2)
            yield session


def user_env(**more: str) -> dict[str, str]:
    """The environment for a driver in a process of its own, with Java and PySpark found as users
    have them."""
    env = {**os.environ, "XDG_CACHE_HOME": str(_cache()), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**env, **launch_environment(env, {"spark.master": "local"}, is_running=False), **more}


def driver_env(**more: str) -> dict[str, str]:
    """The same for a Java that starts quickly: the driver's and those of its executors."""
    return user_env(**_quick_env(), **more)


def run_driver(script: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """What a driver script prints.  If it fails, its errors are shown."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=driver_env() if env is None else env,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DRIVER_TIMEOUT_S,
    )
    assert done.returncode == 0, f"the driver failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def wait_for_executors(spark: SparkSession, count: int) -> None:
    """A cluster starts them one by one, and a job takes those that are there."""

    def executors() -> int:
        status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()
        return int(status.size()) - 1  # The driver is counted as well.

    soon(executors, lambda seen: seen == count, what=f"{count} executors")


class StandaloneCluster:
    """Spark's own cluster: a master and workers from the installed PySpark, on loopback."""

    def __init__(self, folder: Path, workers: int, cores: int) -> None:
        self.folder = folder
        port, web_port = _free_ports(2)
        self.master = f"spark://127.0.0.1:{port}"
        self._web = f"http://127.0.0.1:{web_port}/json/"
        self._size = workers
        self._cores = cores
        self._master_ports = (str(port), str(web_port))
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        port, web_port = self._master_ports
        self._start("master.Master", "--port", port, "--webui-port", web_port)
        soon(lambda: self.alive_workers() is not None, what="a master", timeout_s=START_TIMEOUT_S)
        for number in range(self._size):
            size = ("--cores", str(self._cores), "--memory", "1g")
            # A second copy of a task is started on another host than the first, or not at all.
            host = f"127.0.0.{number + 1}"
            self._start("worker.Worker", "--webui-port", "0", *size, self.master, host=host)
        soon(
            self.alive_workers,
            lambda alive: alive == self._size,
            what=f"a cluster of {self._size} workers",
            timeout_s=START_TIMEOUT_S,
        )

    def alive_workers(self) -> int | None:
        """None if the master does not answer, or with another page because it is starting."""
        try:
            with urlopen(self._web, timeout=5) as response:
                return int(json.load(response)["aliveworkers"])
        except (OSError, HTTPException, ValueError):
            return None

    def applications(self) -> list[str]:
        """The names of those that run or have run on it."""
        with urlopen(self._web, timeout=5) as response:
            told = json.load(response)
        return [each["name"] for each in (*told["activeapps"], *told["completedapps"])]

    def daemon_logs(self) -> str:
        """The ends of what the daemons and executors wrote."""
        files = sorted((*self.folder.glob("*.log"), *self.folder.glob("work/*/*/std*")))
        ends = (file.read_text(errors="replace")[-LOG_CHARS_SHOWN:] for file in files)
        return "\n".join(f"-- {file.name}\n{end}" for file, end in zip(files, ends, strict=True))

    def close(self) -> None:
        for daemon in self._daemons:
            assert daemon.stdin is not None
            daemon.stdin.close()
        for daemon in self._daemons:
            daemon.wait(STOP_TIMEOUT_S)
        soon(lambda: not processes_of(self.folder), what="the end of all processes of the cluster")

    def _start(self, kind: str, *arguments: str, host: str = "127.0.0.1") -> None:
        env = driver_env(
            SPARK_DAEMON_MEMORY="256m",
            SPARK_DAEMON_JAVA_OPTS=java_options(),
            SPARK_LOCAL_DIRS=str(self.folder / "local"),
            SPARK_WORKER_DIR=str(self.folder / "work"),
            **{MARK: str(self.folder)},
        )
        program = Path(env["SPARK_HOME"], "bin", "spark-class")
        command = (*WATCHED, str(program), f"org.apache.spark.deploy.{kind}", "--host", host)
        log = self.folder / f"{len(self._daemons)}-{kind}.log"
        with log.open("wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    (*command, *arguments),
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )


@contextlib.contextmanager
def standalone_cluster(workers: int = 2, cores: int = 1) -> Iterator[StandaloneCluster]:
    """A cluster whose workers have all registered.  Logs are part of what is raised inside."""
    folder = Path(tempfile.mkdtemp(prefix="spark-"))
    cluster = StandaloneCluster(folder, workers, cores)
    try:
        cluster.start()
        yield cluster
    except BaseException as problem:
        problem.add_note(cluster.daemon_logs())
        raise
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> list[int]:
    """The processes, Java and Python, that were started for the cluster in this folder."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def _end_java() -> None:
    """Otherwise it would stay until this process ends, and clean up after its folder is gone."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(STOP_TIMEOUT_S)
    SparkContext._gateway = SparkContext._jvm = None


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
