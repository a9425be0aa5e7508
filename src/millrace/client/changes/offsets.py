"""Where a consumer stands in a partition, as JSON that people can read.

    {"seq": 12, "snapshot_first": 10, "snapshot_last": 15, "log": [["00000000cafe0001", 0]]}

`seq` is the last change that was acknowledged, in the snapshot (first, last]; `log` the failover
log of the master that it came from, newest first.  With them a stream goes on where it stopped, or
it is found out how far it must roll back (U1).
"""

import msgspec

from millrace.core.documents.consumer_effects import FollowerState
from millrace.core.documents.document import Seq
from millrace.core.documents.failover_log import parse_failover_log
from millrace.errors import Corruption


class Offset(msgspec.Struct, frozen=True, omit_defaults=True):
    seq: int
    snapshot_first: int
    snapshot_last: int
    log: tuple[tuple[str, int], ...] = ()
    undo: int | None = None  # The seq to which an unfinished rollback goes.


def offset_of(state: FollowerState) -> Offset:
    log = tuple((f"{entry.id:016x}", int(entry.seq)) for entry in state.log.entries)
    return Offset(state.seen, state.snapshot, state.running, log, state.undo)


def state_of(offset: Offset) -> FollowerState:
    """Raises ValueError if the log is none."""
    log = parse_failover_log([(int(id, 16), seq) for id, seq in offset.log])
    undo = None if offset.undo is None else Seq(offset.undo)
    first, last = Seq(offset.snapshot_first), Seq(offset.snapshot_last)
    return FollowerState(log, first, Seq(offset.seq), last, undo)


def encode_offset(state: FollowerState) -> bytes:
    return msgspec.json.encode(offset_of(state))


def decode_offset(data: bytes, where: str) -> FollowerState:
    """Raises Corruption that names `where`."""
    try:
        return state_of(msgspec.json.decode(data, type=Offset))
    except (msgspec.DecodeError, ValueError) as error:
        raise Corruption(f"{where} holds no offset: {error}; it begins {data[:60]!r}") from error
