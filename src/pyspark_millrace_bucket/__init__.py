"""What Spark finds by its name, as `pyspark_millrace`: the source `millrace-bucket`."""

from millrace.spark.buckets.source import BucketSource as DefaultSource

__all__ = ["DefaultSource"]
