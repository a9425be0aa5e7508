"""What the runner knows of a machine: its settings, its commands, and how to say them."""

from collections.abc import Callable
from typing import ClassVar

import msgspec

from millrace.scenario.text import Words


class Command(msgspec.Struct, frozen=True):
    usage: str  # As it stands in docs/scenarios.md; its first word is the command's.
    run: Callable[[Words], list[str]]

    @property
    def word(self) -> str:
        return self.usage.split()[0]


class Setting(msgspec.Struct, frozen=True):
    usage: str
    run: Callable[[Words], None]

    @property
    def word(self) -> str:
        return self.usage.split()[0]


class Machine:
    """Subclasses give their settings and commands; the runner finds them by their word."""

    name: ClassVar[str]

    def settings(self) -> list[Setting]:
        return []

    def commands(self) -> list[Command]:
        raise NotImplementedError

    def set_up(self, words: Words) -> None:
        known = {setting.word: setting for setting in self.settings()}
        word = words.take("a setting")
        setting = known.get(word)
        if setting is None:
            words.fail(
                f"machine {self.name} has no setting {word!r}; known: "
                + _listing([one.usage for one in known.values()])
            )
        setting.run(words)
        words.finish()

    def perform(self, words: Words) -> list[str]:
        known = {command.word: command for command in self.commands()}
        word = words.take("a command")
        command = known.get(word)
        if command is None:
            words.fail(
                f"machine {self.name} has no command {word!r}; known: "
                + _listing([one.usage for one in known.values()])
            )
        output = command.run(words)
        words.finish()
        return output


def _listing(usages: list[str]) -> str:
    return "".join(f"\n      {usage}" for usage in usages) or "none"
