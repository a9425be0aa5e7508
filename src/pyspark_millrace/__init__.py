"""What Spark finds by its name: every top-level module called `pyspark_*` is imported at the first
use of any Python source, and its `DefaultSource` registered.  Kept light for that reason.
"""

from millrace.spark.source import MillraceSource as DefaultSource

__all__ = ["DefaultSource"]
