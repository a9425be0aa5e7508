"""Running a node as a process: signals, JSON log lines, uvloop."""

import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from typing import Literal

import uvloop

from millrace.config import Configuration
from millrace.runtime.memory import keep_freed_memory, look_for_garbage_seldom
from millrace.server.node import Node

SWITCH_INTERVAL_S = 0.0005  # The store's thread must not wait 5 ms for the loop's thread.


class JsonLines(logging.Formatter):
    """One line, one event: its name, its fields, no free text."""

    def __init__(self, node: int) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "node": self._node,
            "event": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line.update(fields)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(node: int, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(node))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def run(configuration: Configuration, level: str = "info") -> None:
    """Serve until SIGTERM or SIGINT; then stop in order."""
    configure_logging(configuration.node.id, level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(configuration))


async def _serve(configuration: Configuration) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Before anything is started: a signal during the start stops what there is, in order.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    node = Node(configuration)
    stop = asyncio.create_task(stopping.wait())
    if not await _first(asyncio.create_task(node.start()), stop):
        return
    look_for_garbage_seldom()
    try:
        await _first(asyncio.create_task(node.wait_failed()), stop)
    finally:
        stop.cancel()
        await node.stop()


async def _first(work: asyncio.Task[None], stop: asyncio.Task[Literal[True]]) -> bool:
    """Whether `work` ended before the stop; otherwise it is cancelled.  Raises what it raised."""
    await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
        return True
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    return False
