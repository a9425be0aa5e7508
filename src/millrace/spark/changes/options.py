"""The options of the change source: their names, meanings and checks, as `spark/options.py` has
those of the log source."""

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from millrace.core.documents.map import PARTITIONS_MAX
from millrace.errors import UsageError
from millrace.limits import DOCUMENT_KEY_BYTES_MAX, MIB
from millrace.spark.option_texts import (
    Option,
    Read,
    boolean,
    cluster_of,
    count,
    named,
    positive,
    refuse_others,
    wait,
    word_of,
)
from millrace.spark.options import EARLIEST, LATEST

ROLLBACK_KEYS_DEFAULT: Final = 200_000


class Mode(Enum):
    HISTORY = "history"  # Every change that the stream gives.
    LATEST = "latest"  # The last of each key in the micro-batch.


class Format(Enum):
    ROWS = "rows"
    DEBEZIUM = "debezium"


class ChangeOptions(msgspec.Struct, frozen=True):
    """What the user asked for, checked."""

    cluster: str
    bucket: str
    starting: str = EARLIEST  # EARLIEST, LATEST, or what a JSON offset says.
    mode: Mode = Mode.HISTORY
    format: Format = Format.ROWS
    rollback_keys: int = ROLLBACK_KEYS_DEFAULT
    changes_per_trigger: int | None = None
    wait_ms: int = 500
    key_prefix: bytes = b""
    fail_on_data_loss: bool = True
    partitions_per_task: int | None = None
    retries: int = 3
    retry_interval_ms: int = 200
    batch_rows: int = 20_000
    batch_bytes: int = 4 * MIB
    given: frozenset[str] = frozenset()


KNOWN: Final = (
    Option(
        "cluster",
        "addresses of some nodes, `host:port`, comma-separated",
        "required",
        ("bootstrap.servers",),
    ),
    Option("bucket", 'the bucket to read; `load("name")` says the same', "required", ("path",)),
    Option(
        "startingOffsets",
        "`earliest`: all documents, then what changes; `latest`: only what changes from now on; or "
        "the JSON of an offset, as progress reports and checkpoints have it",
        "`earliest`",
        (),
        "readStream",
    ),
    Option(
        "mode",
        "`history`: every change that the stream gives; `latest`: the last of each key in the "
        "micro-batch",
        "`history`",
        (),
        "readStream",
    ),
    Option("format", "`rows`, or `debezium`", "`rows`"),
    Option(
        "rollbackKeys",
        "of how many changes the keys are kept, so that they can be taken back one by one after a "
        "failover; 0 keeps none, and reads a partition again instead",
        str(ROLLBACK_KEYS_DEFAULT),
        (),
        "readStream",
    ),
    Option(
        "maxChangesPerTrigger",
        "about so many changes in one micro-batch, shared by the partitions by what each has "
        "waiting",
        "no limit",
        (),
        "readStream",
    ),
    Option(
        "maxWaitMs",
        "how long an idle query waits for changes before it looks again",
        "500",
        (),
        "readStream",
    ),
    Option("keyPrefix", "only documents whose keys begin so; the nodes apply it", "all"),
    Option(
        "failOnDataLoss",
        "fail when the bucket was deleted and made again; false: warn, and read the new one",
        "true",
        (),
        "readStream",
    ),
    Option(
        "partitionsPerTask", "partitions of the bucket that a task reads", "about one task a core"
    ),
    Option("fetchOffset.numRetries", "how often the driver tries again to reach the cluster", "3"),
    Option("fetchOffset.retryIntervalMs", "and how long it waits before", "200"),
    Option("batchRows", "rows of one Arrow batch", "20000"),
    Option("batchBytes", "bytes of one Arrow batch, about", "4194304"),
)


def parse(given: Mapping[str, str]) -> ChangeOptions:
    """Raises UsageError."""
    values = named(given, KNOWN)
    cluster = cluster_of(values)
    if not values.get("bucket", "").strip():
        raise UsageError(
            'the option bucket is missing: give its name, for example .option("bucket", "users")'
        )
    read = Read(values)
    defaults = ChangeOptions("", "")
    return ChangeOptions(
        cluster=cluster,
        bucket=values["bucket"].strip(),
        starting=read("startingOffsets", _starting, EARLIEST),
        mode=read("mode", word_of(Mode), Mode.HISTORY),
        format=read("format", word_of(Format), Format.ROWS),
        rollback_keys=read("rollbackKeys", count, ROLLBACK_KEYS_DEFAULT),
        changes_per_trigger=read("maxChangesPerTrigger", positive, None),
        wait_ms=read("maxWaitMs", wait, defaults.wait_ms),
        key_prefix=read("keyPrefix", _prefix, b""),
        fail_on_data_loss=read("failOnDataLoss", boolean, True),
        partitions_per_task=read("partitionsPerTask", _partitions, None),
        retries=read("fetchOffset.numRetries", count, defaults.retries),
        retry_interval_ms=read("fetchOffset.retryIntervalMs", count, defaults.retry_interval_ms),
        batch_rows=read("batchRows", positive, defaults.batch_rows),
        batch_bytes=read("batchBytes", positive, defaults.batch_bytes),
        given=frozenset(values),
    )


def check_use(options: ChangeOptions, use: str) -> None:
    """Refuse what means nothing to this `use`, "read" or "readStream"."""
    refuse_others(KNOWN, options.given, use)


def _starting(text: str) -> str:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or "partitions" not in found:
        raise ValueError("give earliest, latest, or the JSON of an offset of this source")
    return text


def _prefix(text: str) -> bytes:
    prefix = text.encode()
    if len(prefix) > DOCUMENT_KEY_BYTES_MAX:
        raise ValueError(f"keys have at most {DOCUMENT_KEY_BYTES_MAX} bytes")
    return prefix


def _partitions(text: str) -> int | Any:
    number = positive(text)
    if number > PARTITIONS_MAX:
        raise ValueError(f"give at most {PARTITIONS_MAX}: no bucket has more partitions")
    return number
