"""Settings as options of the command line, and back."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from millrace.cli.pipeline_options import Setting, settings_of, settle
from millrace.errors import UsageError
from millrace.spark.pipelines import KINDS
from millrace.spark.pipelines.kinds import Kind


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    text: str  # What is behind it,
    # and below.
    number: int = 3
    described: Annotated[float, msgspec.Meta(description="As it says.")] = 0.5
    colour: Colour = Colour.RED
    size: Literal["small", "large"] = "small"
    names: tuple[str, ...] = ()
    some_names: tuple[str, ...] | None = None
    positions: dict[str, int] = {}
    is_quick: bool = False
    has_ends: bool = True
    folder: str = ""


FIELDS = {setting.field: setting for setting in settings_of(Asked)}


@pytest.mark.parametrize(
    ("field", "option", "metavar"),
    [
        pytest.param("text", "--text", "TEXT", id="text"),
        pytest.param("number", "--number", "NUMBER", id="number"),
        pytest.param("colour", "--colour", "red|blue", id="enum"),
        pytest.param("size", "--size", "small|large", id="literal"),
        pytest.param("some_names", "--some-names", "TEXT", id="many, or none"),
        pytest.param("positions", "--positions", "NAME=VALUE", id="pairs"),
        pytest.param("is_quick", "--quick", None, id="flag"),
        pytest.param("has_ends", "--no-ends", None, id="flag that is set"),
    ],
)
def test_a_field_is_an_option(field: str, option: str, metavar: str | None) -> None:
    (made,) = FIELDS[field].parameter().annotation.__metadata__
    assert FIELDS[field].option == option
    assert made.metavar == metavar


@pytest.mark.parametrize(
    ("field", "help"),
    [
        pytest.param("text", "What is behind it, and below.", id="comment"),
        pytest.param("described", "As it says.", id="description"),
        pytest.param("number", "", id="nothing is said"),
    ],
)
def test_help_is_what_the_source_says_of_the_field(field: str, help: str) -> None:
    assert FIELDS[field].help == help


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param({"number": "7"}, {"number": 7}, id="number"),
        pytest.param({"colour": "blue"}, {"colour": "blue"}, id="enum"),
        pytest.param({"names": ["a", "b"]}, {"names": ["a", "b"]}, id="many"),
        pytest.param({"positions": ["a=1", "b=2"]}, {"positions": {"a": 1, "b": 2}}, id="pairs"),
        pytest.param({"is_quick": True}, {"is_quick": True}, id="flag"),
        pytest.param({"has_ends": True}, {"has_ends": False}, id="flag that takes back"),
        pytest.param({"folder": "x"}, {"folder": str(Path.cwd() / "x")}, id="folder"),
    ],
)
def test_what_was_typed_is_kept_as_json(given: dict[str, Any], kept: dict[str, Any]) -> None:
    whole = settle(Asked, {"text": "t", **given}, {})
    assert {field: whole[field] for field in kept} == kept
    assert settle(Asked, {}, whole) == whole  # And run again it is the same.


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({}, "--text must be given", id="missing"),
        pytest.param({"text": "t", "number": "x"}, "--number: Expected `int`", id="no number"),
        pytest.param({"text": "t", "colour": "grey"}, "--colour: Invalid enum value", id="enum"),
        pytest.param({"text": "t", "positions": ["a"]}, "--positions is NAME=VALUE", id="no pair"),
    ],
)
def test_what_is_wrong_is_told_by_the_option(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        settle(Asked, given, {})


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_option_of_every_kind_says_what_it_is_for(kind: Kind) -> None:
    silent = [each.option for each in settings_of(kind.settings) if not _is_said(each)]
    assert not silent


def _is_said(setting: Setting) -> bool:
    return setting.help.endswith(".")
