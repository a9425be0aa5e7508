"""Chains whose members were asked, and had all that they should: nothing is to be found there until
a node starts anew or the chain changes.

A member loses blocks when its process dies, and says so by a life of its own; or, very rarely,
when its store fails to keep what was acknowledged from memory, and its process goes on.  For the
sake of those every chain is asked again after a while.

  I1  Lives are looked up before the members are asked: one that starts in between has another.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from millrace.core.projection import Projection
from millrace.types import LogId, NodeId

ASK_AGAIN_S: Final = 10.0  # As often as by the default of `keeper.retention_interval_ms`.

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
