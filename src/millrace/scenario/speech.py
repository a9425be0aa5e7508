"""The messages of chain logs, as scenario files write them, and what they are made of."""

from typing import Final

from millrace.core import messages as m
from millrace.core.learn import FETCH_BYTES_MAX
from millrace.scenario import words as w
from millrace.scenario.shapes import (
    ACK,
    BLOCK,
    BLOCKS,
    LSN,
    NODE,
    NODES,
    NUMBER,
    RANGE,
    REASON,
    Kind,
    Shape,
    Vocabulary,
    bare,
    key,
    of_enum,
    span,
)
from millrace.types import Ack, GapKind

_EXTENTS = Kind("EXTENT...", w.parse_extent, w.show_extent, is_list=True)
_RUN = Kind("FIRST..LAST", w.parse_run, lambda pair: w.show_run(*pair))
_WEIGHTS = Kind("[FIRST,END)=N...", w.parse_weight, w.show_weight, is_list=True)
_SELECTION = Kind("SELECTION", w.parse_selection, w.show_selection)
_TOKEN = Kind("CLIENT.REQUEST", w.parse_token, w.show_token)
_STANDING = of_enum("member|blank|dirty", m.Standing)
_GAP = of_enum("GAP", GapKind)


def _issued_run(word: str) -> tuple[int, int]:
    first, last = w.parse_run(word)
    return first, last - first + 1


_ISSUED = Kind("FIRST..LAST", _issued_run, lambda pair: w.show_run(pair[0], pair[0] + pair[1] - 1))


_EPOCH = key("epoch", NUMBER)
_NEXT = key("next", LSN, field="next_lsn")
_FETCH_BYTES = key("bytes", NUMBER, FETCH_BYTES_MAX, "bytes_max")
_STREAM = (key("stream", NUMBER), key("version", NUMBER))

SHAPES: Final = tuple(
    Shape(word, message, tuple(parts))
    for word, message, *parts in (
        # What is asked.
        ("next", m.Next, bare("count", NUMBER), _EPOCH),
        ("peek", m.Peek, _EPOCH, key("around", LSN, 0)),
        ("bootstrap", m.Bootstrap, _EPOCH, _NEXT),
        ("write", m.Write, bare("block", BLOCK), _EPOCH, key("ack", ACK, Ack.DISK)),
        ("fill", m.Fill, bare("block", BLOCK), _EPOCH),
        ("read", m.Read, bare("lsn", LSN), _EPOCH),
        ("trim", m.Trim, bare("end", LSN), _EPOCH),
        ("seal", m.Seal, _EPOCH, key("proposer", _TOKEN)),
        ("admit", m.Admit, _EPOCH),
        ("index", m.Index, span("first", "end", kind=RANGE), _EPOCH),
        ("fetch", m.Fetch, span("first", "end", kind=RANGE), _EPOCH, _FETCH_BYTES),
        ("learn", m.Learn, _EPOCH, key("from", NODE, field="source"), key("others", NODES, ())),
        ("begin-learn", m.BeginLearn, _EPOCH),
        (
            "revise",
            m.Revise,
            _EPOCH,
            key("trim", LSN, 0, "trim_end"),
            key("remove", _EXTENTS, ()),
            key("store", BLOCKS, (), "blocks"),
        ),
        ("find-time", m.FindTime, bare("timestamp_us", NUMBER), _EPOCH),
        ("find-size", m.FindSize, bare("bytes_kept", NUMBER), _EPOCH),
        ("weigh", m.Weigh, span("first", "end", kind=RANGE), _EPOCH, key("pieces", NUMBER)),
        ("describe", m.Describe),
        ("drop", m.Drop),
        (
            "start",
            m.Start,
            span("first", "end", kind=RANGE),
            _EPOCH,
            *_STREAM,
            key("credit", NUMBER, field="credit_bytes"),
            key("select", _SELECTION, None, "selection"),
        ),
        ("window", m.Window, *_STREAM, key("credit", NUMBER, field="credit_bytes")),
        ("stop", m.Stop, key("stream", NUMBER)),
        # What is answered.
        ("issued", m.Issued, span("first", "count", kind=_ISSUED)),
        (
            "peeked",
            m.Peeked,
            bare("last", LSN),
            span("range_first", "range_last", keyword="in", kind=_RUN, default=(0, 0)),
        ),
        ("bootstrapped", m.Bootstrapped, bare("next_lsn", LSN), key("since", NUMBER, 0)),
        ("written", m.Written),
        ("filled", m.Filled),
        ("found", m.Found, bare("block", BLOCK)),
        ("trimmed", m.Trimmed, bare("end", LSN)),
        (
            "sealed",
            m.Sealed,
            key("was", NUMBER, field="epoch_before"),
            key("standing", _STANDING, m.Standing.MEMBER),
            key("trim", LSN, 1, "trim_end"),
            key("solid", LSN, field="contiguous_end"),
            key("end", LSN),
        ),
        ("admitted", m.Admitted),
        (
            "page",
            m.IndexPage,
            key("holds", _EXTENTS, (), "extents"),
            _NEXT,
            key("trim", LSN, 1, "trim_end"),
            key("readable", LSN, field="readable_end"),
        ),
        (
            "fetched",
            m.Fetched,
            key("blocks", BLOCKS, ()),
            _NEXT,
        ),
        (
            "learned",
            m.Learned,
            key("end", LSN, field="contiguous_end"),
            key("copied", NUMBER, field="blocks_copied"),
            key("removed", NUMBER, field="blocks_removed"),
        ),
        ("revised", m.Revised, key("end", LSN, field="contiguous_end")),
        ("position", m.Position, bare("lsn", LSN)),
        ("weighed", m.Weighed, key("pieces", _WEIGHTS, ())),
        ("dropped", m.Dropped),
        (
            "described",
            m.Described,
            _EPOCH,
            key("standing", _STANDING),
            key("trim", LSN, field="trim_end"),
            key("solid", LSN, field="contiguous_end"),
            key("readable", LSN, field="readable_end"),
            key("end", LSN),
            key("blocks", NUMBER),
            key("bytes", NUMBER),
        ),
        ("started", m.Started, *_STREAM, _NEXT),
        (
            "refused",
            m.Refused,
            bare("reason", REASON),
            key("epoch", NUMBER, 0),
            key("with", BLOCKS, (), "blocks"),
        ),
        # What is pushed.
        ("blocks", m.Blocks, key("holds", BLOCKS, (), "blocks"), *_STREAM),
        (
            "gap",
            m.GapFound,
            bare("kind", _GAP),
            span("first", "last", kind=_RUN),
            *_STREAM,
        ),
        ("caught-up", m.CaughtUp, *_STREAM, _NEXT, key("end", LSN)),
        (
            "ended",
            m.Ended,
            bare("reason", REASON),
            _EPOCH,
            *_STREAM,
            _NEXT,
        ),
    )
)  # fmt: skip
VOCABULARY: Final = Vocabulary(SHAPES)
BY_WORD: Final = VOCABULARY.by_word
show: Final = VOCABULARY.show
show_answer: Final = VOCABULARY.show_answer
take_message: Final = VOCABULARY.take_message
take_answer: Final = VOCABULARY.take_answer
