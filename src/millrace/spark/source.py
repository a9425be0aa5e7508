"""The data source `millrace`: options in, readers out.

Spark makes it in one process, pickles it and uses it in others; it holds nothing but what the user
said.
"""

import sys
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
from millrace.spark.columns import check_schema, default_schema
from millrace.spark.options import parse

READS_ONLY: Final = (
    "the source millrace reads logs and does not write them yet: collect the rows, or use "
    "foreachPartition with millrace.sync"
)
# Spark refuses a reader that takes filters when the session does not push them, and does not say
# beforehand; but it runs another module when it does.  And it keeps what a source has planned with
# the `load`, not with the query: two queries on one frame would share the filters of one of them,
# and rows would be missing.  So filters are taken only from those who asked for it.
_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class MillraceSource(DataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with workers.plain_errors():
            self._options = parse(options)

    @classmethod
    def name(cls) -> str:
        return "millrace"

    def schema(self) -> StructType:
        return default_schema(self._options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from millrace.spark.batch import BatchReader, PushingReader

        with workers.plain_errors():
            check_schema(schema, self._options)
            is_pushing = self._options.push_filters and _is_pushing()
            return (PushingReader if is_pushing else BatchReader)(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with workers.plain_errors():
            raise UsageError(READS_ONLY)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        with workers.plain_errors():
            raise UsageError(READS_ONLY)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from millrace.spark.stream import StreamReader

        with workers.plain_errors():
            check_schema(schema, self._options)
            return StreamReader(self._options, schema)


def _is_pushing() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)
