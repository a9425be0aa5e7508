"""Chains whose members were asked, and had all that they should: nothing is to be found there until
a node starts anew or the chain changes.

A member loses blocks when its process dies, and says so by a life of its own: also within a lease,
as whoever starts writes its key in the repository anew.  A member that is wiped or put in another's
place is another life or another chain.

Very rarely one loses blocks while its process goes on: its store fails to keep what was
acknowledged from memory.  Whoever appends hears of it from the member at once and changes the
chain, and so does whoever reads, if it is the tail; the node's log says `log.dirty` of each log,
and a store that failed for good makes its `/healthz` 503.  A node whose disk gets full, or has
room again, writes its key anew.  What is left is a log that nobody appends to: for its sake every
chain is asked again after ASK_AGAIN_S, and is a copy short unnoticed for no longer than that and a
round of chores.

  I1  Lives are looked up before the members are asked: one that starts in between has another.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from millrace.core.projection import Projection
from millrace.types import LogId, NodeId

ASK_AGAIN_S: Final = 60.0  # Several rounds of chores, or each would ask all chains.

Lives = Mapping[NodeId, int]


class _Known(msgspec.Struct):
    projection: Projection
    lives: tuple[int | None, ...]
    until_s: float


class WholeChains:
    def __init__(self) -> None:
        self._known: dict[LogId, _Known] = {}

    def keep_only(self, logs: Collection[LogId]) -> None:
        self._known = {log: known for log, known in self._known.items() if log in logs}

    def has(self, projection: Projection, lives: Lives, now_s: float) -> bool:
        known = self._known.get(projection.log)
        return (
            known is not None
            and now_s < known.until_s
            and known.projection == projection
            and known.lives == _of_chain(projection, lives)
        )

    def add(self, projection: Projection, lives: Lives, now_s: float) -> None:
        """`lives` as they were before its members were asked (I1)."""
        until_s = now_s + ASK_AGAIN_S
        self._known[projection.log] = _Known(projection, _of_chain(projection, lives), until_s)


def _of_chain(projection: Projection, lives: Lives) -> tuple[int | None, ...]:
    return tuple(map(lives.get, projection.chain))
