"""Appends of a stream that wait for their place in the log, and what the newest were answered.

I1  Every append is answered once: appended when it is committed, refused when it is certainly in no
    replica, unsettled when this node will not hear what became of it.
I2  A token that waits or is among the newest answered is never appended again (L6).  All others of
    the stream lie below `untold_end`: there somebody has to look.
I3  At most so many blocks and bytes wait; one block always has room (G13).
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from millrace.core.commit.record import StreamCommit
from millrace.core.effects import NodeEffect, Reply, Ticket
from millrace.core.messages import AppendUnsettled, Message, StreamAppended
from millrace.core.sequenced.recent import RecentAnswers
from millrace.limits import MIB
from millrace.types import LSN_MAX, NO_LSN, NO_TOKEN, Block, Epoch, Lsn, Token

APPENDS_WAITING_MAX: Final = 1_000  # As many as are sent to a backup ahead of its answers.
BYTES_WAITING_MAX: Final = 64 * MIB
TOKENS_REMEMBERED: Final = 4_096
TICKETS_PER_APPEND_MAX: Final = 16


class PendingAppend:
    __slots__ = ("count", "end", "first", "size", "tickets", "token")

    def __init__(self, block: Block, ticket: Ticket) -> None:
        self.first = block.first
        self.end = block.end
        self.count = block.count
        self.size = block.size
        self.token = block.token
        self.tickets = [ticket]  # Who waits for it, oldest first.


class PendingAppends:
    def __init__(
        self,
        is_new: bool,
        appends_max: int = APPENDS_WAITING_MAX,
        bytes_max: int = BYTES_WAITING_MAX,
    ) -> None:
        """A stream that `is_new` has no append that is not known here."""
        self.size_bytes = 0
        self._appends_max = appends_max
        self._bytes_max = bytes_max
        self._waiting: deque[PendingAppend] = deque()  # In the order of their positions.
        self._by_token: dict[Token, PendingAppend] = {}
        self._recent = RecentAnswers(TOKENS_REMEMBERED)
        self._untold_end = NO_LSN if is_new else LSN_MAX

    def __len__(self) -> int:
        return len(self._waiting)

    def has_room(self, size_bytes: int) -> bool:
        """Keeps I3."""
        if not self._waiting:
            return True
        is_short = len(self._waiting) < self._appends_max
        return is_short and self.size_bytes + size_bytes <= self._bytes_max

    def add(self, block: Block, ticket: Ticket) -> None:
        added = PendingAppend(block, ticket)
        self._waiting.append(added)
        self.size_bytes += added.size
        if added.token != NO_TOKEN:
            self._by_token[added.token] = added

    def repeated(self, ticket: Ticket, token: Token, generation: Epoch) -> list[NodeEffect] | None:
        """Keeps I2.  None: the token is not known."""
        answer = self._recent.to(token)
        if answer is not None:
            return [Reply(ticket, answer)]
        pending = self._by_token.get(token)
        if pending is None:
            return None
        pending.tickets.append(ticket)
        if len(pending.tickets) <= TICKETS_PER_APPEND_MAX:
            return []
        return [Reply(pending.tickets.pop(0), AppendUnsettled(generation, pending.first))]

    def can_tell(self, token: Token, searched: Lsn) -> bool:
        """Whether a token that is not known, and not below `searched`, was never appended."""
        return token != NO_TOKEN and searched >= self._untold_end

    def opened(self, end: Lsn) -> None:
        """All that is appended from here on is heard of."""
        self._untold_end = min(self._untold_end, end)

    def committed(self, commits: Iterable[StreamCommit]) -> list[NodeEffect]:
        effects: list[NodeEffect] = []
        for commit in commits:
            while self._waiting and self._waiting[0].end <= commit.local_end:
                done = self._waiting[0]
                first = Lsn(commit.first + done.first - commit.local)
                last = Lsn(first + done.count - 1)
                effects += self._answer_first(StreamAppended(first, last, done.first))
        return effects

    def cut(self, end: Lsn) -> list[Ticket]:
        """Forget those at `end` or above, which are in no replica any more: who waits for them is
        to be told that they were not appended."""
        gone = [each for each in self._waiting if each.first >= end]
        self._waiting = deque(each for each in self._waiting if each.first < end)
        for each in gone:
            self._forget(each)
        return [ticket for each in gone for ticket in each.tickets]

    def abandon(self, generation: Epoch) -> list[NodeEffect]:
        """What becomes of them, and what others append, this node will not hear: it is known in
        `generation`, elsewhere."""
        self._untold_end = LSN_MAX
        effects: list[NodeEffect] = []
        while self._waiting:
            effects += self._answer_first(AppendUnsettled(generation, self._waiting[0].first))
        return effects

    def _answer_first(self, answer: Message) -> list[NodeEffect]:
        done = self._waiting.popleft()
        self._forget(done)
        if isinstance(answer, StreamAppended):
            forgotten = self._recent.remember(done.token, answer)
            if isinstance(forgotten, StreamAppended):
                count = forgotten.last - forgotten.first + 1
                self._untold_end = max(self._untold_end, Lsn(forgotten.local + count))
        return [Reply(ticket, answer) for ticket in done.tickets]

    def _forget(self, done: PendingAppend) -> None:
        self.size_bytes -= done.size
        self._by_token.pop(done.token, None)
