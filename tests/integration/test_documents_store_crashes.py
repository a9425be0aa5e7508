"""kill -9 at random moments of flushing: rows and documents are of one and the same write, and
nothing acknowledged is lost."""

import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

from millrace.core.documents.document import Document, PartitionId
from tests.conformance.document_store_rig import BUCKET, scanned
from tests.store import documents_writer_child as child
from tests.store.documents_rig import WAIT_S, LmdbDocumentRig
from tests.store.rig import REPOSITORY

KILLS = 30
ACKNOWLEDGED_MAX = 80  # Of one life.

Held = dict[PartitionId, dict[bytes, Document]]


def run_and_kill(path: Path, begin: int, acknowledged_wanted: int) -> int:
    """Let a child write from `begin` on until it acknowledged enough; the last that it did."""
    command = [sys.executable, "-m", child.__name__, os.fspath(path), str(begin)]
    acknowledged = begin - 1
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        for _ in range(acknowledged_wanted):
            assert select.select([process.stdout], [], [], WAIT_S)[0], "the child is stuck"
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        for line in process.stdout.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                acknowledged = int(line)
    return acknowledged


def replay(held: Held, numbers: range) -> None:
    """Do to a dictionary what the child did to the store."""
    for number in numbers:
        if child.is_dropped_before(number):
            held[child.PARTITIONS[0]] = {}
        for partition in child.PARTITIONS:
            one = child.flushed(number, partition)
            documents = held.setdefault(partition, {})
            if one.is_wipe:
                documents.clear()
            for key in one.removed:
                documents.pop(key, None)
            documents.update({document.key: document for document in one.documents})


def test_rows_and_documents_stay_in_step(tmp_path: Path) -> None:
    choices = random.Random(1)
    path = tmp_path / "documents"
    held: Held = {}
    last = 0
    for _ in range(KILLS):
        acknowledged = run_and_kill(path, last + 1, choices.randrange(1, ACKNOWLEDGED_MAX))
        rig = LmdbDocumentRig(path, child.MAP_BYTES)
        rows = rig.store.rows(BUCKET)
        highs = {rows[partition].high for partition in child.PARTITIONS if partition in rows}
        assert len(highs) == 1, "partitions of one write tell of different ones"
        kept = highs.pop()
        assert acknowledged <= kept <= acknowledged + child.WRITES_AHEAD
        replay(held, range(last + 1, kept + 1))
        if child.PARTITIONS[0] not in rows:  # It was dropped, and its next write was not kept.
            assert child.is_dropped_before(kept + 1)
            held[child.PARTITIONS[0]] = {}
        for partition in child.PARTITIONS:
            expected = sorted(held[partition].values(), key=lambda one: one.seq)
            assert scanned(rig, partition) == expected
        rig.store.close()
        last = kept
    assert last > KILLS
