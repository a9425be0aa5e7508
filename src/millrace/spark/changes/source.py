"""The data source `millrace-changes`: options in, readers out.

Spark makes it in one process, pickles it and uses it in others; it holds nothing but what the user
said.
"""

from collections.abc import MutableMapping
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from millrace.errors import UsageError
from millrace.spark import workers
from millrace.spark.changes.columns import check_schema, default_schema
from millrace.spark.changes.options import parse

READS_ONLY: Final = (
    "the source millrace-changes reads the changes of a bucket and writes none: "
    'write documents with .format("millrace-bucket")'
)


class ChangesSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with workers.plain_errors():
            self._options = parse(options)

    @classmethod
    def name(cls) -> str:
        return "millrace-changes"

    def schema(self) -> StructType:
        return default_schema(self._options.format)

    def reader(self, schema: StructType) -> DataSourceReader:
        from millrace.spark.changes.batch import SnapshotReader

        with workers.plain_errors():
            check_schema(schema, self._options.format)
            return SnapshotReader(self._options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from millrace.spark.changes.stream import ChangeStreamReader

        with workers.plain_errors():
            check_schema(schema, self._options.format)
            return ChangeStreamReader(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with workers.plain_errors():
            raise UsageError(READS_ONLY)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        with workers.plain_errors():
            raise UsageError(READS_ONLY)
