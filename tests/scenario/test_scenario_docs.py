"""docs/scenarios.md says everything the runner knows, and its examples are true."""

import re
from pathlib import Path

import pytest

from millrace.scenario import MACHINES, run_text
from millrace.scenario.chain_machine import CLIENT_ACTIONS
from millrace.scenario.commit_machine import ACTIONS, CHANGES
from millrace.scenario.commit_speech import SHAPES as COMMIT_SHAPES
from millrace.scenario.speech import SHAPES

PAGE = Path(__file__).parents[2] / "docs" / "scenarios.md"
TEXT = PAGE.read_text(encoding="utf-8").replace("\\|", "|")
EXAMPLES = re.findall(r"```scenario\n(.*?)```", TEXT, re.DOTALL)


def usages() -> list[tuple[str, str]]:
    known = [("message", shape.usage) for shape in (*SHAPES, *COMMIT_SHAPES)]
    known += [("client", action) for action in CLIENT_ACTIONS]
    known += [("operator", action) for action in ACTIONS]
    known += [("tamper", change) for change in CHANGES]
    for name, make in MACHINES.items():
        machine = make()
        known += [(name, setting.usage) for setting in machine.settings()]
        known += [(name, command.usage) for command in machine.commands()]
    return known


@pytest.mark.parametrize(("owner", "usage"), usages(), ids=lambda word: word.split()[0])
def test_every_command_setting_and_message_is_documented(owner: str, usage: str) -> None:
    written = re.compile(rf"(^|`){re.escape(usage)}(`|$)", re.MULTILINE)
    assert written.search(TEXT), f"{owner}: {usage}"


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_has_an_example(name: str) -> None:
    assert any(f"machine {name}\n" in example for example in EXAMPLES)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_run(number: int) -> None:
    result = run_text(EXAMPLES[number], f"docs/scenarios.md, example {number + 1}")
    assert result.has_passed, result.diff
