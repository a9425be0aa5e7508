"""The messages of commit logs, as scenario files write them."""

from typing import Final

import msgspec

from millrace.codec import blocks
from millrace.core import messages as m
from millrace.core.commit.negotiation import SyncRefusal
from millrace.core.commit.record import stream_log_of
from millrace.core.procedure import Answer, Failure
from millrace.limits import READ_BATCH_BYTES
from millrace.scenario import commit_words as cw
from millrace.scenario import speech
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
    Kind,
    Shape,
    Vocabulary,
    bare,
    key,
    span,
)
from millrace.scenario.text import Words
from millrace.types import FIRST_LSN, Ack, Block

_COMMITTER = Kind("NODE", cw.parse_node, cw.show_node)
_COMMITS = Kind("COMMITS...", cw.parse_commits, cw.show_commits, is_list=True)
_REPORT = Kind("REPORT", cw.parse_report, cw.show_report)
_REPORTS = Kind("REPORT...", cw.parse_report, cw.show_report, is_list=True)
_REFUSED = Kind("STREAM:WHY...", cw.parse_refused, cw.show_refused, is_list=True)
_RUNS = Kind("COMMIT...", cw.parse_commit, cw.show_commit, is_list=True)
_CONTEXT = Kind("CONTEXT", cw.parse_context, cw.show_context)
_NUMBERS = Kind("N...", int, str, is_list=True)
_PLACED = Kind("FIRST..LAST", w.parse_run, lambda pair: w.show_run(*pair))


def _parse_flag(word: str) -> bool:
    if word not in ("yes", "no"):
        raise ValueError(word)
    return word == "yes"


_FLAG = Kind("yes|no", _parse_flag, lambda value: "yes" if value else "no")

_STREAM = bare("stream", NUMBER)
_GENERATION = key("generation", NUMBER, cw.FIRST_GENERATION)
_SOURCE = key("from", NODE, field="source")
_OFFERED = key("context", _CONTEXT, None)

SHAPES: Final = tuple(
    Shape(word, message, tuple(parts))
    for word, message, *parts in (
        # What is asked.
        (
            "commit",
            m.Commit,
            key("version", NUMBER),
            key("high", LSN, field="high_watermark"),
            key("first", LSN, 0),
            key("trim", LSN, FIRST_LSN, "trim_end"),
            key("streams", _COMMITS, ()),
            key("term", NUMBER, 1),
            key("committer", _COMMITTER, cw.COMMITTER),
        ),
        (
            "stream-block",
            m.StreamBlock,
            _STREAM,
            bare("block", BLOCK),
            _GENERATION,
            key("ack", ACK, Ack.DISK),
        ),
        ("seal-stream", m.SealStream, _STREAM, _GENERATION),
        (
            "open-stream",
            m.OpenStream,
            _STREAM,
            _GENERATION,
            key("end", LSN),
            key("replicas", NODES),
            key("appendable", _FLAG, True, "is_open"),
        ),
        ("sync-stream", m.SyncStream, _STREAM, _GENERATION, key("to", NODE, field="destination")),
        (
            "sync-init",
            m.SyncInit,
            _STREAM,
            span("first", "end", kind=RANGE),
            _GENERATION,
            _SOURCE,
            _OFFERED,
        ),
        (
            "sync-replicate",
            m.SyncReplicate,
            _STREAM,
            _GENERATION,
            _SOURCE,
            key("blocks", BLOCKS, ()),
            key("runs", _RUNS, ()),
            _OFFERED,
        ),
        (
            "fetch-stream",
            m.FetchStream,
            _STREAM,
            span("first", "end", kind=RANGE),
            key("bytes", NUMBER, READ_BATCH_BYTES, "bytes_max"),
        ),
        # What is answered.
        (
            "taken",
            m.CommitTaken,
            key("streams", _REPORTS, (), "reports"),
            key("refused", _REFUSED, ()),
        ),
        ("reported", m.Reported, key("term", NUMBER, 1), key("strangers", _NUMBERS, ())),
        ("stream-stored", m.StreamStored, bare("end", LSN)),
        (
            "stream-sealed",
            m.StreamSealed,
            _GENERATION,
            key("version", NUMBER),
            key("committed", LSN, field="local_end"),
            key("end", LSN),
            key("valid", _FLAG, True, "is_valid"),
            key("opened", NUMBER, 0),
        ),
        ("stream-opened", m.StreamOpened, bare("report", _REPORT)),
        (
            "sync-range",
            m.SyncRange,
            span("first", "end", kind=RANGE),
            key("complete", _FLAG, False, "is_complete"),
        ),
        ("sync-taken", m.SyncTaken, bare("end", LSN)),
        ("stream-synced", m.StreamSynced, bare("local_end", LSN)),
        (
            "stream-page",
            m.StreamPage,
            key("low", LSN),
            key("high", LSN),
            key("blocks", BLOCKS, ()),
            key("firsts", _NUMBERS, ()),
            key("versions", _NUMBERS, ()),
        ),
        (
            "stream-appended",
            m.StreamAppended,
            span("first", "last", kind=_PLACED),
            key("local", LSN),
        ),
        (
            "append-unsettled",
            m.AppendUnsettled,
            bare("epoch", NUMBER),
            key("local", LSN, 0, "first"),
        ),
        (
            "changed",
            m.CommitsChanged,
            key("high", LSN, field="high_watermark"),
            key("term", NUMBER, 1),
        ),
    )
)
_VOCABULARY: Final = Vocabulary((*SHAPES, speech.BY_WORD["refused"]))
_CAUSES: Final = frozenset(cause.value for cause in SyncRefusal)


def show(message: m.Message) -> str:
    match message:
        case m.Report(reports=reports):
            return " ".join(["report", *map(cw.show_report, reports)])
        case m.AppendStream(_, stream, _, block):
            values = "|".join(value.decode() for value in blocks.values(block))
            return f"append {values} stream {stream}"
        case m.Refused(detail=detail) if detail.partition(":")[0] in _CAUSES:
            return f"{_VOCABULARY.show(message)} because {detail.partition(':')[0]}"
    return _VOCABULARY.show(message)


def show_answer(answer: Answer) -> str:
    return f"fails {answer.kind.value}" if isinstance(answer, Failure) else show(answer)


def take_message(words: Words) -> m.Message:
    """The rest of a line; blocks are those of the stream and of the generation that it names."""
    message = _VOCABULARY.take_message(words)
    match message:
        case m.StreamBlock(block=block):
            return msgspec.structs.replace(message, block=_of_stream(message, block))
        case m.SyncReplicate(blocks=sent):
            moved = tuple(_of_stream(message, each) for each in sent)
            return msgspec.structs.replace(message, blocks=moved)
    return message


def _of_stream(message: m.StreamBlock | m.SyncReplicate, block: Block) -> Block:
    stream_log = stream_log_of(message.log, message.stream)
    return blocks.move(block, message.generation, block.first, stream_log)
