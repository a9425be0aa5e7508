"""What an index was made for, kept in its folder: it fits nothing else."""

from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from millrace.spark.pipelines.bucket_state.record import made_or_compared, read_known
from millrace.spark.pipelines.search.settings import SearchSettings

FILE_NAME: Final = "search.json"


class SearchRecord(msgspec.Struct, frozen=True, kw_only=True):
    bucket: str
    fields: tuple[str, ...]
    tokenizer: str
    key_prefix: str
    shards: int


def open_record(settings: SearchSettings, state: Path) -> SearchRecord:
    """The index's, made when it is new.  Raises StateMismatch if it is another's."""
    wanted = SearchRecord(
        bucket=settings.bucket,
        fields=settings.fields,
        tokenizer=settings.tokenizer.fts5,
        key_prefix=settings.key_prefix,
        shards=settings.shards,
    )
    return made_or_compared(state / FILE_NAME, wanted, partial(_difference, state))


def read_record(state: Path) -> SearchRecord:
    """Raises StateMismatch if there is no index."""
    return read_known(state / FILE_NAME, SearchRecord, "search")


def _difference(state: Path, field: str, before: object, now: object) -> str:
    return (
        f"{field} = {now!r}, but the index in {state} was made with {before!r}: give it that, or "
        "run the search with a new home"
    )
