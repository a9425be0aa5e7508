"""Who is read from: the nodeset of the epochs that the stream is in, and what is known of it.

I1  Every node of the nodeset is a sender, those that are down too: it may come back, and in
    single copy delivery that is how it is noticed.
I2  What is believed of a node is what it says itself; what the cluster says of it counts while
    it says nothing.
I3  Nothing is read of epochs whose nodeset is not known.
I4  No nodeset is relied on that was read before one of its nodes was emptied, be it of a later
    epoch: the copies may lie on nodes that it has gained since (I1 of `epochs.py`).
I5  What is missing in an epoch that had not ended when its nodeset was read is not given up by that
    nodeset: the recovery that ended it may have written to nodes that it had gained.
"""

from collections.abc import Collection

import msgspec

from millrace.core.epochs import EpochRange, range_of
from millrace.core.reading.senders import Sender
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.replication import Authority, Locations, authority, has_vote
from millrace.core.statuses import Statuses
from millrace.lsn import epoch_of, first_of
from millrace.types import AuthoritativeStatus, Epoch, Lsn, NodeId

_USUAL = AuthoritativeStatus.FULLY_AUTHORITATIVE


def emptied_between(before: Statuses, after: Statuses) -> frozenset[NodeId]:
    """Whose data was copied elsewhere meanwhile."""
    empty = AuthoritativeStatus.AUTHORITATIVE_EMPTY
    return frozenset(
        node for node, status in after.items() if status is empty and before.get(node) is not empty
    )


class ReadSet:
    def __init__(self, settings: SequencedReadSettings) -> None:
        self.senders: dict[NodeId, Sender] = {}
        self.current: EpochRange | None = None  # None: not known yet where the next block lies.
        self._settings = settings
        self._versions: dict[NodeId, int] = {}  # Of the last START to those that left.
        self._ranges: tuple[EpochRange, ...] = ()
        self._clean = Epoch(0)  # Up to this epoch all had ended when they were read.
        self._locations: Locations = {}
        self._statuses: Statuses = {}
        self._served: tuple[tuple[NodeId, ...], bool] | None = None  # Remembered: often asked.

    # -- Epochs -------------------------------------------------------------------------------

    def learn(
        self,
        ranges: tuple[EpochRange, ...],
        released_epoch: Epoch,
        locations: Locations,
        clean: Epoch,
    ) -> bool:
        """Whether it was news.  `released_epoch` is the epoch of what was released when the ranges
        were asked for: the newest of them holds up to there.  Epochs up to `clean` had ended."""
        if ranges and ranges[-1].last < released_epoch:
            newest = msgspec.structs.replace(ranges[-1], last=released_epoch)
            ranges = (*ranges[:-1], newest)
        is_news = ranges != self._ranges
        if is_news:
            self._ranges, self.current = ranges, None
        self._clean = clean
        self._locations = locations
        self._served = None
        return is_news

    def enter(self, lsn: Lsn) -> tuple[list[Sender], list[Sender]]:
        """The stream has come to this position: who leaves, and who joins."""
        self.current = range_of(self._ranges, epoch_of(lsn))
        self._served = None
        if self.current is None:
            return [], []  # Keeps I3; who is here stays until it is known who comes.
        nodeset = self.current.nodeset
        leaving = [sender for node, sender in self.senders.items() if node not in nodeset]
        joining = [Sender(n, self._settings) for n in nodeset if n not in self.senders]
        for sender in joining:
            # What it still says on the version of before is not meant for now.
            sender.version = self._versions.get(sender.node, 0)
        for sender in leaving:
            self._versions[sender.node] = sender.version
            del self.senders[sender.node]
        self.senders |= {sender.node: sender for sender in joining}
        return leaving, joining

    def knows(self, lsn: Lsn) -> bool:
        """Whether it is known where the blocks of this position's epoch lie."""
        return range_of(self._ranges, epoch_of(lsn)) is not None

    def may_have_grown(self, lsn: Lsn) -> bool:
        """Whether a recovery may have written to nodes that are not known.  See I5."""
        return epoch_of(lsn) > self._clean

    def is_outdated(self, ranges: tuple[EpochRange, ...], statuses: Statuses) -> bool:
        """Whether a node of theirs was emptied since they were read, with these statuses.  Keeps
        I4."""
        emptied = emptied_between(statuses, self._statuses)
        return any(not emptied.isdisjoint(each.nodeset) for each in ranges)

    def needs(self, nodes: frozenset[NodeId]) -> bool:
        """Whether any of them is of the epochs that are read, or of later ones that are known."""
        current = self.current
        if current is None:
            return False
        ahead = [each for each in self._ranges if each.last >= current.first]
        return any(not nodes.isdisjoint(each.nodeset) for each in ahead)

    def doubt(self) -> None:
        """Copies may lie on other nodes by now than those that are known.  Keeps I4."""
        self._ranges = ()
        self.current = None
        self._served = None

    def holds(self, lsn: Lsn) -> bool:
        """Whether the position lies in the epochs that the senders are of."""
        return self.current is not None and epoch_of(lsn) <= self.current.last

    def limit(self, end: Lsn) -> Lsn:
        """Where the epochs of this nodeset end, or the stream."""
        return end if self.current is None else min(end, first_of(Epoch(self.current.last + 1)))

    @property
    def has_later_epochs(self) -> bool:
        return self.current is not None and self._ranges[-1].last > self.current.last

    @property
    def is_deserted(self) -> bool:
        """Nobody of these epochs is left to tell what follows them, or to be waited for."""
        return not any(
            sender.is_reading or has_vote(self.status_of(sender))
            for sender in self.senders.values()
        )

    # -- Statuses -----------------------------------------------------------------------------

    @property
    def lost(self) -> set[NodeId]:
        """Who lacks copies, by the word of the cluster, which may be late."""
        lost = AuthoritativeStatus.UNDERREPLICATION
        return {node for node, status in self._statuses.items() if status is lost}

    def set_statuses(self, statuses: Statuses) -> frozenset[NodeId]:
        """Who was emptied."""
        emptied = emptied_between(self._statuses, statuses)
        self._statuses = statuses
        self._served = None
        return emptied

    def status_of(self, sender: Sender) -> AuthoritativeStatus:
        """Keeps I2."""
        return sender.status(self._statuses.get(sender.node, _USUAL))

    def authority_of(self, votes: Collection[NodeId]) -> Authority:
        if self.current is None:
            return Authority.NONE
        believed = {node: self.status_of(sender) for node, sender in self.senders.items()}
        current = self.current
        return authority(current.replication, current.nodeset, self._locations, believed, votes)

    @property
    def is_served(self) -> bool:
        """Whether those that read are an f-majority, or all that can be."""
        reading = tuple(node for node, sender in self.senders.items() if sender.is_reading)
        if self._served is None or self._served[0] != reading:
            self._served = reading, self.authority_of(reading) is not Authority.NONE
        return self._served[1]

    @property
    def not_authoritative(self) -> list[NodeId]:
        return [n for n, s in self.senders.items() if self.status_of(s) is not _USUAL]
