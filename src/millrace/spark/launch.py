"""The environment in which Spark's Java process is started, and its Python workers with it.

Without SPARK_HOME, workers import PySpark from a zip file without bytecode, which costs each of
them about a second.  A home without that file lets them import the installed package.  It also
holds a log configuration that leaves out what is said at every start and matters to nobody.
"""

import os
import site
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from millrace.errors import Unavailable
from millrace.spark.java import bundled_java, java_home
from millrace.spark.shims import link, shim

# What may name a master besides the arguments.
MASTER_VARIABLES: Final = ("MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR")
HOME_PARTS: Final = ("bin", "jars", "sbin")
# What Spark says at every start or stop of a session or a query.  Other warnings are shown.
NOISE: Final = (
    "Unable to load native-hadoop library",
    "resolves to a loopback address",
    "Set SPARK_LOCAL_IP if you need to bind to another address",
    "is not supported in streaming DataFrames/Datasets and will be disabled",
    "Disabling AQE since AQE is not supported in stateful workloads",
    "Cannot find active jobs for it",
)
LOG_SETTINGS: Final = f"""\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
appender.stderr.filter.noise.type = RegexFilter
appender.stderr.filter.noise.regex = .*(?:{"|".join(NOISE)}).*
appender.stderr.filter.noise.onMatch = DENY
appender.stderr.filter.noise.onMismatch = NEUTRAL
"""


def launch_environment(
    environ: Mapping[str, str], given: Mapping[str, str], *, is_running: bool
) -> dict[str, str]:
    """What to add to `environ`.  `is_running`: Java runs already, as it does under spark-submit."""
    python = environ.get("PYSPARK_PYTHON") or given.get("spark.pyspark.python") or sys.executable
    added = {"PYSPARK_PYTHON": python}
    if is_running:
        return added
    added["JAVA_HOME"] = str(java_home(environ, bundled_java()))
    package = _package()
    if (
        "SPARK_HOME" not in environ
        and python == sys.executable
        and _is_importable(environ, package)
    ):
        master = given.get("spark.master") or _default_master(environ, package)
        # YARN sends the zip file to its containers.
        if master is not None and not master.startswith("yarn"):
            added.update(_slim_home(environ, package))
    return added


def _package() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unavailable(
            "PySpark is not installed: `pip install '.[spark]'` in a clone of Millrace"
        )
    return Path(spec.origin).parent


def _is_importable(environ: Mapping[str, str], package: Path) -> bool:
    """Whether a worker would find the package without the zip file."""
    places = (
        *site.getsitepackages(),
        site.getusersitepackages(),
        *environ.get("PYTHONPATH", "").split(os.pathsep),
    )
    return any(place and Path(place) == package.parent for place in places)


def _default_master(environ: Mapping[str, str], package: Path) -> str | None:
    """Spark's own choice, unless something that only Spark reads may name another."""
    is_elsewhere = any(name in environ for name in MASTER_VARIABLES)
    return None if is_elsewhere or (package / "conf").exists() else "local[*]"


def _slim_home(environ: Mapping[str, str], package: Path) -> dict[str, str]:
    conf = package / "conf"
    own_conf = conf if conf.exists() else None
    origin = f"{package}\n{own_conf}\n{LOG_SETTINGS}"
    try:
        home = shim(environ, "spark", origin, "bin/spark-submit", lambda to: _fill(to, package))
    except Unavailable:
        return {}  # It saves time, no more.
    return {"SPARK_HOME": str(home)}


def _fill(folder: Path, package: Path) -> None:
    link((package / part for part in HOME_PARTS), folder)
    conf = package / "conf"
    if conf.exists():
        link([conf], folder)
    else:
        (folder / "conf").mkdir()
        (folder / "conf" / "log4j2.properties").write_text(LOG_SETTINGS)
