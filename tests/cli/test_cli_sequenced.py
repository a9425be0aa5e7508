"""`millrace log` and `millrace reader` for sequenced logs, against a cluster that is well."""

import itertools

import pytest

from millrace.cli.log_info import show_log
from millrace.cli.output import Output
from millrace.client import SequencedDescription
from millrace.core.epochs import EpochRecord
from millrace.core.replication import Replication
from millrace.types import (
    AuthoritativeStatus,
    Epoch,
    LogAttributes,
    LogId,
    LogInfo,
    NodeId,
    WritePath,
)
from tests.cli.commands import Command

_numbers = itertools.count(1)


@pytest.fixture
def log(millrace: Command) -> str:
    name = f"sequenced-{next(_numbers)}"
    assert millrace("log", "create", name, "--write-path", "sequenced").code == 0
    return name


# -- Making and looking after -----------------------------------------------------------------


def test_create_with_everything_sequenced(millrace: Command) -> None:
    line = (
        "log create spread --write-path sequenced --copies 2 --nodeset-size 4 --extras 1 "
        "--sync-leaders 2 --leaders 2 --no-scd --local-scd rack --copyset-order stored "
        "--format json"
    )
    made = millrace(*line.split()).json
    chosen = {
        "write_path": "sequenced",
        "replication": 2,
        "nodeset_size": 4,
        "is_single_copy": False,
        "local_scd": "rack",
        "copyset_order": "stored",
    }
    assert chosen.items() <= made["info"]["attributes"].items()
    epochs = made["epochs"]
    assert sorted(epochs["nodeset"]) == [1, 2, 3, 4]
    settings = epochs["settings"]
    assert (settings["extras"], settings["sync_leaders"], settings["leaders"]) == (1, 2, 2)
    assert made["projection"] is None
    shown = millrace("log", "info", "spread").out
    for word in ("2 copies", "1, 2 of 2 for release", "all copies", "the reader's rack first"):
        assert word in shown


def test_create_says_where_the_log_is(millrace: Command) -> None:
    made = millrace("log", "create", "somewhere", "--write-path", "sequenced")
    assert made.err == "log somewhere made: 3 copies, on nodes 1, 2, 3, 4\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--write-path chain --extras 1", ("chain log", "extras", "sequenced")),
        ("--write-path chain --across rack=2", ("chain log", "sequenced")),
        ("--write-path sequenced --across rack", ("SCOPE=N", "rack=2")),
        ("--write-path sequenced --across rack=2 --across rack=2", ("each scope once",)),
        ("--write-path sequenced --across shelf=2", ("shelf", "data_center")),
        ("--write-path sequenced --nodeset-size 2", ("smaller than a copyset of 3 copies",)),
        ("--write-path sequenced --sync-leaders 4", ("sync_leaders=4", "3 copies")),
        ("--write-path sequenced --local-scd shelf", ("shelf", "region")),
    ],
)
def test_what_cannot_be_chosen(millrace: Command, line: str, words: tuple[str, ...]) -> None:
    millrace("log", "create", "odd", *line.split()).refused_with(*words)


def test_copies_in_racks_that_are_not_there(millrace: Command) -> None:
    line = "log create odd --write-path sequenced --across rack=2"
    millrace(*line.split()).failed_with("scope rack", "lie in 1")


def test_ls_shows_both_kinds(millrace: Command, log: str) -> None:
    millrace("log", "create", f"{log}-chain", "--write-path", "chain")
    listed = {one["info"]["name"]: one for one in millrace("log", "ls", "--format", "json").json}
    mine, other = listed[log], listed[f"{log}-chain"]
    assert (mine["projection"], mine["epochs"]["epoch"]) == (None, 1)
    assert (other["projection"]["epoch"], other["epochs"]) == (1, None)
    assert not [one for one in listed.values() if one["info"]["id"] >= 1 << 62]  # Metadata logs.
    rows = [line.split() for line in millrace("log", "ls").out.splitlines()]
    row = next(row for row in rows if row[0] == log)
    assert row[:7] == [log, "3", "1,", "2,", "3,", "4", "1"]


def test_info_json_of_a_sequenced_log(millrace: Command, log: str) -> None:
    millrace("log", "append", log, "a", "b")
    told = millrace("log", "info", log, "--format", "json").json
    assert told["tail"] == {
        "epoch": 1,
        "released": 1 << 32 | 2,
        "issued": 1 << 32 | 2,
        "last": 1 << 32 | 2,
    }
    assert told["positions"]["last"] == "e1n2"
    assert told["record"]["sequencer"]
    assert sorted(told["members"]) == ["1", "2", "3", "4"]
    assert sum(member["blocks"] for member in told["members"].values()) == 3


def test_info_of_a_sequenced_log(millrace: Command, log: str) -> None:
    millrace("log", "append", log, "a")
    shown = [line.split() for line in millrace("log", "info", log).out.splitlines()]
    for fact in (
        ["state", "ok"],
        ["readable", "up", "to", "e1n1"],
        ["last", "record", "e1n1"],
        ["recovered", "up", "to", "epoch", "0"],
        ["nodes", "1,", "2,", "3,", "4", "(since", "epoch", "1)"],
        ["replication", "3", "copies"],
    ):
        assert fact in shown


def test_info_of_a_sequenced_log_whose_nodes_do_not_answer(
    capfd: pytest.CaptureFixture[str],
) -> None:
    info = LogInfo(LogId(1), "events", LogAttributes(write_path=WritePath.SEQUENCED))
    nodes = (NodeId(2), NodeId(1))
    record = EpochRecord(LogId(1), Epoch(5), NodeId(2), nodes, Replication.of(2), Epoch(1))
    lost = {2: AuthoritativeStatus.UNDERREPLICATION}
    show_log(Output(), SequencedDescription(info, record, None, None, lost, dict.fromkeys((1, 2))))
    shown = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert ["state", "no", "redundancy"] in shown
    assert ["sequencer", "node", "2,", "no", "answer"] in shown
    for fact in ("trimmed before", "readable up to", "last issued", "last record"):
        assert [*fact.split(), "–"] in shown
    assert ["2", "no", "answer", "underreplication", *"–––––"] in shown


def test_trim_a_sequenced_log(millrace: Command, log: str) -> None:
    millrace("log", "append", log, *"abcd")
    line = ("log", "trim", log, "--before", "e1n3")
    dry = millrace(*line, "--dry-run", "--format", "json").json
    assert dry == {
        "log": log,
        "trim_end": 1 << 32 | 3,
        "records": 2,
        "is_done": False,
        "position": "e1n3",
    }
    assert millrace(*line, "--yes").err == f"forgot 2 records; log {log} begins at e1n3\n"
    assert millrace("log", "read", log, "--format", "raw").out == "c\nd\n"
    shown = millrace("log", "read", log, "--from", "e1n1", "-n", "1").out
    assert shown.startswith("gap e1n1..e1n2 trim\n")
    millrace("log", "get", log, "e1n1").failed_with("position e1n1", "was trimmed")


def test_seal_a_sequenced_log(millrace: Command, log: str) -> None:
    millrace("log", "append", log, *"abc")
    assert millrace("log", "seal", log, "--yes").code == 0
    assert millrace("log", "seal", log, "--yes").code == 0
    millrace("log", "append", log, "too late").failed_with("sealed for good")
    assert "sealed" in millrace("log", "info", log).out
    ran = millrace("log", "tail", log, "-n", "2", "--format", "raw")
    assert (ran.code, ran.out) == (0, "b\nc\n")
    assert ran.err == f"log {log} is sealed: nothing comes after e1n3\n"


# -- Records ----------------------------------------------------------------------------------


def test_positions_that_were_appended(millrace: Command, log: str) -> None:
    assert millrace("log", "append", log, "a").out == "e1n1\n"
    assert millrace("log", "append", log, "b", "c").out == "e1n2..e1n3\n"
    told = millrace("log", "append", log, "d", "--format", "json").json
    lsn = 1 << 32 | 4
    assert told["ranges"] == [{"first": lsn, "last": lsn, "positions": "e1n4"}]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--from e1n3 --until e1n5", "c d"),
        (f"--from {1 << 32 | 3} --until e1n5", "c d"),
        ("--from -2", "g h"),
        ("--from +2 -n 1", "c"),
        ("--from end", ""),
        ("--from @2020-01-01T00:00 -n 2", "a b"),
    ],
)
def test_read_ranges_of_a_sequenced_log(
    millrace: Command, log: str, line: str, expected: str
) -> None:
    millrace("log", "append", log, *"abcdefgh")
    ran = millrace("log", "read", log, *line.split(), "--format", "raw")
    assert (ran.code, ran.out.split()) == (0, expected.split())


@pytest.mark.parametrize("line", ["--from e2n1 --until e1n1", "--from e1n3 --until e1n2"])
def test_a_range_that_is_the_wrong_way_round(millrace: Command, log: str, line: str) -> None:
    millrace("log", "append", log, *"abcd")
    refused = millrace("log", "read", log, *line.split())
    refused.refused_with("cannot be read from", "which lies before it")
    assert refused.out == ""


def test_records_carry_their_positions(millrace: Command, log: str) -> None:
    millrace("log", "append", log, "a", "b")
    assert millrace("log", "read", log, "--format", "%l:%v").out == "e1n1:a\ne1n2:b\n"
    assert "    e1n2  " in millrace("log", "read", log).out
    found = millrace("log", "read", log, "--format", "json").json
    assert [(one["lsn"], one["position"]) for one in found] == [
        (1 << 32 | 1, "e1n1"),
        (1 << 32 | 2, "e1n2"),
    ]


def test_get_from_a_sequenced_log(millrace: Command, log: str) -> None:
    millrace("log", "append", log, "a", "b")
    assert millrace("log", "get", log, "e1n2", "--format", "raw").out == "b\n"
    assert millrace("log", "get", log, str(1 << 32 | 2), "--format", "raw").out == "b\n"
    told = millrace("log", "get", log, "e1n2", "--copies", "--format", "json").json
    assert told["is_agreed"]
    assert told["record"]["position"] == "e1n2"
    held = [copy["node"] for copy in told["copies"] if copy["state"] == "data"]
    assert len(held) == 3
    nowhere = millrace("log", "get", log, "1", "--copies")
    assert (nowhere.code, "no node has a block there" in nowhere.out) == (0, True)
    millrace("log", "get", log, "e1n9").failed_with("position e1n9", "not written yet")
    millrace("log", "get", log, "0").refused_with("begin at 1", "e1n1")
    millrace("log", "read", log, "--from", "e1n99").failed_with("next position is e1n3")


# -- The cluster and its readers --------------------------------------------------------------


def test_a_sequenced_log_is_part_of_the_cluster(millrace: Command, log: str) -> None:
    told = millrace("cluster", "status", "--format", "json").json
    assert log in {info["name"] for info in told["status"]["logs"]}
    epochs = [record["log"] for record in told["status"]["epochs"]]
    assert epochs
    assert all(number < 1 << 62 for number in epochs)  # Metadata logs are no logs of their own.
    places = millrace("node", "info", "1", "--format", "json").json["logs"]
    assert [place["position"] for place in places if place["log"] == log] == ["member"]


def test_explain_a_reader_of_a_sequenced_log(millrace: Command, log: str) -> None:
    millrace("log", "append", log, *"abc")
    line = ("reader", "explain", log, "--from", "e1n2", "--for", "300ms")
    told = millrace(*line, "--format", "json").json
    assert told["followed"]["records"] == 2
    assert told["explain"]["waits_for"] == "tail"
    assert told["explain"]["next_lsn"] == "e1n4"
    assert sorted(told["explain"]["nodes"]) == ["1", "2", "3", "4"]
    shown = [line.split() for line in millrace(*line).out.splitlines()]
    assert ["stands", "at", "e1n4"] in shown
    assert ["came", "from", "e1n2:", "2", "records,", "0", "gaps"] in shown
    assert ["mode", "single_copy"] in shown
    assert ["3", "reading", "e1n4", "fully_authoritative", "–", "0"] in shown


def test_explain_a_reader_of_a_chain_log(millrace: Command, log: str) -> None:
    millrace("log", "create", f"{log}-chain", "--write-path", "chain")
    millrace("log", "append", f"{log}-chain", *"ab")
    line = ("reader", "explain", f"{log}-chain", "--from", "start", "--for", "300ms")
    shown = millrace(*line).out
    assert "stands at  3\n" in shown
    assert "1: 2 records, 0 gaps" in shown
    assert "served by  node " in shown


def test_explain_a_reader_that_has_read_all_there_will_be(millrace: Command, log: str) -> None:
    millrace("log", "append", log, "a")
    millrace("log", "seal", log, "--yes")
    shown = millrace("reader", "explain", log, "--from", "start").out
    assert "the log is sealed, and all was read" in shown


@pytest.mark.parametrize("write_path", ["chain", "sequenced", "commit"])
def test_explain_beyond_the_end_of_a_sealed_log(
    millrace: Command, log: str, write_path: str
) -> None:
    name = f"{log}-sealed"
    assert millrace("log", "create", name, "--write-path", write_path).code == 0
    millrace("log", "append", name, "a")
    assert millrace("log", "seal", name, "--yes").code == 0
    is_sequenced = write_path == "sequenced"
    first, end = ("e1n9", "e1n2") if is_sequenced else ("9", "2")
    line = ("reader", "explain", name, "--from", first, "--for", "500ms")
    words = f"nothing: the log is sealed at {end}, nothing will come here"
    assert words in millrace(*line).out
    told = millrace(*line, "--format", "json").json["followed"]
    assert (told["sealed_end"], told["is_beyond_end"]) == (end, True)


@pytest.mark.parametrize("write_path", ["chain", "sequenced", "commit"])
def test_explain_beyond_the_end_of_an_open_log(
    millrace: Command, log: str, write_path: str
) -> None:
    name = f"{log}-open"
    assert millrace("log", "create", name, "--write-path", write_path).code == 0
    millrace("log", "append", name, "a")
    far, end = ("e4n9", "e1n2") if write_path == "sequenced" else ("9", "2")
    words = f"this is beyond the end of the log, which is at {end}"
    line = ("reader", "explain", name, "--for", "300ms", "--from")
    assert words in millrace(*line, far).out
    assert words not in millrace(*line, end).out


def test_explain_what_is_not_there(millrace: Command) -> None:
    millrace("reader", "explain", "nope").failed_with("no log 'nope'")
    millrace("reader", "explain", "nope", "--for", "soon").refused_with("soon")
