"""The runner itself: what it takes, what it refuses, and how it says where something differs."""

import io
from pathlib import Path

import pytest

from millrace.errors import BadScenario
from millrace.scenario import run_file, run_paths, run_text

GOOD = """# A sequencer.
machine sequencer

# Begin.
bootstrap epoch 1 next 5
----
reply bootstrapped 5 since 1

next 2 epoch 1
peek epoch 1
----
reply issued 5..6
reply peeked 6
"""


def test_a_file_that_holds() -> None:
    result = run_text(GOOD)
    assert result.has_passed
    assert result.steps == 2
    assert result.rewritten == GOOD


def test_a_difference_is_shown_with_file_and_line() -> None:
    result = run_text(GOOD.replace("issued 5..6", "issued 7..8"), "some.txt")
    assert not result.has_passed
    assert "some.txt:12" in result.diff
    assert "-reply issued 7..8" in result.diff
    assert "+reply issued 5..6" in result.diff
    assert " reply peeked 6" in result.diff


def test_a_missing_and_a_surplus_line_are_differences() -> None:
    assert "+reply peeked 6" in run_text(GOOD.replace("reply peeked 6\n", "")).diff
    assert "-reply more" in run_text(GOOD + "reply more\n").diff


def test_rewriting_keeps_everything_but_what_is_caused() -> None:
    wrong = GOOD.replace("reply bootstrapped 5 since 1", "reply nothing").replace(
        "reply peeked 6\n", ""
    )
    assert run_text(wrong).rewritten == GOOD


def test_rewriting_is_stable() -> None:
    empty = "machine sequencer\n\nbootstrap epoch 1 next 1\n----\n\nnext 1 epoch 1\n----\n"
    first = run_text(empty).rewritten
    assert run_text(first).has_passed
    assert run_text(first).rewritten == first


BAD = {
    "empty": ("", "scenario:1", "expected `machine NAME`"),
    "only comments": ("# nothing\n", "scenario:1", "expected `machine NAME`"),
    "no machine": ("hello\n", "scenario:1", "expected `machine NAME`"),
    "unknown machine": ("machine mill\n", "scenario:1", "known: chain, chain-node"),
    "machine without name": ("machine\n", "scenario:1", "expected the name of a machine"),
    "unknown setting": ("machine chain\nnode 3\n", "scenario:2", "nodes N [spares N]"),
    "bad setting": ("machine chain\nnodes x\n", "scenario:2", "expected a number of nodes"),
    "rule in set-up": ("machine chain\nstate\n----\n", "scenario:3", "expected an empty line"),
    "step without rule": ("machine chain\n\nstate\n", "scenario:3", "expected `----`"),
    "rule without event": ("machine chain\n\n----\nx\n", "scenario:3", "expected an event"),
    "unknown command": ("machine sequencer\n\nnxet 1\n----\n", "scenario:3", "next N epoch N"),
    "missing part": ("machine sequencer\n\nnext 1\n----\n", "scenario:3", "expected epoch N"),
    "bad number": ("machine sequencer\n\nnext x epoch 1\n----\n", "scenario:3", "expected N"),
    "unknown keyword": (
        "machine sequencer\n\nnext 1 epoch 1 twice\n----\n",
        "scenario:3",
        "found 'twice'",
    ),
    "surplus word": ("machine chain\n\nstate now\n----\n", "scenario:3", "end of the line"),
    "open quote": ('machine chain\n\nclient A append "x\n----\n', "scenario:3", "quotation"),
    "bad block": (
        "machine chain-node\n\nwrite 5..4 epoch 1\n----\n",
        "scenario:3",
        "expected BLOCK",
    ),
    "too few values": (
        "machine chain-node\n\nwrite 5..6=x epoch 1\n----\n",
        "scenario:3",
        "expected BLOCK",
    ),
    "no such settle": ("machine chain-node\n\nsettled 3\n----\n", "scenario:3", "no settle 3"),
    "answer to nothing": (
        "machine append\n\nanswer SN1 written\n----\n",
        "scenario:3",
        "nothing runs",
    ),
    "wrong answer": (
        "machine append\n\nappend x\npaused\n----\n",
        "scenario:4",
        "ask SQ next 1 epoch 1",
    ),
    "answer of a node not asked": (
        "machine append\n\nappend x\nanswer SN1 written\n----\n",
        "scenario:4",
        "SN1 was asked nothing",
    ),
    "no such node": ("machine chain\n\nfail SN9\n----\n", "scenario:3", "there is no SN9"),
    "unknown action": (
        "machine chain\n\nclient A jump\n----\n",
        "scenario:3",
        "[begin] append VALUE",
    ),
    "idle client": ("machine chain\n\nclient A step\n----\n", "scenario:3", "is doing nothing"),
    "no such stream": (
        "machine commit-log\n\nappend x stream 9\n----\n",
        "scenario:3",
        "there is no stream 9",
    ),
    "bad report": (
        "machine commit-log\n\nreport SN1 1(v1)\n----\n",
        "scenario:3",
        "expected a report",
    ),
    "bad commits": (
        "machine commit-log\n\nsend SN1 commit version 1 high 1 streams 1(x)\n----\n",
        "scenario:3",
        "expected COMMITS",
    ),
    "bad context": (
        "machine commit-log\n\nsend SN1 sync-init 1 [1,2) from SN2 context (v1,1,1,1)\n----\n",
        "scenario:3",
        "expected CONTEXT",
    ),
    "bad flag": (
        "machine commit-log\n\nsend SN1 sync-range [1,2) complete maybe\n----\n",
        "scenario:3",
        "expected yes|no",
    ),
    "unknown operation": (
        "machine commit-log\n\noperator jump\n----\n",
        "scenario:3",
        "join NODE [stream N]",
    ),
    "tampering with a node that is up": (
        "machine commit-log\n\ntamper SN1 context none\n----\n",
        "scenario:3",
        "crash it first",
    ),
    "unknown tampering": (
        "machine commit-log\n\ncrash SN1\ntamper SN1 lose 5\n----\n",
        "scenario:4",
        "lose [FIRST,END)",
    ),
    "no such server": ("machine documents\nservers A\n\nflush B\n----\n", "scenario:4", "known: A"),
    "a server that is gone": (
        "machine documents\nservers A\n\ncrash A\nflush A\n----\n",
        "scenario:5",
        "A is gone",
    ),
    "restart of a server that is up": (
        "machine documents\nservers A\n\nrestart A\n----\n",
        "scenario:4",
        "crash it first",
    ),
    "changes at a replica": (
        "machine documents\nservers A\n\nset A k\n----\n",
        "scenario:4",
        "takes no changes",
    ),
    "a stream that is not open": (
        "machine documents\nservers A,B\n\npromote A 1\nconnect B A\ndeliver B\n----\n",
        "scenario:6",
        "let it proceed",
    ),
    "a replica that follows nobody": (
        "machine documents\nservers A\n\nproceed A\n----\n",
        "scenario:4",
        "connect it first",
    ),
    "bad failover log": (
        "machine failover-log\n\nmaster cafe@0,dead@5\n----\n",
        "scenario:3",
        "expected a log",
    ),
    "no failover id": ("machine failover-log\n\nbegin 0 at 1\n----\n", "scenario:3", "an id"),
    "client without its place": (
        "machine failover-log\n\nclient none seen 1\n----\n",
        "scenario:3",
        "snapshot SEQ seen SEQ",
    ),
    "finish of nothing": ("machine barriers\n\nfinish\n----\n", "scenario:3", "begin first"),
    "bad snapshot": (
        "machine change-stream\nbegins replica\n\narrive (5,3] k@4\n----\n",
        "scenario:4",
        "a snapshot such as",
    ),
    "change outside its snapshot": (
        "machine change-stream\nbegins replica\n\narrive (0,3] k@4\n----\n",
        "scenario:4",
        "beyond the snapshot",
    ),
    "unknown flag": ("machine change-stream\n\nrequest backwards\n----\n", "scenario:3", "[FLAG"),
    "an id that was used": (
        "machine change-stream\n\npromote cafebabe\n----\n",
        "scenario:3",
        "names the history before",
    ),
    "no such partition": (
        "machine change-stream\n\nflush partition 3\n----\n",
        "scenario:3",
        "there is no partition 3",
    ),
    "busy client": (
        "machine chain\n\nclient A begin append x\nclient A append y\n----\n",
        "scenario:4",
        "is busy",
    ),
}


@pytest.mark.parametrize(("source", "place", "detail"), BAD.values(), ids=BAD)
def test_a_bad_file_says_where_and_what_was_expected(source: str, place: str, detail: str) -> None:
    with pytest.raises(BadScenario) as caught:
        run_text(source)
    assert place in str(caught.value)
    assert detail.lower() in str(caught.value).lower()


def test_files_and_directories(tmp_path: Path) -> None:
    good, wrong, bad = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "sub" / "c.txt"
    good.write_text(GOOD)
    wrong.write_text(GOOD.replace("peeked 6", "peeked 7"))
    out = io.StringIO()
    assert run_paths([tmp_path], False, out) == 1
    assert f"pass  {good} (2 steps)" in out.getvalue()
    assert f"fail  {wrong}" in out.getvalue()
    assert "+reply peeked 6" in out.getvalue()

    bad.parent.mkdir()
    bad.write_text("machine mill\n")
    out = io.StringIO()
    assert run_paths([tmp_path], False, out) == 2
    assert f"bad   {bad}:1" in out.getvalue()

    bad.unlink()
    out = io.StringIO()
    assert run_paths([tmp_path], True, out) == 0
    assert f"wrote {wrong} (2 steps)" in out.getvalue()
    assert wrong.read_text() == GOOD
    assert run_paths([good, wrong], False, io.StringIO()) == 0


def test_no_files_is_not_a_success(tmp_path: Path) -> None:
    assert run_paths([tmp_path], False, io.StringIO()) == 2


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadScenario, match="cannot be read"):
        run_file(tmp_path / "missing.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    assert run_paths([tmp_path / "binary.txt"], False, io.StringIO()) == 2
