"""The options of the bucket sink: their names, meanings and checks, as `spark/options.py` has those
of the source."""

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

from millrace.errors import UsageError
from millrace.spark.option_texts import Option, Read, cluster_of, named, timeout_ms, word_of

TIMEOUT_MS_DEFAULT: Final = 60_000
# Our words, and the shorter one of the guide.  None: the master's memory is enough.
DURABILITIES: Final[dict[str, str | None]] = {
    "none": None,
    "majority": "majority",
    "majority_and_persist_on_master": "majority_and_persist_on_master",
    "persist_majority": "persist_to_majority",
    "persist_to_majority": "persist_to_majority",
}


class Conflict(Enum):
    """What happens to the document that is there."""

    OVERWRITE = "overwrite"
    REVISION = "revision"  # The higher revision stays: the column `cas` says which.


class OnError(Enum):
    """What becomes of a row that no bucket can take."""

    FAIL = "fail"
    SKIP = "skip"


class BucketOptions(msgspec.Struct, frozen=True):
    """What the user asked for, checked."""

    cluster: str
    bucket: str
    conflict: Conflict = Conflict.OVERWRITE
    durability: str | None = None
    on_error: OnError = OnError.FAIL
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
        "bucket",
        'the bucket to write; `save("name")` and `start("name")` say the same',
        "required",
        ("path",),
    ),
    Option(
        "conflict",
        "`overwrite` what is there, or keep the higher `revision`, by the column `cas`",
        "`overwrite`",
    ),
    Option(
        "durability",
        "when a row counts as written: `none` (the master has it), `majority` of the copies, "
        "`majority_and_persist_on_master`, `persist_to_majority`",
        "`none`",
    ),
    Option(
        "onError",
        "a row that no bucket can take (without a key, too long, a wrong `_change_type`): `fail`, "
        "or `skip` it and say how many there were",
        "`fail`",
    ),
    Option("timeoutMs", "how long the nodes may take for what a task sends at a time", "60000"),
)


def parse(given: Mapping[str, str]) -> BucketOptions:
    """Raises UsageError."""
    values = named(given, KNOWN)
    cluster = cluster_of(values)
    read = Read(values)
    bucket = values.get("bucket", "").strip()
    if not bucket:
        raise UsageError(
            'nothing says which bucket is meant: give the option bucket, or its name to save("…")'
        )
    return BucketOptions(
        cluster=cluster,
        bucket=bucket,
        conflict=read("conflict", word_of(Conflict), Conflict.OVERWRITE),
        durability=read("durability", durability, None),
        on_error=read("onError", word_of(OnError), OnError.FAIL),
        timeout_ms=read("timeoutMs", timeout_ms, TIMEOUT_MS_DEFAULT),
    )


def durability(text: str) -> str | None:
    word = text.lower()
    if word not in DURABILITIES:
        raise ValueError(f"give one of {', '.join(DURABILITIES)}")
    return DURABILITIES[word]
