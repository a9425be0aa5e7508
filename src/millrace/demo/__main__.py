"""Runs the demo and cleans up after itself, also on Ctrl-C."""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console

from millrace.demo.run import Demo
from millrace.errors import MillraceError
from millrace.local import LocalCluster
from millrace.runtime.memory import keep_freed_memory


def main() -> int:
    parser = argparse.ArgumentParser(prog="millrace.demo", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.records < 1_000 or arguments.nodes < 4:
        parser.error("the demo needs at least 1000 records and 4 nodes")
    keep_freed_memory()
    for number in (signal.SIGTERM, signal.SIGHUP):  # A closed terminal is no less an end.
        signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    console = Console(stderr=False)
    with tempfile.TemporaryDirectory(prefix="millrace-demo-") as folder:
        cluster = LocalCluster.create(Path(folder) / "cluster", arguments.nodes, name="demo")
        try:
            with cluster, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                demo = Demo(cluster, console, arguments.records)
                return 0 if runner.run(demo.run()) else 1
        except KeyboardInterrupt:
            console.print("\nStopped; the cluster is gone and its files are removed.")
            return 130
        except MillraceError as error:
            console.print(f"[red]error:[/red] {error}")
            return 1


if __name__ == "__main__":
    sys.exit(main())
