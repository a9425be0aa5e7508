"""What a view was made for, kept in its folder: its state fits nothing else."""

import secrets
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from millrace.spark.pipelines.bucket_state.record import made_or_compared, read_known
from millrace.spark.pipelines.view.settings import ViewSettings

FILE_NAME: Final = "view.json"


class ViewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`id` names the view to whom it writes to."""

    id: str
    bucket: str
    map: str
    language: str
    columns: str
    reduce: str
    result: str
    target: str
    key_prefix: str
    shards: int
    functions: dict[str, str]  # Digests of the user's functions.


def open_record(settings: ViewSettings, state: Path) -> ViewRecord:
    """The view's, made when it is new.  Raises StateMismatch if it is another view's."""
    wanted = _record(settings, secrets.token_hex(8))
    return made_or_compared(state / FILE_NAME, wanted, partial(_difference, state), own="id")


def read_record(state: Path) -> ViewRecord:
    """Raises StateMismatch if there is no view."""
    return read_known(state / FILE_NAME, ViewRecord, "view")


def _record(settings: ViewSettings, id: str) -> ViewRecord:
    return ViewRecord(
        id=id,
        bucket=settings.bucket,
        map=settings.map,
        language=settings.language.value,
        columns=settings.columns,
        reduce=settings.reduce,
        result=settings.result.value,
        target=settings.target,
        key_prefix=settings.key_prefix,
        shards=settings.shards,
        functions={name.option: name.digest() for name in settings.functions},
    )


def _difference(state: Path, field: str, before: object, now: object) -> str:
    if field == "functions":
        return (
            f"the map or reduce function is another than when the view in {state} was made, "
            "and its results would be of both: bring the old one back, or run the view with a new "
            "home"
        )
    return (
        f"{field} = {now!r}, but the view in {state} was made with {before!r}: give it "
        "that, or run the view with a new home"
    )
