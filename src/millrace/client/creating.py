"""Making a log: what a user may choose, and the first metadata of each kind of log."""

import asyncio
import contextlib
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millrace.client.log_standing import LogStanding
from millrace.config import NAME_PATTERN, decoder_complaint
from millrace.core.commit.append import wake_committer
from millrace.core.commit.operating import NO_GENERATION
from millrace.core.commit.record import STREAMS_MAX, CommitRecord, StreamRecord, stream_log_of
from millrace.core.epochs import EpochRecord, metadata_log_of
from millrace.core.procedure import ClusterView, DeadlinePassed, Failure
from millrace.core.projection import Projection, choose_chain
from millrace.core.reconfigure import create
from millrace.core.replication import Replication, Scope, cannot_replicate
from millrace.core.sequenced.append import find_seat
from millrace.core.sequenced.nodesets import METADATA_NODES, choose_nodeset
from millrace.core.sequenced.settings import SequencerSettings
from millrace.errors import TimedOut, TooFewNodes, Unavailable, UsageError
from millrace.limits import LOG_NAME_CHARS_MAX, STICKY_BYTES
from millrace.types import (
    NO_NODE,
    Ack,
    CopysetOrder,
    Epoch,
    LocalScd,
    LogAttributes,
    LogId,
    LogInfo,
    StreamId,
    WritePath,
)

if TYPE_CHECKING:
    from millrace.client.cluster import Client

INTERNAL = "internal"  # Stands for their names where those of people's logs are checked.
INTERNAL_PATTERN = r"@[a-z]+/[A-Za-z0-9][A-Za-z0-9._-]*"
INTERNAL_DEFAULTS: dict[str, Any] = {
    "replication": 3,
    "write_path": WritePath.SEQUENCED,
    "ack": Ack.DISK,
    "compression": True,
    "retention_ms": None,
    "retention_bytes": None,
}
TIMEOUT_MS = 30_000
MADE_LOOKS_MAX = 100
MADE_LOOK_S = 0.02
METADATA_COPIES = 3  # Of metadata logs, if there are so many nodes.


class SequencedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What can be chosen of a sequenced log beyond what all logs have.

    `nodeset_size`: how many nodes it may use, all if None.  `extras`, `sync_leaders`, `leaders`,
    `writes_in_flight`, `sticky_bytes`: as in the settings of its sequencer.  `scd`: whether readers
    are sent one copy of each block; `local_scd`: off, region or rack; `copyset_order`: stored,
    shuffled or shuffled_per_client."""

    nodeset_size: int | None = None
    extras: int = 0
    sync_leaders: int = 1
    leaders: int | None = None
    writes_in_flight: int = 1_000
    sticky_bytes: int = STICKY_BYTES
    scd: bool = True
    local_scd: LocalScd = LocalScd.OFF
    copyset_order: CopysetOrder = CopysetOrder.SHUFFLED


class CommitOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What can be chosen of a commit log beyond what all logs have: `streams` take appends side by
    side; the others are as for a sequenced log."""

    streams: int = 1
    scd: bool = True
    local_scd: LocalScd = LocalScd.OFF
    copyset_order: CopysetOrder = CopysetOrder.SHUFFLED


Options = TypeVar("Options", SequencedOptions, CommitOptions)


class Choice(msgspec.Struct, frozen=True):
    attributes: LogAttributes
    replication: Replication
    settings: SequencerSettings
    streams: int = 1  # Of a commit log.


def choose(
    name: str,
    replication: int | Mapping[str, int],
    write_path: WritePath | str,
    ack: Ack | str,
    compression: bool,
    retention_ms: int | None,
    retention_bytes: int | None,
    more: Mapping[str, Any],
) -> Choice:
    """Raises UsageError that says what cannot be."""
    _check_name(name)
    path = _member(WritePath, write_path, "write_path")
    spread = Replication.of(replication)
    for setting, value in (("retention_ms", retention_ms), ("retention_bytes", retention_bytes)):
        if value is not None and value <= 0:
            raise UsageError(f"{setting}={value}: give a number above 0, or None to keep all")
    reading: SequencedOptions | CommitOptions
    streams = 1
    options = SequencedOptions()
    if path is WritePath.COMMIT:
        reading = _commit_options(more, spread)
        streams = reading.streams
    else:
        reading = options = _options(more, path, spread)
    attributes = LogAttributes(
        path,
        spread.copies,
        _member(Ack, ack, "ack"),
        compression,
        retention_ms,
        retention_bytes,
        tuple((scope.word, factor) for scope, factor in spread.factors if scope is not Scope.NODE),
        options.nodeset_size,
        reading.scd,
        reading.local_scd,
        reading.copyset_order,
    )
    settings = SequencerSettings(
        extras=options.extras,
        sync_leaders=options.sync_leaders,
        leaders=options.leaders,
        writes_in_flight=options.writes_in_flight,
        sticky_bytes=options.sticky_bytes,
    )
    return Choice(attributes, spread, settings, streams)


def choose_internal(name: str, attributes: Mapping[str, Any], kept_ms_min: int | None) -> Choice:
    """Of a log that is part of something else, and not for people."""
    if not re.fullmatch(INTERNAL_PATTERN, name) or len(name) > LOG_NAME_CHARS_MAX:
        raise UsageError(f"{name!r} is not the name of an internal log: those are like '@ring/7'")
    given = {**INTERNAL_DEFAULTS, **attributes}
    common = {option: given.pop(option) for option in INTERNAL_DEFAULTS}
    choice = choose(INTERNAL, **common, more=given)
    kept = msgspec.structs.replace(choice.attributes, kept_ms_min=kept_ms_min)
    return msgspec.structs.replace(choice, attributes=kept)


def is_internal(name: str) -> bool:
    return name.startswith("@")


def _check_name(name: str) -> None:
    if not re.fullmatch(NAME_PATTERN, name) or len(name) > LOG_NAME_CHARS_MAX:
        raise UsageError(
            f"{name!r} is not a log name: letters, digits, '.', '_', '-', beginning with a letter "
            f"or digit, at most {LOG_NAME_CHARS_MAX} characters"
        )


def _converted(more: Mapping[str, Any], kind: type[Options], path: WritePath) -> Options:
    """One option at a time, so that whoever gave a wrong one is told which."""
    known = kind.__struct_fields__
    for option, value in more.items():
        if option not in known:
            raise UsageError(
                f"a {path.value} log cannot have {option}; it can be given {', '.join(known)}"
            )
        try:
            msgspec.convert({option: value}, kind, strict=False)
        except msgspec.ValidationError as error:
            why = decoder_complaint(error).removeprefix(f"{option}: ")
            raise UsageError(f"{option}={value!r}: {why}") from None
    return msgspec.convert(dict(more), kind, strict=False)


def _commit_options(more: Mapping[str, Any], spread: Replication) -> CommitOptions:
    options = _converted(more, CommitOptions, WritePath.COMMIT)
    if len(spread.factors) > 1:
        raise UsageError("a commit log cannot have a replication over several scopes")
    if not 1 <= options.streams <= STREAMS_MAX:
        raise UsageError(f"streams={options.streams}: a log has 1 to {STREAMS_MAX}")
    return options


def _options(more: Mapping[str, Any], path: WritePath, spread: Replication) -> SequencedOptions:
    if path is not WritePath.SEQUENCED and (more or len(spread.factors) > 1):
        given = ", ".join(more) or "a replication over several scopes"
        is_of_commit_logs = more and not set(more) & set(SequencedOptions.__struct_fields__)
        other = WritePath.COMMIT if is_of_commit_logs else WritePath.SEQUENCED
        raise UsageError(f"a {path.value} log cannot have {given}: make it a {other.value} one")
    options = _converted(more, SequencedOptions, WritePath.SEQUENCED)
    size, copies = options.nodeset_size, spread.copies
    if size is not None and size < copies + options.extras:
        raise UsageError(
            f"nodeset_size={size} is smaller than a copyset of {copies} copies and "
            f"{options.extras} extras"
        )
    leaders = copies if options.leaders is None else options.leaders
    if not 0 <= options.sync_leaders <= copies or not options.sync_leaders <= leaders <= copies:
        raise UsageError(
            f"sync_leaders={options.sync_leaders}, leaders={leaders}: they must be in this order, "
            f"between 0 and the {copies} copies"
        )
    if options.extras < 0 or options.writes_in_flight < 1 or options.sticky_bytes < 1:
        raise UsageError("extras must be 0 or more, writes_in_flight and sticky_bytes 1 or more")
    return options


def _member(kind: Any, value: Any, setting: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise UsageError(f"{setting}={value!r}: use one of {known}") from None


async def make_log(client: "Client", name: str, choice: Choice) -> tuple[LogInfo, LogStanding]:
    """All that a log needs but its name."""
    view = await client.directory.view()
    log = await client.directory.next_log_id()
    info = LogInfo(log, name, choice.attributes, int(time.time() * 1000))
    if choice.attributes.write_path is WritePath.CHAIN:
        return info, await _make_chain(client, info, view)
    if choice.attributes.write_path is WritePath.COMMIT:
        return info, await _make_commit(client, info, choice.streams, view)
    return info, await _make_sequenced(client, info, choice, view)


async def _make_chain(client: "Client", info: LogInfo, view: ClusterView) -> Projection:
    replication = info.attributes.replication
    chain = choose_chain(info.id, replication, view.nodes, view.live)
    if len(chain) < replication:
        raise TooFewNodes(
            f"replication {replication} needs as many live storage nodes; "
            f"there are {len(chain)}: start more nodes or choose a smaller factor"
        )
    procedure = create(info.id, chain, replication, client.runner.next_token())
    try:
        projection = await client.runner.run(procedure, TIMEOUT_MS)
    except DeadlinePassed:
        raise TimedOut(f"log {info.name!r} could not be created in time") from None
    if isinstance(projection, Failure):
        raise Unavailable(f"log {info.name!r} could not be created: {projection.detail}")
    return projection


async def _make_commit(
    client: "Client", info: LogInfo, streams: int, view: ClusterView
) -> CommitRecord:
    """Streams that nobody has heard of: the first committer makes them."""
    copies = info.attributes.replication
    entries = await client.directory.status_entries()
    takers = view.live - {node for node, entry in entries.items() if entry.is_disabled}
    made: list[StreamRecord] = []
    for number in range(1, streams + 1):
        stream = StreamId(number)
        home = choose_chain(stream_log_of(info.id, stream), copies, view.nodes, takers)
        if len(home) < copies:
            raise TooFewNodes(
                f"replication {copies} needs as many live storage nodes; "
                f"there are {len(home)}: start more nodes or choose a smaller factor"
            )
        made.append(StreamRecord(stream, NO_GENERATION, home))
    record = CommitRecord(info.id, Epoch(0), NO_NODE, copies, tuple(made))
    if not await client.directory.replace_commits(record, 0):
        raise Unavailable(f"log {info.id} has commits already: try again")
    with contextlib.suppress(DeadlinePassed):  # Best effort: an append finds a committer as well.
        await client.runner.run(wake_committer(info.id, record, client.streams), TIMEOUT_MS)
    return await _made(client, record)


async def _made(client: "Client", record: CommitRecord) -> CommitRecord:
    """With all streams open, if that is soon: else appends begin with those that are."""
    for _ in range(MADE_LOOKS_MAX):
        found = (await client.directory.read_commits(record.log))[0] or record
        if all(each.generation for each in found.streams):
            return found
        await asyncio.sleep(MADE_LOOK_S)
    return found


async def _make_sequenced(
    client: "Client", info: LogInfo, choice: Choice, view: ClusterView
) -> EpochRecord:
    """Its metadata log, its epochs, and a sequencer so that the first append need not wait."""
    size = info.attributes.nodeset_size
    entries = await client.directory.status_entries()
    able = view.live.difference(node for node, entry in entries.items() if entry.is_disabled)
    nodeset = choose_nodeset(info.id, choice.replication, view.nodes, able, size)
    locations = {node.id: node.location for node in view.nodes}
    lack = cannot_replicate(choice.replication, nodeset, locations)
    if lack:
        raise TooFewNodes(f"log {info.name!r} cannot be stored: {lack}")
    extras = choice.settings.extras
    if len(nodeset) < choice.replication.copies + extras:
        raise TooFewNodes(
            f"log {info.name!r} can use {len(nodeset)} nodes, which cannot take "
            f"{choice.replication.copies} copies and {extras} extras: start more nodes or choose "
            f"fewer extras"
        )
    metadata = metadata_log_of(info.id)
    copies = Replication.of(min(METADATA_COPIES, len(nodeset)))
    keepers = choose_nodeset(metadata, copies, view.nodes, able, METADATA_NODES)
    first = Epoch(1)
    await _put(client, EpochRecord(metadata, Epoch(0), NO_NODE, keepers, copies, first))
    record = EpochRecord(
        info.id,
        Epoch(0),
        NO_NODE,
        nodeset,
        choice.replication,
        first,
        settings=choice.settings,
    )
    await _put(client, record)
    await _activate(client, info.id)
    return (await client.directory.read_epochs(info.id))[0] or record


async def _put(client: "Client", record: EpochRecord) -> None:
    if not await client.directory.replace_epochs(record, 0):
        raise Unavailable(f"log {record.log} has epochs already: try again")


async def _activate(client: "Client", log: LogId) -> None:
    """Best effort: an append finds a sequencer as well."""
    try:
        await client.runner.run(find_seat(log, client.seats), TIMEOUT_MS)
    except DeadlinePassed:
        return
