"""`millrace log verify`: is every block of a sequenced or commit log where it should be?"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import typer

from millrace.cli.health import show_blocked
from millrace.cli.log import NameArgument
from millrace.cli.output import Output, Tone
from millrace.cli.quantities import show_size
from millrace.cli.session import FormatOption, run_async, session_of
from millrace.lsn import show

if TYPE_CHECKING:
    from millrace.client.standings import NodeStanding
    from millrace.core.sequenced.verifying import Verdict
    from millrace.types import NodeId

FINDINGS_SHOWN = 20


def verify(context: typer.Context, name: NameArgument, format: FormatOption = None) -> None:
    """Compare what all nodes hold of a sequenced or commit log.  Exit code 1 if anything is wrong.

    Reads the nodes' indexes, and no record: positions that nobody holds, blocks with too few
    copies, copysets that name nodes which do not hold the block, copies that differ.  Also wrong
    are copies of drained or lost nodes that no other node can take, and a log of which no node can
    tell the end.  Of a commit log the replicas of each stream are compared, by positions of the
    stream.
    """
    session = session_of(context)

    async def work() -> "tuple[Verdict, list[Stuck]]":
        async with session.connected() as client:
            log = await session.within(client.log(name))
            verdict = await log.verify()
            return verdict, stuck_of(name, await session.within(client.statuses()))

    verdict, stuck = run_async(work())
    output = session.output(format)
    is_sound = verdict.is_sound and not stuck
    if output.is_json:
        output.json({"log": name, "is_sound": is_sound, "verdict": verdict, "stuck": stuck})
    else:
        _show(output, name, verdict, stuck)
    raise typer.Exit(0 if is_sound else 1)


class Stuck(msgspec.Struct, frozen=True):
    """A node whose copies of the log no other node can take."""

    node: int
    is_drained: bool  # By an operator; otherwise it is lost.
    detail: str


def stuck_of(name: str, standings: "Mapping[NodeId, NodeStanding]") -> list[Stuck]:
    found: list[Stuck] = []
    for node, standing in sorted(standings.items()):
        mine = [each for each in standing.blocked if each.log == name]
        if mine:
            found.append(Stuck(int(node), standing.entry.is_draining, show_blocked(mine)))
    return found


def _show(output: Output, name: str, verdict: "Verdict", stuck: list[Stuck]) -> None:
    size = show_size(verdict.bytes)
    counted = f"{verdict.blocks} blocks, {verdict.records} records, {size}, {verdict.copies} copies"
    if verdict.is_sound and not stuck:
        output.line(f"ok: log {name}: {counted}", Tone.GOOD)
    for finding in verdict.findings[:FINDINGS_SHOWN]:
        positions = f"{show(finding.first)}..{show(finding.last)}"
        output.line(f"{finding.wrong.value}: log {name}: {positions}: {finding.detail}", Tone.BAD)
    for each in stuck:
        what = "drained" if each.is_drained else "lost"
        output.line(f"stuck: log {name}: node {each.node} is {what}: {each.detail}", Tone.WARNING)
    if not verdict.is_sound or stuck:
        counts = [f"{count} {wrong.value}" for wrong, count in verdict.counts.items()]
        counts += [f"{len(stuck)} stuck"] if stuck else []
        output.line(f"log {name}: {counted}; wrong: {', '.join(counts)}")
    if verdict.surplus:
        output.line(f"{verdict.surplus} copies more than needed: harmless", Tone.FAINT)


def register(app: typer.Typer) -> None:
    app.command()(verify)
