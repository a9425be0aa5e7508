"""The data source `millrace-bucket`: options in, writers out.

Reading a bucket is the work of `millrace-changes`, whose batch read is a consistent snapshot."""

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
from millrace.spark.buckets.options import parse

WRITES_ONLY: Final = (
    "the source millrace-bucket writes buckets: read them with millrace-changes, whose batch read "
    "is a consistent snapshot and whose readStream follows the changes"
)


class BucketSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with workers.plain_errors():
            self._options = parse(options)

    @classmethod
    def name(cls) -> str:
        return "millrace-bucket"

    def schema(self) -> StructType:
        with workers.plain_errors():
            raise UsageError(WRITES_ONLY)

    def reader(self, schema: StructType) -> DataSourceReader:
        with workers.plain_errors():
            raise UsageError(WRITES_ONLY)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        with workers.plain_errors():
            raise UsageError(WRITES_ONLY)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millrace.spark.buckets.writers import BatchWriter

        with workers.plain_errors():
            return BatchWriter(self._options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from millrace.spark.buckets.writers import StreamWriter

        with workers.plain_errors():
            return StreamWriter(self._options, schema, overwrite)
