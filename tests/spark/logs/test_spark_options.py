"""Options: what is understood, and how what is not understood is refused."""

import pytest

from millrace.errors import UsageError
from millrace.spark.options import KNOWN, Bound, Options, check_use, parse

MUST = {"cluster": "127.0.0.1:7701", "log": "clicks"}


def test_defaults_are_the_documented_ones() -> None:
    options = parse(MUST)
    assert options == Options("127.0.0.1:7701", ("clicks",), given=frozenset({"cluster", "log"}))
    assert options.fail_on_data_loss
    assert options.wait_ms == 500


def test_names_are_read_in_any_case_and_by_kafkas_names() -> None:
    options = parse(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "SUBSCRIBE": "orders, clicks,orders",
            "maxoffsetspertrigger": "10",
        }
    )
    assert options.cluster == "a:1,b:2"
    assert options.logs == ("clicks", "orders")
    assert options.records_per_trigger == 10


def test_load_with_a_name_is_the_log() -> None:
    assert parse({"cluster": "a:1", "path": "clicks"}).logs == ("clicks",)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"startingOfsets": "latest"}, "did you mean startingOffsets"),
        ({"frobnicate": "1"}, "options: cluster, log, logs"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss cannot be 'no': give true or false"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"minPartitions": "two"}, "minPartitions"),
        ({"maxWaitMs": "900000"}, "at most 60000"),
        ({"keys": "user 1"}, "a JSON list of texts"),
        ({"keys": "[1]"}, "a JSON list of texts"),
        ({"keys": '["' + "k" * 70_000 + '"]'}, "at most 65536 may be"),
        ({"logs": "a,b"}, "log and logs both say what to read"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "both say where to begin"),
        ({"startingOffsets": "soon"}, "earliest, latest, or JSON"),
        ({"startingOffsets": "[1]"}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"clicks": -3}'}, "is no position of log 'clicks'"),
        ({"startingOffsets": '{"clicks": true}'}, "is no position of log 'clicks'"),
        ({"startingOffsets": '{"clicks": "e7"}'}, "give a number, e7n42, earliest or latest"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_fix(more: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(MUST | more)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"log": "clicks"}, "the option cluster is missing"),
        ({"cluster": "a:1"}, "give one of the options log, logs, logPattern"),
        ({"cluster": "a:1", "logs": "a,,b"}, "logs cannot be"),
        ({"cluster": "a:1", "logPattern": "("}, "not a regular expression"),
    ],
)
def test_what_is_missing_is_asked_for(given: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(given)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("Earliest", Bound("startingOffsets", "earliest")),
        ('{"clicks": 7}', Bound("startingOffsets", places={"clicks": 7})),
        ('{"clicks": "e7n42"}', Bound("startingOffsets", places={"clicks": 7 << 32 | 42})),
        ('{"clicks": 0}', Bound("startingOffsets", places={"clicks": 1})),
        ('{"clicks": -2}', Bound("startingOffsets", places={"clicks": "earliest"})),
        ('{"clicks": -1}', Bound("startingOffsets", places={"clicks": "latest"})),
        (
            '{"cluster": "x", "logs": {"clicks": {"id": 3, "next": 9}}}',
            Bound("startingOffsets", places={"clicks": 9}),
        ),
    ],
)
def test_starting_offsets(text: str, meaning: Bound) -> None:
    assert parse(MUST | {"startingOffsets": text}).starting == meaning


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1724230000000", 1724230000000_000),
        ("2024-08-21T08:46:40", 1724230000_000_000),
        ("2024-08-21T10:46:40.000001+02:00", 1724230000_000_001),
    ],
)
def test_times(text: str, time_us: int) -> None:
    assert parse(MUST | {"startingTimestamp": text}).starting == Bound(
        "startingTimestamp", time_us=time_us
    )
    by_log = parse(MUST | {"startingOffsetsByTimestamp": f'{{"clicks": "{text}"}}'}).starting
    assert by_log is not None
    assert by_log.times_us == {"clicks": time_us}


@pytest.mark.parametrize(
    ("more", "use", "says"),
    [
        ({"endingOffsets": "latest"}, "readStream", "belongs to spark.read"),
        ({"maxBytesPerTrigger": "5"}, "read", "belongs to spark.readStream"),
        ({"startingOffsets": "latest"}, "read", "reads nothing"),
        ({"startingOffsets": '{"clicks": "latest"}'}, "read", "reads nothing"),
        ({"endingOffsets": "earliest"}, "read", "reads nothing"),
    ],
)
def test_options_that_mean_nothing_to_a_use_are_refused(
    more: dict[str, str], use: str, says: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check_use(parse(MUST | more), use)
    assert says in str(refused.value)


def test_every_option_is_understood() -> None:
    samples = {
        "keys": '["a"]',
        "pushFilters": "true",
        "failOnDataLoss": "false",
        "includeGaps": "true",
        "includeHeaders": "true",
        "logPattern": "c.*",
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "startingOffsetsByTimestamp": '{"clicks": 1}',
        "endingOffsetsByTimestamp": '{"clicks": 1}',
    }
    for known in KNOWN:
        base = {"cluster": "a:1"} if known.name in ("log", "logs", "logPattern") else MUST
        assert known.name in parse(base | {known.name: samples.get(known.name, "5")}).given
