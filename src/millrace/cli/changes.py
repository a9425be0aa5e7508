"""`millrace changes`: follow the changes of a bucket, and why followers must roll back."""

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from millrace.cli.bucket import BucketArgument
from millrace.cli.change_lines import ChangeFormatOption, ChangeRenderer, Following, follow
from millrace.cli.output import Output, Tone
from millrace.cli.session import FormatOption, run_async, session_of, to_bytes
from millrace.core.documents.document import NO_SEQ, SEQ_MAX, Seq
from millrace.core.documents.failover_log import NO_LOG, FailoverLog, parse_failover_log
from millrace.core.documents.rollback import (
    Place,
    Refuse,
    RefuseReason,
    Start,
    StartReason,
    find_start,
)
from millrace.errors import UsageError

if TYPE_CHECKING:
    from millrace.client.changes import ConsumerState

app = typer.Typer(name="changes", help="Follow the changes of a bucket.", no_args_is_help=True)

EMPTY: Final = "none"
_ENTRY: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16}):([0-9]+)")
_WHY: Final = {
    StartReason.FIRST: "it has nothing yet",
    StartReason.EQUAL_LOGS: "it goes on where it stopped",
    StartReason.SAME_BRANCH: "the master went on with the same history",
    StartReason.BRANCHED: "their histories part there",
    StartReason.SNAPSHOT_CONTAINED: "the master has all of the snapshot that was arriving",
    StartReason.NO_COMMON_ID: "they have no history in common: everything comes again",
    StartReason.PURGED: "the master has forgotten deletions since: everything comes again",
    RefuseReason.STALE_MASTER: "a master after this one is known: ask that one",
    RefuseReason.LAGGING: "it has less of the same history: ask another, or later",
    RefuseReason.NO_MASTER: "it never was a master, nor followed one: ask another",
}

LogArgument = Annotated[
    str,
    typer.Argument(
        metavar="LOG",
        help="Entries ID:SEQ, newest first, as `partition failover-log` prints them; or none.",
    ),
]


@app.command()
def tail(
    context: typer.Context,
    bucket: BucketArgument,
    from_start: Annotated[
        bool,
        typer.Option(
            "--from-start/--from-now", help="Begin with all documents, or with what changes now."
        ),
    ] = False,
    to_now: Annotated[
        bool, typer.Option("--to-now", help="From the start to what is there now, then end.")
    ] = False,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Without values.")] = False,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Only keys that begin so; nodes leave out the others.")
    ] = "",
    partition: Annotated[
        list[int] | None, typer.Option("--partition", help="Only these partitions; repeat.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="End after so many changes.")
    ] = None,
    state: Annotated[
        str,
        typer.Option(
            "--state",
            metavar="FOLDER",
            help="Keep the place there: the next time it goes on where it ended.",
        ),
    ] = "",
    format: ChangeFormatOption = "",
) -> None:
    """Print changes as they come, until Ctrl-C.

    Changes of one partition are in order.  Of each document at least the newest version comes.
    What a failover took back comes again with the cause `rollback`, or after a `wipe`.
    """
    session = session_of(context)
    renderer = ChangeRenderer(
        format or session.format.value,
        is_endless=not to_now and count is None,
        has_values=not keys_only,
    )
    wanted = Following(
        partitions=partition or None,
        is_from_now=not (from_start or to_now),
        is_finite=to_now,
        is_keys_only=keys_only,
        key_prefix=to_bytes(prefix),
        count=count,
    )

    async def work() -> None:
        async with session.connected() as client:
            opened = await session.within(client.bucket(bucket))
            kept = _open_state(state)
            try:
                await follow(session.output(), opened, renderer, wanted, kept)
            finally:
                if kept is not None:
                    kept.close()

    run_async(work())


def _open_state(folder: str) -> "ConsumerState | None":
    if not folder:
        return None
    from millrace.client.changes import FileConsumerState

    return FileConsumerState(folder)


# -- Why a client must roll back --------------------------------------------------------------


@app.command("explain-rollback")
def explain_rollback(
    context: typer.Context,
    master: LogArgument,
    client: LogArgument,
    seen: Annotated[
        int | None, typer.Option("--seen", min=0, help="The highest seq that the client took.")
    ] = None,
    snapshot: Annotated[
        int | None,
        typer.Option(
            "--snapshot",
            min=0,
            show_default="--seen",
            help="The last seq of its last complete snapshot.",
        ),
    ] = None,
    running: Annotated[
        int | None,
        typer.Option("--running", min=0, help="The last seq of the snapshot that was arriving."),
    ] = None,
    high: Annotated[
        int | None, typer.Option("--high", min=0, help="The highest seq that the master has.")
    ] = None,
    purged: Annotated[
        int, typer.Option("--purged", min=0, help="Up to where the master forgot deletions.")
    ] = 0,
    format: FormatOption = None,
) -> None:
    """Say from which seq a client streams, given the master's failover log and its own, and why.

    Asks no cluster.  For example, of a client that saw 7 of a history that parted at 5:

    millrace changes explain-rollback b2:5,a1:0 a1:0 --seen 7
    """
    place = _place(_parse(client), seen, snapshot, running)
    highest = None if high is None else Seq(high)
    answer = find_start(_parse(master), place, highest, Seq(purged))
    output = session_of(context).output(format)
    if output.is_json:
        output.json(_answer_json(answer, place))
    else:
        _show_answer(output, answer, place)


def _parse(text: str) -> FailoverLog:
    if text.strip().lower() == EMPTY:
        return NO_LOG
    pairs: list[tuple[int, int]] = []
    for word in re.split(r"[\s,]+", text.strip()):
        match = _ENTRY.fullmatch(word)
        if match is None:
            raise UsageError(
                f"{word!r} is no entry of a failover log: write ID:SEQ,ID:SEQ with the newest "
                f"first, ids in hexadecimal; or {EMPTY}"
            )
        pairs.append((int(match[1], 16), int(match[2])))
    try:
        return parse_failover_log(pairs)
    except ValueError as error:
        raise UsageError(f"{text!r} is no failover log: {error}") from None


def _place(log: FailoverLog, seen: int | None, snapshot: int | None, running: int | None) -> Place:
    if seen is None and log.entries:
        raise UsageError("how far did the client come?  Give --seen")
    highest = Seq(seen or 0)
    complete = highest if snapshot is None else Seq(snapshot)
    last = SEQ_MAX if running is None else Seq(running)
    if not complete <= highest <= last:
        raise UsageError(
            "these cannot be: --snapshot is at most --seen, which is at most --running"
        )
    return Place(log, complete, highest, last)


def _answer_json(answer: Start | Refuse, place: Place) -> dict[str, Any]:
    told = {"reason": answer.reason.value, "detail": answer.detail}
    if isinstance(answer, Refuse):
        return {"start": None, "is_refused": True, **told}
    return {
        "start": answer.seq,
        "is_refused": False,
        **told,
        "undone": max(0, place.seen - answer.seq),
    }


def _show_answer(output: Output, answer: Start | Refuse, place: Place) -> None:
    if isinstance(answer, Refuse):
        output.line(f"it does not stream from there: {answer.reason.value}", Tone.BAD)
    else:
        output.line(f"it streams from {answer.seq} on: {answer.reason.value}", Tone.GOOD)
    output.line(f"  {_WHY[answer.reason]}")
    output.line(f"  {answer.detail}")
    if isinstance(answer, Start) and answer.seq < place.seen:
        undone = f"{answer.seq + 1}..{place.seen}"
        what = "all that it has is" if answer.seq == NO_SEQ else f"what it took of {undone} is"
        output.line(f"  {what} undone first", Tone.WARNING)
