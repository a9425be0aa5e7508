"""Runs the benchmark of documents: servers up, the parts one after another, servers down.

A part that fails is named in the result, and the others go on.
"""

import shutil
import tempfile
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bench.documents import key_values, snapshots, streaming
from bench.documents.memcached import MemcachedServer
from bench.documents.profile import DocumentsProfile
from bench.documents.results import LOOPBACK, MILLRACE, MILLRACE_3, DocumentsRun
from bench.documents.servers import DocumentServer, MillraceServer
from bench.loopback import Loopback
from bench.peer import PeerFailure
from bench.progress import progress
from millrace.errors import MillraceError


def all_servers() -> list[DocumentServer]:
    return [MillraceServer(MILLRACE, 1, 0), MillraceServer(MILLRACE_3, 3, 1), MemcachedServer()]


async def measure(profile: DocumentsProfile, servers: Sequence[DocumentServer]) -> DocumentsRun:
    run = DocumentsRun()
    directory = Path(tempfile.mkdtemp(prefix="millrace-bench-documents-"))
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        started = await _start(servers, directory, stack, run)
        await _measure_servers(started, directory, profile, run)
    progress("snapshots of the write queue")
    run.snapshots += snapshots.measure(profile.queued)
    for each in run.measured:
        if each.failure:
            run.failures[f"{each.peer}, {each.workload}"] = each.failure
    return run


async def _measure_servers(
    servers: Sequence[DocumentServer],
    directory: Path,
    profile: DocumentsProfile,
    run: DocumentsRun,
) -> None:
    nodes = [server for server in servers if isinstance(server, MillraceServer)]
    measured = run.measured
    await _part("keys and values", key_values.measure(servers, profile, measured), run)
    await _part("Bucket.set_many", key_values.measure_bucket(nodes, profile, measured), run)
    loopback = Loopback(directory)
    run.peers[LOOPBACK] = "bytes between two processes, 1 MiB writes"
    try:
        for node in nodes:
            if node.name == MILLRACE:
                work = streaming.measure(node, loopback, profile, measured)
                await _part("change streams", work, run)
    finally:
        loopback.close()


async def _start(
    servers: Sequence[DocumentServer], directory: Path, stack: AsyncExitStack, run: DocumentsRun
) -> list[DocumentServer]:
    """Those that could be started."""
    started: list[DocumentServer] = []
    for server in servers:
        progress(f"starting {server.name}")
        stack.push_async_callback(server.stop)
        try:
            await server.start(directory)
        except PeerFailure as failure:
            run.failures[server.name] = str(failure)
            progress(f"  {server.name} is left out: {failure}")
        else:
            started.append(server)
            run.peers[server.name] = server.describe()
    return started


async def _part(name: str, work: Awaitable[None], run: DocumentsRun) -> None:
    try:
        await work
    except (PeerFailure, MillraceError) as failure:
        run.failures[name] = str(failure)
        progress(f"  {name} failed: {failure}")
