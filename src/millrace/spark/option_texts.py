"""How texts of options become values, the same for every source and sink.

An option that is not known, or whose value makes no sense, is refused here, in the driver, with a
message that names it and says what would be right: a typo must not silently read something else.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec

from millrace.errors import UsageError
from millrace.types import LSN_MAX

T = TypeVar("T")
Word = TypeVar("Word", bound=Enum)

WAIT_MS_MAX: Final = 60_000
TIMEOUT_MS_MAX: Final = 3_600_000
# Spark's own, passed to every source: they concern Spark.
_SPARKS: Final = frozenset({"checkpointlocation", "queryname"})


class Option(msgspec.Struct, frozen=True):
    """One option, as the reference page shows it."""

    name: str
    meaning: str
    default: str
    aliases: tuple[str, ...] = ()
    only: str = ""  # "read" or "readStream"; empty: both.


# -- Which options are given ------------------------------------------------------------------


def named(given: Mapping[str, str], known: Sequence[Option]) -> dict[str, str]:
    """The values by their documented names; an unknown or doubled one is refused."""
    values: dict[str, str] = {}
    names = {each.lower(): one.name for one in known for each in (one.name, *one.aliases)}
    for word, value in given.items():
        name = names.get(word.lower())
        if name is None:
            if word.lower() in _SPARKS:
                continue
            raise UsageError(_unknown(word, names))
        if name in values and values[name] != value:
            raise UsageError(f"the option {name} is given twice, as {values[name]!r} and {value!r}")
        values[name] = value
    return values


def _unknown(word: str, names: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(word.lower(), [*names], n=1)
    hint = f"; did you mean {names[close[0]]}?" if close else ""
    listed = ", ".join(dict.fromkeys(names.values()))
    return f"there is no option {word!r}{hint} (options: {listed})"


def cluster_of(values: Mapping[str, str]) -> str:
    if not values.get("cluster", "").strip():
        raise UsageError(
            "the option cluster is missing: give the addresses of some nodes, "
            'for example .option("cluster", "127.0.0.1:7701")'
        )
    return values["cluster"].strip()


def refuse_others(known: Sequence[Option], given: Collection[str], use: str) -> None:
    """Those that mean nothing to this `use`, "read" or "readStream"."""
    for each in known:
        if each.name in given and each.only not in ("", use):
            raise UsageError(
                f"the option {each.name} has no meaning for spark.{use}: it belongs to "
                f"spark.{each.only}; remove it"
            )


# -- What they say ----------------------------------------------------------------------------


class Read:
    """Turns texts into values; what cannot be turned is refused with the option's name."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __call__(self, name: str, convert: Callable[[str], T], default: T) -> T:
        text = self._values.get(name)
        if text is None:
            return default
        try:
            return convert(text.strip())
        except ValueError as problem:
            raise UsageError(f"the option {name} cannot be {text!r}: {problem}") from None


def boolean(text: str) -> bool:
    words = {"true": True, "false": False}
    if text.lower() not in words:
        raise ValueError("give true or false")
    return words[text.lower()]


def positive(text: str) -> int | Any:
    number = count(text)
    if number == 0:
        raise ValueError("give a whole number above 0")
    return number


def count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > LSN_MAX:
        raise ValueError("give a whole number, 0 or more")
    return int(text)


def wait(text: str) -> int:
    number = count(text)
    if number > WAIT_MS_MAX:
        raise ValueError(
            f"give at most {WAIT_MS_MAX}: a query that waits longer cannot be stopped meanwhile"
        )
    return number


def timeout_ms(text: str) -> int:
    number = int(positive(text))
    if number > TIMEOUT_MS_MAX:
        raise ValueError(f"give at most {TIMEOUT_MS_MAX}, an hour")
    return number


def word_of(kind: type[Word]) -> Callable[[str], Word | Any]:
    """One of the values of an enum, in any case."""

    def read(text: str) -> Word:
        try:
            return kind(text.lower())
        except ValueError:
            raise ValueError(f"give {_either(each.value for each in kind)}") from None

    return read


def _either(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
