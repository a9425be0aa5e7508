"""`log get --copies`: the block that holds a position, as every node of the log has it.

Replicas of a block are byte for byte the same, so the whole blocks are fetched and compared; a
node that finds its copy damaged says so.  Every node of a chain holds every block; of a sequenced
log's nodes those of the block's copyset do.

  I1  Copies disagree only if nodes that answered show it: one that is silent proves nothing.
"""

import asyncio
from enum import Enum
from typing import Final

import msgspec

from millrace.client import Client, Log
from millrace.client.describe_commits import CommitDescription
from millrace.core.messages import Fetch, FetchCopies, Fetched, Message, Refusal, Refused
from millrace.core.projection import Projection
from millrace.errors import Unavailable, UsageError
from millrace.limits import BLOCK_BYTES_MAX
from millrace.types import Lsn, NodeId

ASK_TIMEOUT_MS: Final = 3_000
NOTHING: Final = "nothing"
NO_ANSWERS: Final = (Refusal.BUSY, Refusal.UNAVAILABLE)


class Agreement(Enum):
    AGREE = "agree"
    DISAGREE = "disagree"
    NOT_ALL_ANSWERED = "not_all_answered"  # Those that did agree.
    NO_COPY = "no_copy"  # All answered, and nobody has or needs one.


class Copy(msgspec.Struct, frozen=True):
    node: int
    state: str  # data, hole or loss; or why there is none.
    first: int | None = None
    last: int | None = None
    checksum: int | None = None  # None: the node has no good copy.
    size: int = 0
    is_needed: bool = True  # Whether a node without a copy is a fault.
    is_answered: bool = True


async def read_copies(client: Client, log: Log, lsn: Lsn) -> list[Copy]:
    standing, end = log.standing, Lsn(lsn + 1)
    if isinstance(standing, Projection):
        fetch = Fetch(standing.log, standing.epoch, lsn, end, BLOCK_BYTES_MAX)
        asks = [_read_copy(client, node, fetch) for node in standing.chain]
        return list(await asyncio.gather(*asks))
    described = await log.describe()
    if isinstance(described, CommitDescription):
        raise UsageError(
            f"log {log.name!r} is a commit log: `millrace log verify {log.name}` compares them"
        )
    request = FetchCopies(log.info.id, lsn, end, BLOCK_BYTES_MAX)
    asks = [_read_copy(client, NodeId(node), request) for node in sorted(described.members)]
    copies = await asyncio.gather(*asks)
    return [msgspec.structs.replace(copy, is_needed=copy.state != NOTHING) for copy in copies]


def compare(copies: list[Copy]) -> Agreement:
    """Whether every node that should have the block has the same one.  Keeps I1."""
    needed = [copy for copy in copies if copy.is_needed and copy.is_answered]
    kinds = {(copy.first, copy.last, copy.checksum, copy.size) for copy in needed}
    is_silent = any(not copy.is_answered for copy in copies)
    if len(kinds) > 1 or any(copy.checksum is None for copy in needed):
        return Agreement.DISAGREE
    if is_silent:
        return Agreement.NOT_ALL_ANSWERED
    return Agreement.AGREE if kinds else Agreement.NO_COPY


def verdict_on(copies: list[Copy], agreement: Agreement) -> str:
    match agreement:
        case Agreement.AGREE:
            return "all copies agree"
        case Agreement.DISAGREE:
            return "the copies do NOT agree"
        case Agreement.NO_COPY:
            return "no node has a block there"
        case Agreement.NOT_ALL_ANSWERED:
            silent = ", ".join(str(copy.node) for copy in copies if not copy.is_answered)
            has_copy = any(copy.checksum is not None for copy in copies)
            found = "the copies that were found agree" if has_copy else "no copy was found"
            return f"{found}, but not all nodes answered: {silent}"


async def _read_copy(client: Client, node: NodeId, fetch: Message) -> Copy:
    try:
        answer = await client.ask_node(node, fetch, ASK_TIMEOUT_MS)
    except Unavailable as error:
        return Copy(node, f"no answer: {error}", is_answered=False)
    if isinstance(answer, Refused):
        is_answered = answer.reason not in NO_ANSWERS
        why = f"{answer.reason.value} {answer.detail}".strip()
        return Copy(node, why, is_answered=is_answered)
    if not isinstance(answer, Fetched) or not answer.blocks:
        return Copy(node, NOTHING)
    block = answer.blocks[0]
    kind = block.kind.name.lower()
    return Copy(node, kind, block.first, block.last, block.checksum, block.size)
