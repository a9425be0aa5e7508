"""`millrace.spark.session()`: a Spark session for scripts and notebooks, with nothing to set up.

Java is found or brought (`java.py`), settings that pay are added (`defaults.py`).  Whatever the
user has set stands: arguments, a session that runs already, `spark-defaults.conf`,
PYSPARK_SUBMIT_ARGS, the environment.  To know what they say, Java is started with the arguments
alone, Spark is asked, and only what nobody has set is added.
"""

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from millrace.errors import Unavailable, UsageError
from millrace.spark.defaults import missing_settings
from millrace.spark.launch import launch_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_APP: Final = "millrace"
UNNAMED_APP: Final = "pyspark-shell"  # What Spark calls an application without a name.
CONNECT_VARIABLES: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")

_starting = threading.Lock()


def session(
    app: str = DEFAULT_APP, master: str | None = None, **settings: str | int | float
) -> "SparkSession":
    """The session that runs, as it is, or a new one.

    `master` is a master of Spark, by default `local[*]`, or a Spark Connect server, `sc://...`.
    `settings` are Spark's: `**{"spark.ui.enabled": True}`, or with underscores for the dots,
    `spark_ui_enabled=True`.  With Spark Connect they are passed on and nothing is added: the rest
    is the server's."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise Unavailable(
            "PySpark is not installed: `pip install '.[spark]'` in a clone of Millrace"
        ) from None
    given = spark_settings(settings, master)
    with _starting:
        running = _running()
        if running is not None:
            _tell_ignored(running, given)
            return running
        if is_connect(given, os.environ):
            return SparkSession.builder.appName(app).config(map={**given}).getOrCreate()
        return _start(app, given)


def spark_settings(
    settings: Mapping[str, str | int | float], master: str | None = None
) -> dict[str, str]:
    """The settings by Spark's names, as text, and the master among them."""
    named: dict[str, str] = {}
    for name, value in settings.items():
        dotted = name if "." in name else name.replace("_", ".")
        if not dotted.startswith("spark."):
            raise UsageError(
                f"{name} is no setting of Spark: their names begin with `spark.`, which is written"
                " spark_ui_enabled=True or **{'spark.ui.enabled': True}"
            )
        named[dotted] = str(value).lower() if isinstance(value, bool) else str(value)
    if master is not None:
        named["spark.remote" if master.startswith("sc://") else "spark.master"] = master
    return named


def is_connect(given: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether the session is a client of a Spark Connect server."""
    mode = given.get("spark.api.mode") or environ.get("SPARK_API_MODE", "")
    is_named = "spark.remote" in given or any(name in environ for name in CONNECT_VARIABLES)
    return is_named or mode.lower() == "connect"


def _running() -> "SparkSession | None":
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def _tell_ignored(running: "SparkSession", given: Mapping[str, str]) -> None:
    ignored = {name for name, value in given.items() if running.conf.get(name, None) != value}
    if ignored:
        warnings.warn(
            f"a Spark session runs already and stays as it is, so {', '.join(sorted(ignored))}"
            " had no effect: stop() it first",
            stacklevel=3,
        )


def _start(app: str, given: Mapping[str, str]) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    is_running = SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    added = launch_environment(os.environ, given, is_running=is_running)
    with _environment(added):
        launch = SparkConf(loadDefaults=False).setAll(list(given.items()))
        SparkContext._ensure_initialized(conf=launch)
        conf = SparkConf().setAll(list(given.items()))  # All that was set anywhere, from Java.
        if app != DEFAULT_APP or conf.get("spark.app.name", UNNAMED_APP) == UNNAMED_APP:
            conf.setAppName(app)
        for name, value in missing_settings(dict(conf.getAll()), os.environ).items():
            conf.set(name, value)
        SparkContext.getOrCreate(conf)
        return SparkSession.builder.getOrCreate()


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Spark reads the process's environment while it starts; afterwards it is as it was."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
