"""How messages are written in scenario files, both ways, from one table.

A line is the message's word, then its required parts in order, then its keywords in any order.
Details, copysets and log numbers are left out: a scenario is about one log, and details are prose
that may be reworded.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from millrace.core import messages as m
from millrace.core.learn import FETCH_BYTES_MAX
from millrace.core.procedure import Answer, Failure, FailureKind
from millrace.scenario import words as w
from millrace.scenario.text import Words
from millrace.types import Ack, GapKind, LogId

_REQUIRED: Final = object()


class Kind(msgspec.Struct, frozen=True):
    """How one value is read and shown; `hint` is its name in usage lines."""

    hint: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str]
    is_list: bool = False


class Part(msgspec.Struct, frozen=True):
    """One or two fields of a message: a pair when it is a range."""

    keyword: str
    fields: tuple[str, ...]
    kind: Kind
    default: Any = _REQUIRED

    @property
    def usage(self) -> str:
        text = " ".join(filter(None, (self.keyword, self.kind.hint)))
        return text if self.default is _REQUIRED else f"[{text}]"


class Shape(msgspec.Struct, frozen=True):
    word: str
    message: type[m.Message]
    parts: tuple[Part, ...]

    @property
    def usage(self) -> str:
        return " ".join([self.word, *(part.usage for part in self.parts)])


def _enum(hint: str, enum: Any) -> Kind:
    return Kind(hint, enum, lambda value: str(value.value))


_NUMBER = Kind("N", int, str)
_LSN = Kind("LSN", w.parse_lsn, w.show_lsn)
_BLOCK = Kind("BLOCK", w.parse_block, w.show_block)
_BLOCKS = Kind("BLOCK...", w.parse_block, w.show_block, is_list=True)
_EXTENTS = Kind("EXTENT...", w.parse_extent, w.show_extent, is_list=True)
_RANGE = Kind("[FIRST,END)", w.parse_range, lambda pair: w.show_range(*pair))
_RUN = Kind("FIRST..LAST", w.parse_run, lambda pair: w.show_run(*pair))
_WEIGHTS = Kind("[FIRST,END)=N...", w.parse_weight, w.show_weight, is_list=True)
_SELECTION = Kind("SELECTION", w.parse_selection, w.show_selection)
_TOKEN = Kind("CLIENT.REQUEST", w.parse_token, w.show_token)
_NODE = Kind("NODE", w.parse_node, w.show_node)
_NODES = Kind("NODE...", w.parse_node, w.show_node, is_list=True)
_ACK = _enum("disk|memory", Ack)
_REASON = _enum("REASON", m.Refusal)
_STANDING = _enum("member|blank|dirty", m.Standing)
_GAP = _enum("GAP", GapKind)


def _issued_run(word: str) -> tuple[int, int]:
    first, last = w.parse_run(word)
    return first, last - first + 1


_ISSUED = Kind("FIRST..LAST", _issued_run, lambda pair: w.show_run(pair[0], pair[0] + pair[1] - 1))


def _bare(field: str, kind: Kind) -> Part:
    return Part("", (field,), kind)


def _key(keyword: str, kind: Kind, default: Any = _REQUIRED, field: str = "") -> Part:
    return Part(keyword, (field or keyword,), kind, default)


def _range(*fields: str, keyword: str = "", kind: Kind = _RANGE, default: Any = _REQUIRED) -> Part:
    return Part(keyword, fields, kind, default)


_EPOCH = _key("epoch", _NUMBER)
_NEXT = _key("next", _LSN, field="next_lsn")
_FETCH_BYTES = _key("bytes", _NUMBER, FETCH_BYTES_MAX, "bytes_max")
_STREAM = (_key("stream", _NUMBER), _key("version", _NUMBER))

SHAPES: Final = tuple(
    Shape(word, message, tuple(parts))
    for word, message, *parts in (
        # What is asked.
        ("next", m.Next, _bare("count", _NUMBER), _EPOCH),
        ("peek", m.Peek, _EPOCH, _key("around", _LSN, 0)),
        ("bootstrap", m.Bootstrap, _EPOCH, _NEXT),
        ("write", m.Write, _bare("block", _BLOCK), _EPOCH, _key("ack", _ACK, Ack.DISK)),
        ("fill", m.Fill, _bare("block", _BLOCK), _EPOCH),
        ("read", m.Read, _bare("lsn", _LSN), _EPOCH),
        ("trim", m.Trim, _bare("end", _LSN), _EPOCH),
        ("seal", m.Seal, _EPOCH, _key("proposer", _TOKEN)),
        ("admit", m.Admit, _EPOCH),
        ("index", m.Index, _range("first", "end"), _EPOCH),
        ("fetch", m.Fetch, _range("first", "end"), _EPOCH, _FETCH_BYTES),
        ("learn", m.Learn, _EPOCH, _key("from", _NODE, field="source"), _key("others", _NODES, ())),
        ("begin-learn", m.BeginLearn, _EPOCH),
        (
            "revise",
            m.Revise,
            _EPOCH,
            _key("trim", _LSN, 0, "trim_end"),
            _key("remove", _EXTENTS, ()),
            _key("store", _BLOCKS, (), "blocks"),
        ),
        ("find-time", m.FindTime, _bare("timestamp_us", _NUMBER), _EPOCH),
        ("find-size", m.FindSize, _bare("bytes_kept", _NUMBER), _EPOCH),
        ("weigh", m.Weigh, _range("first", "end"), _EPOCH, _key("pieces", _NUMBER)),
        ("describe", m.Describe),
        ("drop", m.Drop),
        (
            "start",
            m.Start,
            _range("first", "end"),
            _EPOCH,
            *_STREAM,
            _key("credit", _NUMBER, field="credit_bytes"),
            _key("select", _SELECTION, None, "selection"),
        ),
        ("window", m.Window, *_STREAM, _key("credit", _NUMBER, field="credit_bytes")),
        ("stop", m.Stop, _key("stream", _NUMBER)),
        # What is answered.
        ("issued", m.Issued, _range("first", "count", kind=_ISSUED)),
        (
            "peeked",
            m.Peeked,
            _bare("last", _LSN),
            _range("range_first", "range_last", keyword="in", kind=_RUN, default=(0, 0)),
        ),
        ("bootstrapped", m.Bootstrapped, _bare("next_lsn", _LSN), _key("since", _NUMBER, 0)),
        ("written", m.Written),
        ("filled", m.Filled),
        ("found", m.Found, _bare("block", _BLOCK)),
        ("trimmed", m.Trimmed, _bare("end", _LSN)),
        (
            "sealed",
            m.Sealed,
            _key("was", _NUMBER, field="epoch_before"),
            _key("standing", _STANDING, m.Standing.MEMBER),
            _key("trim", _LSN, 1, "trim_end"),
            _key("solid", _LSN, field="contiguous_end"),
            _key("end", _LSN),
        ),
        ("admitted", m.Admitted),
        (
            "page",
            m.IndexPage,
            _key("holds", _EXTENTS, (), "extents"),
            _NEXT,
            _key("trim", _LSN, 1, "trim_end"),
            _key("readable", _LSN, field="readable_end"),
        ),
        (
            "fetched",
            m.Fetched,
            _key("blocks", _BLOCKS, ()),
            _NEXT,
        ),
        (
            "learned",
            m.Learned,
            _key("end", _LSN, field="contiguous_end"),
            _key("copied", _NUMBER, field="blocks_copied"),
            _key("removed", _NUMBER, field="blocks_removed"),
        ),
        ("revised", m.Revised, _key("end", _LSN, field="contiguous_end")),
        ("position", m.Position, _bare("lsn", _LSN)),
        ("weighed", m.Weighed, _key("pieces", _WEIGHTS, ())),
        ("dropped", m.Dropped),
        (
            "described",
            m.Described,
            _EPOCH,
            _key("standing", _STANDING),
            _key("trim", _LSN, field="trim_end"),
            _key("solid", _LSN, field="contiguous_end"),
            _key("readable", _LSN, field="readable_end"),
            _key("end", _LSN),
            _key("blocks", _NUMBER),
            _key("bytes", _NUMBER),
        ),
        ("started", m.Started, *_STREAM, _NEXT),
        (
            "refused",
            m.Refused,
            _bare("reason", _REASON),
            _key("epoch", _NUMBER, 0),
            _key("with", _BLOCKS, (), "blocks"),
        ),
        # What is pushed.
        ("blocks", m.Blocks, _key("holds", _BLOCKS, (), "blocks"), *_STREAM),
        (
            "gap",
            m.GapFound,
            _bare("kind", _GAP),
            _range("first", "last", kind=_RUN),
            *_STREAM,
        ),
        ("caught-up", m.CaughtUp, *_STREAM, _NEXT, _key("end", _LSN)),
        (
            "ended",
            m.Ended,
            _bare("reason", _REASON),
            _EPOCH,
            *_STREAM,
            _NEXT,
        ),
    )
)  # fmt: skip
BY_WORD: Final = {shape.word: shape for shape in SHAPES}
_BY_TYPE: Final = {shape.message: shape for shape in SHAPES}
FAILS_USAGE: Final = "fails " + "|".join(kind.value for kind in FailureKind)


def show(message: m.Message) -> str:
    shape = _BY_TYPE[type(message)]
    shown = [shape.word]
    for part in shape.parts:
        values = tuple(getattr(message, field) for field in part.fields)
        value = values if len(values) > 1 else values[0]
        if part.default is not _REQUIRED and value == part.default:
            continue
        if part.keyword:
            shown.append(part.keyword)
        shown += map(part.kind.show, value) if part.kind.is_list else [part.kind.show(value)]
    return " ".join(shown)


def show_answer(answer: Answer) -> str:
    return f"fails {answer.kind.value}" if isinstance(answer, Failure) else show(answer)


def take_message(words: Words, log: LogId = w.LOG) -> m.Message:
    """The rest of a line, which must be a message."""
    word = words.take("a message")
    shape = BY_WORD.get(word)
    if shape is None:
        words.fail(f"expected a message, found {word!r}; known: {', '.join(BY_WORD)}")
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
            if part.default is _REQUIRED:
                words.fail(f"expected {part.usage}: {shape.usage}")
            _store(fields, part, part.default)
    return shape.message(**fields)


def take_answer(words: Words, log: LogId = w.LOG) -> Answer:
    if words.option("fails"):
        return Failure(words.parse(FAILS_USAGE, FailureKind))
    return take_message(words, log)


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
