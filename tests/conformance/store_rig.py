"""What the conformance suite of stores works with: a store that things happen to, and blocks."""

import random
from collections.abc import Callable
from typing import Protocol

from millrace.codec.blocks import draft, place
from millrace.core.log_state import Fence, LogState
from millrace.core.messages import Standing
from millrace.limits import MIB
from millrace.store.contract import Store, StoreFailed
from millrace.types import LSN_MAX, Ack, Block, Epoch, LogId, Lsn, NodeId, Placement, Token

LOG = LogId(7)
OTHER = LogId(8)
PLACEMENT = Placement((NodeId(1), NodeId(2), NodeId(3)))
ROOM_BYTES = 256 * MIB
SMALL_ROOM_BYTES = 16 * MIB
MEMBER = Fence(Epoch(3), Token(1, 2), Standing.MEMBER)


class StoreRig(Protocol):
    """A store under test and what can happen to it."""

    @property
    def store(self) -> Store: ...

    def settle(self, ack: Ack = Ack.DISK) -> StoreFailed | None:
        """Queue a barrier and run the owner's loop until it is answered."""

    def crash(self) -> None:
        """Lose all that is not durable, then open again."""

    def reopen(self) -> None:
        """Close in order, then open again."""

    def damage(self, block: Block) -> None:
        """Flip a bit in the body of the stored copy; the store has it in memory no more."""


OpenRig = Callable[[int], StoreRig]


def make_block(
    first: int,
    count: int = 1,
    *,
    log: LogId = LOG,
    size: int = 64,
    timestamp_us: int = 0,
    epoch: int = 3,
) -> Block:
    """A block of `count` records of which the first has `size` bytes that differ per position."""
    value = random.Random(first).randbytes(size)
    body = draft([value] + [b""] * (count - 1), timestamps_us=timestamp_us, compress=False)
    return place(body, log, Epoch(epoch), Lsn(first), Token(9, first))


def held(store: Store, log: LogId = LOG, first: int = 1, end: int = LSN_MAX) -> list[int]:
    return [extent.first for extent in store.index(log, Lsn(first), Lsn(end), 1_000_000)]


def scanned(store: Store, first: int, end: int, bytes_max: int = 64 * MIB) -> list[bytes]:
    scan = store.scan(LOG, Lsn(first), Lsn(end), bytes_max)
    data = [bytes(block.data) for block in scan.blocks]
    scan.release()
    return data


def known(store: Store, log: LogId = LOG) -> LogState:
    state = store.state(log)
    assert state is not None
    return state
