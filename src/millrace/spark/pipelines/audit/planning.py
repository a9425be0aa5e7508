"""Which parts of which logs an audit reads, from which nodes.  Runs on the driver.

I1  A part ends at or below what is released, committed or readable when it is planned: blocks that
    are on their way are nobody's fault.
I2  Parts of a log tile it, and have about PART_BYTES, so that the copies of one fit in memory.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from millrace.client.cluster import Client
from millrace.client.commit_records import CommitRecords
from millrace.client.epoch_history import EpochHistory
from millrace.client.log import Log
from millrace.core.auditing import Part
from millrace.core.commit.record import CommitRecord, StreamRecord, stream_log_of
from millrace.core.epochs import EpochRecord
from millrace.core.messages import Describe, Described
from millrace.core.projection import Projection
from millrace.core.sequenced.verifying import Verdict, Wrong
from millrace.errors import Unavailable, UnknownLog, UsageError
from millrace.limits import MIB, WEIGH_PIECES_MAX
from millrace.spark.pipelines.opening import open_log
from millrace.types import FIRST_LSN, AuthoritativeStatus, Epoch, LogId, LogInfo, Lsn, NodeId

PART_BYTES: Final = 64 * MIB
ASK_TIMEOUT_MS: Final = 8_000
RECOVERY_TIMEOUT_MS: Final = 60_000


class Plan(msgspec.Struct, frozen=True):
    """Of one log.  `findings` are those that need no copies to be read.  Of one that `is_deleted`
    since the audit began nothing can be wrong."""

    info: LogInfo
    parts: tuple[Part, ...]
    findings: Verdict
    is_deleted: bool = False


class Surroundings(msgspec.Struct, frozen=True):
    """What a judge must know of the nodes."""

    locations: dict[NodeId, str]
    statuses: dict[NodeId, AuthoritativeStatus]


async def find_logs(client: Client, wanted: Sequence[str]) -> list[LogInfo]:
    """By names or patterns (regular expressions that match the whole name); all if none is given,
    also those that hold the rows of publications.  Raises UnknownLog for one that matches no log.
    """
    infos = sorted(await client.logs(has_internal=True), key=lambda info: info.name)
    chosen: dict[LogId, LogInfo] = {}
    for word in wanted or (".*",):
        try:
            found = [each for each in infos if each.name == word or re.fullmatch(word, each.name)]
        except re.error as error:
            raise UsageError(f"logs: {word!r} is neither a name nor a pattern: {error}") from None
        if not found and wanted:
            raise UnknownLog(f"logs: no log of the cluster {client.name!r} matches {word!r}")
        chosen |= {each.id: each for each in found}
    return list(chosen.values())


async def look_around(client: Client) -> Surroundings:
    view = await client.directory.view()
    locations = {node.id: node.location for node in view.nodes}
    return Surroundings(locations, dict(await client.directory.statuses()))


async def plan_log(client: Client, info: LogInfo) -> Plan:
    """A log that nobody can tell the end of is a finding itself."""
    try:
        return await _plan_log(client, info)
    except Unavailable as error:
        findings = Verdict()
        findings.add(Wrong.SILENT_NODE, FIRST_LSN, FIRST_LSN, str(error))
        return Plan(info, (), findings)
    except UnknownLog:
        return Plan(info, (), Verdict(), is_deleted=True)


async def _plan_log(client: Client, info: LogInfo) -> Plan:
    log = await open_log(client, info.name, info.id)
    match log.standing:
        case Projection():
            return Plan(info, tuple(await _chain_parts(client, log, log.standing)), Verdict())
        case EpochRecord():
            return Plan(info, tuple(await _sequenced_parts(client, log, log.standing)), Verdict())
        case CommitRecord():
            return await _commit_plan(client, log, log.standing)


async def _sequenced_parts(client: Client, log: Log, record: EpochRecord) -> list[Part]:
    # A sequencer that has just begun knows of nothing released: wait until it has found the end.
    last = await log.tail_lsn(timeout_ms=RECOVERY_TIMEOUT_MS)
    first, released_end = await log.readable_bounds(timeout_ms=ASK_TIMEOUT_MS)
    end = max(released_end, Lsn(last + 1))  # Keeps I1: the last record is released, too.
    if first >= end or not last:
        return []
    known = await EpochHistory(client, log.info, record).known(Epoch(1))
    weights = await log.weigh(first, end, WEIGH_PIECES_MAX)
    edges = [first]
    size_bytes = 0
    for weight in weights:
        size_bytes += weight.bytes
        if size_bytes >= PART_BYTES and edges[-1] < weight.end < end:
            edges.append(weight.end)
            size_bytes = 0
    nodes = tuple(sorted({node for span in known.ranges for node in span.nodeset}))
    pairs = zip(edges, [*edges[1:], end], strict=True)
    return [
        Part(log.name, log.info.id, *pair, nodes, at == 0, spans=known.ranges)
        for at, pair in enumerate(pairs)
    ]


async def _chain_parts(client: Client, log: Log, projection: Projection) -> list[Part]:
    first, end = await log.readable_bounds(timeout_ms=ASK_TIMEOUT_MS)
    nodes = projection.chain
    size_bytes = await _size_bytes(client, nodes, log.info.id)
    return _even_parts(Part(log.name, log.info.id, first, end, nodes), size_bytes)


async def _commit_plan(client: Client, log: Log, record: CommitRecord) -> Plan:
    record = await CommitRecords(client, log.info, record).refresh()
    findings = Verdict()
    given = sum(each.local_end - FIRST_LSN + each.lost for each in record.streams)
    if given != record.high_watermark:
        detail = f"the streams have {given} committed entries, the log {record.high_watermark}"
        findings.add(Wrong.NOT_TILED, FIRST_LSN, record.high_watermark, detail)
    parts: list[Part] = []
    for stream in record.streams:
        parts += await _stream_parts(client, log, stream)
        if len(stream.replicas) < record.copies:
            detail = f"stream {stream.stream}: replicas on nodes {list(stream.replicas)}"
            detail += f", wanted are {record.copies}"
            findings.add(Wrong.TOO_FEW_COPIES, FIRST_LSN, Lsn(stream.local_end - 1), detail)
    return Plan(log.info, tuple(parts), findings)


async def _stream_parts(client: Client, log: Log, stream: StreamRecord) -> list[Part]:
    number = stream_log_of(log.info.id, stream.stream)
    size_bytes = await _size_bytes(client, stream.replicas, number)
    part = Part(log.name, number, FIRST_LSN, stream.local_end, stream.replicas)
    return _even_parts(msgspec.structs.replace(part, stream=stream.stream), size_bytes)


async def _size_bytes(client: Client, nodes: Sequence[NodeId], number: LogId) -> int:
    """The most that one of the nodes holds."""

    async def ask(node: NodeId) -> int:
        try:
            answer = await client.ask_node(node, Describe(number), ASK_TIMEOUT_MS)
        except Unavailable:
            return 0  # Its task will tell that it is silent.
        return answer.bytes if isinstance(answer, Described) else 0

    return max(await asyncio.gather(*map(ask, nodes)), default=0)


def _even_parts(whole: Part, size_bytes: int) -> list[Part]:
    """Keeps I2 as far as blocks are of like size: positions are all that is known of them."""
    length = whole.end - whole.first
    if length <= 0:
        return []
    count = min(length, -(-size_bytes // PART_BYTES) or 1)
    edges = [Lsn(whole.first + length * at // count) for at in range(count + 1)]
    return [
        msgspec.structs.replace(whole, first=edges[at], end=edges[at + 1], is_first=at == 0)
        for at in range(count)
    ]
