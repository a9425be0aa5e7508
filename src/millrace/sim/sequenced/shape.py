"""What a seed makes of a world's sequenced logs: replication, limits, and the faults of their own.

Drawn from generators of their own, so that worlds of chain logs are what they were without them.
"""

from enum import Enum
from random import Random

import msgspec

from millrace.core.replication import Replication
from millrace.core.sequenced.settings import RECORDS_PER_EPOCH_MAX, SequencerSettings
from millrace.sim.troubles import draw_troubles
from millrace.types import CopysetOrder, LocalScd

Factors = int | dict[str, int]


class Trouble(Enum):
    """Faults that only sequenced logs know; those of `Family` hurt them as well."""

    SEQUENCER_KILLED = "sequencer_killed"  # With appends under way.
    SEQUENCER_MUTED = "sequencer_muted"  # To some nodes, before it dies.
    SEQUENCER_DESERTED = "sequencer_deserted"  # It lives, clients replace it: two at once.
    SEQUENCER_OUTLIVED = "sequencer_outlived"  # And those that were sealed are started again.
    STRAGGLER = "straggler"  # Whoever has the only copy of a block is away in its recovery.
    RECOVERY_KILLED = "recovery_killed"  # A sequencer that recovers dies.
    ACTIVATED = "activated"  # Somebody makes another node the sequencer for no reason.
    NODESET_CHANGED = "nodeset_changed"
    SLOW_NODE = "slow_node"  # All that a node sends takes twenty times as long.
    COPIES_LOST = "copies_lost"  # A whole copyset loses its disks: the one that may lose data.
    NODE_ADDED = "node_added"  # The cluster grows: logs move onto the node.
    NODE_DRAINED = "node_drained"  # For good: its copies are made elsewhere, also of old epochs.
    DISK_REPLACED = "disk_replaced"  # Its copies are made anew, some of them in a recovery.


class SequencedShape(msgspec.Struct, frozen=True):
    nodes: int
    racks: int
    replication: Replication
    logs: int
    nodeset_size: int | None
    settings: SequencerSettings
    writers: int
    readers: int
    is_single_copy: bool
    copyset_order: CopysetOrder
    local_scd: LocalScd
    window_lsns: int
    window_bytes: int
    finds_slow_nodes: bool
    scd_timeout_ms: int
    grace_period_ms: int
    has_second_chance: bool
    statuses_ms: int  # How often clients look at the nodes' statuses.
    trims: bool
    trouble_us: int  # Mean time between two troubles.
    troubles: tuple[Trouble, ...]
    spares: int = 0  # Of the nodes, the last ones: not registered before the cluster grows.
    napping_share: float = 0.0  # Of the readers: their applications take nothing for a while.

    @property
    def is_arranged(self) -> bool:
        """Logs are moved to where the nodes are."""
        return not set(_ARRANGED).isdisjoint(self.troubles)

    @property
    def is_rebuilt(self) -> bool:
        """Who lost its disk gets its copies back, or others get them."""
        return Trouble.DISK_REPLACED in self.troubles


_ARRANGED = (Trouble.NODE_ADDED, Trouble.NODE_DRAINED)
_APART = (*_ARRANGED, Trouble.DISK_REPLACED)  # Drawn by themselves.
_TROUBLES = tuple(one for one in Trouble if one not in _APART)
_UNARRANGED = (Trouble.NODESET_CHANGED, Trouble.COPIES_LOST)  # What a keeper would undo, or cannot.
ARRANGED_SHARE = 0.2  # Of the seeds; all others are what they were without.
REBUILT_SHARE = 0.2  # Of those that are left.
NAPPING_SHARE = 0.5  # Of both.


def draw(seed: str) -> SequencedShape:
    rng = Random(f"{seed}/sequenced")
    nodes = rng.choice((3, 4, 4, 5, 5, 6))
    racks = rng.choice((2, 3, nodes))
    replication = _draw_replication(rng, nodes)
    shape = SequencedShape(
        nodes=nodes,
        racks=racks,
        replication=replication,
        logs=rng.choice((1, 1, 2)),
        nodeset_size=rng.choice((None, None, min(nodes, replication.copies + 1))),
        settings=_draw_settings(rng, replication.copies),
        writers=rng.choice((1, 2, 3)),
        readers=rng.choice((1, 2, 3)),
        is_single_copy=rng.random() < 0.85,
        copyset_order=rng.choice(tuple(CopysetOrder)),
        local_scd=rng.choice((LocalScd.OFF, LocalScd.OFF, LocalScd.REGION, LocalScd.RACK)),
        window_lsns=rng.choice((1, 5, 64, 1 << 20)),
        window_bytes=rng.choice((300, 2_000, 100_000)),
        finds_slow_nodes=rng.random() < 0.7,
        scd_timeout_ms=rng.choice((500, 3_000, 300_000)),
        grace_period_ms=rng.choice((0, 20, 100)),
        has_second_chance=rng.random() < 0.8,
        statuses_ms=rng.choice((50, 500)),
        trims=rng.random() < 0.4,
        trouble_us=rng.choice((100_000, 300_000, 1_000_000)),
        troubles=draw_troubles(Random(f"{seed}/troubles"), _TROUBLES),
    )
    shape = _arranged(_overtaking(shape), Random(f"{seed}/arranged"))
    shape = _rebuilt(shape, Random(f"{seed}/rebuilt"))
    return _napping(shape, Random(f"{seed}/naps"))


def _overtaking(shape: SequencedShape) -> SequencedShape:
    """A block overtakes another only if it is on its way to other nodes at the same time."""
    if Trouble.SEQUENCER_MUTED not in shape.troubles:
        return shape
    in_flight = max(4, shape.settings.writes_in_flight)
    settings = msgspec.structs.replace(shape.settings, writes_in_flight=in_flight, sticky_bytes=1)
    return msgspec.structs.replace(shape, settings=settings)


def _arranged(shape: SequencedShape, rng: Random) -> SequencedShape:
    """Some clusters grow and shrink as well."""
    if rng.random() >= ARRANGED_SHARE:
        return shape
    spares = rng.choice((1, 2, 3))
    others = tuple(one for one in shape.troubles if one not in _UNARRANGED)
    # Often, since a move takes its time and the more interesting ones come after others.
    troubles = (*_ARRANGED * rng.choice((1, 3)), *others)
    return msgspec.structs.replace(
        shape, nodes=shape.nodes + spares, spares=spares, troubles=troubles
    )


def _rebuilt(shape: SequencedShape, rng: Random) -> SequencedShape:
    """In some clusters disks are replaced; then there is something to rebuild from, and in half of
    them no node to spare: a recovery has to do with less.  There are no extras: a copy that is not
    named in its copyset is not missed by anybody."""
    copies = shape.replication.copies
    if rng.random() >= REBUILT_SHARE or shape.is_arranged or copies == 1:
        return shape
    others = tuple(one for one in shape.troubles if one is not Trouble.COPIES_LOST)
    troubles = (*(Trouble.DISK_REPLACED,) * rng.choice((1, 3)), *others)
    nodeset_size = copies if rng.random() < 0.5 else shape.nodeset_size
    settings = msgspec.structs.replace(shape.settings, extras=0)
    return msgspec.structs.replace(
        shape, troubles=troubles, nodeset_size=nodeset_size, settings=settings
    )


def _napping(shape: SequencedShape, rng: Random) -> SequencedShape:
    """Copies move on while somebody is far behind them."""
    is_moved = shape.is_arranged or shape.is_rebuilt
    if not is_moved or rng.random() >= NAPPING_SHARE:
        return shape
    return msgspec.structs.replace(shape, napping_share=rng.choice((0.5, 1.0)))


def _draw_replication(rng: Random, nodes: int) -> Replication:
    """Mostly with a node to spare: a log that needs all its nodes only waits for them."""
    copies = min(rng.choice((1, 2, 2, 3, 3)), max(2, nodes - 1))
    if copies == 3 and rng.random() < 0.5:
        return Replication.of({"rack": 2, "node": 3})
    return Replication.of(copies)


def _draw_settings(rng: Random, copies: int) -> SequencerSettings:
    sync_leaders = rng.choice((0, 1, 1, copies))
    return SequencerSettings(
        writes_in_flight=rng.choice((1, 4, 1_000)),
        extras=rng.choice((0, 0, 1, 2)),
        sync_leaders=min(sync_leaders, copies),
        leaders=rng.choice((None, copies)),
        store_timeout_ms=rng.choice((50, 300, 2_000)),
        store_timeout_ms_max=4_000,
        leader_timeout_ms=rng.choice((20, 200)),
        retry_ms_max=500,
        waves_max=rng.choice((4, 64)),
        tokens_remembered=rng.choice((64, 4_096)),
        tickets_per_append=rng.choice((1, 16)),
        records_per_epoch=rng.choice((12, 60, RECORDS_PER_EPOCH_MAX, RECORDS_PER_EPOCH_MAX)),
        sticky_bytes=rng.choice((1, 2_000, 1_000_000)),
        sticky_ms=rng.choice((1, 50, 10_000)),
    )
