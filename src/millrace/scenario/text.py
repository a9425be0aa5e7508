"""The shape of a scenario file, whatever machine it drives.

    # comment
    machine NAME
    setting ...

    event ...
    event ...
    ----
    what the events caused, one line each

Paragraphs are separated by empty lines.  The first one names the machine and sets it up; every
other one is a step.  A paragraph of comments alone belongs to nobody and is kept when a file is
rewritten.
"""

import shlex
from collections.abc import Callable
from typing import NoReturn, TypeVar

import msgspec

from millrace.errors import BadScenario

RULE = "----"
NOTHING = "(nothing)"
T = TypeVar("T")


class Place(msgspec.Struct, frozen=True):
    """Where a line stands, for messages to a person."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Words:
    """One line, read word by word; every complaint says where and what was expected."""

    def __init__(self, place: Place, text: str) -> None:
        self.place = place
        self.text = text
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise BadScenario(f"{place}: {error}: {text}") from error
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._words)

    def peek(self) -> str | None:
        return self._words[self._at] if self else None

    def take(self, expected: str) -> str:
        if not self:
            self.fail(f"expected {expected} at the end of the line")
        self._at += 1
        return self._words[self._at - 1]

    def parse(self, expected: str, parse: Callable[[str], T]) -> T:
        word = self.take(expected)
        try:
            return parse(word)
        except ValueError:
            self.fail(f"expected {expected}, found {word!r}")

    def number(self, expected: str) -> int:
        return self.parse(expected, int)

    def option(self, keyword: str) -> bool:
        """Take `keyword` if it is next."""
        if self.peek() != keyword:
            return False
        self._at += 1
        return True

    def finish(self) -> None:
        if self:
            self.fail(f"expected the end of the line, found {self.peek()!r}")

    def fail(self, detail: str) -> NoReturn:
        raise BadScenario(f"{self.place}: {detail}\n    {self.text}")


class Step(msgspec.Struct, frozen=True):
    events: tuple[Words, ...]
    expected: tuple[str, ...]
    place: Place  # Of the first expected line.


class Scenario(msgspec.Struct, frozen=True):
    machine: Words
    settings: tuple[Words, ...]
    steps: tuple[Step, ...]
    lines: tuple[str, ...]


def parse(text: str, file: str) -> Scenario:
    lines = text.splitlines()
    first: list[Words] | None = None
    steps: list[Step] = []
    for start, paragraph in _paragraphs(lines):
        if first is None:
            first = _commands(file, start, paragraph)
            if RULE in paragraph:
                line = start + paragraph.index(RULE)
                raise BadScenario(
                    f"{Place(file, line)}: expected an empty line between set-up and first step"
                )
        else:
            steps.append(_step(file, start, paragraph))
    if not first:
        raise BadScenario(f"{Place(file, 1)}: expected `machine NAME`, found nothing")
    if first[0].take("`machine NAME`") != "machine":
        first[0].fail("expected `machine NAME`")
    return Scenario(first[0], tuple(first[1:]), tuple(steps), tuple(lines))


def rewrite(scenario: Scenario, outputs: list[list[str]]) -> str:
    """The file with every step's expectation replaced by what happened."""
    lines: list[str] = []
    at = 0
    for step, output in zip(scenario.steps, outputs, strict=True):
        begin = step.place.line - 1
        lines += scenario.lines[at:begin]
        lines += output
        at = begin + len(step.expected)
    lines += scenario.lines[at:]
    return "\n".join(lines) + "\n"


def _paragraphs(lines: list[str]) -> list[tuple[int, list[str]]]:
    """(number of the first line, lines), without those that hold only comments."""
    found: list[tuple[int, list[str]]] = []
    begin = 0
    for at, line in enumerate([*lines, ""]):
        if line.strip():
            continue
        paragraph = lines[begin:at]
        if any(not one.startswith("#") for one in paragraph):
            found.append((begin + 1, paragraph))
        begin = at + 1
    return found


def _commands(file: str, start: int, lines: list[str]) -> list[Words]:
    return [
        Words(Place(file, start + at), line.strip())
        for at, line in enumerate(lines)
        if not line.startswith("#") and line != RULE
    ]


def _step(file: str, start: int, lines: list[str]) -> Step:
    if RULE not in lines:
        end = Place(file, start + len(lines) - 1)
        raise BadScenario(f"{end}: expected `{RULE}` after the events of this step")
    at = lines.index(RULE)
    events = _commands(file, start, lines[:at])
    if not events:
        raise BadScenario(f"{Place(file, start + at)}: expected an event before `{RULE}`")
    return Step(tuple(events), tuple(lines[at + 1 :]), Place(file, start + at + 1))
