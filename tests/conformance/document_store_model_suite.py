"""Any order of writes reads like a dictionary changed the same way, whatever a crash takes."""

import random

import pytest

from millrace.core.documents.document import Document, PartitionId
from millrace.store.contract import StoreFailed
from millrace.store.documents.contract import PartitionBatch
from tests.conformance.document_store_rig import (
    BUCKET,
    OTHER,
    PARTITION,
    DocumentRig,
    doc,
    row_at,
    scanned,
    tombstone,
)

STEPS = 120
KEYS = 12
PARTITIONS = (PARTITION, OTHER)
ENDINGS = {"go on": 20, "settle": 10, "reopen": 1, "crash": 3}

State = dict[PartitionId, tuple[int, dict[bytes, Document]]]  # A number kept in the row, documents.


class Trial:
    """A store, its model, and what a crash may leave of it."""

    def __init__(self, rig: DocumentRig, seed: int) -> None:
        self.rig = rig
        self.choices = random.Random(seed)
        self.state: State = {}
        self.states = [self.state]  # Since the last that was acknowledged.
        self.number = 0

    def step(self) -> None:
        if self.choices.random() < 0.05:
            self._drop(self.choices.choice(PARTITIONS))
        else:
            count = self.choices.randint(1, len(PARTITIONS))
            self._write(self.choices.sample(PARTITIONS, count))
        ending = self.choices.choices(list(ENDINGS), list(ENDINGS.values()))[0]
        if ending == "settle":
            self.rig.run_until(lambda: len(self.states) == 1)
        elif ending == "reopen":
            self.rig.reopen()
        elif ending == "crash":
            self.rig.crash()
            self.state = next(one for one in self.states if one == self.stored())
            self.states = [self.state]
        if len(self.states) == 1:
            assert self.stored() == self.state

    def stored(self) -> State:
        rows = self.rig.store.rows(BUCKET)
        found: State = {}
        for partition, row in rows.items():
            by_seq = scanned(self.rig, partition)
            assert [one.seq for one in by_seq] == sorted(one.seq for one in by_seq)
            documents = {one.key: one for one in by_seq}
            assert len(documents) == len(by_seq)
            got = self.rig.store.get_many(BUCKET, partition, list(documents))
            assert got == list(documents.values())
            dead = self.rig.store.tombstones(BUCKET, partition, 10**9, KEYS)
            assert dead == [one for one in by_seq if one.is_deleted]
            found[partition] = row.high, documents
        return found

    def _told(self, failure: StoreFailed | None) -> None:
        assert failure is None
        del self.states[0]

    def _become(self, state: State) -> None:
        self.state = state
        self.states.append(state)

    def _drop(self, partition: PartitionId) -> None:
        self.rig.store.drop(BUCKET, partition, self._told)
        self._become({at: one for at, one in self.state.items() if at != partition})

    def _write(self, partitions: list[PartitionId]) -> None:
        self.number += 1
        state = dict(self.state)
        batches: list[PartitionBatch] = []
        for partition in partitions:
            made, documents = self._batch(partition, state.get(partition, (0, {}))[1])
            batches.append(made)
            state[partition] = self.number, documents
        self.rig.store.write(batches, self._told)
        self._become(state)

    def _batch(
        self, partition: PartitionId, held: dict[bytes, Document]
    ) -> tuple[PartitionBatch, dict[bytes, Document]]:
        choose = self.choices
        is_wipe = choose.random() < 0.05
        removed = [f"k{choose.randrange(KEYS)}".encode() for _ in range(choose.choice([0, 0, 2]))]
        purged = [one for one in held.values() if one.is_deleted and choose.random() < 0.1]
        seqs = choose.sample(range(1, 100), choose.randint(0, 5))  # Up and down, as a rollback.
        documents = [self._document(seq) for seq in sorted(seqs)]
        kept = {} if is_wipe else dict(held)
        for key in [*removed, *(one.key for one in purged)]:
            kept.pop(key, None)
        kept.update({one.key: one for one in documents})
        row = row_at(self.number)
        made = PartitionBatch(BUCKET, partition, row, documents, removed, purged, is_wipe)
        return made, kept

    def _document(self, seq: int) -> Document:
        key = f"k{self.choices.randrange(KEYS)}"
        if self.choices.random() < 0.3:
            return tombstone(key, seq)
        return doc(key, seq, self.choices.randbytes(self.choices.choice([0, 20, 5_000])))


class DocumentStoreModelSuite:
    @pytest.mark.parametrize("seed", range(6))
    def test_any_order_of_writes_reads_like_a_dictionary(self, rig: DocumentRig, seed: int) -> None:
        trial = Trial(rig, seed)
        for _ in range(STEPS):
            trial.step()
