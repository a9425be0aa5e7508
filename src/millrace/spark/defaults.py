"""The Spark settings that pay for logs, each with its reason; none is set against the user.

The numbers were measured with PySpark 4.3 on one machine.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CORES: Final = "{cores}"
LOCAL_MASTER: Final = re.compile(r"local(-cluster)?(?:\[([^,\]]+)(?:,([^,\]]+))?[^\]]*\])?$")


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: str  # `{cores}` stands for the number of cores of a local master.
    reason: str
    is_for_local_masters: bool = False
    unless_environment: tuple[str, ...] = ()  # Variables that decide the same thing.
    unless_set: tuple[str, ...] = ()  # Other settings that decide the same thing.


SETTINGS: Final = (
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "a task waits some 40 ms less for its Python worker than over loopback TCP",
        unless_environment=("PYSPARK_UDS_MODE",),
    ),
    Setting(
        "spark.ui.enabled",
        "false",
        "a script or notebook needs no web server on port 4040; set it to true for one",
        is_for_local_masters=True,
    ),
    Setting(
        "spark.sql.shuffle.partitions",
        CORES,
        "a shuffle on one machine needs a task for each core, not Spark's 200",
        is_for_local_masters=True,
        unless_set=("spark.default.parallelism",),
    ),
    # Both managers write beside and rename.  Spark's default is made for HDFS, where its rename
    # also refuses a second driver on the same checkpoint; on a local disk neither does, and the
    # default starts a process for each look at a file.  Where a checkpoint will lie is not known
    # here, so whoever has a Hadoop configuration keeps Spark's default.
    Setting(
        "spark.sql.streaming.checkpointFileManagerClass",
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager",
        "a trigger is some 100 ms shorter with its checkpoint on a local disk; unset it for a"
        " checkpoint on hdfs://",
        is_for_local_masters=True,
        unless_environment=("HADOOP_CONF_DIR", "YARN_CONF_DIR"),
        unless_set=("spark.hadoop.fs.defaultFS", "spark.hadoop.fs.default.name"),
    ),
)


def missing_settings(present: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """What to add to the settings that are present."""
    cores = local_cores(present.get("spark.master", ""))
    added: dict[str, str] = {}
    for setting in SETTINGS:
        is_decided = (
            setting.name in present
            or any(name in environ for name in setting.unless_environment)
            or any(name in present for name in setting.unless_set)
        )
        if not is_decided and (cores is not None or not setting.is_for_local_masters):
            added[setting.name] = setting.value.format(cores=cores)
    return added


def local_cores(master: str) -> int | None:
    """How many tasks a local master runs at once; None if the master is not local."""
    found = LOCAL_MASTER.match(master)
    if found is None:
        return None
    kind, first, second = found.groups()
    if kind:
        return int(first) * int(second)
    if first == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(first or 1)
