"""Whether a log should lie on other nodes than it does, now that the cluster has others.

Nodes are added, and logs without a size of their own shall use them; nodes are drained, and no log
shall need them.  Whoever looks after the logs compares what each has with what it should have; the
log's sequencer then begins an epoch with it.  Old epochs stay where they are, unless what is left
of their nodesets cannot take the copies that drained or lost nodes must give away: then they are
widened by nodes of the new one (I1 of `epochs.py`).

  I1  A node that is dead is a member as before, unless the log could not be written without
      others: it may be back in a minute.  Only a drain, or leaving the registry, ends a membership.
  I2  A nodeset that could not be written is never wanted: then all stays as it is.
  I3  What was arranged needs no arranging: nothing changes before the cluster does.
  I4  A metadata log keeps all its nodes, since one nodeset counts for all its epochs, and gains
      others for those that are drained.  An AUTHORITATIVE_EMPTY node in it is as if not there.
"""

from collections.abc import Collection, Iterable

import msgspec

from millrace.core.epochs import EpochRange, EpochRecord, NodesetChange, is_metadata_log
from millrace.core.messages import ChangeNodeset
from millrace.core.procedure import ClusterView
from millrace.core.replication import Locations, Replication, can_replicate
from millrace.core.sequenced.nodesets import METADATA_NODES, choose_nodeset
from millrace.core.statuses import Entries
from millrace.types import LogAttributes, NodeId

Nodeset = tuple[NodeId, ...]


class Wish(msgspec.Struct, frozen=True):
    """What a log's user asked for; `size` None: all nodes."""

    replication: Replication
    size: int | None = None


def wish_of(attributes: LogAttributes) -> Wish:
    factors = {**dict(attributes.across), "node": attributes.replication}
    return Wish(Replication.of(factors), attributes.nodeset_size)


def wish_for(record: EpochRecord, attributes: LogAttributes | None) -> Wish:
    """A metadata log is nobody's wish: it stays as it is, on enough nodes."""
    if attributes is None or is_metadata_log(record.log):
        return Wish(record.replication, METADATA_NODES)
    return wish_of(attributes)


class Scene:
    """The nodes of a cluster, by what can be expected of them."""

    def __init__(self, view: ClusterView, entries: Entries) -> None:
        self.view = view
        self.locations: Locations = {node.id: node.location for node in view.nodes}
        self.leaving = frozenset(node for node, entry in entries.items() if entry.is_draining)
        disabled = {node for node, entry in entries.items() if entry.is_disabled}
        refilled = {node for node in disabled if entries[node].is_refillable}
        self.barred = frozenset(disabled - refilled)  # Take no copies, and gave or give theirs.
        self.joinable = view.live - disabled

    def awake(self, record: EpochRecord) -> frozenset[NodeId]:
        """Who would take copies of the log: whoever may join it, and its live members."""
        return self.joinable | (self.view.live.intersection(record.nodeset) - self.barred)

    def asleep(self, record: EpochRecord, replication: Replication) -> frozenset[NodeId]:
        """The members that are dead, as long as the others can do without them (I1)."""
        members = frozenset(record.nodeset) - self.barred
        is_writable = can_replicate(replication, members & self.view.live, self.locations)
        return members - self.view.live if is_writable else frozenset()

    def is_urgent(self, record: EpochRecord) -> bool:
        """Nodes that will take no copies are needed: appends wait."""
        members = frozenset(record.nodeset)
        can = can_replicate(record.replication, members - self.barred, self.locations)
        return not can and bool(members & self.barred)


def arrange(
    record: EpochRecord, wish: Wish, scene: Scene, old: Iterable[EpochRange] = ()
) -> ChangeNodeset | None:
    """What the log's sequencer is to do about it; None: all is well, or cannot be better.  `old`
    are the ranges of epochs before the current one, as far as they matter."""
    nodeset, replication = _target(record, wish, scene)
    wider: tuple[NodesetChange, ...] = ()
    if not is_metadata_log(record.log):
        awake = scene.awake(record)
        helpers = [node for node in nodeset if node in awake]
        current = EpochRange(record.since, record.epoch, record.nodeset, record.replication)
        wider = tuple(
            NodesetChange(span.first, wide, span.replication)
            for span in (*old, current)
            if (wide := widened(span, helpers, scene.barred, scene.locations)) != span.nodeset
        )
    if (nodeset, replication) == (record.nodeset, record.replication) and not wider:
        return None
    return ChangeNodeset(record.log, record.epoch, nodeset, replication, wider)


def _target(record: EpochRecord, wish: Wish, scene: Scene) -> tuple[Nodeset, Replication]:
    current, replication = record.nodeset, wish.replication
    awake = scene.awake(record)
    chosen = choose_nodeset(
        record.log,
        replication,
        scene.view.nodes,
        awake,
        wish.size,
        current,
        scene.leaving,
        scene.asleep(record, replication),
    )
    can = can_replicate(replication, awake.intersection(chosen), scene.locations)
    if record.is_sealed or not can:  # Nothing is written any more, or keeps I2.
        return current, record.replication
    if is_metadata_log(record.log):  # Keeps I4.
        return (*current, *(node for node in chosen if node not in current)), replication
    # In whichever order: a change for that alone would be one for nothing.
    return (current if set(chosen) == set(current) else chosen), replication


def widened(
    span: EpochRange,
    helpers: Iterable[NodeId],
    barred: Collection[NodeId],
    locations: Locations,
) -> Nodeset:
    """The nodeset of old epochs, with as many of the helpers as it takes to hold a copyset without
    the barred ones; as it is if that needs none of them, or if all of them are too few."""
    wide = span.nodeset
    if not set(barred).intersection(wide):
        return wide
    for node in (None, *helpers):
        if node is not None and node not in wide:
            wide = (*wide, node)
        left = [each for each in wide if each not in barred]
        if can_replicate(span.replication, left, locations):
            return wide
    return span.nodeset
