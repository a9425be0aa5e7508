"""Runs scenario files and says where what happened differs from what was expected."""

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TextIO

import msgspec

from millrace.errors import BadScenario
from millrace.scenario import text
from millrace.scenario.appender_machine import AppenderMachine
from millrace.scenario.barriers_machine import BarriersMachine
from millrace.scenario.chain_machine import ChainMachine
from millrace.scenario.change_stream_machine import ChangeStreamMachine
from millrace.scenario.commit_machine import CommitLogMachine
from millrace.scenario.documents_machine import DocumentsMachine
from millrace.scenario.failover_log_machine import FailoverLogMachine
from millrace.scenario.machine import Machine
from millrace.scenario.node_machine import ChainNodeMachine, SendStreamsMachine, SequencerMachine
from millrace.scenario.procedure_machine import (
    AppendMachine,
    KeeperMachine,
    LearnMachine,
    ReconfigureMachine,
    RepairMachine,
)
from millrace.scenario.reader_machine import ReaderMachine
from millrace.scenario.shipping_machine import ShippingMachine
from millrace.scenario.stream_machine import ReadStreamMachine

MACHINES: Final[dict[str, Callable[[], Machine]]] = {
    machine.name: machine
    for machine in (
        ChainMachine,
        ChainNodeMachine,
        SequencerMachine,
        AppendMachine,
        RepairMachine,
        ReconfigureMachine,
        LearnMachine,
        KeeperMachine,
        ReadStreamMachine,
        SendStreamsMachine,
        AppenderMachine,
        ShippingMachine,
        ReaderMachine,
        CommitLogMachine,
        FailoverLogMachine,
        DocumentsMachine,
        BarriersMachine,
        ChangeStreamMachine,
    )
}


class Result(msgspec.Struct, frozen=True):
    """`diff` is empty when everything was as expected; `rewritten` is the file as it would be."""

    file: str
    steps: int
    diff: str
    rewritten: str

    @property
    def has_passed(self) -> bool:
        return not self.diff


def run_text(source: str, file: str = "scenario") -> Result:
    scenario = text.parse(source, file)
    machine = _machine(scenario.machine)
    for setting in scenario.settings:
        machine.set_up(setting)
    outputs = []
    diffs = []
    for step in scenario.steps:
        output = [line for event in step.events for line in machine.perform(event)]
        outputs.append(output or [text.NOTHING])
        diffs += _differ(step, outputs[-1])
    return Result(file, len(outputs), "\n".join(diffs), text.rewrite(scenario, outputs))


def run_file(path: Path, rewrite: bool = False) -> Result:
    """With `rewrite` the file's expectations become what happened."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadScenario(f"{path}: cannot be read: {error}") from error
    result = run_text(source, str(path))
    if rewrite and result.rewritten != source:
        path.write_text(result.rewritten, encoding="utf-8")
    return result


def run_paths(paths: Iterable[Path], rewrite: bool, out: TextIO) -> int:
    """Run files, and all `.txt` files below directories; 0 if all passed, 1 if one differed,
    2 if one could not be understood."""
    code = 0
    files = [file for path in paths for file in _files(path)]
    if not files:
        print("no scenario files", file=out)
        return 2
    for file in files:
        try:
            result = run_file(file, rewrite)
        except BadScenario as error:
            print(f"bad   {error}", file=out)
            code = 2
            continue
        if result.has_passed:
            print(f"pass  {file} ({result.steps} steps)", file=out)
        elif rewrite:
            print(f"wrote {file} ({result.steps} steps)", file=out)
        else:
            print(f"fail  {file}\n{result.diff}", file=out)
            code = max(code, 1)
    return code


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.txt")) if path.is_dir() else [path]


def _machine(words: text.Words) -> Machine:
    name = words.take("the name of a machine")
    make = MACHINES.get(name)
    if make is None:
        words.fail(f"there is no machine {name!r}; known: {', '.join(MACHINES)}")
    words.finish()
    return make()


def _differ(step: text.Step, output: list[str]) -> list[str]:
    if list(step.expected) == output:
        return []
    lines = difflib.unified_diff(
        step.expected, output, f"{step.place} expected", f"{step.place} happened", lineterm="", n=9
    )
    return list(lines)
