"""How far the masters of a bucket's partitions are."""

import asyncio
from typing import Final

from millrace.client.bucket_asking import DIAL_TIMEOUT_MS, Asker
from millrace.codec.memcached.binary import encode_request
from millrace.codec.memcached.observing import STATE_NUMBERS, decode_partition_seqs
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.core.documents.document import PartitionId, PartitionState, Seq
from millrace.errors import Unavailable

_ACTIVE: Final = STATE_NUMBERS[PartitionState.ACTIVE].to_bytes(4, "big")


async def high_seqs(asker: Asker) -> dict[PartitionId, Seq]:
    """Of those whose masters answer."""
    addresses = [address for address in asker.map.by_address() if address]
    found = await asyncio.gather(*(_ask(asker, address) for address in addresses))
    return {number: seq for pairs in found for number, seq in pairs}


async def _ask(asker: Asker, address: str) -> list[tuple[PartitionId, Seq]]:
    try:
        link = await asker.quick.get(address)
        response = await link.ask(
            lambda opaque: encode_request(
                Opcode.GET_ALL_PARTITION_SEQS, extras=_ACTIVE, opaque=opaque
            ),
            DIAL_TIMEOUT_MS,
        )
    except Unavailable:
        return []
    return decode_partition_seqs(response.value) if response.status == Status.SUCCESS else []
