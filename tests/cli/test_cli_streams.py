"""`millrace stream ls` and `millrace stream read`."""

import itertools
from pathlib import Path

import pytest

from millrace.local import LocalCluster
from tests.cli.commands import Command
from tests.support.clusters import soon

_numbers = itertools.count(1)


@pytest.fixture
def log(millrace: Command) -> str:
    name = f"streamed-{next(_numbers)}"
    made = millrace("log", "create", name, "--write-path", "commit", "--copies", "2")
    assert made.code == 0, made.err
    assert millrace("log", "append", name, "a", "b", "c").code == 0
    return name


def test_a_stream_is_read_by_its_own_positions(millrace: Command, log: str) -> None:
    shown = millrace("stream", "read", log, "1")
    assert shown.code == 0, shown.err
    rows = [line.split() for line in shown.out.splitlines()]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("1", "1", "a"),
        ("2", "2", "b"),
        ("3", "3", "c"),
    ]
    some = millrace("stream", "read", log, "1", "--from", "2", "--until", "3", "--format", "json")
    assert [(one["stream"], one["local"], one["lsn"], one["value"]) for one in some.json] == [
        (1, 2, 2, "b")
    ]
    raw = millrace("stream", "read", log, "1", "--from", "2", "--format", "raw")
    assert raw.out == "b\nc\n"


def test_ls_shows_where_a_stream_begins_and_ends(millrace: Command, log: str) -> None:
    def row() -> list[str]:
        return millrace("stream", "ls", log).out.splitlines()[1].split()

    assert row()[4:7] == ["1", "3", "3"]
    assert millrace("log", "trim", log, "--before", "3", "--yes").code == 0
    assert millrace("log", "append", log, "d").code == 0
    soon(row, lambda found: found[4:7] == ["3", "4", "4"])
    told = millrace("stream", "ls", log, "--format", "json").json
    assert told["firsts"] == {"1": 3}


def test_ls_of_a_stream_without_records(millrace: Command) -> None:
    made = millrace("log", "create", "streamless", "--write-path", "commit", "--copies", "2")
    assert made.code == 0, made.err
    row = millrace("stream", "ls", "streamless").out.splitlines()[1].split()
    assert row[4:7] == ["nothing", "nothing", "nothing"]


def test_what_cannot_be_read(millrace: Command, log: str) -> None:
    millrace("stream", "read", log, "9").refused_with("has no stream 9: it has 1")
    millrace("stream", "read", log, "1", "--from", "9").failed_with("its next position is 4")
    millrace("stream", "read", log, "1", "--from", "3", "--until", "2").refused_with("cannot be")


def test_appends_of_commands_are_shared_by_the_streams(millrace: Command) -> None:
    made = millrace(
        "log", "create", "shared", "--write-path", "commit", "--copies", "2", "--streams", "2"
    )
    assert made.code == 0, made.err

    def used() -> set[int]:
        """Each command is a client of its own, and draws the stream that it begins with."""
        assert millrace("log", "append", "shared", "x").code == 0
        streams = millrace("stream", "ls", "shared", "--format", "json").json["record"]["streams"]
        return {stream["stream"] for stream in streams if stream["last"]}

    soon(used, lambda found: found == {1, 2})


def test_what_is_lost_for_good_is_given_up_by_an_operator(
    alone: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only replica of a log has lost its disk: appends wait until somebody says so."""
    with LocalCluster.create(tmp_path / "lost", 3) as cluster:
        cluster.start()
        monkeypatch.setenv("MILLRACE_CLUSTER", ",".join(cluster.addresses))
        names = (f"mortal-{number}" for number in range(30))
        name = next(each for each in names if _lies_on(alone, each) != 1)
        assert alone("log", "append", name, "a", "b").code == 0
        victim = _lies_on(alone, name)
        cluster.kill(victim)
        cluster.wipe(victim)
        cluster.start([victim])
        alone("--timeout", "3s", "log", "append", name, "c").failed_with("")
        assert alone("stream", "give-up", name, "1", "--yes").code == 0
        soon(lambda: alone("log", "append", name, "d").code, lambda code: code == 0)
        shown = alone("log", "info", name).out
        assert "lost" in shown
        read = alone("log", "read", name, "--format", "json").json
        gap, record = read
        assert (gap["gap"]["kind"], record["value"]) == ("dataloss", "d")


def _lies_on(call: Command, name: str) -> int:
    call("log", "create", name, "--write-path", "commit", "--copies", "1")
    told = call("log", "info", name, "--format", "json").json
    (replica,) = told["record"]["streams"][0]["replicas"]
    return int(replica)
