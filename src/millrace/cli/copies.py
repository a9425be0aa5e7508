"""`log get --copies`: the block that holds a position, as every node of the chain has it.

Replicas of a block are byte for byte the same, so the whole blocks are fetched and compared; a
node that finds its copy damaged says so.
"""

import asyncio
from typing import Final

import msgspec

from millrace.client import Client, Log
from millrace.core.messages import Fetch, Fetched, Refused
from millrace.errors import Unavailable
from millrace.limits import BLOCK_BYTES_MAX
from millrace.types import Lsn, NodeId

ASK_TIMEOUT_MS: Final = 3_000


class Copy(msgspec.Struct, frozen=True):
    node: int
    state: str  # data, hole or loss; or why there is none.
    first: int | None = None
    last: int | None = None
    checksum: int | None = None  # None: the node has no good copy.
    size: int = 0


async def read_copies(client: Client, log: Log, lsn: int) -> list[Copy]:
    asks = [_read_copy(client, log, node, Lsn(lsn)) for node in log.projection.chain]
    return list(await asyncio.gather(*asks))


def agree(copies: list[Copy]) -> bool:
    """Whether every node has the same block."""
    kinds = {(copy.first, copy.last, copy.checksum, copy.size) for copy in copies}
    return len(kinds) == 1 and all(copy.checksum is not None for copy in copies)


async def _read_copy(client: Client, log: Log, node: NodeId, lsn: Lsn) -> Copy:
    projection = log.projection
    fetch = Fetch(projection.log, projection.epoch, lsn, Lsn(lsn + 1), BLOCK_BYTES_MAX)
    try:
        answer = await client.ask_node(node, fetch, ASK_TIMEOUT_MS)
    except Unavailable as error:
        return Copy(node, f"no answer: {error}")
    if isinstance(answer, Refused):
        return Copy(node, f"{answer.reason.value} {answer.detail}".strip())
    if not isinstance(answer, Fetched) or not answer.blocks:
        return Copy(node, "nothing")
    block = answer.blocks[0]
    kind = block.kind.name.lower()
    return Copy(node, kind, block.first, block.last, block.checksum, block.size)
