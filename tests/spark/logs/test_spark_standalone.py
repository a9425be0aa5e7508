"""A master and two workers whose Python does not have the package: it is shipped to them, in the
two ways that the guide shows."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from millrace import sync
from millrace.local import LocalCluster
from tests.spark.filled_logs import fill, stored
from tests.support.spark import ROOT, StandaloneCluster, driver_env

DRIVER = Path(__file__).with_name("standalone_driver.py")
EXECUTORS = 2
RECORDS = 6_000
TIMEOUT_S = 280
SETTINGS = {
    "spark.cores.max": EXECUTORS,
    "spark.executor.cores": 1,
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    # No task begins before both executors are there.
    "spark.scheduler.minRegisteredResourcesRatio": 1.0,
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}
# What the driver's environment says of the package.  It is shipped as `millrace.zip`, which lies in
# the working folder of the driver and of each executor.
WAYS = {
    "found": {"PYTHONPATH": "millrace.zip"},
    # Installed where the driver runs.  As that is the executors' machine, it alone is told where.
    "registered": {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_DRIVER_PYTHON": sys.executable},
}


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all that the package needs, and not the package itself.  Path files of a folder
    that is itself added by one are not read, so the package installed for development is out."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    site.joinpath("dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, under a name that Spark takes for Python files."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("millrace-*.whl")
    return Path(shutil.copy(wheel, folder / "millrace.zip"))


def submit(
    standalone: StandaloneCluster, shipped: Path, env: Mapping[str, str], *arguments: str
) -> dict[str, Any]:
    """What the driver prints."""
    command = [os.path.join(env["SPARK_HOME"], "bin", "spark-submit")]
    command += ["--master", standalone.master, "--py-files", shipped.name]
    command += [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [*command, str(DRIVER), *arguments],
        env=env,
        cwd=shipped.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"the driver failed:\n{done.stdout}\n{done.stderr}"
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_the_workers_do_not_have_the_package(bare_python: Path) -> None:
    words = "import pyspark, pyarrow, msgspec, uvloop; import millrace"
    done = subprocess.run([str(bare_python), "-c", words], capture_output=True, text=True)
    assert "No module named 'millrace'" in done.stderr


@pytest.mark.timeout(TIMEOUT_S + 120)
@pytest.mark.parametrize("way", WAYS)
def test_the_shipped_package_reads_a_stream_on_all_executors(
    standalone: StandaloneCluster,
    calm_cluster: LocalCluster,
    bare_python: Path,
    shipped: Path,
    tmp_path: Path,
    way: str,
) -> None:
    env = driver_env(PYSPARK_PYTHON=str(bare_python), **WAYS[way])
    cluster = ",".join(calm_cluster.addresses)
    with sync.connect(calm_cluster.addresses) as client:
        log = client.create_log(f"standalone-{secrets.token_hex(4)}", write_path="chain")
        fill(log, RECORDS)
        told = submit(standalone, shipped, env, cluster, log.name, str(tmp_path), way)
        table = pq.read_table(tmp_path / "rows", columns=["lsn", "key", "value"])
        assert sorted(zip(*table.to_pydict().values(), strict=True)) == stored(log)
    assert told["batches"] == [2_000, 2_000, 2_000]
    assert len(told["tasks"]) == EXECUTORS
    assert all(count > 0 for count in told["tasks"].values()), told["tasks"]
    for program, place in told["workers"]:
        assert program == str(bare_python)
        assert Path(place).is_relative_to(standalone.folder / "work")
        assert place.endswith("/millrace.zip/millrace/__init__.py")
