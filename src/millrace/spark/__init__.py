"""Spark reads logs: the data source, a session with Java found or brought, rate and lag of queries.

Importing this package imports no PySpark: nodes and commands do without it, and each of Spark's
Python workers imports it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from millrace.spark.expected_rows import expect_rows

# Now and not on first use: the import system would put the module of this name in its place.
from millrace.spark.session import session

if TYPE_CHECKING:
    import millrace.spark.progress as progress

__all__ = ["expect_rows", "progress", "session"]


def __getattr__(name: str) -> Any:
    """`progress` subclasses a class of PySpark, so it is imported on first use."""
    if name == "progress":
        return importlib.import_module("millrace.spark.progress")
    raise AttributeError(f"module 'millrace.spark' has no attribute {name!r}")
