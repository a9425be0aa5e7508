"""Runs the demo and cleans up after itself, also when it is interrupted."""

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import uvloop
from rich.console import Console

from millrace.demo.interrupts import Interrupts
from millrace.demo.run import Demo, Settings
from millrace.demo.spark_process import SparkProcess
from millrace.errors import MillraceError
from millrace.local import LocalCluster
from millrace.runtime.memory import keep_freed_memory

PACED = 50_000


def main() -> int:
    interrupts = Interrupts()
    interrupts.install()
    arguments = _arguments()
    keep_freed_memory()
    console = Console(stderr=False)
    try:
        return 0 if _run(arguments, console, interrupts) else 1
    except asyncio.CancelledError:
        console.print("\nStopped; the cluster is gone and its files are removed.")
        return 130
    except MillraceError as error:
        console.print("[red]error:[/red]", end=" ")
        console.print(str(error), markup=False, highlight=False)
        return 1


def _run(arguments: argparse.Namespace, console: Console, interrupts: Interrupts) -> bool:
    """Whether the proof holds.  Nothing is left but the picture."""
    settings = Settings(arguments.records, arguments.rate, arguments.picture)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-demo-")))
        cluster = LocalCluster.create(folder / "cluster", arguments.nodes, name="demo")
        stack.enter_context(cluster)
        spark = None
        if not arguments.without_spark:
            spark = stack.enter_context(SparkProcess(folder / "spark"))
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))

        async def run() -> bool:
            task = asyncio.current_task()
            assert task is not None
            interrupts.cancel(task)
            return await Demo(cluster, spark, console, settings).run()

        return runner.run(run())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="millrace.demo", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument(
        "--rate",
        type=int,
        help=f"records a second; 0: as fast as it goes (default: {PACED:,}; without Spark 0)",
    )
    parser.add_argument(
        "--picture",
        type=Path,
        default=Path("millrace-demo.png"),
        metavar="PATH",
        help="where to draw what happened (default: %(default)s)",
    )
    parser.add_argument("--without-spark", action="store_true", help="append and read back alone")
    arguments = parser.parse_args()
    if arguments.records < 1_000 or arguments.nodes < 4:
        parser.error("the demo needs at least 1000 records and 4 nodes")
    if arguments.rate is None:
        arguments.rate = 0 if arguments.without_spark else PACED
    if arguments.rate < 0:
        parser.error("--rate must be 0 or more")
    if not arguments.without_spark:
        _check_spark(parser, arguments.picture)
    return arguments


def _check_spark(parser: argparse.ArgumentParser, picture: Path) -> None:
    missing = [name for name in ("pyspark", "matplotlib") if find_spec(name) is None]
    if missing:
        parser.error(
            f"{' and '.join(missing)} not installed: `pip install '.[demo]'`, "
            "or leave out Spark and the picture with --without-spark"
        )
    if not picture.resolve().parent.is_dir():
        parser.error(f"--picture {picture}: there is no such folder")


if __name__ == "__main__":
    sys.exit(main())
