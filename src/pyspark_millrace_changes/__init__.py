"""What Spark finds by its name: see `pyspark_millrace`."""

from millrace.spark.changes.source import ChangesSource as DefaultSource

__all__ = ["DefaultSource"]
