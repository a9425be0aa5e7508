"""Commands that read say what they wait for, and never that all was read while it is not known."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.cli.waiting import waited_for
from millrace.local import LocalCluster
from tests.cli.commands import Command, start_process

pytestmark = pytest.mark.alone

WAIT_S = 30


@pytest.fixture
def four(alone: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Two of them are an f-majority for three copies, and too few to store any."""
    with LocalCluster.create(tmp_path / "four", 4) as cluster:
        cluster.start()
        monkeypatch.setenv("MILLRACE_CLUSTER", ",".join(cluster.addresses))
        yield cluster


def explained(call: Command) -> str:
    ran = call("reader", "explain", "events", "--from", "end", "--for", "300ms")
    return next(line for line in ran.out.splitlines() if line.startswith("waits for"))


def test_an_append_that_is_held_back_is_waited_for_aloud(
    alone: Command, four: LocalCluster
) -> None:
    alone("log", "create", "events")
    alone("log", "append", "events", "stored")
    needed = {1, alone("log", "info", "events", "--format", "json").json["record"]["sequencer"]}
    dead = [node.id for node in four.nodes if node.id not in needed][:2]
    for node in dead:
        four.kill(node)
    appending = alone("--timeout", "1s", "log", "append", "events", "held back")
    appending.failed_with("may or may not")
    assert "asking for 1 s more, `millrace cluster status` shows" in appending.err
    reading = start_process(
        "log", "read", "events", "--from", "-1", "--format", "raw", cluster=four
    )
    told = reading.stderr.readline().decode()
    assert told.startswith("waiting at e1n2 for what was appended there to be stored")
    assert "`millrace reader explain events --from e1n2` tells more" in told
    assert "release: not all up to e1n2 is released" in explained(alone)
    four.start(dead[:1])
    assert reading.communicate(timeout=WAIT_S) == (b"held back\n", b"")
    assert reading.returncode == 0
    assert "tail: all was read" in explained(alone)


@pytest.mark.parametrize("write_path", ["chain", "sequenced", "commit"])
def test_what_was_not_appended_is_not_said_to_be_stored(
    millrace: Command, cluster: LocalCluster, write_path: str
) -> None:
    name = f"waited-{write_path}"
    assert millrace("log", "create", name, "--write-path", write_path).code == 0
    millrace("log", "append", name, *"ab")
    until, place = ("e1n9", "e1n3") if write_path == "sequenced" else ("9", "3")
    reading = start_process(
        "log", "read", name, "--until", until, "--format", "raw", cluster=cluster
    )
    told = reading.stderr.readline().decode()
    millrace("log", "append", name, *"cdefgh")
    assert reading.communicate(timeout=WAIT_S) == (b"a\nb\nc\nd\ne\nf\ng\nh\n", b"")
    assert told.startswith(f"waiting at {place}: nothing is readable there yet; Ctrl-C ends")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            {"waits_for": "authority", "waits_for_nodes": [5, 2]},
            "enough nodes to say what is there, of nodes 2, 5",
        ),
        ({"waits_for": "senders", "waits_for_nodes": [3]}, "the next block, of nodes 3"),
        (
            {"waits_for": "tail", "waits_for_nodes": [1, 2]},
            "what was appended there to be stored on enough nodes and released",
        ),
        ({"waits_for": "repair"}, "what was appended there to be completed, or given up"),
        ({"waits_for": "reconnect"}, "reconnect"),
    ],
    ids=["too few nodes", "a node", "a release", "a hole", "of another kind of log"],
)
def test_what_is_waited_for(told: dict[str, Any], words: str) -> None:
    assert waited_for(told) == words
