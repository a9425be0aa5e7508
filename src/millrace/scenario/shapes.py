"""How messages are written as lines, both ways, from a table: a vocabulary.

A line is the message's word, then its required parts in order, then its keywords in any order.
Details, copysets and log numbers are left out: a scenario is about one log, and details are prose
that may be reworded.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from millrace.core.messages import Message, Refusal
from millrace.core.procedure import Answer, Failure, FailureKind
from millrace.scenario import words as w
from millrace.scenario.text import Words
from millrace.types import Ack, LogId

_REQUIRED: Final = object()
FAILS_USAGE: Final = "fails " + "|".join(kind.value for kind in FailureKind)


class Kind(msgspec.Struct, frozen=True):
    """How one value is read and shown; `hint` is its name in usage lines."""

    hint: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str]
    is_list: bool = False


def of_enum(hint: str, enum: Any) -> Kind:
    return Kind(hint, enum, lambda value: str(value.value))


# Values that messages of all kinds of logs have.
NUMBER = Kind("N", int, str)
LSN = Kind("LSN", w.parse_lsn, w.show_lsn)
BLOCK = Kind("BLOCK", w.parse_block, w.show_block)
BLOCKS = Kind("BLOCK...", w.parse_block, w.show_block, is_list=True)
RANGE = Kind("[FIRST,END)", w.parse_range, lambda pair: w.show_range(*pair))
NODE = Kind("NODE", w.parse_node, w.show_node)
NODES = Kind("NODE...", w.parse_node, w.show_node, is_list=True)
ACK = of_enum("disk|memory", Ack)
REASON = of_enum("REASON", Refusal)


class Part(msgspec.Struct, frozen=True):
    """One or two fields of a message: a pair when it is a range."""

    keyword: str
    fields: tuple[str, ...]
    kind: Kind
    default: Any = _REQUIRED

    @property
    def is_required(self) -> bool:
        return self.default is _REQUIRED

    @property
    def usage(self) -> str:
        text = " ".join(filter(None, (self.keyword, self.kind.hint)))
        return text if self.is_required else f"[{text}]"


def bare(field: str, kind: Kind) -> Part:
    return Part("", (field,), kind)


def key(keyword: str, kind: Kind, default: Any = _REQUIRED, field: str = "") -> Part:
    return Part(keyword, (field or keyword,), kind, default)


def span(*fields: str, kind: Kind, keyword: str = "", default: Any = _REQUIRED) -> Part:
    return Part(keyword, fields, kind, default)


class Shape(msgspec.Struct, frozen=True):
    word: str
    message: type[Message]
    parts: tuple[Part, ...]

    @property
    def usage(self) -> str:
        return " ".join([self.word, *(part.usage for part in self.parts)])


class Vocabulary:
    def __init__(self, shapes: Iterable[Shape]) -> None:
        self.shapes: Final = tuple(shapes)
        self.by_word: Final = {shape.word: shape for shape in self.shapes}
        self._by_type: Final = {shape.message: shape for shape in self.shapes}

    def show(self, message: Message) -> str:
        shape = self._by_type[type(message)]
        shown = [shape.word]
        for part in shape.parts:
            values = tuple(getattr(message, field) for field in part.fields)
            value = values if len(values) > 1 else values[0]
            if not part.is_required and value == part.default:
                continue
            if part.keyword:
                shown.append(part.keyword)
            shown += map(part.kind.show, value) if part.kind.is_list else [part.kind.show(value)]
        return " ".join(shown)

    def show_answer(self, answer: Answer) -> str:
        return f"fails {answer.kind.value}" if isinstance(answer, Failure) else self.show(answer)

    def take_message(self, words: Words, log: LogId = w.LOG) -> Message:
        """The rest of a line, which must be a message."""
        word = words.take("a message")
        shape = self.by_word.get(word)
        if shape is None:
            words.fail(f"expected a message, found {word!r}; known: {', '.join(self.by_word)}")
        fields: dict[str, Any] = {}
        if "log" in shape.message.__struct_fields__:
            fields["log"] = log
        if "copyset" in shape.message.__struct_fields__:
            fields["copyset"] = ()
        for part in shape.parts:
            if not part.keyword:
                _store(fields, part, words.parse(part.kind.hint, part.kind.parse))
        _take_keywords(words, shape, fields)
        for part in shape.parts:
            if part.fields[0] not in fields:
                if part.is_required:
                    words.fail(f"expected {part.usage}: {shape.usage}")
                _store(fields, part, part.default)
        return shape.message(**fields)

    def take_answer(self, words: Words, log: LogId = w.LOG) -> Answer:
        if words.option("fails"):
            return Failure(words.parse(FAILS_USAGE, FailureKind))
        return self.take_message(words, log)


def _take_keywords(words: Words, shape: Shape, fields: dict[str, Any]) -> None:
    keywords = {part.keyword: part for part in shape.parts if part.keyword}
    while words:
        keyword = words.take("a keyword")
        part = keywords.get(keyword)
        if part is None:
            words.fail(f"found {keyword!r}, expected: {shape.usage}")
        if not part.kind.is_list:
            _store(fields, part, words.parse(part.kind.hint, part.kind.parse))
            continue
        values = []
        while words and words.peek() not in keywords:
            values.append(words.parse(part.kind.hint, part.kind.parse))
        _store(fields, part, tuple(values))


def _store(fields: dict[str, Any], part: Part, value: Any) -> None:
    if len(part.fields) == 1:
        fields[part.fields[0]] = value
    else:
        fields.update(zip(part.fields, value, strict=True))
