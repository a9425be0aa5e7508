"""`millrace log`, `bench`, `cluster` and `node` against a cluster that is well."""

import itertools

import pytest

from millrace.cli.log_info import show_log
from millrace.cli.output import Output
from millrace.client import LogDescription
from millrace.core.projection import Projection
from millrace.limits import RECORD_BYTES_MAX
from millrace.local import LocalCluster
from millrace.types import Epoch, LogAttributes, LogId, LogInfo, NodeId
from tests.cli.commands import Command

_numbers = itertools.count(1)


@pytest.fixture
def log(millrace: Command) -> str:
    name = f"log-{next(_numbers)}"
    assert millrace("log", "create", name, "--write-path", "chain").code == 0
    return name


# -- Making and looking after -----------------------------------------------------------------


def test_create_with_everything(millrace: Command) -> None:
    line = (
        "log create full --copies 2 --ack memory --retention 7d --retention-bytes 10GiB "
        "--no-compression --write-path chain --format json"
    )
    made = millrace(*line.split()).json
    chosen = {
        "write_path": "chain",
        "replication": 2,
        "ack": "memory",
        "compression": False,
        "retention_ms": 604_800_000,
        "retention_bytes": 10 << 30,
    }
    assert chosen.items() <= made["info"]["attributes"].items()
    assert len(made["projection"]["chain"]) == 2
    assert made["epochs"] is None
    shown = millrace("log", "info", "full").out
    for word in ("full", "7d, 10.0 GiB", "in memory", "2 of 2 copies"):
        assert word in shown


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("log create {log}", ("already", "millrace log info")),
        ("log create big --copies 9 --write-path chain", ("replication 9", "there are 4")),
        ("log info nope", ("no log 'nope'", "millrace log ls")),
        ("log append nope x", ("no log 'nope'",)),
        ("log read nope", ("no log 'nope'",)),
        ("log rm nope --yes", ("no log 'nope'",)),
        ("log read {log} --from 500", ("beyond the end", "next position is 1")),
        ("log get {log} 7", ("not written yet",)),
        ("log trim {log} --before 99 --yes", ("next position is 1",)),
        ("bench read nope", ("no log 'nope'",)),
    ],
)
def test_what_cannot_be_done_now_says_what_to_do(
    millrace: Command, log: str, line: str, words: tuple[str, ...]
) -> None:
    millrace(*line.format(log=log).split()).failed_with(*words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("log create big --copies 99", ("from 1 to 16",)),
        ("log create bad/name", ("not a log name",)),
        ("log create later --write-path commit --streams 0", ("streams=0", "1 to")),
        ("log read {log} --from sideways", ("not a position", "@2026")),
        ("log read {log} --format yaml", ("not a format", "ndjson")),
        ("log read {log} --format %q", ("means nothing", "%v")),
        ("log append {log} x --header novalue", ("NAME=VALUE",)),
        ("log append {log} x --timestamp noon", ("not a time", "2026-08-21T10:00:00")),
        ("log rm {log}", ("Delete log", "--yes")),
        ("log seal {log}", ("Seal log", "--yes")),
        ("log trim {log} --before end", ("Nothing was changed", "--yes")),
        ("log get {log} 1 --copies --format raw", ("table or json",)),
        ("node info 9", ("no node 9", "1, 2, 3, 4")),
        ("bench append {log} --size 17MiB", ("larger than 16777216",)),
    ],
)
def test_what_is_wrong_says_what_is_right(
    millrace: Command, log: str, line: str, words: tuple[str, ...]
) -> None:
    millrace("log", "append", log, "first")
    millrace(*line.format(log=log).split()).refused_with(*words)


def test_ls(millrace: Command, log: str) -> None:
    assert f"{log} " in millrace("log", "ls").out
    listed = millrace("log", "ls", "--format", "json").json
    mine = next(one for one in listed if one["info"]["name"] == log)
    assert mine["projection"]["replication"] == 3
    assert millrace("--format", "json", "log", "ls").json == listed


def test_info_json(millrace: Command, log: str) -> None:
    millrace("log", "append", log, "a", "b")
    told = millrace("log", "info", log, "--format", "json").json
    assert (told["trim_end"], told["readable_end"], told["issued_last"]) == (1, 3, 2)
    assert {member["standing"] for member in told["members"].values()} == {"member"}


def test_info_of_nodes_that_do_not_answer(capfd: pytest.CaptureFixture[str]) -> None:
    info = LogInfo(LogId(1), "events", LogAttributes(replication=2))
    projection = Projection(LogId(1), Epoch(3), (NodeId(1), NodeId(2)), NodeId(2), 2)
    show_log(Output(), LogDescription(info, projection, None, None, None, {1: None, 2: None}))
    shown = [line.split() for line in capfd.readouterr().out.splitlines()]
    for fact in (["records"], ["begins", "at"], ["next", "position"], ["last", "issued"]):
        assert [*fact, "–"] in shown
    assert ["2", "no", "answer", "–", "–", "–", "–"] in shown


def test_trim(millrace: Command, log: str) -> None:
    millrace("log", "append", log, *"abcdef")
    dry = millrace("log", "trim", log, "--before", "-2", "--dry-run", "--format", "json").json
    assert dry == {"log": log, "trim_end": 5, "records": 4, "is_done": False}
    assert millrace("log", "read", log, "--format", "raw").out == "a\nb\nc\nd\ne\nf\n"
    done = millrace("log", "trim", log, "--before", "-2", "--yes", "--format", "json").json
    assert done == {"log": log, "trim_end": 5, "records": 4, "is_done": True}
    assert millrace("log", "read", log, "--format", "raw").out == "e\nf\n"
    millrace("log", "get", log, "2").failed_with("was trimmed", "millrace log info")
    assert millrace("log", "read", log, "--from", "1", "-n", "1").out.startswith("gap 1..4 trim\n")
    gap = {"gap": {"kind": "trim", "first": 1, "last": 4}}
    assert millrace("log", "read", log, "--from", "2", "--format", "json").json[0]["gap"]
    assert millrace("log", "read", log, "--from", "1", "--format", "json").json[0] == gap
    raw = millrace("log", "read", log, "--from", "1", "--format", "raw")
    assert (raw.out, raw.err) == ("e\nf\n", "gap 1..4 trim\n")


def test_seal_and_remove(millrace: Command, log: str) -> None:
    millrace("log", "append", log, "last words")
    assert millrace("log", "seal", log, "--yes").code == 0
    millrace("log", "append", log, "too late").failed_with("sealed for good")
    assert millrace("log", "read", log, "--format", "raw").out == "last words\n"
    assert "sealed" in millrace("log", "ls").out
    assert millrace("log", "rm", log, "--yes").code == 0
    millrace("log", "info", log).failed_with("no log")


# -- Records ----------------------------------------------------------------------------------


def test_values_of_the_command_line(millrace: Command, log: str) -> None:
    line = ("--key", "k", "--header", "a=1", "--header", "b=x=y", "--timestamp", "2026-01-01T00:00")
    assert millrace("log", "append", log, "one", "two", *line).out == "1..2\n"
    assert millrace("log", "append", log, "three").out == "3\n"
    first, *_, last = millrace("log", "read", log, "--format", "json").json
    assert first == {
        "lsn": 1,
        "timestamp_us": 1_767_225_600_000_000,
        "key": "k",
        "value": "one",
        "headers": [{"name": "a", "value": "1"}, {"name": "b", "value": "x=y"}],
    }
    assert (last["key"], last["headers"]) == (None, [])


def test_many_lines_with_a_header_whose_name_is_no_ascii(millrace: Command, log: str) -> None:
    """Names are counted as they are stored: what was meant to be one block is one."""
    lines = b"\n".join(b"%099d" % number for number in range(20_000))
    ran = millrace("log", "append", log, "--header", "größe=1", "--format", "json", stdin=lines)
    assert ran.code == 0, ran.err
    assert ran.json["records"] == 20_000


def test_lines_of_stdin(millrace: Command, log: str) -> None:
    text = b"first\n\n\xff binary\nno line end"
    ran = millrace("log", "append", log, "--format", "json", stdin=text)
    assert ran.json == {"log": log, "records": 4, "ranges": [{"first": 1, "last": 4}]}
    values = [one.get("value", one.get("value_base64")) for one in _read(millrace, log)]
    assert values == ["first", "", "/yBiaW5hcnk=", "no line end"]


def test_many_lines_keep_their_order(millrace: Command, log: str) -> None:
    text = b"".join(b"%d\n" % number for number in range(50_000))
    assert millrace("log", "append", log, stdin=text).code == 0
    assert millrace("log", "read", log, "--format", "raw").out.encode() == text


def test_nothing_on_stdin_appends_nothing(millrace: Command, log: str) -> None:
    ran = millrace("log", "append", log)
    assert (ran.code, ran.out) == (0, "")


def test_batch_bounds_the_blocks(millrace: Command, log: str) -> None:
    millrace("log", "append", log, "--batch", "2", *"abcde")
    members = millrace("log", "info", log, "--format", "json").json["members"]
    assert {member["blocks"] for member in members.values()} == {3}


def test_a_record_that_is_too_large(millrace: Command, log: str) -> None:
    text = b"small\n" + b"x" * (RECORD_BYTES_MAX + 1)
    ran = millrace("log", "append", log, stdin=text)
    ran.refused_with("larger than 16777216 bytes")
    assert ran.out == "1\n"  # What was acknowledged before is told.


def test_a_line_that_is_just_too_large(millrace: Command, log: str) -> None:
    text = b"x" * (RECORD_BYTES_MAX + 1) + b"\nsmall\n"
    ran = millrace("log", "append", log, stdin=text)
    ran.refused_with("16777216")


def test_read_ranges(millrace: Command, log: str) -> None:
    millrace("log", "append", log, *"abcdefgh")
    for line, expected in (
        ("--from 3 --until 5", "c d"),
        ("--from +2 -n 1", "c"),
        ("--from -2", "g h"),
        ("--from end", ""),
        ("-n 0", ""),
        ("--from 3 --until 3", ""),
        ("--from @2020-01-01T00:00 -n 2", "a b"),
    ):
        ran = millrace("log", "read", log, *line.split(), "--format", "raw")
        assert (ran.code, ran.out.split()) == (0, expected.split()), line


def test_tail_without_following(millrace: Command, log: str) -> None:
    millrace("log", "append", log, *"abc")
    template = ("--no-follow", "--format", "%l:%v")
    assert millrace("log", "tail", log, "-n", "2", *template).out == "2:b\n3:c\n"
    assert millrace("log", "tail", log, *template).out == "1:a\n2:b\n3:c\n"
    assert millrace("log", "tail", log, "-n", "0", *template).out == ""


def test_following_a_sealed_log_ends(millrace: Command, log: str) -> None:
    millrace("log", "append", log, *"abc")
    millrace("log", "seal", log, "--yes")
    ran = millrace("log", "tail", log, "-n", "2", "--format", "raw")
    assert (ran.code, ran.out) == (0, "b\nc\n")
    assert ran.err == f"log {log} is sealed: nothing comes after 3\n"
    ran = millrace("log", "tail", log, "-n", "0", "--format", "json")
    assert (ran.code, ran.out) == (0, "")
    assert "nothing comes after 3" in ran.err


@pytest.mark.parametrize("stamp_us", [2**63 - 1, -(2**63)])
def test_a_timestamp_that_is_no_date_is_shown(
    millrace: Command, cluster: LocalCluster, log: str, stamp_us: int
) -> None:
    from millrace.client.sync import connect

    with connect(cluster.addresses) as client:
        client.log(log).append(b"x", timestamp_us=stamp_us)
    shown = millrace("log", "read", log)
    assert (shown.code, f"{stamp_us}us" in shown.out) == (0, True)


def test_a_record_of_another_time(millrace: Command, log: str) -> None:
    for time in ("2026-08-21", "1787270400", "2026-08-21T02:00:00.000001+02:00"):
        assert millrace("log", "append", log, "x", "--timestamp", time).code == 0
    stamps = [one["timestamp_us"] for one in _read(millrace, log)]
    assert stamps == [1_787_270_400_000_000, 1_787_270_400_000_000, 1_787_270_400_000_001]


def test_get_and_its_copies(millrace: Command, log: str) -> None:
    millrace("log", "append", log, "a", "b")
    assert millrace("log", "get", log, "2", "--format", "raw").out == "b\n"
    assert millrace("log", "get", log, "2", "--format", "json").json["value"] == "b"
    told = millrace("log", "get", log, "2", "--copies", "--format", "json").json
    assert told["is_agreed"]
    assert len({copy["checksum"] for copy in told["copies"]}) == 1
    assert len(told["copies"]) == 3
    assert "all copies agree" in millrace("log", "get", log, "1", "--copies").out


def _read(millrace: Command, log: str) -> list[dict[str, str]]:
    return millrace("log", "read", log, "--format", "json").json


# -- The cluster ------------------------------------------------------------------------------


def test_node_ls_and_info(millrace: Command, log: str) -> None:
    assert len(millrace("node", "ls").out.splitlines()) == 5
    nodes = millrace("node", "ls", "--format", "json").json
    assert [node["info"]["id"] for node in nodes] == [1, 2, 3, 4]
    told = [millrace("node", "info", str(n), "--format", "json").json for n in (1, 2, 3, 4)]
    places = [
        (p["position"], p["is_sequencer"]) for t in told for p in t["logs"] if p["log"] == log
    ]
    assert sorted(p for p, _ in places if p) == ["head", "middle", "tail"]
    assert sum(is_sequencer for _, is_sequencer in places) == 1
    shown = millrace("node", "info", "1").out
    for word in ("storage, sequencer, documents, metadata", "software"):
        assert word in shown
    holder = next(n for n, t in enumerate(told, 1) if any(p["log"] == log for p in t["logs"]))
    assert log in millrace("node", "info", str(holder)).out


def test_bench(millrace: Command, log: str) -> None:
    line = ("bench", "append", log, "--count", "200", "--size", "1KiB", "--window", "16")
    figures = millrace(*line, "--format", "json").json
    assert (figures["records"], figures["bytes"], figures["log"]) == (200, 204_800, log)
    assert 0 < figures["latency_ms_p50"] <= figures["latency_ms_p99"] <= figures["latency_ms_p999"]
    assert millrace("bench", "read", log, "--format", "json").json["records"] == 200
    before = millrace("log", "ls", "--format", "json").json
    assert "p99.9" in millrace("bench", "append", "--count", "20", "--ack", "memory").out
    assert millrace("log", "ls", "--format", "json").json == before  # Its log is gone again.
