"""Who is to send: all that changes the lists and the mode of a stream (seed 000, logdevice 2.11).

Changes are only wanted here; nodes are told in the rewind that each of them schedules.

  I1  A node gets on the list of those that are down for what makes it unable to send; it leaves
      with the first block that it sends, told to nodes when the window slides at the latest (R5).
  I2  All-send-all is for when nobody is left to send a position, or the last resort; the window
      slides, and it ends (R6).
  I3  Nodes that may have lost the missing block are listed before all-send-all is tried.
  I4  What was said to be passed while a node lacked copies is asked again once it lacks none.
"""

from millrace.core.reading import failover
from millrace.core.reading.lists import Lists
from millrace.core.reading.progress import ProgressClock
from millrace.core.reading.read_set import ReadSet
from millrace.core.reading.rewinds import RewindReason, RewindSchedule
from millrace.core.reading.senders import Sender, Trouble
from millrace.core.statuses import Statuses
from millrace.types import Lsn, NodeId


class Roster:
    def __init__(self, read_set: ReadSet, lists: Lists, rewinds: RewindSchedule) -> None:
        self._read_set = read_set
        self._lists = lists
        self._rewinds = rewinds
        self._mended: set[NodeId] = set()  # They lack nothing, though their statuses say so still.

    # -- Single nodes -------------------------------------------------------------------------

    def list_down(self, node: NodeId, reason: RewindReason, now_ms: int) -> None:
        if self._lists.add_down(node, reason, self._read_set.senders):
            self._rewinds.schedule(reason, now_ms)
            if not self._lists.wants_single_copy:
                self._rewinds.schedule(RewindReason.NOBODY_LEFT, now_ms)

    def failed(
        self, sender: Sender, trouble: Trouble, reason: RewindReason | None, now_ms: int
    ) -> None:
        """Without a reason the node is not to blame: it is asked again, and that is all."""
        sender.failed(trouble, now_ms)
        if reason is not None:
            self.list_down(sender.node, reason, now_ms)

    def started(self, sender: Sender) -> None:
        """It serves, whatever its status says; if nobody was told otherwise yet, nobody need be."""
        is_wanted_for_status = self._lists.wanted_down.get(sender.node) is RewindReason.STATUS
        is_told = sender.node in self._lists.down
        if is_wanted_for_status and not is_told and not sender.is_incomplete:
            self._lists.remove_down(sender.node)

    def sent_data(self, sender: Sender, next_lsn: Lsn) -> None:
        """Keeps I1.  One that would fail at the same block again is not taken back before it."""
        if not sender.is_incomplete and sender.damaged_end <= next_lsn:
            self._lists.remove_down(sender.node)

    # -- All nodes ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Before the first START: nobody need be told by a rewind."""
        for node in self._read_set.not_authoritative:
            self._lists.add_down(node, RewindReason.STATUS, self._read_set.senders)
        self._lists.apply()

    def statuses_changed(self, statuses: Statuses, now_ms: int) -> frozenset[NodeId]:
        """Who was emptied."""
        lacked = self._lacking
        emptied = self._read_set.set_statuses(statuses)
        self._mended &= self._read_set.lost
        refilled = lacked - self._read_set.lost - emptied
        if any(n in refilled and not s.is_incomplete for n, s in self._read_set.senders.items()):
            self._rewinds.schedule(RewindReason.REFILLED, now_ms)  # Keeps I4.
        if not emptied.isdisjoint(self._read_set.senders):
            # Others may hold new copies behind what they have said to have passed.
            self._rewinds.schedule(RewindReason.EMPTIED, now_ms)
        for node in self._read_set.not_authoritative:
            self.list_down(node, RewindReason.STATUS, now_ms)
        return emptied

    def found_complete(self, sender: Sender, now_ms: int, was_incomplete: bool) -> None:
        """It says that it lacks no copies.  If it did, by its own word or the cluster's, others may
        have got some behind what they have passed.  Keeps I4."""
        if was_incomplete or sender.node in self._lacking:
            if sender.node in self._read_set.lost:
                self._mended.add(sender.node)
            self._rewinds.schedule(RewindReason.REFILLED, now_ms)

    @property
    def _lacking(self) -> set[NodeId]:
        """Who lacked copies when it was last heard of, by its status or itself."""
        return self._read_set.lost - self._mended

    def nodeset_changed(self, now_ms: int) -> None:
        self._lists.keep(self._read_set.senders)
        for node in self._read_set.not_authoritative:
            self.list_down(node, RewindReason.STATUS, now_ms)

    def window_slid(self, now_ms: int) -> None:
        """Keeps I2, and the last part of I1."""
        if self._lists.is_single_copy:
            if self._lists.has_changes and not self._rewinds.is_pending:
                self._rewinds.schedule(RewindReason.RETURNED, now_ms)
        elif not self._lists.wants_single_copy:
            down = failover.unfit(self._read_set)
            if self._lists.want_single_copy(down, self._read_set.senders):
                self._rewinds.schedule(RewindReason.SLID, now_ms)

    def head_is_missing(self, next_lsn: Lsn, now_ms: int) -> None:
        """Nothing can be delivered: whether somebody may still send it."""
        if not self._lists.is_single_copy or self._rewinds.is_pending:
            return
        senders, listed = self._read_set.senders.values(), self._lists.listed
        if not failover.is_nobody_left(senders, listed, next_lsn):
            return
        doubtful = failover.doubtful(senders, listed, next_lsn)
        for sender in doubtful:  # Keeps I3.
            self.list_down(sender.node, RewindReason.INCOMPLETE, now_ms)
        if not doubtful:
            self._lists.want_all_send_all()
            self._rewinds.schedule(RewindReason.NOBODY_LEFT, now_ms)

    def end_stall(self, clock: ProgressClock, next_lsn: Lsn, now_ms: int) -> None:
        """No progress for long: give up those that say nothing, or all."""
        if not self._lists.is_single_copy or self._rewinds.is_pending:
            return
        senders = self._read_set.senders
        silent = failover.silent(senders.values(), self._lists.listed, next_lsn)
        can_list = bool(silent) and len(self._lists.listed) + len(silent) < len(senders)
        if clock.is_silence_due(now_ms):
            clock.looked_for_silent(now_ms)
            if can_list:
                for sender in silent:
                    self.list_down(sender.node, RewindReason.NO_PROGRESS, now_ms)
                return
        if clock.is_last_resort_due(now_ms):
            clock.tried_last_resort(now_ms)
            if not can_list:
                self._lists.want_all_send_all()
                self._rewinds.schedule(RewindReason.STALLED, now_ms)

    def found_slow(self, nodes: frozenset[NodeId], now_ms: int) -> None:
        if self._lists.set_slow(nodes):
            self._rewinds.schedule(RewindReason.SLOW, now_ms)
