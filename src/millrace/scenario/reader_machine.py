"""Machine `reader`: one reader of a sequenced log, and what its nodes say (seeds 000 and 003).

Positions are offsets of epoch 1, as the examples of the specification have them; those of other
epochs are written in full.  Time is the file's: `after` lets it pass, and timers are not shown.
The application takes at once whatever it is given.
"""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import assert_never

from millrace.core.epochs import EpochRange
from millrace.core.messages import (
    Blocks,
    CaughtUp,
    Damaged,
    GapFound,
    Message,
    Refusal,
    Refused,
    Start,
    Started,
    Window,
)
from millrace.core.reading import effects as e
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.reading.stream import SequencedReadStream
from millrace.core.replication import Replication
from millrace.core.selections import credit_bytes
from millrace.lsn import epoch_of, last_of, lsn_of, offset_of, parse, show
from millrace.scenario import words as w
from millrace.scenario.machine import Command, Machine, Setting
from millrace.scenario.text import Words
from millrace.types import (
    LSN_MAX,
    NO_TOKEN,
    AuthoritativeStatus,
    Block,
    CopysetOrder,
    Epoch,
    GapKind,
    Lsn,
    NodeId,
)

STREAM = 1
EPOCH = Epoch(1)
EPOCHS_KNOWN = Epoch(9)
STATUSES = "|".join(status.value for status in AuthoritativeStatus)
Event = Callable[[Words], list[e.SequencedReadEffect]]


def parse_position(word: str) -> Lsn:
    """`42` or `e2n42`."""
    lsn = parse(word)
    return lsn_of(EPOCH, int(word)) if lsn is None else lsn


def show_position(lsn: Lsn) -> str:
    """Offset 0 of another epoch is not of epoch 1's offsets: only those are short."""
    if lsn == LSN_MAX:
        return "max"
    return str(offset_of(lsn)) if epoch_of(lsn) == EPOCH and lsn != last_of(EPOCH) else show(lsn)


def show_run(first: Lsn, last: Lsn) -> str:
    shown = show_position(first)
    return shown if first == last else f"{shown}..{show_position(last)}"


class ReaderMachine(Machine):
    name = "reader"

    def __init__(self) -> None:
        self._nodes: tuple[NodeId, ...] = ()
        self._copies = 0
        self._first, self._end = lsn_of(EPOCH, 1), LSN_MAX
        self._window = 512
        self._is_single_copy = True
        self._statuses: dict[NodeId, AuthoritativeStatus] = {}
        self._opened: SequencedReadStream | None = None
        self._now_ms = 0
        self._timer_ms: int | None = None

    def settings(self) -> list[Setting]:
        return [
            Setting("nodes NODE,... copies N", self._set_nodes),
            Setting("from LSN [until LSN]", self._set_range),
            Setting("window N", self._set_window),
            Setting("all-send-all", self._set_mode),
            Setting(f"status NODE {STATUSES}", self._set_status),
        ]

    def commands(self) -> list[Command]:
        events: list[tuple[str, Event]] = [
            ("open", self._open),
            ("started NODE,... [incomplete]", self._started),
            ("sends NODE LSN...", self._sends),
            ("passes NODE,... LSN", self._passes),
            ("trimmed NODE LSN", self._trimmed),
            ("damaged NODE LSN", self._damaged),
            ("refuses NODE REASON", self._refuses),
            ("lost NODE", self._lost),
            (f"becomes NODE {STATUSES}", self._becomes),
            ("after MS", self._after),
        ]
        commands = [Command(usage, self._shown(event)) for usage, event in events]
        return [*commands, Command("explain", self._explain)]

    # -- Setting up ---------------------------------------------------------------------------

    def _set_nodes(self, words: Words) -> None:
        self._nodes = words.parse("nodes such as SN1,SN2", w.parse_nodes)
        if not words.option("copies"):
            words.fail("expected `copies` and a number")
        self._copies = words.number("a number of copies")

    def _set_range(self, words: Words) -> None:
        self._first = words.parse("a position", parse_position)
        if words.option("until"):
            self._end = Lsn(words.parse("a position", parse_position) + 1)

    def _set_window(self, words: Words) -> None:
        self._window = words.number("a number of positions")

    def _set_mode(self, words: Words) -> None:
        self._is_single_copy = False

    def _set_status(self, words: Words) -> None:
        node = words.parse("a node such as SN3", w.parse_node)
        self._statuses[node] = words.parse(STATUSES, AuthoritativeStatus)

    @property
    def _stream(self) -> SequencedReadStream:
        if self._opened is None:
            settings = SequencedReadSettings(
                is_single_copy=self._is_single_copy,
                copyset_order=CopysetOrder.STORED,
                window_lsns=self._window,
            )
            self._opened = SequencedReadStream(w.LOG, STREAM, self._first, self._end, settings)
        return self._opened

    # -- Events -------------------------------------------------------------------------------

    def _open(self, words: Words) -> list[e.SequencedReadEffect]:
        if not self._nodes:
            words.fail("the set-up must say `nodes NODE,... copies N`")
        replication = Replication.of(self._copies)
        known = (EpochRange(EPOCH, EPOCHS_KNOWN, self._nodes, replication),)
        asked = self._stream.open(self._now_ms)
        statuses = dict(self._statuses)
        learned = self._stream.epochs_known(
            known, EPOCH, {}, statuses, self._now_ms, clean=EPOCHS_KNOWN
        )
        return self._note([*asked, *learned])

    def _started(self, words: Words) -> list[e.SequencedReadEffect]:
        nodes = words.parse("nodes such as SN1,SN2", w.parse_nodes)
        is_incomplete = words.option("incomplete")
        return [
            effect
            for node in nodes
            for effect in self._hear(
                node, Started(STREAM, self._version(node), self._first, is_incomplete)
            )
        ]

    def _sends(self, words: Words) -> list[e.SequencedReadEffect]:
        node = words.parse("a node such as SN3", w.parse_node)
        sent: list[Block] = []
        while words:
            lsn = words.parse("a position", parse_position)
            sent.append(w.place_values([f"v{lsn}"], lsn, NO_TOKEN))
        if not sent:
            words.fail("expected the positions that it sends")
        push = Blocks(STREAM, self._version(node), tuple(sent), sent[-1].end)
        return self._hear(node, push)

    def _passes(self, words: Words) -> list[e.SequencedReadEffect]:
        nodes = words.parse("nodes such as SN1,SN2", w.parse_nodes)
        lsn = words.parse("a position", parse_position)
        return [
            effect
            for node in nodes
            for effect in self._hear(node, CaughtUp(STREAM, self._version(node), lsn, lsn))
        ]

    def _trimmed(self, words: Words) -> list[e.SequencedReadEffect]:
        node = words.parse("a node such as SN3", w.parse_node)
        last = words.parse("a position", parse_position)
        first = self._stream.next_lsn
        return self._hear(node, GapFound(STREAM, self._version(node), GapKind.TRIM, first, last))

    def _damaged(self, words: Words) -> list[e.SequencedReadEffect]:
        node = words.parse("a node such as SN3", w.parse_node)
        lsn = words.parse("a position", parse_position)
        return self._hear(node, Damaged(STREAM, self._version(node), lsn, Lsn(lsn + 1)))

    def _refuses(self, words: Words) -> list[e.SequencedReadEffect]:
        node = words.parse("a node such as SN3", w.parse_node)
        return self._hear(node, Refused(words.parse("a reason such as busy", Refusal)))

    def _lost(self, words: Words) -> list[e.SequencedReadEffect]:
        node = words.parse("a node such as SN3", w.parse_node)
        return self._note(self._stream.lost(node, self._now_ms))

    def _becomes(self, words: Words) -> list[e.SequencedReadEffect]:
        self._set_status(words)
        return self._note(self._stream.statuses_changed(dict(self._statuses), self._now_ms))

    def _after(self, words: Words) -> list[e.SequencedReadEffect]:
        until_ms = self._now_ms + words.number("milliseconds")
        effects: list[e.SequencedReadEffect] = []
        while self._timer_ms is not None and self._timer_ms <= until_ms:
            self._now_ms, self._timer_ms = self._timer_ms, None
            effects += self._note(self._stream.timer_fired(self._now_ms))
        self._now_ms = until_ms
        return effects

    def _hear(self, node: NodeId, message: Message) -> list[e.SequencedReadEffect]:
        return self._note(self._stream.arrived(node, message, self._now_ms))

    def _version(self, node: NodeId) -> int:
        sender = self._stream.read_set.senders.get(node)
        return self._stream.version if sender is None else sender.version

    def _note(self, effects: list[e.SequencedReadEffect]) -> list[e.SequencedReadEffect]:
        """Keeps the timer, and takes what is delivered at once."""
        noted = list(effects)
        for effect in noted:  # Grows meanwhile.
            if isinstance(effect, e.SetTimer):
                self._timer_ms = self._now_ms + effect.ms
            elif isinstance(effect, e.Deliver):
                noted += self._stream.took(credit_bytes(effect.block), self._now_ms)
        return noted

    # -- Showing ------------------------------------------------------------------------------

    def _explain(self, words: Words) -> list[str]:
        told = self._stream.explain()
        nodes = told["waits_for_nodes"]
        assert isinstance(nodes, list)
        waits = f"waits for {told['waits_for']} at {show_position(self._stream.next_lsn)}"
        waits += f" of {w.show_nodes(tuple(nodes))}" if nodes else ""
        return [f"{waits}, {told['mode']}, rewinds {told['rewinds']}"]

    @staticmethod
    def _shown(event: Event) -> Callable[[Words], list[str]]:
        return lambda words: _show_all(event(words))


def _show_all(effects: Iterable[e.SequencedReadEffect]) -> list[str]:
    """A line for what all nodes are told alike."""
    pairs = [(_what(effect), _node(effect)) for effect in effects]
    shown: list[str] = []
    for what, group in groupby((pair for pair in pairs if pair[0]), key=lambda pair: pair[0]):
        nodes = tuple(node for _, node in group if node is not None)
        shown.append(f"{w.show_nodes(nodes)}: {what}" if nodes else what)
    return shown


def _node(effect: e.SequencedReadEffect) -> NodeId | None:
    return effect.node if isinstance(effect, e.StartSender | e.TellSender) else None


def _what(effect: e.SequencedReadEffect) -> str:
    """Empty for what is not shown."""
    match effect:
        case e.Deliver(_, first, end):
            return f"deliver {show_run(first, Lsn(end - 1))}"
        case e.DeliverGap(gap):
            return f"deliver gap {gap.kind.value} {show_run(gap.first, gap.last)}"
        case e.StartSender(_, start):
            return _show_start(start)
        case e.TellSender(_, message):
            if isinstance(message, Window):
                return f"window up to {show_position(message.window_last)}"
            return "stop"
        case e.HealthChanged(is_healthy):
            return "healthy" if is_healthy else "not healthy"
        case e.Finish():
            return "finish"
        case e.Fail(reason, lsn):
            return f"fail {reason.value} at {show_position(lsn)}"
        case e.SetTimer() | e.NeedEpochs():
            return ""
        case _:
            assert_never(effect)


def _show_start(start: Start) -> str:
    assert start.shipping is not None
    shown = f"start [{show_position(start.first)}, {show_position(start.window_last)}]"
    if not start.shipping.is_single_copy:
        return f"{shown} all-send-all version {start.version}"
    down = start.shipping.known_down
    listed = f" known-down {w.show_nodes(down)}" if down else ""
    return f"{shown}{listed} version {start.version}"
