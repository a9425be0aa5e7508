"""The options of the log source: their names, meanings and checks.

They follow Spark's Kafka source where the meaning is the same, and take its names too.  An option
that is not known, or whose value makes no sense, is refused here, in the driver, with a message
that names it and says what would be right: a typo must not silently read something else.
"""

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from millrace import lsn
from millrace.core.selections import complaint
from millrace.errors import UsageError
from millrace.limits import MIB
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
)
from millrace.types import LSN_MAX, Selection

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
KAFKA_LATEST: Final = -1  # How Spark's Kafka source writes the two words in JSON.
KAFKA_EARLIEST: Final = -2
PARTITIONS_MAX: Final = 10_000

Place = str | int  # EARLIEST, LATEST or a position.


class Bound(msgspec.Struct, frozen=True):
    """One end of what is read: for all logs alike, or for each by name."""

    option: str  # Whose words it is: errors name it.
    everywhere: Place | None = None
    places: dict[str, Place] = {}
    time_us: int | None = None
    times_us: dict[str, int] = {}


class Options(msgspec.Struct, frozen=True):
    """What the user asked for, checked.  `log` options exclude each other: one of `logs` and
    `pattern` is set."""

    cluster: str
    logs: tuple[str, ...] = ()
    pattern: str | None = None
    starting: Bound | None = None
    ending: Bound | None = None
    fail_on_data_loss: bool = True
    records_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    partitions_min: int | None = None
    keys: tuple[bytes, ...] | None = None
    push_filters: bool = False
    include_gaps: bool = False
    include_headers: bool = False
    wait_ms: int = 500
    retries: int = 3
    retry_interval_ms: int = 200
    batch_rows: int = 10_000
    batch_bytes: int = 4 * MIB
    given: frozenset[str] = frozenset()  # Names of options that were set, as documented.


KNOWN: Final = (
    Option(
        "cluster",
        "addresses of some nodes, `host:port`, comma-separated",
        "required",
        ("bootstrap.servers", "kafka.bootstrap.servers"),
    ),
    Option("log", 'the log to read; `load("name")` says the same', "", ("path",)),
    Option("logs", "several logs, comma-separated", "", ("subscribe",)),
    Option(
        "logPattern",
        "a regular expression; logs made later are read from their start",
        "",
        ("subscribePattern",),
    ),
    Option(
        "startingOffsets",
        '`earliest`, `latest`, or JSON for each log: `{"clicks": 1001, "orders": "earliest"}`; '
        "a position of a sequenced log may be written `e7n42`",
        "`earliest` (read), `latest` (readStream)",
    ),
    Option(
        "endingOffsets",
        "as startingOffsets; the position is not read itself",
        "`latest`",
        (),
        "read",
    ),
    Option(
        "startingTimestamp",
        "begin at the first record of this time or later: milliseconds since 1970, or ISO 8601",
        "",
    ),
    Option("endingTimestamp", "end before the first record of this time or later", "", (), "read"),
    Option("startingOffsetsByTimestamp", 'times for each log: `{"clicks": 1724230000000}`', ""),
    Option("endingOffsetsByTimestamp", "times for each log", "", (), "read"),
    Option(
        "failOnDataLoss",
        "fail when records were lost, or trimmed before they were read; false: warn and go on",
        "true",
    ),
    Option(
        "maxRecordsPerTrigger",
        "records of one micro-batch, shared by the logs by what each has waiting",
        "no limit",
        ("maxOffsetsPerTrigger",),
        "readStream",
    ),
    Option(
        "maxBytesPerTrigger", "about so many bytes in one micro-batch", "no limit", (), "readStream"
    ),
    Option("minPartitions", "at least so many partitions, if there is enough to read", "the cores"),
    Option(
        "keys",
        'only records with one of these keys: a JSON list, `["user 1", "user 2"]`, of UTF-8 texts; '
        "storage nodes apply it",
        "all",
    ),
    Option(
        "pushFilters",
        "let storage nodes apply the conditions of the query; needs "
        "`spark.sql.python.filterPushdown.enabled`, and a `load` of its own for each query",
        "false",
        (),
        "read",
    ),
    Option("includeGaps", "a row for each gap, in its place, with the column `gap`", "false"),
    Option("includeHeaders", "the column `headers`", "false"),
    Option(
        "maxWaitMs",
        "how long an idle query waits for records before it looks again",
        "500",
        (),
        "readStream",
    ),
    Option("fetchOffset.numRetries", "how often the driver tries again to reach the cluster", "3"),
    Option("fetchOffset.retryIntervalMs", "and how long it waits before", "200"),
    Option("batchRows", "rows of one Arrow batch", "10000"),
    Option("batchBytes", "bytes of one Arrow batch, about", "4194304"),
)

_ONE_OF: Final = ("log", "logs", "logPattern")
_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def parse(given: Mapping[str, str]) -> Options:
    """Raises UsageError."""
    values = named(given, KNOWN)
    cluster = cluster_of(values)
    _one_of(values, _ONE_OF, "what to read", required=True)
    _one_of(values, _STARTS, "where to begin")
    _one_of(values, _ENDS, "where to end")
    defaults = Options("")
    read = Read(values)
    return Options(
        cluster=cluster,
        logs=_logs(values),
        pattern=read("logPattern", _pattern, None),
        starting=_bound(values, _STARTS),
        ending=_bound(values, _ENDS),
        fail_on_data_loss=read("failOnDataLoss", boolean, True),
        records_per_trigger=read("maxRecordsPerTrigger", positive, None),
        bytes_per_trigger=read("maxBytesPerTrigger", positive, None),
        partitions_min=read("minPartitions", _partitions, None),
        keys=read("keys", _keys, None),
        push_filters=read("pushFilters", boolean, False),
        include_gaps=read("includeGaps", boolean, False),
        include_headers=read("includeHeaders", boolean, False),
        wait_ms=read("maxWaitMs", wait, defaults.wait_ms),
        retries=read("fetchOffset.numRetries", count, defaults.retries),
        retry_interval_ms=read("fetchOffset.retryIntervalMs", count, defaults.retry_interval_ms),
        batch_rows=read("batchRows", positive, defaults.batch_rows),
        batch_bytes=read("batchBytes", positive, defaults.batch_bytes),
        given=frozenset(values),
    )


def check_use(options: Options, use: str) -> None:
    """Refuse what means nothing to this `use`, "read" or "readStream"."""
    refuse_others(KNOWN, options.given, use)
    if use == "read" and options.starting and LATEST in _words(options.starting):
        raise UsageError(
            f"{options.starting.option}: a batch read that begins at the latest record reads "
            "nothing; give earliest, a position or a time"
        )
    if options.ending and EARLIEST in _words(options.ending):
        raise UsageError(
            f"{options.ending.option}: a read that ends at the earliest record reads nothing; "
            "give latest, a position or a time"
        )


def _words(bound: Bound) -> set[Place]:
    return {*bound.places.values(), *([] if bound.everywhere is None else [bound.everywhere])}


def _one_of(
    values: Mapping[str, str], names: tuple[str, ...], what: str, *, required: bool = False
) -> None:
    found = [name for name in names if name in values]
    if len(found) > 1:
        raise UsageError(f"{' and '.join(found)} both say {what}: give one of them")
    if required and not found:
        raise UsageError(f"nothing says {what}: give one of the options {', '.join(names)}")


def _partitions(text: str) -> int | Any:
    number = positive(text)
    if number > PARTITIONS_MAX:
        raise ValueError(f"give at most {PARTITIONS_MAX}: each is a task")
    return number


def _pattern(text: str) -> str | Any:
    try:
        re.compile(text)
    except re.error as problem:
        raise ValueError(f"it is not a regular expression ({problem})") from None
    return text


def _keys(text: str) -> tuple[bytes, ...] | Any:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError('give a JSON list of texts, for example ["user 1", "user 2"]')
    keys = tuple(sorted({each.encode() for each in found}))
    if wrong := complaint(Selection(keys=keys)):
        raise ValueError(wrong)
    return keys


def _logs(values: Mapping[str, str]) -> tuple[str, ...]:
    if "log" in values:
        return (values["log"].strip(),)
    names = tuple(dict.fromkeys(each.strip() for each in values.get("logs", "").split(",")))
    if "logs" in values and not all(names):
        raise UsageError(f"the option logs cannot be {values['logs']!r}: give names, a,b,c")
    return tuple(sorted(name for name in names if name))


def _bound(values: Mapping[str, str], names: tuple[str, ...]) -> Bound | None:
    option = next((name for name in names if name in values), None)
    if option is None:
        return None
    read = Read(values)
    if option.endswith("Timestamp") and not option.endswith("ByTimestamp"):
        return Bound(option, time_us=read(option, _moment_us, 0))
    if option.endswith("ByTimestamp"):
        return Bound(option, times_us=read(option, _moments_us, {}))
    text = values[option].strip()
    if text.lower() in (EARLIEST, LATEST):
        return Bound(option, everywhere=text.lower())
    return Bound(option, places=read(option, _places, {}))


def _places(text: str) -> dict[str, Place]:
    return {log: _place(log, word) for log, word in _object(text).items()}


def _place(log: str, word: Any) -> Place:
    if isinstance(word, dict) and set(word) >= {"next"}:
        word = word["next"]  # As an offset document says it.
    if word in (EARLIEST, KAFKA_EARLIEST):
        return EARLIEST
    if word in (LATEST, KAFKA_LATEST):
        return LATEST
    if isinstance(word, str) and (named := lsn.parse(word)) is not None:
        return named
    if isinstance(word, int) and not isinstance(word, bool) and 0 <= word <= LSN_MAX:
        return max(word, 1)
    raise ValueError(
        f"{word!r} is no position of log {log!r}: give a number, e7n42, earliest or latest"
    )


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("logs"), dict):
        found = found["logs"]  # A whole offset document.
    if not isinstance(found, dict) or not found:
        raise ValueError(
            'give earliest, latest, or JSON for each log, for example {"clicks": 1001}'
        )
    return found


def _moments_us(text: str) -> dict[str, int]:
    return {log: _moment_us(str(word)) for log, word in _object(text).items()}


def _moment_us(text: str) -> int:
    """Milliseconds since 1970, or ISO 8601, in UTC unless it says otherwise."""
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text) * 1000
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "give milliseconds since 1970 or a time such as 2026-08-21T10:00:00+00:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (moment - epoch) // datetime.timedelta(microseconds=1)
