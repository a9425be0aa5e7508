"""From options to positions: which logs, where to begin, where to end.  Runs on the driver."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from millrace import types
from millrace.client.cluster import Client
from millrace.client.log import Log
from millrace.core.epochs import EpochRecord
from millrace.core.runs import Runs
from millrace.errors import (
    ProtocolError,
    RecordsLost,
    Unavailable,
    UnknownLog,
    UsageError,
)
from millrace.lsn import lsn_of
from millrace.spark.options import EARLIEST, LATEST, Bound, Options
from millrace.spark.plan import Survey, Weight
from millrace.spark.workers import QUESTION_TIMEOUT_MS
from millrace.types import FIRST_LSN, Epoch, Gap, GapKind, Lsn, Selection

Range = tuple[Lsn, Lsn]  # From the first position up to and not including the end.

NAMES_SHOWN: Final = 10
LOGS_MAX: Final = 512  # Each is watched by a stream, and a node serves so many on a connection.
GUESSED_RECORD_BYTES: Final = 1_024
PIECES: Final = 64
_log = logging.getLogger("millrace.spark")


class Ends(msgspec.Struct, frozen=True):
    """Where a log can be read now."""

    start: Lsn  # The trim point.
    end: Lsn


async def find_logs(client: Client, options: Options) -> dict[str, Log]:
    """By name, sorted; raises UnknownLog if one that was named does not exist.  A pattern may match
    none."""
    if options.pattern is None:
        return _few({name: await _find_log(client, name) for name in options.logs})
    infos = {info.name: info for info in await client.logs()}
    found: dict[str, Log] = {}
    for name in sorted(infos):
        if re.fullmatch(options.pattern, name):
            log = await client.log(name)
            if log.info.id != infos[name].id:  # Deleted and made again since we opened it.
                client.forget(log)
                log = await client.log(name)
            found[name] = log
    return _few(found)


async def find_some_logs(client: Client, options: Options) -> dict[str, Log]:
    """As `find_logs`, and raises UnknownLog if a pattern matches none: whoever reads what is there
    now would take a misspelt one for logs without records."""
    logs = await find_logs(client, options)
    if not logs:
        raise UnknownLog(await no_match(client, options))
    return logs


async def no_match(client: Client, options: Options) -> str:
    return (
        f"no log of the cluster {client.name!r} matches logPattern={options.pattern!r}, which must "
        f"match the whole name; {await _all_names(client)}"
    )


async def _all_names(client: Client) -> str:
    names = sorted(info.name for info in await client.logs())
    shown = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
    return f"it has {shown}" if names else "it has none yet"


def _few(logs: dict[str, Log]) -> dict[str, Log]:
    if len(logs) > LOGS_MAX:
        raise UsageError(
            f"the options name {len(logs)} logs; a query reads at most {LOGS_MAX}: "
            "make several queries of it"
        )
    return logs


async def _find_log(client: Client, name: str) -> Log:
    try:
        return await client.log(name)
    except UnknownLog:
        raise UnknownLog(
            f"the cluster {client.name!r} has no log {name!r} (options log, logs); "
            f"{await _all_names(client)}"
        ) from None


async def complete_ends(log: Log) -> Ends:
    """Up to everything that was acknowledged before the call; a reader may have to wait a moment
    for writers that are not done."""
    return Ends(*await log.bounds(timeout_ms=QUESTION_TIMEOUT_MS))


async def readable_ends(log: Log) -> Ends:
    """Up to what can be read without waiting for anybody."""
    return Ends(*await log.readable_bounds(timeout_ms=QUESTION_TIMEOUT_MS))


async def of_each(
    logs: Mapping[str, Log], look: Callable[[Log], Awaitable[Ends]]
) -> dict[str, Ends]:
    """`complete_ends` or `readable_ends` of all logs, asked at once."""
    found = await asyncio.gather(*(look(log) for log in logs.values()))
    return dict(zip(logs, found, strict=True))


async def runs_of_each(
    logs: Mapping[str, Log], firsts: Mapping[str, Lsn], ends: Mapping[str, Lsn]
) -> dict[str, Runs]:
    """Where records lie between two positions of each log."""
    found = await asyncio.gather(
        *(log.runs(firsts[name], ends[name]) for name, log in logs.items())
    )
    return dict(zip(logs, found, strict=True))


async def resolve(
    bound: Bound, logs: Mapping[str, Log], ends: Mapping[str, Ends]
) -> dict[str, Lsn]:
    """The position that `bound` means in each log.  Raises UsageError for one that lies beyond the
    end, and for logs that it does not speak of."""
    named = {*bound.places, *bound.times_us}
    if strangers := sorted(named - set(logs)):
        raise UsageError(
            f"{bound.option} speaks of {', '.join(strangers)}, which the query does not read"
        )
    if named and (missing := sorted(set(logs) - named)):
        raise UsageError(
            f"{bound.option} says nothing of {', '.join(missing)}: give a position for each log"
        )
    places = await asyncio.gather(*(_place(bound, log, ends[name]) for name, log in logs.items()))
    return dict(zip(logs, places, strict=True))


async def _place(bound: Bound, log: Log, ends: Ends) -> Lsn:
    moment = bound.times_us.get(log.name, bound.time_us)
    if moment is not None:
        return await at_time(log, moment, ends)
    word = bound.places.get(log.name, bound.everywhere)
    if word == EARLIEST:
        return ends.start
    if word == LATEST:
        return ends.end
    assert isinstance(word, int)
    if word > ends.end:
        raise UsageError(
            f"{bound.option}: position {log.show(Lsn(word))} lies beyond the end of log "
            f"{log.name!r}, whose next position is {log.show(ends.end)}; give latest to begin there"
        )
    return max(Lsn(word), _lowest(log))


def _lowest(log: Log) -> Lsn:
    """Nothing was ever below: who begins there has lost nothing."""
    return lsn_of(Epoch(1), 1) if isinstance(log.standing, EpochRecord) else FIRST_LSN


async def at_time(log: Log, time_us: int, ends: Ends) -> Lsn:
    """The first record of that time or later; the end if there is none.  The node finds the block,
    whose timestamps tell the record."""
    block_first = await log.find_time(time_us)
    first = max(block_first, ends.start)
    if first >= ends.end:
        return ends.end
    select = Selection(columns=("timestamp",), time_first_us=time_us)
    async with log.reader(first, ends.end, select=select) as reader:
        while (part := await reader.take()) is not None:
            if isinstance(part, Gap):
                continue
            batch = reader.batch(part)
            if batch.num_rows:
                return Lsn(batch.column("lsn")[0].as_py())
    return ends.end


async def survey(log: Log, first: Lsn, end: Lsn) -> Survey:
    """Where the records of [first, end) are, and about how heavy.  A guess if nobody says."""
    if first >= end:
        return Survey(first, end, Runs(), ())
    runs, pieces = await asyncio.gather(log.runs(first, end), _weigh(log, first, end))
    return Survey(first, end, runs, _flattened(runs, pieces))


async def _weigh(log: Log, first: Lsn, end: Lsn) -> Sequence[types.Weight] | None:
    try:
        return await log.weigh(first, end, PIECES)
    except (Unavailable, ProtocolError):
        return None


def _flattened(runs: Runs, pieces: Sequence[types.Weight] | None) -> list[Weight]:
    """Tiles the runs."""
    if not runs.count:
        return []
    if pieces is None:
        return [Weight(runs.begin, runs.end, runs.count * GUESSED_RECORD_BYTES)]
    found = [Weight(runs.flat(each.first), runs.flat(each.end), each.bytes) for each in pieces]
    if not found:
        return [Weight(runs.begin, runs.end, 0)]
    # What lies outside of the nodes' answer, trimmed or not readable yet, weighs nothing.
    front = Weight(runs.begin, found[0].first, 0)
    back = Weight(found[-1].end, runs.end, 0)
    return [each for each in (front, *found, back) if each.first < each.end]


def untrimmed(options: Options, log: Log, wanted: Range, start: Lsn) -> Range:
    """What is left to read of a range in a log that begins at `start` now.  What was trimmed before
    the query came to it is lost to the query."""
    first, end = wanted
    if start <= first:
        return wanted
    tell_lost(options, lost(log, Gap(GapKind.TRIM, first, Lsn(min(start, end) - 1))))
    # A task will meet the gap, and make a row of it, if rows are asked for.
    return wanted if options.include_gaps else (min(start, end), end)


def lost(log: Log, gap: Gap) -> str:
    what = "were trimmed before they were read" if gap.kind is GapKind.TRIM else "are lost"
    return f"log {log.name!r}: positions {log.show(gap.first)} to {log.show(gap.last)} {what}"


def tell_lost(options: Options, message: str) -> None:
    """As the option failOnDataLoss says."""
    if options.fail_on_data_loss:
        raise RecordsLost(f"{message}; failOnDataLoss=false goes on without them")
    _log.warning(message)
