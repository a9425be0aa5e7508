"""Asking a search index: what fits best, over all its shards.

How well a document fits (bm25) is weighed against the others of its shard.  Documents fall into
shards by chance, so the shards weigh alike.
"""

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from millrace.errors import UsageError
from millrace.spark.pipelines.bucket_state.questions import (
    QUESTION_TIMEOUT_MS,
    of_one_batch,
    state_of,
)
from millrace.spark.pipelines.bucket_state.seen import read_seen, wait_until_now
from millrace.spark.pipelines.search.index import Hit, IndexReader, index_file
from millrace.spark.pipelines.search.record import read_record

HITS_MAX_DEFAULT: Final = 20


class SearchAnswer(msgspec.Struct, frozen=True):
    batch: int  # Of which batch it is.
    hits: list[Hit]  # The best first.


def query_search(
    home: Path | str,
    query: str,
    *,
    limit: int = HITS_MAX_DEFAULT,
    as_of_now: bool = False,
    timeout_ms: int = QUESTION_TIMEOUT_MS,
) -> SearchAnswer:
    """`query` as SQLite's FTS5 has it: words, "a phrase", begin*, AND, OR, NOT, field: word.
    Raises UsageError, TimedOut, Unavailable, StateMismatch, CorruptStore."""
    state = state_of(home)
    if not query.strip():
        raise UsageError("the query is empty: say what is to be found")
    if as_of_now and state.is_dir():  # Also for a search that has just been started.
        wait_until_now(state, timeout_ms=timeout_ms)
    record = read_record(state)
    if read_seen(state) is None:
        return SearchAnswer(-1, [])
    with contextlib.ExitStack() as opened:
        indexes = [
            opened.enter_context(
                contextlib.closing(IndexReader.for_question(index_file(state, number), timeout_ms))
            )
            for number in range(record.shards)
        ]
        batch, parts = of_one_batch(
            lambda: [index.search(query, limit) for index in indexes], timeout_ms
        )
    hits = sorted((hit for part in parts for hit in part), key=lambda hit: (-hit.score, hit.key))
    return SearchAnswer(batch, hits[:limit])
