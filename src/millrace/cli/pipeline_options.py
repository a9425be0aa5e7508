"""The options of a kind of pipelines, from the struct of its settings.

A field `group_by` is the option `--group-by`; `is_` and `has_` in front of a flag are left out, and
a flag that is set by default is `--no-` something.  The option's help is the field's description
(`msgspec.Meta`), or the comment behind it in its source.  Values are checked by the struct itself.

I1  An option that was not given is not there: a pipeline that was run before keeps what it has.
"""

import enum
import inspect
import io
import tokenize
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from millrace.errors import UsageError

CLUSTER: Final = "cluster"  # A global option, so no option of its own.
FOLDER_SUFFIX: Final = "folder"  # Of fields that are paths.
FLAG_PREFIXES: Final = ("is_", "has_")


@dataclass(frozen=True, slots=True)
class Setting:
    """A field as an option."""

    field: str
    option: str
    kind: Any  # Its type without `Annotated` and `None`.
    default: Any  # msgspec.NODEFAULT if it must be given.
    help: str

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.kind) in (list, tuple, set, frozenset, dict)

    def parameter(self) -> inspect.Parameter:
        """As Typer wants it, None if it is not given."""
        is_flag = self.kind is bool
        option = typer.Option(
            self.option,
            help=self._help(),
            metavar=None if is_flag else self._metavar(),
            show_default=False if is_flag else self._shown_default(),
        )
        shown: Any = bool if is_flag else list[str] if self.is_list else str
        annotation = Annotated[shown | None, option]
        return inspect.Parameter(
            self.field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )

    def parsed(self, value: Any) -> Any:
        """What the struct is given for what was typed."""
        origin = typing.get_origin(self.kind)
        if origin is dict:
            pairs = [text.partition("=") for text in value]
            if not all(equals for _, equals, _ in pairs):
                raise UsageError(f"{self.option} is NAME=VALUE")
            return {name: text for name, _, text in pairs}
        if self.kind is bool:
            return value is not self.default  # Given, it says the opposite of the default.
        if self.field.endswith(FOLDER_SUFFIX):
            return str(Path(value).absolute())  # The pipeline may be run again from elsewhere.
        is_structured = isinstance(self.kind, type) and issubclass(self.kind, msgspec.Struct)
        return msgspec.json.decode(value) if is_structured else value

    def _help(self) -> str:
        if self.kind is bool and self.default is True:
            return f"Not: {self.help}"
        return f"{self.help} Repeat for more." if self.is_list else self.help

    def _metavar(self) -> str:
        inner = typing.get_args(self.kind)[0] if self.is_list else self.kind
        if typing.get_origin(self.kind) is dict:
            return "NAME=VALUE"
        if typing.get_origin(inner) is Literal:
            return "|".join(str(value) for value in typing.get_args(inner))
        if isinstance(inner, type) and issubclass(inner, enum.Enum):
            return "|".join(str(member.value) for member in inner)
        return {int: "NUMBER", float: "NUMBER"}.get(inner, "TEXT")

    def _shown_default(self) -> str | bool:
        if self.default is msgspec.NODEFAULT:
            return "required"
        value = getattr(self.default, "value", self.default)
        return False if value in (None, "", (), [], {}) else str(value)


def settings_of(struct: type[msgspec.Struct]) -> list[Setting]:
    hints = typing.get_type_hints(struct, include_extras=True)
    comments = field_comments(struct)
    found = []
    for field in msgspec.structs.fields(struct):
        hint, description = _described(hints[field.name])
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        kind = _without_none(hint)
        option = _option(field.name, is_flag=kind is bool, is_set=default is True)
        help = description or comments.get(field.name, "")
        found.append(Setting(field.name, option, kind, default, help))
    return found


def settle(
    struct: type[msgspec.Struct], given: Mapping[str, Any], before: Mapping[str, Any]
) -> dict[str, Any]:
    """All settings, as they are kept: what is given over what was asked for before."""
    known = {setting.field: setting for setting in settings_of(struct)}
    parsed = {field: known[field].parsed(value) for field, value in given.items()}
    missing = [
        known[field].option
        for field in known
        if known[field].default is msgspec.NODEFAULT and field not in {*before, *parsed}
    ]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be given")
    try:
        converted = msgspec.convert({**before, **parsed}, struct, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(_in_words(str(error), known)) from None
    kept: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(converted))
    return kept


def field_comments(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What is written behind each field in its source, and in the lines below that are comments."""
    found: dict[str, str] = {}
    for parent in reversed(struct.__mro__):
        if issubclass(parent, msgspec.Struct) and parent is not msgspec.Struct:
            found.update(_comments(inspect.getsource(parent)))
    return found


def _comments(source: str) -> Iterator[tuple[str, str]]:
    lines = inspect.cleandoc("\n" + source).splitlines()
    name, words = "", ""
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        if token.type != tokenize.COMMENT:
            continue
        before = lines[token.start[0] - 1][: token.start[1]].strip()
        text = token.string.lstrip("#: ")
        if before:
            if name:
                yield name, words
            name, words = before.partition(":")[0].strip(), text
        elif name:
            words = f"{words} {text}"
    if name:
        yield name, words


def _described(hint: Any) -> tuple[Any, str]:
    if typing.get_origin(hint) is not Annotated:
        return hint, ""
    inner, *notes = typing.get_args(hint)
    said = [note.description for note in notes if isinstance(note, msgspec.Meta)]
    return inner, next((text for text in said if text), "")


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    rest = [each for each in typing.get_args(hint) if each is not type(None)]
    return rest[0] if len(rest) == 1 else str


def _option(field: str, *, is_flag: bool, is_set: bool) -> str:
    if is_flag:
        for prefix in FLAG_PREFIXES:
            field = field.removeprefix(prefix)
    return ("--no-" if is_set else "--") + field.replace("_", "-")


def _in_words(message: str, known: Mapping[str, Setting]) -> str:
    """`Expected `int`, got `str` - at `$.shards`` names the option and not the field."""
    what, _, where = message.partition(" - at `$.")
    field = where.rstrip("`").partition("[")[0]
    return f"{known[field].option}: {what}" if field in known else message
