"""Logs that the tests of reading are about: spread evenly over their nodes, order as stored."""

from typing import Any

import msgspec

from millrace.core.reading.settings import SequencedReadSettings
from millrace.types import CopysetOrder
from tests.core.reading.read_cluster import Cluster, at, block, one_range

SETTINGS = SequencedReadSettings(
    copyset_order=CopysetOrder.STORED,
    window_lsns=16,
    window_bytes=2_000,
    sender_bytes_min=400,
)


def with_settings(**changes: Any) -> SequencedReadSettings:
    return msgspec.structs.replace(SETTINGS, **changes)


def copyset_of(offset: int, size: int, copies: int) -> list[int]:
    """The first is offset mod size, from 1; the others follow it."""
    return [(offset + place - 1) % size + 1 for place in range(copies)]


def even_cluster(
    blocks: int = 60,
    size: int = 5,
    copies: int = 3,
    settings: SequencedReadSettings = SETTINGS,
    is_endless: bool = False,
    block_bytes: int = 100,
    **fields: Any,
) -> Cluster:
    """Blocks of one record at e1n1, e1n2, ..., all released."""
    end = {} if is_endless else {"end": at(blocks + 1)}
    ranges = one_range(range(1, size + 1), copies)
    cluster = Cluster(ranges, at(1), settings=settings, **end, **fields)
    for offset in range(1, blocks + 1):
        cluster.store(block(at(offset), size=block_bytes), copyset_of(offset, size, copies))
    cluster.release(at(blocks))
    return cluster


def append(cluster: Cluster, first: int, last: int, size: int = 5, copies: int = 3) -> None:
    """More such blocks, released."""
    for offset in range(first, last + 1):
        cluster.store(block(at(offset)), copyset_of(offset, size, copies))
    cluster.release(at(last))


def records(first: int, last: int) -> list[str]:
    """As `Cluster.shown` shows them."""
    return [f"{offset}..{offset}" for offset in range(first, last + 1)]
