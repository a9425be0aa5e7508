"""What a view is asked for, and whether that can be."""

from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from millrace.errors import UsageError
from millrace.spark.pipelines.view.functions import FunctionName, function_name
from millrace.spark.pipelines.view.reduces import BuiltIn

SHARDS_DEFAULT: Final = 8
SHARDS_MAX: Final = 256
CHANGES_PER_BATCH_DEFAULT: Final = 100_000  # A batch's documents are in memory at once.


class Language(Enum):
    PYTHON = "python"  # A function of one document.
    PANDAS = "pandas"  # A function of a frame of documents.
    SQL = "sql"  # A select over the documents' columns.


class ResultKind(Enum):
    STATE = "state"  # Only in the view's own folder, to be asked there.
    BUCKET = "bucket"  # A document for each view key.
    TABLE = "table"  # A folder of Parquet files.
    LOG = "log"  # Every change of a result.


class OnError(Enum):
    FAIL = "fail"
    SET_ASIDE = "set_aside"


class ViewSettings(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str  # Addresses of nodes of the cluster.
    bucket: str  # Whose documents it is a view of.
    map: str  # file.py:function, module:function, or a SQL select.
    language: Language = Language.PYTHON  # What the map is written in.
    columns: str = ""  # For SQL: the documents' columns, as in "country STRING, total DOUBLE".
    reduce: str = "count"  # count, sum, stats, min, max, or your own: file.py:function.
    result: ResultKind = ResultKind.STATE  # Where the results are kept up to date.
    target: str = ""  # The bucket, the log or the folder for the results.
    target_cluster: str = ""  # If the results go to another cluster than the documents'.
    key_prefix: str = ""  # Only documents whose keys begin so.
    on_error: OnError = OnError.FAIL  # What becomes of a document that the map cannot take.
    shards: int = SHARDS_DEFAULT  # Into how many parts the state is split; fixed for ever.
    changes_per_batch: int = CHANGES_PER_BATCH_DEFAULT  # At most so many in one batch.
    interval_ms: int = 0  # Begin a batch no more often than this.
    until_caught_up: bool = False  # End when all that was there at the start is in the view.

    def __post_init__(self) -> None:
        """Raises UsageError.  Files are named absolutely: a pipeline may run elsewhere."""
        here = Path.cwd()
        if self.language is not Language.SQL:
            _set_absolute(self, "map", here)
        if self.reduce not in {kind.value for kind in BuiltIn}:
            _set_absolute(self, "reduce", here)
        if self.result is ResultKind.TABLE and self.target:
            msgspec.structs.force_setattr(self, "target", str((here / self.target).resolve()))
        _check(self)

    @property
    def functions(self) -> list[FunctionName]:
        """Those of the user's."""
        texts = {"map": self.map} if self.language is not Language.SQL else {}
        if self.reduce not in {kind.value for kind in BuiltIn}:
            texts["reduce"] = self.reduce
        return [function_name(option, text, Path.cwd()) for option, text in texts.items()]


def _set_absolute(settings: ViewSettings, option: str, folder: Path) -> None:
    name = function_name(option, getattr(settings, option), folder)
    msgspec.structs.force_setattr(settings, option, f"{name.place}:{name.name}")


def _check(settings: ViewSettings) -> None:
    if not 1 <= settings.shards <= SHARDS_MAX:
        raise UsageError(f"shards = {settings.shards}: choose 1 to {SHARDS_MAX}")
    if settings.changes_per_batch < 1:
        raise UsageError(f"changes_per_batch = {settings.changes_per_batch}: at least 1")
    if settings.interval_ms < 0:
        raise UsageError(f"interval_ms = {settings.interval_ms}: at least 0")
    is_state = settings.result is ResultKind.STATE
    if is_state and settings.target:
        raise UsageError("target without result: say result = bucket, table or log")
    if not is_state and not settings.target:
        raise UsageError(f"result = {settings.result.value} needs a target: its name or folder")
    is_same_cluster = settings.target_cluster in ("", settings.cluster)
    is_same_name = settings.result is ResultKind.BUCKET and settings.target == settings.bucket
    if is_same_cluster and is_same_name:
        raise UsageError(
            f"target = {settings.target!r} is the bucket that the view is of: its results would "
            "be documents of the view; choose another bucket"
        )
    if (settings.language is Language.SQL) != bool(settings.columns):
        raise UsageError(
            'language = sql needs columns, as in "country STRING, total DOUBLE", and only that does'
        )
