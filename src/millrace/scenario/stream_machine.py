"""Machine `read-stream`: one reader of one log."""

from collections.abc import Callable
from typing import assert_never

from millrace.core import read_stream as r
from millrace.core.procedure import Failure, FailureKind
from millrace.core.projection import ReconfigureReason
from millrace.core.repair import ChainTrouble, RepairResult
from millrace.scenario import speech
from millrace.scenario import words as w
from millrace.scenario.machine import Command, Machine, Setting
from millrace.scenario.shapes import FAILS_USAGE
from millrace.scenario.text import Words
from millrace.types import LSN_MAX, Epoch, Lsn

STREAM = 1
Event = Callable[[Words], list[r.ReadEffect]]


class ReadStreamMachine(Machine):
    name = "read-stream"

    def __init__(self) -> None:
        self._first, self._end = Lsn(1), LSN_MAX
        self._window_bytes = 1_000
        self._opened: r.ReadStream | None = None

    def settings(self) -> list[Setting]:
        return [
            Setting("range [FIRST,END)", self._set_range),
            Setting("window BYTES", self._set_window),
        ]

    def commands(self) -> list[Command]:
        events: list[tuple[str, Event]] = [
            ("open", lambda words: self._stream.open()),
            (f"projection {w.PROJECTION_USAGE}", self._projected),
            (FAILS_USAGE, self._fails),
            ("from NODE MESSAGE|fails KIND", self._arrived),
            ("lost NODE", self._lost),
            ("took BYTES", lambda words: self._stream.took(words.number("bytes"))),
            ("timer", lambda words: self._stream.timer_fired()),
            ("repaired LSN RESULT", self._repaired),
            ("trouble LSN NODE [REASON] [epoch E]", self._trouble),
            ("copied LSN BLOCK|none", self._copied),
            ("close", lambda words: self._stream.stop()),
        ]
        commands = [Command(usage, _shown(event)) for usage, event in events]
        return [*commands, Command("explain", self._explain)]

    def _set_range(self, words: Words) -> None:
        self._first, self._end = words.parse("a range such as [1,9)", w.parse_range)

    def _set_window(self, words: Words) -> None:
        self._window_bytes = words.number("bytes")

    @property
    def _stream(self) -> r.ReadStream:
        if self._opened is None:
            settings = r.ReadSettings(window_bytes=self._window_bytes)
            self._opened = r.ReadStream(w.LOG, STREAM, self._first, self._end, settings)
        return self._opened

    # -- Events -------------------------------------------------------------------------------

    def _projected(self, words: Words) -> list[r.ReadEffect]:
        return self._stream.projected(w.take_projection(words))

    def _fails(self, words: Words) -> list[r.ReadEffect]:
        return self._stream.projected(Failure(words.parse(FAILS_USAGE, FailureKind)))

    def _arrived(self, words: Words) -> list[r.ReadEffect]:
        node = words.parse("a node such as SN3", w.parse_node)
        return self._stream.arrived(node, speech.take_answer(words))

    def _lost(self, words: Words) -> list[r.ReadEffect]:
        return self._stream.lost(words.parse("a node such as SN3", w.parse_node))

    def _repaired(self, words: Words) -> list[r.ReadEffect]:
        lsn = Lsn(words.number("a position"))
        return self._stream.repaired(lsn, words.parse("a result such as filled", RepairResult))

    def _trouble(self, words: Words) -> list[r.ReadEffect]:
        lsn = Lsn(words.number("a position"))
        node = words.parse("a node such as SN1", w.parse_node)
        cause = None
        if words and words.peek() != "epoch":
            cause = words.parse("a reason such as unreachable", ReconfigureReason)
        epoch = Epoch(words.number("an epoch") if words.option("epoch") else 0)
        return self._stream.repaired(lsn, ChainTrouble(node, cause, epoch))

    def _copied(self, words: Words) -> list[r.ReadEffect]:
        lsn = Lsn(words.number("a position"))
        if words.option("none"):
            return self._stream.copied(lsn, None)
        return self._stream.copied(lsn, words.parse("a block or none", w.parse_block))

    def _explain(self, words: Words) -> list[str]:
        told = self._stream.explain()
        return [f"waits for {told['waits_for']} at {told['next_lsn']}, rewinds {told['rewinds']}"]


def _shown(event: Event) -> Callable[[Words], list[str]]:
    return lambda words: [show_effect(effect) for effect in event(words)]


def show_effect(effect: r.ReadEffect) -> str:
    match effect:
        case r.Deliver(block, first, end):
            return f"deliver {w.show_run(first, end - 1)} of {w.show_block(block)}"
        case r.DeliverGap(gap):
            return f"deliver gap {gap.kind.value} {w.show_run(gap.first, gap.last)}"
        case r.StartSender(node, start):
            return f"ask {w.show_node(node)} {speech.show(start)}"
        case r.TellSender(node, message):
            return f"tell {w.show_node(node)} {speech.show(message)}"
        case r.NeedProjection(epoch, reason, cause, suspect):
            shown = f"need projection epoch {epoch} because {reason.value}"
            shown += "" if cause is None else f" change {cause.value}"
            return shown + ("" if suspect is None else f" suspect {w.show_node(suspect)}")
        case r.NeedRepair(lsn):
            return f"need repair of {lsn}"
        case r.NeedCopy(lsn, avoid):
            return f"need copy of {lsn} not from {w.show_node(avoid)}"
        case r.SetTimer(ms):
            return f"timer {ms} ms"
        case r.Finish():
            return "finish"
        case r.Fail(reason, lsn):
            return f"fail {reason.value} at {lsn}"
        case _:
            assert_never(effect)
