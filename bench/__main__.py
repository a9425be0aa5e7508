"""`python -m bench`: one command, one run, one table, one pair of files."""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import uvloop
from rich.console import Console

from bench import report
from bench.limits import LimitsPeer
from bench.millrace_peer import MillracePeer
from bench.nats_peer import NatsPeer
from bench.peer import Peer
from bench.runner import Runner, WorkloadResult
from bench.spark.profile import SPARK_FULL, SPARK_QUICK
from bench.spark.results import SparkRun
from bench.workloads import FULL, PARTS, QUICK, Workload, plan
from millrace.runtime.memory import keep_freed_memory

PEERS: Final[dict[str, Callable[[], Peer]]] = {
    "millrace": MillracePeer,
    "nats": NatsPeer,
    "limits": LimitsPeer,
}
PEERS_OF: Final[dict[str, list[str]]] = {"limits": ["limits"], "spark": []}  # Others: all.
RESULTS_DIRECTORY: Final = Path(__file__).parent / "results"
INTERRUPTED: Final = 130
TABLE_COLUMNS_MIN: Final = 142  # A table cut to a narrow terminal says nothing.


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("command", choices=("all", *PARTS))
    parser.add_argument("--quick", action="store_true", help="about a minute, rough figures")
    parser.add_argument(
        "--peers", type=_peer_names, default=None, help="comma-separated: millrace,nats,limits"
    )
    parser.add_argument("--out", type=Path, default=RESULTS_DIRECTORY, metavar="DIR")
    parser.add_argument("--name", default="", help="short name of the result files")
    return parser.parse_args(arguments)


def _peer_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in PEERS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"choose from {', '.join(PEERS)}")
    return names


async def _measure(runner: Runner, workloads: Sequence[Workload]) -> list[WorkloadResult]:
    task = asyncio.current_task()
    assert task is not None
    # Ctrl-C cancels this task already; being told to end must tidy up in the same way.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await runner.run(workloads)


def _measure_spark(*, is_quick: bool) -> SparkRun:
    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        from bench.spark import run as spark_run  # PySpark is an extra: the rest runs without it.

        return spark_run.measure(SPARK_QUICK if is_quick else SPARK_FULL)
    except ModuleNotFoundError as missing:
        return SparkRun("", failures={"Spark": f"{missing}: `pip install '.[spark]'`"})
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    profile = QUICK if options.quick else FULL
    names = options.peers or PEERS_OF.get(options.command, list(PEERS))
    has_spark = options.command == "spark" or (options.command == "all" and "millrace" in names)
    peers = [PEERS[name]() for name in names]
    runner = Runner(profile, peers)
    started, began = datetime.now(), time.perf_counter()
    try:
        keep_freed_memory()  # For all clients alike: they run in this process.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            results = loop.run(_measure(runner, plan(options.command, profile)))
        spark = _measure_spark(is_quick=options.quick) if has_spark else None
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted: servers ended, files removed, nothing saved", file=sys.stderr)
        return INTERRUPTED
    run = report.Run(
        started=started,
        name=options.name or options.command + ("-quick" if options.quick else ""),
        profile=profile,
        peers={peer.name: peer.describe() for peer in peers if peer.name not in runner.failures},
        failures=runner.failures,
        results=results,
        seconds=time.perf_counter() - began,
        spark=spark,
    )
    report.print_table(run, Console(width=max(TABLE_COLUMNS_MIN, Console().width)))
    for path in report.save(run, options.out):
        print(f"saved {path}", file=sys.stderr)
    is_complete = all(not peer.failure for result in results for peer in result.peers.values())
    return 0 if is_complete and not run.all_failures else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
