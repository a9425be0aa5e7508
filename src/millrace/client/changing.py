"""Changing what a user chose of a log that is there: its copies and its nodes.

Only new epochs are different: what is in the log stays as it was stored.  The wish is kept with the
log's name, where the keeper finds it as well; so it comes true even if whoever asked is gone.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from millrace.core.epochs import EpochRecord
from millrace.core.messages import ChangeNodeset
from millrace.core.procedure import DeadlinePassed
from millrace.core.replication import Replication, Scope, cannot_replicate
from millrace.core.sequenced.append import Seat, find_seat
from millrace.core.sequenced.arranging import Scene, Wish, arrange, wish_of
from millrace.errors import NoAnswer, TooFewNodes, Unavailable, UnknownLog, UsageError
from millrace.limits import NODESET_SIZE_MAX
from millrace.meta import keys
from millrace.meta.contract import Conflict
from millrace.types import LogAttributes, LogInfo, Role, WritePath

if TYPE_CHECKING:
    from millrace.client.cluster import Client

TIMEOUT_MS: Final = 30_000
PAUSE_S: Final = 0.2

NodesetSize = int | Literal["all"]


async def change_log(
    client: "Client",
    name: str,
    replication: int | Mapping[str, int] | None,
    nodeset_size: NodesetSize | None,
    timeout_ms: int,
) -> tuple[LogInfo, EpochRecord]:
    """None: as before; a number as `replication` changes the copies and keeps what they are spread
    over.  Raises UsageError if it cannot be, NoAnswer if it is not done in time: then
    the keeper does it later."""
    if replication is None and nodeset_size is None:
        raise UsageError("say what to change: the copies, or the size of the nodeset")
    info = await _keep_wish(client, name, replication, nodeset_size)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return info, await _carry_out(client, info)
    except TimeoutError:
        raise NoAnswer(
            f"log {name!r} is not changed yet after {timeout_ms} ms: the keeper does it when the "
            f"log's sequencer and its metadata log answer; `millrace log info {name}` shows it"
        ) from None


# -- The wish ---------------------------------------------------------------------------------


async def _keep_wish(
    client: "Client",
    name: str,
    replication: int | Mapping[str, int] | None,
    nodeset_size: NodesetSize | None,
) -> LogInfo:
    repository = client.directory.repository
    while True:
        entry = await repository.get(keys.LOG_NAMES.key(name))
        info = keys.LOG_NAMES.find(entry)
        if info is None:
            raise UnknownLog(f"there is no log {name!r}; `millrace log ls` lists the logs")
        wish = _wish(info, replication, nodeset_size)
        await _check(client, info, wish)
        changed = msgspec.structs.replace(info, attributes=_attributes(info.attributes, wish))
        try:
            await repository.set(entry.key, keys.LOG_NAMES.encode(changed), entry.version)
        except Conflict:
            continue
        return changed


def _wish(
    info: LogInfo,
    replication: int | Mapping[str, int] | None,
    nodeset_size: NodesetSize | None,
) -> Wish:
    if info.attributes.write_path is not WritePath.SEQUENCED:
        kind = info.attributes.write_path.value
        raise UsageError(f"log {info.name!r} is a {kind} log: only sequenced logs can be changed")
    before = wish_of(info.attributes)
    spread = _spread(info.name, before.replication, replication)
    if nodeset_size is None:
        return Wish(spread, before.size)
    return Wish(spread, None if nodeset_size == "all" else nodeset_size)


def _spread(name: str, before: Replication, asked: int | Mapping[str, int] | None) -> Replication:
    """A number is one of copies alone: what they are spread over stays as it was."""
    if asked is None:
        return before
    if not isinstance(asked, int):
        return Replication.of(asked)
    wider = {scope.word: factor for scope, factor in before.factors if scope is not Scope.NODE}
    needed = max(wider.values(), default=0)
    if 1 <= asked < needed:
        scopes = ", ".join(f"{word}={factor}" for word, factor in wider.items())
        loose = next(word for word, factor in wider.items() if factor == needed)
        raise UsageError(
            f"log {name!r} spreads its copies over {scopes}, which {asked} cannot do: give "
            f"{needed} copies or more, or say anew what they are spread over (`--copies {asked} "
            f"--across {loose}={asked}`, replication={{'{loose}': {asked}, 'node': {asked}}})"
        )
    return Replication.of({**wider, "node": asked})


def _attributes(attributes: LogAttributes, wish: Wish) -> LogAttributes:
    factors = wish.replication.factors
    return msgspec.structs.replace(
        attributes,
        replication=wish.replication.copies,
        across=tuple((scope.word, factor) for scope, factor in factors if scope is not Scope.NODE),
        nodeset_size=wish.size,
    )


async def _check(client: "Client", info: LogInfo, wish: Wish) -> None:
    record = await _record(client, info)
    if record.is_sealed:
        raise UsageError(f"log {info.name!r} is sealed: it gets no new epochs")
    copies, extras = wish.replication.copies, record.settings.extras
    if wish.size is not None and not copies + extras <= wish.size <= NODESET_SIZE_MAX:
        raise UsageError(
            f"nodeset_size={wish.size}: a copyset of {copies} copies and {extras} extras needs as "
            f"many nodes at least, and a log can use {NODESET_SIZE_MAX} at most"
        )
    scene = await _scene(client)
    storage = {node.id for node in scene.view.nodes if Role.STORAGE in node.roles}
    able = scene.joinable & storage
    lack = cannot_replicate(wish.replication, able, scene.locations)
    if lack:
        raise TooFewNodes(f"log {info.name!r} cannot be stored so: {lack}")
    if len(able) < copies + extras:
        raise TooFewNodes(
            f"log {info.name!r} can use {len(able)} nodes, which cannot take {copies} copies and "
            f"{extras} extras: start more nodes"
        )


# -- Making it true ---------------------------------------------------------------------------


async def _carry_out(client: "Client", info: LogInfo) -> EpochRecord:
    """What the keeper would do, at once.  Old epochs are left to it."""
    while True:
        record = await _record(client, info)
        change = arrange(record, wish_of(info.attributes), await _scene(client))
        if change is None:
            return record
        await _ask(client, change)
        if (await _record(client, info)).epoch == record.epoch:
            await asyncio.sleep(PAUSE_S)


async def _ask(client: "Client", change: ChangeNodeset) -> None:
    """Whatever comes of it is seen in the epoch store."""
    try:
        seat = await client.runner.run(find_seat(change.log, client.seats), TIMEOUT_MS)
        if isinstance(seat, Seat):
            await client.ask_node(seat.node, change, TIMEOUT_MS)
    except (DeadlinePassed, Unavailable):
        return


async def _record(client: "Client", info: LogInfo) -> EpochRecord:
    record, _ = await client.directory.read_epochs(info.id)
    if record is None:
        raise UnknownLog(f"log {info.name!r} is being deleted")
    return record


async def _scene(client: "Client") -> Scene:
    return Scene(await client.directory.view(), await client.directory.status_entries())
