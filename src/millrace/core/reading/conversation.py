"""What is said to the nodes: START, WINDOW and STOP.

I1  Every START between two rewinds tells the same mode and lists; versions only go up.
I2  Within a version a node is never told less credit or a smaller window than before.
I3  What is told while START is on its way may find no connection: it is told after the answer.
I4  A node is never told the same version twice: it may still talk on the first, and what it said
    in between was not heard, so that nobody could tell which claims hold.
"""

from collections.abc import Iterable

import msgspec

from millrace.core.messages import Shipping, Start, Stop, Window
from millrace.core.reading.credit import Credit
from millrace.core.reading.delivery import Delivery
from millrace.core.reading.effects import StartSender, TellSender
from millrace.core.reading.lists import Lists
from millrace.core.reading.read_set import ReadSet
from millrace.core.reading.senders import Sender
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.reading.window import SlidingWindow
from millrace.types import Epoch, LogId, Selection

ALL_EPOCHS = Epoch(0)  # START to a node of a sequenced log is for no epoch.
GRANT_SHARE = 4  # A node is told of new credit when it is this part of its share.


class Reader(msgspec.Struct, frozen=True):
    """Who reads what."""

    log: LogId
    number: int
    selection: Selection | None = None
    seed: int = 0
    location: str = ""


class Conversation:
    def __init__(
        self,
        reader: Reader,
        settings: SequencedReadSettings,
        read_set: ReadSet,
        lists: Lists,
        delivery: Delivery,
        window: SlidingWindow,
        credit: Credit,
    ) -> None:
        self.version = 0  # Of the last rewind.
        self._version_last = 0  # Of all.
        self._reader = reader
        self._settings = settings
        self._read_set = read_set
        self._lists = lists
        self._delivery = delivery
        self._window = window
        self._credit = credit

    @property
    def number(self) -> int:
        return self._reader.number

    def next_version(self) -> None:
        """The stream begins, or is rewound."""
        self.version = self._version_last = self._version_last + 1

    def start(self, sender: Sender, now_ms: int) -> StartSender:
        reader, delivery = self._reader, self._delivery
        granted_bytes = self._room(sender, self._share())
        version = self.version
        if sender.version >= version:  # Keeps I4.
            version = self._version_last = self._version_last + 1
        sender.start(version, delivery.next_lsn, granted_bytes, self._window.last, now_ms)
        start = Start(
            reader.log,
            ALL_EPOCHS,
            self.number,
            version,
            delivery.next_lsn,
            delivery.end,
            granted_bytes,
            reader.selection,
            self._shipping(),
            self._window.last,
        )
        return StartSender(sender.node, start)

    def stop(self, senders: Iterable[Sender]) -> list[TellSender]:
        stop = Stop(self.number)
        return [TellSender(sender.node, stop) for sender in senders if sender.is_connected]

    def widen(self) -> list[TellSender]:
        """WINDOW to those who have more room by now: in positions, or in bytes."""
        share = self._share()
        told: list[TellSender] = []
        for sender in self._read_set.senders.values():
            if not sender.is_reading:
                continue  # Keeps I3: the next call sees it.
            credit_bytes = max(
                sender.granted_bytes, sender.received_bytes + self._room(sender, share)
            )
            gain_bytes = credit_bytes - sender.granted_bytes
            is_worth_it = gain_bytes >= max(1, share // GRANT_SHARE)
            is_needed = gain_bytes > 0 and self._is_waited_for(sender)
            if not is_worth_it and not is_needed and self._window.last + 1 in sender.window_ends:
                continue
            sender.widen(credit_bytes, self._window.last)
            window = Window(self.number, sender.version, credit_bytes, self._window.last)
            told.append(TellSender(sender.node, window))
        return told

    def _shipping(self) -> Shipping:
        return Shipping(
            self._lists.is_single_copy,
            tuple(sorted(self._lists.listed)),
            self._settings.copyset_order,
            self._reader.seed,
            self._settings.local_scd,
            self._reader.location,
        )

    def _share(self) -> int:
        return self._credit.share(len(self._read_set.senders), self._window.fullness)

    def _room(self, sender: Sender, share: int) -> int:
        """What it may send beyond what it has sent."""
        untaken_bytes = self._credit.untaken_of(sender.node)
        room = share - untaken_bytes - self._delivery.buffer.bytes_of(sender.node)
        if room <= 0 and untaken_bytes < share and self._has_not_passed(sender):
            # Blocks of its own wait for one that it may have to send again, after a failure: one
            # block can always come, so that they do not wait for ever.
            return 1
        return max(0, room)

    def _has_not_passed(self, sender: Sender) -> bool:
        return sender.next_lsn <= self._delivery.next_lsn

    def _is_waited_for(self, sender: Sender) -> bool:
        """Nothing can go on without it, and the application has nothing left."""
        is_hungry = not self._credit.has_untaken
        return is_hungry and not sender.has_room and self._has_not_passed(sender)
