"""The data source `millrace`: options in, readers and writers out.

Spark makes it in one process, pickles it and uses it in others; it holds nothing but what the user
said.  Whether it is to read or to write Spark tells only by what it asks for, so options are
understood then.
"""

import sys
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from millrace.spark import workers
from millrace.spark.columns import check_schema, default_schema
from millrace.spark.options import Options, parse

# Spark refuses a reader that takes filters when the session does not push them, and does not say
# beforehand; but it runs another module when it does.  And it keeps what a source has planned with
# the `load`, not with the query: two queries on one frame would share the filters of one of them,
# and rows would be missing.  So filters are taken only from those who asked for it.
_PUSHING: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class MillraceSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "millrace"

    def schema(self) -> StructType:
        with workers.plain_errors():
            return default_schema(parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from millrace.spark.batch import BatchReader, PushingReader

        with workers.plain_errors():
            options = self._to_read(schema)
            is_pushing = options.push_filters and _is_pushing()
            return (PushingReader if is_pushing else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from millrace.spark.stream import StreamReader

        with workers.plain_errors():
            return StreamReader(self._to_read(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millrace.spark.sink.options import parse as parse_sink
        from millrace.spark.sink.writers import BatchWriter

        with workers.plain_errors():
            return BatchWriter(parse_sink(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from millrace.spark.sink.options import parse as parse_sink
        from millrace.spark.sink.writers import StreamWriter

        with workers.plain_errors():
            return StreamWriter(parse_sink(self.options), schema, overwrite)

    def _to_read(self, schema: StructType) -> Options:
        options = parse(self.options)
        check_schema(schema, options)
        return options


def _is_pushing() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or (main is not None and main.name == _PUSHING)
