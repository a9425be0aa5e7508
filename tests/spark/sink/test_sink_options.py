"""Options of the sink: what is understood, and how what is not understood is refused."""

import pytest

from millrace.errors import UsageError
from millrace.spark.sink.options import (
    KNOWN,
    OnNull,
    SinkOptions,
    application,
    check_stream,
    parse,
)
from millrace.types import Ack

MUST = {"cluster": "127.0.0.1:7701", "log": "clicks"}
TXN = {"txnAppId": "job", "txnVersion": "7"}


def refusal(given: dict[str, str]) -> str:
    with pytest.raises(UsageError) as refused:
        parse(given)
    return str(refused.value)


def test_defaults_are_the_documented_ones() -> None:
    options = parse(MUST)
    assert options == SinkOptions("127.0.0.1:7701", "clicks")
    assert (options.ack, options.on_null, options.timeout_ms) == (None, OnNull.FAIL, 60_000)


def test_all_options_in_any_case() -> None:
    options = parse(MUST | {"ACK": "memory", "onnull": "Skip", "timeoutms": "500"} | TXN)
    assert (options.ack, options.on_null, options.timeout_ms) == (Ack.MEMORY, OnNull.SKIP, 500)
    assert (options.app, options.version) == ("job", 7)


@pytest.mark.parametrize("name", ["log", "path", "topic", "LOG"])
def test_the_log_goes_by_several_names(name: str) -> None:
    assert parse({"kafka.bootstrap.servers": "a:1", name: "clicks"}).log == "clicks"


def test_sparks_own_options_pass() -> None:
    assert parse(MUST | {"checkpointLocation": "/somewhere"}) == parse(MUST)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"onNul": "skip"}, "did you mean onNull?"),
        ({"frobnicate": "1"}, "options: cluster, log, ack, onNull"),
        ({"startingOffsets": "earliest"}, "there is no option 'startingOffsets'"),
        ({"topic": "orders"}, "the option log is given twice, as 'clicks' and 'orders'"),
        ({"ack": "all"}, "ack cannot be 'all': give disk or memory"),
        ({"onNull": "drop"}, "onNull cannot be 'drop': give fail or skip"),
        ({"log": " "}, "log cannot be ' ': give a name"),
        ({"timeoutMs": "0"}, "timeoutMs cannot be '0'"),
        ({"timeoutMs": "99999999"}, "an hour"),
        ({"txnAppId": "job"}, "txnAppId needs txnVersion"),
        ({"txnVersion": "7"}, "txnVersion needs txnAppId"),
        (TXN | {"txnVersion": "-1"}, "txnVersion cannot be '-1'"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_what_cannot_be_meant_is_refused_with_the_fix(more: dict[str, str], says: str) -> None:
    assert says in refusal(MUST | more)


def test_a_cluster_is_asked_for() -> None:
    assert "the option cluster is missing" in refusal({"log": "clicks"})


def test_a_stream_has_numbers_of_its_own() -> None:
    check_stream(parse(MUST))
    with pytest.raises(UsageError, match="no meaning for writeStream"):
        check_stream(parse(MUST | TXN))


@pytest.mark.parametrize(
    ("given", "app"),
    [
        (MUST, None),
        (MUST | TXN, "job/clicks"),
        ({"cluster": "a:1"} | TXN, "job"),
    ],
    ids=["nobody", "for one log", "for logs by row"],
)
def test_one_application_writes_each_log_for_itself(given: dict[str, str], app: str | None) -> None:
    assert application(parse(given)) == app


def test_every_option_is_understood() -> None:
    samples = {"ack": "disk", "onNull": "fail", "timeoutMs": "9", **TXN}
    for known in KNOWN:
        more = TXN if known.name in TXN else {known.name: samples.get(known.name, "x")}
        parse({"cluster": "a:1"} | more)
