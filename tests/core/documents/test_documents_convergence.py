"""Whatever happens, all copies and consumers end with what the last master holds (G10).

And each rule is needed: without it some run ends differently.
"""

from collections.abc import Callable, Sequence

import pytest

from millrace.core.documents import change_stream, rollback, stream_rules
from millrace.core.documents.consumer import PartitionConsumer
from millrace.core.documents.consumer_effects import (
    BackingEffect,
    ConsumerEffect,
    Persist,
    PersistStep,
)
from millrace.core.documents.document import NO_SEQ, Document, FailoverId, Seq
from millrace.core.documents.failover_log import FailoverLog
from millrace.core.documents.partition import Partition
from millrace.core.documents.replica import ReplicaBacking
from millrace.core.documents.ring_backing import RingBacking
from millrace.core.documents.ring_buffer import RingBuffer
from millrace.core.documents.rollback import Place, Start, StartReason
from tests.core.documents import convergence_model
from tests.core.documents.convergence_model import Application, Cluster, ReplicaNode, play

RUNS = 500
SMALL = 2  # Entries of a ring buffer that most rollbacks go below.
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("first", range(0, RUNS, 100))
def test_everybody_ends_with_what_the_last_master_holds(first: int) -> None:
    for seed in range(first, first + 100):
        assert play(seed) == [], f"seed {seed}"


def test_a_rollback_below_the_ring_buffer_begins_anew(monkeypatch: Patch) -> None:
    monkeypatch.setattr(convergence_model, "RING_ENTRIES", SMALL)
    for seed in range(300):
        assert play(seed) == [], f"seed {seed}"


def test_the_runs_are_not_too_kind() -> None:
    """Undos, repairs and refusals happen in them."""
    clusters = [Cluster(seed) for seed in range(60)]
    for cluster in clusters:
        for _ in range(200):
            cluster.happen()
    followers = [f for c in clusters for f in [*c.nodes, c.application]]
    running = [f.consumer for f in followers if f.consumer is not None]
    assert sum(each.rollbacks for each in running) > 100
    assert sum(each.retries for each in running) > 100


# -- Without a rule -------------------------------------------------------------------------------


def store_the_log_first(patch: Patch) -> None:
    """U2: it is stored at the end of the undo."""
    begin_undo = PartitionConsumer._begin_undo

    def begin(self: PartitionConsumer, start: Seq) -> list[ConsumerEffect]:
        backing = self.backing
        if isinstance(backing, ReplicaBacking):
            node = backing._source
            assert isinstance(node, ReplicaNode)
            backing.partition.log = self._log
            node.finish_flush()
            node.flush()
        return begin_undo(self, start)

    patch.setattr(PartitionConsumer, "_begin_undo", begin)


def undo_without_intent(patch: Patch) -> None:
    """U2: a durable note comes before anything is undone."""
    carry_out = Application.carry_out

    def forgetful(self: Application, effect: ConsumerEffect) -> None:
        if not (isinstance(effect, Persist) and effect.step is PersistStep.INTENT):
            carry_out(self, effect)

    patch.setattr(Application, "carry_out", forgetful)


def promote_in_the_middle_of_an_undo(patch: Patch) -> None:
    """U2, R-P: a node with an unfinished undo serves nobody."""
    patch.setattr(Partition, "_check_undone", lambda self: setattr(self, "undo", None))
    patch.setattr(Cluster, "_is_able", lambda self, node: node.state.value == "replica")


def go_on_from_what_was_seen(patch: Patch) -> None:
    """U3: the next seq lies above all that is stored."""
    promote = Partition.promote

    def lower(self: Partition, term: int, id: FailoverId, is_takeover: bool) -> None:
        self.high = self.seen
        promote(self, term, id, is_takeover)

    patch.setattr(Partition, "promote", lower)


def enter_the_highest_seq(patch: Patch) -> None:
    """U3: the entry stands at the last complete snapshot."""
    promote = Partition.promote

    def higher(self: Partition, term: int, id: FailoverId, is_takeover: bool) -> None:
        self.complete = self.high
        promote(self, term, id, is_takeover)

    patch.setattr(Partition, "promote", higher)


def restart_under_the_same_id(patch: Patch) -> None:
    """U3: a master that crashed has lost what others saw."""

    def same(self: Partition, term: int, id: FailoverId, is_takeover: bool) -> None:
        fresh = self.log.begin(id, self.complete)
        is_crashed = not self.queue.count and self.high == self.disk_high and self.log.entries
        self.log = self.log if is_crashed else fresh
        self._lead(term)

    patch.setattr(Partition, "promote", same)


def keep_documents_at_0(patch: Patch) -> None:
    """U2: a start from 0 forgets everything."""

    def keep(self: Partition) -> None:
        self.high = NO_SEQ

    patch.setattr(Partition, "wipe", keep)


def keep_processed_documents_at_0(patch: Patch) -> None:
    patch.setattr(RingBacking, "wipe", lambda self: [])


def take_the_larger_seq(patch: Patch) -> None:
    """U1: unless both are sentinels the smaller is the answer."""
    between = rollback._between

    def larger(
        master: FailoverLog, mine: FailoverLog, client: Place, at_master: int, at_mine: int
    ) -> Start:
        found = between(master, mine, client, at_master, at_mine)
        if found.reason is not StartReason.BRANCHED:
            return found
        return Start(client.seen, StartReason.BRANCHED, "")

    patch.setattr(rollback, "_between", larger)


def trust_any_running_snapshot(patch: Patch) -> None:
    """U1: it must end at or below where the new master went on."""
    between = rollback._between

    def trusting(
        master: FailoverLog, mine: FailoverLog, client: Place, at_master: int, at_mine: int
    ) -> Start:
        entry = master.entries[at_master - 1].seq if at_master else client.seen
        if client.snapshot < client.seen <= entry:
            return Start(client.seen, StartReason.SNAPSHOT_CONTAINED, "")
        return between(master, mine, client, at_master, at_mine)

    patch.setattr(rollback, "_between", trusting)


def forget_what_an_undo_fetched(patch: Patch) -> None:
    """What lies above the place may have to be undone too."""
    patch.setattr(Partition, "undo_needed", lambda self, start, log: self.seen > start)


def keep_no_entries_of_an_undo(patch: Patch) -> None:
    undo_documents = RingBacking.undo_documents

    def careless(
        self: RingBacking, documents: Sequence[Document], missing: Sequence[bytes]
    ) -> list[BackingEffect]:
        effects = undo_documents(self, documents, missing)
        self._fetched = []
        return effects

    patch.setattr(RingBacking, "undo_documents", careless)


def compare_with_the_kept_place(patch: Patch) -> None:
    """R-M.1: what may have been processed is in the ring buffer."""
    place = property(lambda self: Place(self.log, self.snapshot, self.seen, self.running))
    patch.setattr(RingBacking, "place", place)
    patch.setattr(RingBacking, "undo_needed", lambda self, start, log: self.seen > start)


def undo_what_the_ring_buffer_has(patch: Patch) -> None:
    """R-M.7: below its oldest entry everything is forgotten."""

    def above(self: RingBuffer, start: Seq) -> list[bytes]:
        return list({entry.key: None for entry in self.entries if entry.seq > start})

    patch.setattr(convergence_model, "RING_ENTRIES", SMALL)
    patch.setattr(RingBuffer, "above", above)


def stream_half_snapshots_onward(patch: Patch) -> None:
    """U4: a replica streams complete snapshots."""

    def all_of_it(partition: Partition) -> Seq:
        return partition.high

    patch.setattr(change_stream, "viewable", all_of_it)
    patch.setattr(stream_rules, "high_of", all_of_it)


def ignore_purges(patch: Patch) -> None:
    """U9: below the purge seq deletions are forgotten."""
    patch.setattr(Partition, "purged", NO_SEQ, raising=False)
    patch.setattr(Partition, "__setattr__", _without_purge)


def _without_purge(self: Partition, name: str, value: object) -> None:
    object.__setattr__(self, name, NO_SEQ if name == "purged" else value)


def apply_below_fetched_tombstones(patch: Patch) -> None:
    """A stream shows an older version before the one that an undo has fetched."""

    def apply(self: ReplicaBacking, documents: Sequence[Document]) -> list[BackingEffect]:
        self.partition.apply(documents)
        return []

    patch.setattr(ReplicaBacking, "apply", apply)


# With the seed from which on a run gets into the situation: some are rare.
CANARIES: list[tuple[Callable[[Patch], None], int]] = [
    (store_the_log_first, 0),
    (undo_without_intent, 6_525),
    (promote_in_the_middle_of_an_undo, 0),
    (go_on_from_what_was_seen, 0),
    (enter_the_highest_seq, 0),
    (restart_under_the_same_id, 0),
    (keep_documents_at_0, 0),
    (keep_processed_documents_at_0, 0),
    (take_the_larger_seq, 0),
    (trust_any_running_snapshot, 0),
    (forget_what_an_undo_fetched, 0),
    (keep_no_entries_of_an_undo, 3_453),
    (compare_with_the_kept_place, 0),
    (undo_what_the_ring_buffer_has, 0),
    (stream_half_snapshots_onward, 0),
    (ignore_purges, 0),
    (apply_below_fetched_tombstones, 200),
]


@pytest.mark.parametrize(
    ("plant", "first"), CANARIES, ids=[plant.__name__ for plant, _ in CANARIES]
)
def test_without_the_rule_some_run_diverges(
    plant: Callable[[Patch], None], first: int, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    assert any(play(seed) for seed in range(first, first + 1_000)), "nothing would notice"


@pytest.mark.parametrize("first", sorted({first for _, first in CANARIES}))
def test_with_the_rule_the_same_runs_converge(first: int) -> None:
    for seed in range(first, first + 20):
        assert play(seed) == [], f"seed {seed}"
