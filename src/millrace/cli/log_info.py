"""How logs look: rows of `log ls`, the page of `log info`, for each kind of log."""

import time
from typing import TYPE_CHECKING, Any, Final

from millrace.cli.commit_logs import show_commit_log
from millrace.cli.output import Cell, Output, Tone, plain
from millrace.cli.quantities import show_duration, show_size
from millrace.cli.redundancy import Presence, state_of_log
from millrace.client.any_description import AnyDescription
from millrace.client.describe import LogDescription
from millrace.client.describe_commits import CommitDescription
from millrace.client.describe_sequenced import SequencedDescription
from millrace.lsn import show as show_lsn
from millrace.types import (
    Ack,
    AuthoritativeStatus,
    LocalScd,
    LogAttributes,
    LogInfo,
    Lsn,
    WritePath,
)

if TYPE_CHECKING:
    from millrace.client.log_standing import LogStanding
    from millrace.core.epochs import EpochRecord
    from millrace.core.messages import Tail
    from millrace.core.replication import Replication

UNTOLD: Final = "–"  # Whoever knows does not answer.
Row = list[str | int | Cell]

HEADINGS: Final = ("log", "copies", "nodes", "epoch", "state", "retention", "age")


def show_chain(chain: tuple[int, ...]) -> str:
    return "→".join(map(str, chain))


def show_nodes(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(nodes)))


def log_json(info: LogInfo, standing: "LogStanding | None") -> dict[str, Any]:
    """`projection` is that of a chain log, `epochs` those of a sequenced one, `commits` is what a
    committer decided."""
    names = {
        WritePath.CHAIN: "projection",
        WritePath.SEQUENCED: "epochs",
        WritePath.COMMIT: "commits",
    }
    standings = dict.fromkeys(names.values()) | {names[info.attributes.write_path]: standing}
    return {"info": info, **standings}


def described_json(description: AnyDescription) -> dict[str, Any]:
    """Positions of a sequenced log also as people write them, under `positions`."""
    shown: dict[str, Any] = plain(description)
    if isinstance(description, SequencedDescription):
        tail, trim_end = description.tail, description.trim_end
        shown["positions"] = {
            "trim_end": None if trim_end is None else show_lsn(trim_end),
            "released": None if tail is None else show_lsn(tail.released),
            "issued": None if tail is None else show_lsn(tail.issued),
            "last": None if tail is None else show_lsn(tail.last),
        }
    return shown


# -- Rows of `log ls` -------------------------------------------------------------------------


def row(info: LogInfo, standing: "LogStanding | None", presence: Presence) -> Row:
    from millrace.core.commit.record import CommitRecord
    from millrace.core.projection import Projection

    attributes = info.attributes
    age = show_duration(max(int(time.time() * 1000) - info.created_ms, 0))
    end: Row = [_retention(attributes), age]
    if standing is None:
        return [info.name, attributes.replication, UNTOLD, UNTOLD, "being deleted", *end]
    state = state_of_log(standing, presence)
    if isinstance(standing, Projection):
        nodes, epoch = show_chain(standing.chain), standing.epoch
    elif isinstance(standing, CommitRecord):
        nodes, epoch = show_nodes(standing.nodes), standing.term
    else:
        nodes, epoch = show_nodes(standing.nodeset), standing.epoch
    return [info.name, attributes.replication, nodes, epoch, state, *end]


def listed_json(
    info: LogInfo, standing: "LogStanding | None", presence: Presence
) -> dict[str, Any]:
    """With the word that the table has for its state."""
    state = "being deleted" if standing is None else state_of_log(standing, presence).text
    return {**log_json(info, standing), "state": state}


def _retention(attributes: LogAttributes) -> str:
    limits = []
    if attributes.retention_ms is not None:
        limits.append(show_duration(attributes.retention_ms))
    if attributes.retention_bytes is not None:
        limits.append(show_size(attributes.retention_bytes))
    return ", ".join(limits) or "all"


# -- The page of `log info` -------------------------------------------------------------------


def show_log(output: Output, description: AnyDescription) -> None:
    if isinstance(description, LogDescription):
        _show_chain_log(output, description)
    elif isinstance(description, CommitDescription):
        show_commit_log(output, description, _attribute_facts(description.info))
    else:
        _show_sequenced_log(output, description)


def _show_chain_log(output: Output, description: LogDescription) -> None:
    projection = description.projection
    start, end, issued = description.trim_end, description.readable_end, description.issued_last
    records = UNTOLD if start is None or end is None else max(end - start, 0)
    copies = f"{len(projection.chain)} of {projection.replication} copies"
    facts: list[tuple[str, Any]] = [
        ("state", state_of_log(projection, Presence.of_answers(description.members))),
        ("records", records),
        ("begins at", UNTOLD if start is None else start),
        ("next position", UNTOLD if end is None else end),
        ("last issued", UNTOLD if issued is None else issued),
        ("epoch", f"{projection.epoch}, since {projection.reason.value}"),
        ("nodes", f"{show_chain(projection.chain)} ({copies})"),
        ("sequencer", f"node {projection.sequencer}"),
        *_attribute_facts(description.info),
    ]
    output.table(("log", description.info.name), facts)
    output.line("")
    output.table(
        ("node", "standing", "epoch", "holds", "blocks", "size"),
        [_chain_member(node, description) for node in projection.chain],
    )


def _chain_member(node: int, description: LogDescription) -> Row:
    member = description.members.get(node)
    if member is None:
        return [node, Cell("no answer", Tone.BAD), UNTOLD, UNTOLD, UNTOLD, UNTOLD]
    holds = f"{member.trim_end}..{member.contiguous_end - 1}" if member.blocks else "nothing"
    size = show_size(member.bytes)
    return [node, member.standing.value, member.epoch, holds, member.blocks, size]


def _show_sequenced_log(output: Output, description: SequencedDescription) -> None:
    record, tail = description.record, description.tail
    trim_end = description.trim_end
    presence = Presence.of_answers(description.members, description.statuses)
    facts: list[tuple[str, Any]] = [
        ("state", state_of_log(record, presence)),
        ("trimmed before", UNTOLD if trim_end is None else _position(trim_end)),
        ("readable up to", UNTOLD if tail is None else _position(tail.released)),
        ("last issued", UNTOLD if tail is None else _position(tail.issued)),
        ("last record", _last(record, tail)),
        ("epoch", record.epoch),
        ("recovered up to", f"epoch {record.clean}"),
        ("sequencer", _sequencer(record, tail)),
        ("nodes", f"{show_nodes(record.nodeset)} (since epoch {record.since})"),
        ("replication", show_replication(record.replication)),
        *_settings_facts(description),
        *_attribute_facts(description.info),
    ]
    output.table(("log", description.info.name), facts)
    output.line("")
    output.table(
        ("node", "standing", "status", "sealed below", "released", "holds up to", "blocks", "size"),
        [_sequenced_member(node, description) for node in description.members],
    )


def _position(lsn: Lsn) -> str:
    return show_lsn(lsn) if lsn > 1 else "nothing"


def _last(record: "EpochRecord", tail: "Tail | None") -> str:
    if tail is None:
        return f"{_position(record.tail)} in epochs up to {record.clean}" if record.tail else UNTOLD
    return show_lsn(tail.last) if tail.last else "none"


def _sequencer(record: "EpochRecord", tail: "Tail | None") -> Cell:
    if not record.sequencer:
        return Cell("none yet", Tone.WARNING)
    if tail is None:
        return Cell(f"node {record.sequencer}, no answer", Tone.BAD)
    return Cell(f"node {record.sequencer} ({record.changes} so far)")


def show_replication(replication: "Replication") -> str:
    """`3 copies in at least 2 racks`."""
    wider = [
        f"{factor} {scope.word.replace('_', ' ')}{'s' if factor > 1 else ''}"
        for scope, factor in replication.factors[:-1]  # The last are the nodes.
    ]
    copies = "1 copy" if replication.copies == 1 else f"{replication.copies} copies"
    return f"{copies} in at least {', '.join(wider)}" if wider else copies


def _settings_facts(description: SequencedDescription) -> list[tuple[str, Any]]:
    settings, attributes = description.record.settings, description.info.attributes
    leaders = description.record.replication.copies
    leaders = leaders if settings.leaders is None else settings.leaders
    reading = "one copy of each block" if attributes.is_single_copy else "all copies"
    if attributes.local_scd is not LocalScd.OFF:
        reading += f", from nodes in the reader's {attributes.local_scd.value} first"
    return [
        ("extras, leaders", f"{settings.extras}, {settings.sync_leaders} of {leaders} for release"),
        ("readers are sent", f"{reading} ({attributes.copyset_order.value} copysets)"),
    ]


def _sequenced_member(node: int, description: SequencedDescription) -> Row:
    member = description.members[node]
    status = description.statuses.get(node, AuthoritativeStatus.FULLY_AUTHORITATIVE)
    is_usual = status is AuthoritativeStatus.FULLY_AUTHORITATIVE
    shown = Cell(status.value, Tone.PLAIN if is_usual else Tone.WARNING)
    if member is None:
        return [node, Cell("no answer", Tone.BAD), shown, *[UNTOLD] * 5]
    return [
        node,
        member.standing.value,
        shown,
        f"epoch {member.epoch}",
        _position(member.released),
        _position(Lsn(member.end - 1)),
        member.blocks,
        show_size(member.bytes),
    ]


def _attribute_facts(info: LogInfo) -> list[tuple[str, Any]]:
    attributes = info.attributes
    return [
        ("write path", attributes.write_path.value),
        ("acknowledged", "on disk" if attributes.ack is Ack.DISK else "in memory"),
        ("retention", _retention(attributes)),
        ("compression", "yes" if attributes.compression else "no"),
        ("number", info.id),
    ]
