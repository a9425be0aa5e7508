"""The options of the sink: their names, meanings and checks, as `spark/options.py` has those of
the source.

I1  A stream names itself (query and batch); `txnAppId` and `txnVersion` are for batch writes, come
    together, and then stand for one write into one target: another log is another application, so
    that a `foreachBatch` that writes two logs loses neither.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from millrace.errors import UsageError
from millrace.spark.option_texts import (
    Option,
    Read,
    cluster_of,
    count,
    named,
    timeout_ms,
    word_of,
)
from millrace.types import Ack

TIMEOUT_MS_DEFAULT: Final = 60_000


class OnNull(Enum):
    """What becomes of a row without a value, or without the name of a log."""

    FAIL = "fail"
    SKIP = "skip"


class SinkOptions(msgspec.Struct, frozen=True):
    """What the user asked for, checked."""

    cluster: str
    log: str | None = None  # None: the column `log` says it of each row.
    ack: Ack | None = None  # None: as the log has it.
    on_null: OnNull = OnNull.FAIL
    app: str | None = None
    version: int | None = None
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    retries: int = 3
    retry_interval_ms: int = 200


KNOWN: Final = (
    Option(
        "cluster",
        "addresses of some nodes, `host:port`, comma-separated",
        "required",
        ("bootstrap.servers", "kafka.bootstrap.servers"),
    ),
    Option(
        "log",
        'the log to write; `save("name")` and `start("name")` say the same. It goes before the '
        "column `log`",
        "the column `log`",
        ("path", "topic"),
    ),
    Option("ack", "`disk` or `memory`: when a row counts as written", "as the log has it"),
    Option(
        "onNull",
        "a row without a value or a log: `fail`, or `skip` it and say how many there were",
        "`fail`",
    ),
    Option(
        "txnAppId",
        "who writes, for batch writes that may be repeated (`foreachBatch`): a version that the "
        "log has already is not written again; not for `writeStream`",
        "",
    ),
    Option("txnVersion", "with txnAppId: which write this is, rising", ""),
    Option(
        "timeoutMs",
        "how long the nodes may take for what a task sends at a time, and for the publication",
        "60000",
    ),
)


def parse(given: Mapping[str, str]) -> SinkOptions:
    """Raises UsageError."""
    values = named(given, KNOWN)
    cluster = cluster_of(values)
    read = Read(values)
    defaults = SinkOptions("")
    options = SinkOptions(
        cluster=cluster,
        log=read("log", _name, None),
        ack=read("ack", word_of(Ack), None),
        on_null=read("onNull", word_of(OnNull), defaults.on_null),
        app=read("txnAppId", _name, None),
        version=read("txnVersion", _number, None),
        timeout_ms=read("timeoutMs", timeout_ms, defaults.timeout_ms),
    )
    if (options.app is None) != (options.version is None):
        alone, other = ("txnAppId", "txnVersion")[:: 1 if options.version is None else -1]
        raise UsageError(f"the option {alone} needs {other}: together they say which write this is")
    return options


def check_stream(options: SinkOptions) -> None:
    """Keeps I1."""
    if options.app is not None:
        raise UsageError(
            "the options txnAppId and txnVersion have no meaning for writeStream, whose queries "
            "and micro-batches have numbers of their own: remove them"
        )


def application(options: SinkOptions) -> str | None:
    """Keeps I1: who publishes, if the user says so."""
    if options.app is None or options.log is None:
        return options.app
    return f"{options.app}/{options.log}"


def _name(text: str) -> str | Any:
    if not text:
        raise ValueError("give a name")
    return text


def _number(text: str) -> int | Any:
    return count(text)
