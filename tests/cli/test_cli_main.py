"""The command line itself: options, exit codes, help."""

import pytest

from millrace import __version__
from millrace.cli.main import hoist
from tests.cli.commands import Command


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("log ls --cluster a:1", "--cluster a:1 log ls"),
        ("log ls --timeout=5s --no-color", "--timeout=5s --no-color log ls"),
        ("log append l -- --cluster", "log append l -- --cluster"),
        ("log ls --cluster", "log ls --cluster"),
    ],
)
def test_global_options_may_stand_anywhere(line: str, expected: str) -> None:
    assert hoist(line.split()) == expected.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("log creat x", "No such command"),
        ("log create", "Missing argument"),
        ("log ls --colour", "No such option"),
        ("log ls --format xml", "xml"),
        ("log create x --retention 7x", "not a duration: write 7d"),
        ("log create x --retention-bytes lots", "not a size: write 10GiB"),
        ("log create x --copies three", "--copies"),
        ("log create x --ack never", "never"),
        ("log get x zero", "not a position"),
        ("log ls --timeout soon", "not a duration"),
        ("bench append --count 0", "--count"),
        ("node run", "Missing argument"),
    ],
)
def test_a_wrong_line_is_exit_code_2(alone: Command, line: str, words: str) -> None:
    ran = alone(*line.split())
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert words in ran.err
    assert "--help` shows" in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("line", ["--help", "log --help", "log append -h", "sim run --help"])
def test_help_is_asked_for(alone: Command, line: str) -> None:
    ran = alone(*line.split())
    assert ran.code == 0
    assert "Usage: millrace" in ran.out


def test_a_noun_alone_shows_its_help(alone: Command) -> None:
    ran = alone("log")
    assert ran.code == 2
    assert "append" in ran.out + ran.err


def test_version(alone: Command) -> None:
    assert alone("--version").out == f"millrace {__version__}\n"


def test_no_cluster_named(alone: Command) -> None:
    alone("log", "ls").refused_with("--cluster", "MILLRACE_CLUSTER", "millrace dev up")


def test_no_node_reachable(alone: Command) -> None:
    ran = alone("log", "ls", "--cluster", "127.0.0.1:1", "--timeout", "2s")
    ran.failed_with("no node of the cluster answers", "127.0.0.1:1", "millrace dev up")


def test_what_is_not_an_address(alone: Command) -> None:
    alone("log", "ls", "--cluster", "nonsense").refused_with("nonsense")


def test_no_local_cluster(alone: Command) -> None:
    for verb in ("status", "down"):
        alone("dev", verb).refused_with("no local cluster", "millrace dev up")
