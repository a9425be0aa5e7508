"""A Parquet file whose checksum is made while it is written.

I1  A file has a name of its own for each attempt of a task: one that Spark tries again, or twice at
    once, spoils nothing.  The manifest names those that count.
I2  What is told of a file was brought to disk before, and so was its name.
"""

import hashlib
import io
import os
import secrets
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.spark.pipelines.backup.manifest import SavedFile
from millrace.spark.pipelines.whole_files import make_folder, sync

COMPRESSION: Final = "zstd"


class _Digesting(io.RawIOBase):
    """Parquet files are written from front to back."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.digest = hashlib.sha256()
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.digest.update(data)
        self.size_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size_bytes

    def close(self) -> None:
        if not self.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        super().close()


class FileWriter:
    """One file below a run's folder; `number` is the column whose lowest and highest are told."""

    def __init__(self, run: Path, below: str, name: str, schema: pa.Schema, number: str) -> None:
        self._run = run
        self._path = run / below / f"{name}-{secrets.token_hex(4)}.parquet"
        make_folder(self._path.parent)
        self._sink = _Digesting(self._path)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"), schema, compression=COMPRESSION
        )
        self._number = number
        self._rows = 0
        self._first = self._last = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        numbers = batch.column(self._number).to_numpy()
        low, high = int(numbers.min()), int(numbers.max())
        self._first = min(self._first, low) if self._rows else low
        self._last = max(self._last, high)
        self._rows += batch.num_rows
        self._writer.write_batch(batch)

    def finish(self, partition: int = 0) -> SavedFile:
        """Keeps I2."""
        self._writer.close()
        self._sink.close()
        sync(self._path.parent)
        return SavedFile(
            str(self._path.relative_to(self._run)),
            self._rows,
            self._sink.size_bytes,
            self._sink.digest.hexdigest(),
            self._first,
            self._last,
            partition,
        )

    def discard(self) -> None:
        """Also after a write that failed."""
        try:
            self._writer.close()
        finally:
            self._sink.close()
            self._path.unlink()
