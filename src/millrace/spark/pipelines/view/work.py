"""What a task of a view is told, which goes to the workers as it is."""

from pathlib import Path

import msgspec

from millrace.spark.pipelines.view.functions import FunctionName
from millrace.spark.pipelines.view.mapping import Map, PandasMap, PythonMap
from millrace.spark.pipelines.view.reduces import BuiltIn, Own, Reduce, built_in
from millrace.spark.pipelines.view.settings import Language


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Of one batch.  A task does the shards of its number: `number % tasks`."""

    state: Path
    batch: int
    shards: int
    tasks: int
    driver_host: str
    language: Language
    map: FunctionName | None  # None: SQL, which Spark itself has done.
    reduce: BuiltIn | FunctionName
    set_aside: Path | None  # None: a document that the map cannot take stops the view.
    table: Path | None = None  # Where the results of this batch are written as Parquet.

    def shards_of(self, task: int) -> range:
        return range(task, self.shards, self.tasks)

    def made_reduce(self) -> Reduce:
        return built_in(self.reduce) if isinstance(self.reduce, BuiltIn) else Own(self.reduce)

    def made_map(self) -> Map:
        assert self.map is not None
        kind = PandasMap if self.language is Language.PANDAS else PythonMap
        return kind(self.map, self.made_reduce())
