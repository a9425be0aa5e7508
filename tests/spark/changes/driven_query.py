"""A query of changes that is driven as Spark does it, without Spark: offsets are written before a
micro-batch runs, commits afterwards, and what is pickled for tasks is pickled here."""

import json
import pickle
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millrace.local import LocalCluster
from millrace.spark.changes.source import ChangesSource
from millrace.spark.changes.stream import ChangeStreamReader

Row = dict[str, Any]


class DrivenQuery:
    """Each `run_once` is a life of it; of each key the row with the largest version stays."""

    def __init__(self, cluster: LocalCluster, bucket: str, **options: object) -> None:
        words = {name: str(value) for name, value in options.items()}
        self._options = {"cluster": ",".join(cluster.addresses), "bucket": bucket, **words}
        self.offsets: list[dict[str, Any]] = []
        self.committed = 0  # How many of them.
        self.rows: list[Row] = []
        self.table: dict[bytes, Row] = {}

    def gone_on(self, cluster: LocalCluster, bucket: str, **options: object) -> "DrivenQuery":
        """With this one's checkpoint and other options; nothing was merged yet."""
        other = DrivenQuery(cluster, bucket, **options)
        other.offsets, other.committed = [*self.offsets], self.committed
        return other

    def reader(self) -> ChangeStreamReader:
        source = ChangesSource(self._options)
        found = source.streamReader(source.schema())
        assert isinstance(found, ChangeStreamReader)
        return found

    def run_once(self, *, dies_before_commit: bool = False) -> list[Row]:
        """All that is available now; the rows that came.  One that dies before a commit reads the
        same micro-batch again in its next life."""
        before = len(self.rows)
        reader = self.reader()
        reader.prepareForTriggerAvailableNow()
        while self._step(reader):
            if dies_before_commit:
                break
            self.committed = len(self.offsets)
        reader.stop()
        return self.rows[before:]

    def _step(self, reader: ChangeStreamReader) -> bool:
        """One micro-batch; false: there is none."""
        start = self.offsets[self.committed - 1] if self.committed else reader.initialOffset()
        if len(self.offsets) == self.committed:
            end = _carried(reader.latestOffset(start, ReadAllAvailable()))
            if end == start:
                return False
            self.offsets.append(end)
        if self.committed:
            reader.commit(start)
        for partition in reader.partitions(start, self.offsets[-1]):
            for batch in self.reader().read(pickle.loads(pickle.dumps(partition))):
                self._merge(batch)
        return True

    def _merge(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self.rows.append(row)
            known = self.table.get(row["key"])
            if known is None or row["_commit_version"] >= known["_commit_version"]:
                self.table[row["key"]] = row

    def documents(self) -> dict[bytes, bytes]:
        return {
            key: row["value"] for key, row in self.table.items() if row["_change_type"] != "delete"
        }


def _carried(offset: dict[str, Any]) -> dict[str, Any]:
    """Through the JVM, as text."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found
