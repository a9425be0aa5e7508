"""What a seed says: which kinds of logs a world has.

A seed is a number, and the number draws the kind.  `chain:17`, `sequenced:17` and `commit:17` are
worlds of that kind alone: so a seed that was kept for what it once found goes on to mean the same
run when the share of the kinds changes.  Worlds of documents are only had by name: `documents:17`,
and `changes:17` with queries.
"""

from bisect import bisect_right
from enum import Enum
from random import Random

import msgspec

_SHARES = (0.3, 0.65, 0.9)  # Below which chance a world is of which kind, in their order.


class LogKind(Enum):
    CHAIN = "chain"
    SEQUENCED = "sequenced"
    COMMIT = "commit"
    BOTH = "both"  # Chains and sequenced logs.
    DOCUMENTS = "documents"  # A bucket, and no logs.
    CHANGES = "changes"  # A bucket, and queries of its changes.

    @property
    def has_chains(self) -> bool:
        return self in (LogKind.CHAIN, LogKind.BOTH)

    @property
    def has_sequenced(self) -> bool:
        return self in (LogKind.SEQUENCED, LogKind.BOTH)

    @property
    def has_commits(self) -> bool:
        return self is LogKind.COMMIT


class Seed(msgspec.Struct, frozen=True):
    number: str  # What every generator of the world is made from.
    kind: LogKind


def seed_of(number: int, kind: LogKind | None) -> int | str:
    """Of a world of that kind; None: of the one that the number draws."""
    return number if kind is None else f"{kind.value}:{number}"


def parse(seed: int | str) -> Seed:
    named, colon, number = str(seed).partition(":")
    if colon:
        return Seed(number, LogKind(named))
    chance = Random(f"{seed}/kind").random()
    return Seed(str(seed), tuple(LogKind)[bisect_right(_SHARES, chance)])
