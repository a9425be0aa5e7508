"""`millrace reader explain`: why is a reader where it is?

Opens a reader as an application would, follows the log for a moment, and shows what the reader
knows of every node that serves it (G9).
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from millrace.cli.log import NameArgument
from millrace.cli.output import Cell, Output, Tone
from millrace.cli.quantities import show_duration
from millrace.cli.session import (
    FormatOption,
    Session,
    duration_ms,
    position,
    run_async,
    session_of,
)
from millrace.errors import TimedOut, Unavailable
from millrace.lsn import offset_of
from millrace.types import Gap, Lsn

if TYPE_CHECKING:
    from millrace.client import Log, Reader

app = typer.Typer(name="reader", help="Why is a reader where it is?", no_args_is_help=True)

FOLLOW_MS: Final = 5_000
GAPS_KEPT: Final = 16  # Of the newest ones.


class Followed(msgspec.Struct):
    """What came while the reader was followed."""

    first: str
    records: int = 0
    bytes: int = 0
    gaps: int = 0
    newest_gaps: list[str] = []
    has_ended: bool = False
    sealed_end: str | None = None  # Nothing will ever be there or beyond; None: not sealed.
    is_beyond_end: bool = False  # It began there.
    next_position: str | None = None  # Where the log ends; None: nobody could say.
    last_issued: str | None = None  # The last position given out; None: nobody could say.
    is_all_released: bool = False  # Up to there, as far as is known.


@app.command()
def explain(
    context: typer.Context,
    name: NameArgument,
    first: Annotated[
        str,
        typer.Option(
            "--from",
            parser=position,
            metavar="POSITION",
            help="Where to begin: where a reader stands that does not go on; end, 47, e7n42, ...",
        ),
    ] = "end",
    follow: Annotated[
        int | None,
        typer.Option(
            "--for",
            parser=duration_ms,
            metavar="DURATION",
            show_default=show_duration(FOLLOW_MS),
            help="How long to follow the log before looking.",
        ),
    ] = None,
    format: FormatOption = None,
) -> None:
    """Follow a log for a moment and show what its reader waits for, and of which nodes."""
    session = session_of(context)
    follow_ms = FOLLOW_MS if follow is None else follow

    async def work() -> tuple[Followed, dict[str, Any]]:
        async with session.connected() as client:
            log = await session.within(client.log(name))
            begin = await _begin(session, log, first)
            async with log.reader(begin, None) as reader:
                followed = await _follow(log, reader, begin, follow_ms)
                await _look_at_seal(session, log, begin, followed)
                await _look_at_tail(session, log, reader, followed)
                if followed.last_issued is not None:
                    await _look_at_end(session, log, begin, followed)
                return followed, reader.explain()

    followed, explained = run_async(work())
    output = session.output(format)
    if output.is_json:
        output.json({"log": name, "followed": followed, "explain": explained})
    else:
        _show(output, name, followed, explained)


async def _begin(session: Session, log: "Log", first: str) -> Lsn:
    """A position that says itself where it is needs no sequencer: that may be what is missing."""
    from millrace.client.positions import Anchor, parse

    parsed = parse(first)
    if parsed.anchor is Anchor.LSN:
        return max(Lsn(parsed.offset), Lsn(1))
    return await session.within(log.resolve(first))


async def _follow(log: "Log", reader: "Reader", begin: Lsn, follow_ms: int) -> Followed:
    followed = Followed(log.show(begin))
    loop = asyncio.get_running_loop()
    end_s = loop.time() + follow_ms / 1000
    while (left_ms := int((end_s - loop.time()) * 1000)) > 0:
        try:
            part = await reader.take(left_ms)
        except TimedOut:
            break
        if part is None:
            followed.has_ended = True
            break
        if isinstance(part, Gap):
            followed.gaps += 1
            shown = f"{log.show(part.first)}..{log.show(part.last)} {part.kind.value}"
            followed.newest_gaps = [*followed.newest_gaps, shown][-GAPS_KEPT:]
        else:
            followed.records += part.end - part.first
            followed.bytes += part.block.size
    return followed


async def _look_at_seal(session: Session, log: "Log", begin: Lsn, followed: Followed) -> None:
    """As far as it can be found out: the metadata repository may be what the reader waits for."""
    with contextlib.suppress(Unavailable):
        end = await session.within(log.sealed_end())
        if end is not None:
            followed.sealed_end = log.show(end)
            followed.is_beyond_end = begin > end


async def _look_at_tail(session: Session, log: "Log", reader: "Reader", told: Followed) -> None:
    """Nodes know what was released to them; what else there is, only the log's writer knows."""
    with contextlib.suppress(Unavailable):
        issued = await session.within(log.peek())
        _, readable_end = await session.within(log.readable_bounds())
        told.last_issued = log.show(issued)
        told.is_all_released = issued < min(readable_end, reader.next_lsn)


async def _look_at_end(session: Session, log: "Log", begin: Lsn, followed: Followed) -> None:
    """An epoch without records ends at its offset 0, and its first record comes after that."""
    with contextlib.suppress(Unavailable):
        _, end = await session.within(log.bounds())
        followed.next_position = log.show(end)
        next_record = end if offset_of(end) else end + 1
        followed.is_beyond_end = followed.is_beyond_end or begin > next_record


# -- Showing ----------------------------------------------------------------------------------


def _show(output: Output, name: str, followed: Followed, explained: dict[str, Any]) -> None:
    nodes: dict[int, dict[str, Any]] = explained.get("nodes", {})
    facts: list[tuple[str, Any]] = [
        ("stands at", str(explained["next_lsn"])),
        ("waits for", _waits(followed, explained)),
        ("came from", f"{followed.first}: {followed.records} records, {followed.gaps} gaps"),
        *(("gap", gap) for gap in followed.newest_gaps),
        *_known(explained),
        ("rewinds", _counts(explained["rewinds"])),
    ]
    output.table(("reader of", name), facts)
    if nodes:
        output.line("")
        output.table(
            ("node", "state", "position", "status", "listed as", "strikes"),
            [_node_row(node, told) for node, told in sorted(nodes.items())],
        )


def _waits(followed: Followed, explained: dict[str, Any]) -> Cell:
    if followed.is_beyond_end:
        return _beyond_the_end(followed)
    if followed.has_ended:
        return Cell("nothing: the log is sealed, and all was read", Tone.GOOD)
    word = str(explained["waits_for"])
    if word == "tail":
        return _at_the_tail(followed)
    missing = explained.get("waits_for_nodes") or []
    if word == "started":
        nodes: dict[int, dict[str, Any]] = explained.get("nodes", {})
        missing = [node for node, told in nodes.items() if told["state"] == "start_sent"]
    whom = f", of nodes {', '.join(map(str, sorted(missing)))}" if missing else ""
    return Cell(word + whom, Tone.WARNING)


def _beyond_the_end(followed: Followed) -> Cell:
    if followed.sealed_end is not None:
        text = f"nothing: the log is sealed at {followed.sealed_end}, nothing will come here"
    else:
        text = f"appends: this is beyond the end of the log, which is at {followed.next_position}"
    return Cell(text, Tone.WARNING)


def _at_the_tail(followed: Followed) -> Cell:
    last = followed.last_issued
    if last is None:
        text = "tail: all was read that nodes know of; who writes the log does not say what else"
        return Cell(f"{text} there is", Tone.WARNING)
    if not followed.is_all_released:
        text = f"release: not all up to {last} is released, or nodes have not heard of it; appends"
        return Cell(f"{text} wait for enough nodes, and for earlier epochs", Tone.WARNING)
    return Cell("tail: all was read, an append is what comes next", Tone.GOOD)


def _known(explained: dict[str, Any]) -> list[tuple[str, Any]]:
    """What only one kind of log has."""
    if "mode" not in explained:
        node, epoch = explained["node"], explained["epoch"]
        return [("served by", "nobody yet" if node is None else f"node {node}, epoch {epoch}")]
    healthy = Cell("yes", Tone.GOOD) if explained["is_healthy"] else Cell("no", Tone.BAD)
    facts: list[tuple[str, Any]] = [
        ("mode", explained["mode"]),
        ("window up to", explained["window_last"]),
        ("healthy", healthy),
    ]
    if explained["misbehaved"]:
        facts.append(("misbehaved", _counts(explained["misbehaved"])))
    return facts


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _node_row(node: int, told: dict[str, Any]) -> list[str | int | Cell]:
    trouble = told["trouble"]
    state = told["state"] if trouble is None else f"{told['state']} ({trouble})"
    is_well = told["state"] == "reading"
    lists = [word for word, key in (("down", "is_down"), ("slow", "is_slow")) if told[key]]
    return [
        node,
        Cell(state, Tone.GOOD if is_well else Tone.WARNING),
        told["passed"],
        told["status"],
        ", ".join(lists) or "–",
        told["strikes"],
    ]
