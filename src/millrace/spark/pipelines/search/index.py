"""A shard of a search index: SQLite's FTS5, and the discipline of `bucket_state/shard.py`.

I1  Texts and batch number change in one transaction.
I2  A batch that was taken, or one before it, changes nothing.  Nothing is answered, so nothing
    of it need be kept.
I3  At most one writes at a time: SQLite's lock, which holds on one machine.
I4  Who reads sees one batch, and holds up nobody and is held up by nobody (write-ahead log): a
    question opens the file for reading alone, and makes nothing.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from millrace.errors import CorruptStore, StateMismatch, TimedOut, UsageError
from millrace.spark.pipelines.bucket_state.shard import NO_BATCH

LOCK_TIMEOUT_S: Final = 300.0  # As long as another task may take with its batch.
SNIPPET_TOKENS: Final = 12
_PRIMARY_CODE: Final = 0xFF  # SQLite says more in the bits above.
MARKS: Final = ("[", "]")  # Around what was found, in snippets.


class Hit(msgspec.Struct, frozen=True):
    """`score`: the higher, the better it fits."""

    key: bytes
    score: float
    snippet: str


def index_file(state: Path, shard: int) -> Path:
    return state / f"index-{shard:03d}.sqlite"


class IndexReader:
    """A shard as questions see it; `for_question` opens one."""

    def __init__(self, file: Path, connection: sqlite3.Connection) -> None:
        self._file = file
        self._connection = connection

    @classmethod
    def for_question(cls, file: Path, timeout_ms: int) -> "IndexReader":
        """Keeps I4.  Raises StateMismatch if there is no such index."""
        place = f"file:{quote(str(file.absolute()))}?mode=ro"
        try:
            connection = sqlite3.connect(
                place, uri=True, timeout=timeout_ms / 1000, isolation_level=None
            )
        except sqlite3.OperationalError as error:
            raise StateMismatch(f"{file} cannot be opened ({error}): run the search") from None
        return cls(file, connection)

    def close(self) -> None:
        self._connection.close()

    def last_batch(self) -> int:
        found = self._connection.execute("SELECT batch FROM taken").fetchone()
        return NO_BATCH if found is None else int(found[0])

    def search(self, query: str, limit: int) -> tuple[int, list[Hit]]:
        """The last batch, and what fits best in it.  Raises UsageError, TimedOut, StateMismatch,
        CorruptStore."""
        try:
            with self._transaction("DEFERRED"):
                batch = self._known_batch()
                rows = self._fitting(query, limit)
        except sqlite3.DatabaseError as error:
            raise self._trouble(error) from None
        return batch, [Hit(key, -score, snippet) for key, score, snippet in rows]

    def _known_batch(self) -> int:
        try:
            return self.last_batch()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            raise StateMismatch(f"{self._file} is no index ({error}): run the search") from None

    def _fitting(self, query: str, limit: int) -> list[tuple[bytes, float, str]]:
        try:
            return self._connection.execute(
                "SELECT documents.key, bm25(texts), snippet(texts, -1, ?, ?, '…', ?) "
                "FROM texts JOIN documents ON documents.id = texts.rowid "
                "WHERE texts MATCH ? ORDER BY bm25(texts), documents.key LIMIT ?",
                (*MARKS, SNIPPET_TOKENS, query, limit),
            ).fetchall()
        except sqlite3.OperationalError as error:
            # Of the statement itself all is known to be right but the query.
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            raise UsageError(
                f'{query!r} is no query: {error}. Write words, "a phrase", begin*, '
                "a AND b, a OR b, NOT c, or field: word; put what has other signs in quotes"
            ) from None

    def _trouble(self, error: sqlite3.DatabaseError) -> TimedOut | CorruptStore:
        if error.sqlite_errorcode & _PRIMARY_CODE in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return TimedOut(f"{self._file} could not be read in time: {error}; ask again")
        return CorruptStore(
            f"{self._file} cannot be read: {error}; run the search with a new home if that stays"
        )

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        self._connection.execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:  # SQLite may have ended it by itself.
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


class Index(IndexReader):
    """A shard as a task has it, which makes it when it is new."""

    def __init__(self, file: Path, columns: Sequence[str], tokenizer: str) -> None:
        super().__init__(file, sqlite3.connect(file, timeout=LOCK_TIMEOUT_S, isolation_level=None))
        self._columns = columns
        execute = self._connection.execute
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        with self._transaction():
            execute("CREATE TABLE IF NOT EXISTS taken (batch INTEGER NOT NULL)")
            execute(
                "CREATE TABLE IF NOT EXISTS documents (id INTEGER PRIMARY KEY, key BLOB UNIQUE)"
            )
            names = ", ".join(f'"{name}"' for name in columns)
            execute(
                "CREATE VIRTUAL TABLE IF NOT EXISTS texts "
                f"USING fts5({names}, tokenize = '{tokenizer}')"
            )

    def take(self, batch: int, documents: Mapping[bytes, list[str] | None]) -> None:
        """The texts of each changed document, for each column; None: it is gone."""
        with self._transaction():
            if batch <= self.last_batch():
                return
            for key, texts in documents.items():
                self._forget(key)
                if texts is not None:
                    self._add(key, texts)
            self._connection.execute("DELETE FROM taken")
            self._connection.execute("INSERT INTO taken VALUES (?)", (batch,))

    def _forget(self, key: bytes) -> None:
        found = self._connection.execute("SELECT id FROM documents WHERE key = ?", (key,))
        for (id,) in found.fetchall():
            self._connection.execute("DELETE FROM texts WHERE rowid = ?", (id,))
            self._connection.execute("DELETE FROM documents WHERE id = ?", (id,))

    def _add(self, key: bytes, texts: list[str]) -> None:
        added = self._connection.execute("INSERT INTO documents (key) VALUES (?)", (key,))
        places = ", ".join("?" * (len(self._columns) + 1))
        names = ", ".join(f'"{name}"' for name in self._columns)
        self._connection.execute(
            f"INSERT INTO texts (rowid, {names}) VALUES ({places})", (added.lastrowid, *texts)
        )
