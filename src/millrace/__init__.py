"""Millrace: a replicated log and change-stream store whose pipelines run on Spark.

client = await millrace.connect("127.0.0.1:7701")     # or millrace.sync.connect(...)
log = await client.create_log("events")
await log.append(b"hello")
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Bucket",
    "Changed",
    "Client",
    "Counted",
    "Found",
    "Log",
    "LogGap",
    "LogRecords",
    "MultiReader",
    "Reader",
    "Revision",
    "Selection",
    "UnknownAppend",
    "__version__",
    "changes",
    "connect",
    "sync",
]

if TYPE_CHECKING:
    from millrace.client import (
        Bucket,
        Changed,
        Client,
        Counted,
        Found,
        Log,
        LogGap,
        LogRecords,
        MultiReader,
        Reader,
        Revision,
        UnknownAppend,
        changes,
        connect,
        sync,
    )
    from millrace.types import Selection


def __getattr__(name: str) -> Any:
    """The client is imported on first use: a node process never needs it."""
    if name in __all__:
        import importlib

        client = importlib.import_module("millrace.client")
        if name in ("sync", "changes"):
            return importlib.import_module(f"millrace.client.{name}")
        if name == "Selection":
            return importlib.import_module("millrace.types").Selection
        return getattr(client, name)
    raise AttributeError(f"module 'millrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is imported on first use is there, too."""
    return sorted({*globals(), *__all__})
