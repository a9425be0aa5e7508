"""What a seed makes of a world's commit logs: streams, copies, limits, and faults of their own."""

from enum import Enum
from random import Random

import msgspec

from millrace.sim.troubles import draw_troubles
from millrace.types import CopysetOrder, LocalScd


class CommitTrouble(Enum):
    """Faults that only commit logs know; those of `Family` hurt them as well."""

    COMMITTER_KILLED = "committer_killed"
    COMMITTER_PAUSED = "committer_paused"  # Past its lease: it goes on beside the next one.
    COMMITTER_DESERTED = "committer_deserted"  # It loses the repository, and nodes do not lose it.
    COMMITTER_USURPED = "committer_usurped"  # Another node claims the log for no reason.
    PRIMARY_KILLED = "primary_killed"  # With appends under way.
    PRIMARY_CUT_OFF = "primary_cut_off"  # From one backup, though both live.
    REFORM_KILLED = "reform_killed"  # Whoever reforms a stream dies when replicas are sealed.
    OPENING_MISSED = "opening_missed"  # A replica dies when its stream is opened anew.
    SYNC_KILLED = "sync_killed"  # The source or the learner dies in the middle.
    STREAM_ADDED = "stream_added"
    STREAM_CLOSED = "stream_closed"  # By an operator, and mostly opened again.
    REPLICA_MOVED = "replica_moved"
    SLOW_NODE = "slow_node"
    REPLICAS_LOST = "replicas_lost"  # All of a stream lose their disks: it may lose data.


class CommitShape(msgspec.Struct, frozen=True):
    copies: int
    streams: int
    logs: int
    writers: int
    readers: int
    racks: int
    is_single_copy: bool
    copyset_order: CopysetOrder
    local_scd: LocalScd
    window_lsns: int
    window_bytes: int
    scd_timeout_ms: int
    grace_period_ms: int
    look_ms: int  # How often readers look at the record.
    trims: bool
    trouble_us: int  # Mean time between two troubles.
    troubles: tuple[CommitTrouble, ...]


_TROUBLES = tuple(CommitTrouble)


def draw(seed: str) -> CommitShape:
    rng = Random(f"{seed}/commit")
    return CommitShape(
        copies=rng.choice((1, 2, 2, 3, 3, 3)),
        streams=rng.choice((1, 1, 2, 3)),
        logs=rng.choice((1, 1, 2)),
        writers=rng.choice((1, 2, 3)),
        readers=rng.choice((1, 2, 3)),
        racks=rng.choice((1, 2, 3)),
        is_single_copy=rng.random() < 0.85,
        copyset_order=rng.choice(tuple(CopysetOrder)),
        local_scd=rng.choice((LocalScd.OFF, LocalScd.OFF, LocalScd.REGION, LocalScd.RACK)),
        window_lsns=rng.choice((1, 5, 64, 1 << 20)),
        window_bytes=rng.choice((300, 2_000, 100_000)),
        scd_timeout_ms=rng.choice((500, 3_000, 300_000)),
        grace_period_ms=rng.choice((0, 20, 100)),
        look_ms=rng.choice((50, 500)),
        trims=rng.random() < 0.4,
        trouble_us=rng.choice((100_000, 300_000, 1_000_000)),
        troubles=draw_troubles(Random(f"{seed}/commit-troubles"), _TROUBLES),
    )
