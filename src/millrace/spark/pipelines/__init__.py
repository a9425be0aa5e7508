"""Pipelines: whole jobs over logs and buckets that run on Spark, each restartable.

One package for each kind; `context.py` is what they are given, `kinds.py` lists them.  What those
that follow a bucket share is in `bucket_state`, files that must outlive a crash are written by
`whole_files.py`.

What they export can be imported from here, `from millrace.spark.pipelines import ViewSettings,
run_view`; it is loaded on first use, because one pipeline may need packages that another does not.
"""

from typing import Any

from millrace.spark.pipelines.context import Conclusion, Context, Progress
from millrace.spark.pipelines.kinds import KINDS

__all__ = ["KINDS", "Conclusion", "Context", "Progress"]


def __getattr__(name: str) -> Any:
    for kind in KINDS.values():
        if name == kind.run_name:
            return kind.run
        if name == kind.settings_name:
            return kind.settings
    raise AttributeError(f"module 'millrace.spark.pipelines' has no attribute {name!r}")
