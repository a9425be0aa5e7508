"""What a run saves: of each log a range, of each partition of a bucket what changed since.

I1  A run has everything that was acknowledged before it began.  The ends of logs are fixed before
    anything is read; a partition is saved as it is when its stream is opened, which is later.
I2  A run goes on where the last one that has the same log or bucket ended; one that was made anew
    under its name is refused, for its positions mean something else.
"""

import re
from collections.abc import Sequence

import msgspec

from millrace.client.changes.offsets import Offset
from millrace.client.cluster import Client
from millrace.client.log import Log
from millrace.core.commit.record import CommitRecord
from millrace.core.documents.map import BucketRecord
from millrace.errors import UnknownBucket, UnknownLog, UsageError, WrongBackup
from millrace.spark import bounds
from millrace.spark.options import LATEST, Bound
from millrace.spark.pipelines.backup.manifest import Chain, Mode
from millrace.spark.pipelines.opening import open_log
from millrace.types import LogInfo, Lsn


class LogRange(msgspec.Struct, frozen=True):
    info: LogInfo
    first: Lsn
    end: Lsn
    is_full: bool
    streams: int = 0  # Of a commit log.


class BucketPlan(msgspec.Struct, frozen=True):
    record: BucketRecord
    offsets: dict[int, Offset]  # Of the partitions that need not be saved as a whole.


class Plan(msgspec.Struct, frozen=True):
    logs: tuple[LogRange, ...]
    buckets: tuple[BucketPlan, ...]


Words = tuple[str, ...]


class Wanted(msgspec.Struct, frozen=True):
    """Names or patterns; None: all there are."""

    logs: tuple[str, ...] | None
    buckets: tuple[str, ...] | None
    mode: Mode
    until: Bound | None


async def plan_run(client: Client, chain: Chain, wanted: Wanted) -> Plan:
    check_cluster(client, chain)
    if wanted.mode is Mode.INCREMENTAL and chain.last is None:
        raise UsageError(
            f"mode=incremental: {chain.folder} holds no run to go on from; give mode=full or auto"
        )
    buckets = await _plan_buckets(client, chain, wanted)
    return Plan(await _plan_logs(client, chain, wanted), buckets)


def check_cluster(client: Client, chain: Chain) -> None:
    last = chain.last
    if last is not None and last.cluster_id != client.id:
        raise WrongBackup(
            f"{chain.folder} is a backup of the cluster {last.cluster!r} ({last.cluster_id}), and "
            f"this is {client.name!r} ({client.id}): give another folder"
        )


def named(logs: Words | None, buckets: Words | None) -> tuple[Words | None, Words | None]:
    """Who names logs alone means no bucket, and the other way round."""
    return () if logs is None and buckets else logs, () if buckets is None and logs else buckets


def choose(names: Sequence[str], words: Sequence[str] | None, option: str) -> list[str]:
    """The names that are meant; raises LookupError with the word that means none."""
    if words is None:
        return sorted(set(names))
    chosen: set[str] = set()
    for word in words:
        try:
            found = [name for name in names if name == word or re.fullmatch(word, name)]
        except re.error as error:
            raise UsageError(f"{option}: {word!r} is no name and no pattern: {error}") from None
        if not found:
            raise LookupError(word)
        chosen.update(found)
    return sorted(chosen)


async def _plan_logs(client: Client, chain: Chain, wanted: Wanted) -> tuple[LogRange, ...]:
    infos = {info.name: info for info in await client.logs()}
    try:
        names = choose(list(infos), wanted.logs, "logs")
    except LookupError as word:
        raise UnknownLog(f"logs: no log of the cluster {client.name!r} matches {word}") from None
    logs = {name: await open_log(client, name, infos[name].id) for name in names}
    ends = await bounds.of_each(logs, bounds.complete_ends)  # Keeps I1.
    until = wanted.until or Bound("until", LATEST)
    if until.places or until.times_us:  # Those that it does not speak of are saved to their ends.
        spoken = {name: logs[name] for name in names if name in {*until.places, *until.times_us}}
        stops = await bounds.resolve(until, spoken, ends)
        stops |= {name: ends[name].end for name in names if name not in spoken}
    else:
        stops = await bounds.resolve(until, logs, ends)
    found = [_range(infos[name], ends[name], stops[name], chain, wanted) for name in names]
    return tuple(
        msgspec.structs.replace(each, streams=_streams(logs[each.info.name])) for each in found
    )


def _streams(log: Log) -> int:
    standing = log.standing
    return len(standing.streams) if isinstance(standing, CommitRecord) else 0


def _range(info: LogInfo, ends: bounds.Ends, stop: Lsn, chain: Chain, wanted: Wanted) -> LogRange:
    parts = [] if wanted.mode is Mode.FULL else chain.log_parts(info.name)
    if not parts:
        return LogRange(info, ends.start, max(stop, ends.start), is_full=True)
    before = parts[-1][1]
    if before.id != info.id:
        raise WrongBackup(
            f"log {info.name!r} was deleted and made anew since run {parts[-1][0].run} of "
            f"{chain.folder} (its number was {before.id} and is {info.id}): give mode=full"
        )
    return LogRange(info, before.end, max(stop, before.end), is_full=False)


async def _plan_buckets(client: Client, chain: Chain, wanted: Wanted) -> tuple[BucketPlan, ...]:
    records = {record.name: record for record in await client.buckets()}
    try:
        names = choose(list(records), wanted.buckets, "buckets")
    except LookupError as word:
        raise UnknownBucket(
            f"buckets: no bucket of the cluster {client.name!r} matches {word}"
        ) from None
    return tuple(_bucket_plan(records[name], chain, wanted) for name in names)


def _bucket_plan(record: BucketRecord, chain: Chain, wanted: Wanted) -> BucketPlan:
    saved = [(run, each) for run in chain.runs if (each := run.bucket(record.name)) is not None]
    if wanted.mode is Mode.FULL or not saved:
        return BucketPlan(record, {})
    run, before = saved[-1]
    if before.id != record.id:
        raise WrongBackup(
            f"bucket {record.name!r} was deleted and made anew since run {run.run} of "
            f"{chain.folder} (its number was {before.id} and is {record.id}): give mode=full"
        )
    return BucketPlan(record, {each.partition: each.offset for each in before.partitions})
