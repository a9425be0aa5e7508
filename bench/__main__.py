"""`python -m bench`: one command, one run, one table, one pair of files."""

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop
from rich.console import Console

from bench import empty_commits, report
from bench.documents import run as documents_run
from bench.documents.profile import DOCUMENTS_FULL, DOCUMENTS_QUICK
from bench.limits import LimitsPeer
from bench.millrace_peer import (
    AllSendAllPeer,
    ChainPeer,
    CommitFourPeer,
    CommitPeer,
    MillracePeer,
)
from bench.nats_peer import NatsPeer
from bench.page_cache import filled_page_cache
from bench.peer import Peer
from bench.pipelines.profile import PIPELINES_FULL, PIPELINES_QUICK
from bench.pipelines.results import PipelinesRun
from bench.runner import Runner
from bench.spark.profile import SPARK_FULL, SPARK_QUICK
from bench.spark.results import SparkRun
from bench.workloads import FULL, PARTS, QUICK, plan
from millrace.runtime.memory import keep_freed_memory

T = TypeVar("T")

PEERS: Final[dict[str, Callable[[], Peer]]] = {
    "millrace": MillracePeer,
    "chain": ChainPeer,
    "commit": CommitPeer,
    "commit-4": CommitFourPeer,
    "all-send-all": AllSendAllPeer,
    "nats": NatsPeer,
    "limits": LimitsPeer,
}
PEERS_OF: Final[dict[str, list[str]]] = {  # Others: all.
    "limits": ["limits"],
    "spark": [],
    "documents": [],
    "pipelines": [],
    "commits": ["chain", "commit", "commit-4"],
}
RESULTS_DIRECTORY: Final = Path(__file__).parent / "results"
INTERRUPTED: Final = 130
TABLE_COLUMNS_MIN: Final = 172  # A table cut to a narrow terminal says nothing.


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("command", choices=("all", *PARTS))
    parser.add_argument("--quick", action="store_true", help="about a minute, rough figures")
    parser.add_argument(
        "--peers", type=_peer_names, default=None, help=f"comma-separated: {','.join(PEERS)}"
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


async def _ended_tidily(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    # Ctrl-C cancels this task already; being told to end must tidy up in the same way.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Being told to end is as Ctrl-C: Spark's part tidies up in the same way."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure_spark(*, is_quick: bool) -> SparkRun:
    with _ended_by_signal():
        try:
            from bench.spark import run as spark_run  # PySpark is an extra: the rest runs without.

            with filled_page_cache(not is_quick):
                return spark_run.measure(SPARK_QUICK if is_quick else SPARK_FULL)
        except ModuleNotFoundError as missing:
            return SparkRun("", failures={"Spark": f"{missing}: `pip install '.[spark]'`"})


def _measure_pipelines(*, is_quick: bool) -> PipelinesRun:
    with _ended_by_signal():
        try:
            from bench.pipelines import run as pipelines_run  # As above.

            with filled_page_cache(not is_quick):
                return pipelines_run.measure(PIPELINES_QUICK if is_quick else PIPELINES_FULL)
        except ModuleNotFoundError as missing:
            why = f"{missing}: `pip install '.[pipelines]'`"
            return PipelinesRun(failures={"pipelines": why})


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    profile = QUICK if options.quick else FULL
    names = options.peers or PEERS_OF.get(options.command, list(PEERS))
    has_spark = options.command == "spark" or (options.command == "all" and "millrace" in names)
    has_documents = options.command == "documents" or (
        options.command == "all" and "millrace" in names
    )
    has_pipelines = options.command == "pipelines" or (
        options.command == "all" and "millrace" in names
    )
    has_commits = options.command == "commits" or (options.command == "all" and "commit" in names)
    peers = [PEERS[name]() for name in names]
    runner = Runner(profile, peers)
    started, began = datetime.now(), time.perf_counter()
    try:
        keep_freed_memory()  # For all clients alike: they run in this process.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            results = loop.run(_ended_tidily(runner.run(plan(options.command, profile))))
            documents = None
            if has_documents:
                chosen = DOCUMENTS_QUICK if options.quick else DOCUMENTS_FULL
                servers = documents_run.all_servers()
                with filled_page_cache(not options.quick):
                    documents = loop.run(_ended_tidily(documents_run.measure(chosen, servers)))
        spark = _measure_spark(is_quick=options.quick) if has_spark else None
        pipelines = _measure_pipelines(is_quick=options.quick) if has_pipelines else None
        emptied = empty_commits.measure() if has_commits else []
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
        empty_commits=emptied,
        documents=documents,
        pipelines=pipelines,
    )
    report.print_table(run, Console(width=max(TABLE_COLUMNS_MIN, Console().width)))
    for path in report.save(run, options.out):
        print(f"saved {path}", file=sys.stderr)
    is_complete = all(not peer.failure for result in results for peer in result.peers.values())
    return 0 if is_complete and not run.all_failures else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
