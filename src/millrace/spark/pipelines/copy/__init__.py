"""The pipeline `copy`: a bucket's documents in another cluster, one way or both.

`job.py` runs a query for each direction, `offering.py` is what its tasks do.  Who wins is decided
by the master of each document alone (`core/documents/revisions.py`).
"""

from millrace.spark.pipelines.copy.job import run_copy
from millrace.spark.pipelines.copy.settings import CopySettings

__all__ = ["CopySettings", "run_copy"]
