"""Asking the sequencer of a log how far readers may see."""

from millrace.core.messages import AskTail, Tail
from millrace.core.procedure import Procedure, ask
from millrace.core.sequenced.append import Seat, Seats, find_seat
from millrace.types import LogId


def find_tail(log: LogId, seats: Seats) -> Procedure[Tail | None]:
    """None if nobody can tell now.  A log without a sequencer gets one, whose recovery settles what
    the one before left behind."""
    seat = seats.find(log) or (yield from find_seat(log, seats))
    if not isinstance(seat, Seat):
        return None
    answer = yield from ask(seat.node, AskTail(log))
    if isinstance(answer, Tail):
        return answer
    seats.doubt(log, seat)
    return None
