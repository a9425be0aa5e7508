"""What a reading command waits for, said when nothing has come for a while: one that is silent
looks as if it were stuck."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from millrace.cli.output import Output, Tone
from millrace.errors import TimedOut, Unavailable
from millrace.types import Gap

if TYPE_CHECKING:
    from millrace.client import Log, Reader
    from millrace.core.read_stream import Deliver

PATIENCE_MS: Final = 3_000
TAIL: Final = "tail"
REPAIR: Final = "repair"
_AT_THE_END: Final = (TAIL, REPAIR)  # A reader of a chain looks there now and then for a hole.

_WORDS: Final = {
    TAIL: "what was appended there to be stored on enough nodes and released",
    REPAIR: "what was appended there to be completed, or given up",
    "authority": "enough nodes to say what is there",
    "senders": "the next block",
    "answers": "the first answers",
    "epochs": "the metadata to say which nodes hold it",
}


async def take(
    output: Output, reader: "Reader", log: "Log", is_endless: bool
) -> "Deliver | Gap | None":
    """As `reader.take`.  Whoever follows a log without an end knows that it waits for appends."""
    try:
        return await reader.take(PATIENCE_MS)
    except TimedOut:
        explained = reader.explain()
    is_at_the_end = explained["waits_for"] in _AT_THE_END
    if not is_endless or not is_at_the_end:
        position = explained["next_lsn"]
        if is_at_the_end and not await _is_given_out(log, reader):
            waiting = f"waiting at {position}: nothing is readable there yet"
        else:
            waiting = f"waiting at {position} for {waited_for(explained)}"
        more = f"`millrace reader explain {log.name} --from {position}` tells more"
        output.say(f"{waiting}; Ctrl-C ends, {more}", Tone.WARNING)
    return await reader.take()


async def _is_given_out(log: "Log", reader: "Reader") -> bool:
    """Whether an append is known to have got the position at which the reader stands."""
    try:
        async with asyncio.timeout(PATIENCE_MS / 1000):
            return await log.peek(timeout_ms=PATIENCE_MS) >= reader.next_lsn
    except (TimeoutError, Unavailable):
        return False


def waited_for(explained: Mapping[str, Any]) -> str:
    word = str(explained["waits_for"])
    nodes = ", ".join(map(str, sorted(explained.get("waits_for_nodes") or ())))
    whose = f", of nodes {nodes}" if nodes and word != TAIL else ""
    return _WORDS.get(word, word) + whose
