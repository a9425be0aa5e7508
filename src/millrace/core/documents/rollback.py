"""From which seq on a client may stream: the comparison of two failover logs (U1).

The seed's written rule ("the smaller of the two") contradicts two of its own nine tables: a client
that never left its master would go back to its last snapshot.  The rule here is the one that holds
for all nine:

  1  The master's newest id is in my log, but is not my newest: it is a stale master.  Refuse.
  2  The logs are equal: nothing happened.  Go on with what was seen.
  3  Otherwise a sentinel goes in front of both logs: of the client (its last complete snapshot;
     entries above it are dropped), of the master (the highest seq that the client has seen).
     Take the newest id that is in both, and of both the entry next newer.  If both are sentinels
     the larger seq is the answer, else the smaller.
  4  No id is in both: 0.
  5  The running snapshot of the client may end at or below where the master's next entry begins:
     then the master has all of it, and nothing need be rolled back (upr 2.4.7).
  6  Below the master's purge seq deletions were forgotten: 0 (U9).
  7  The answer lies above what the master has, which can only be a copy that lags: refuse (R-J.5).
  8  A log without entries is of somebody who never had a master, nor was one: refuse, for nothing
     is known of what it has, and rule 4 would throw away all that the client has.

`why` says which of these decided, for people.
"""

from enum import Enum

import msgspec

from millrace.core.documents.document import NO_SEQ, SEQ_MAX, Seq
from millrace.core.documents.failover_log import NO_LOG, FailoverLog


class StartReason(Enum):
    FIRST = "first"  # The client has nothing yet.
    EQUAL_LOGS = "equal_logs"
    SAME_BRANCH = "same_branch"  # Both neighbours are sentinels.
    BRANCHED = "branched"  # The histories part at that seq.
    SNAPSHOT_CONTAINED = "snapshot_contained"
    NO_COMMON_ID = "no_common_id"
    PURGED = "purged"


class RefuseReason(Enum):
    STALE_MASTER = "stale_master"  # The client has seen a master after this one.
    LAGGING = "lagging"  # The same history, and yet less of it than the client has.
    NO_MASTER = "no_master"  # It has no failover log.


class Place(msgspec.Struct, frozen=True):
    """Where a client stands in a partition.

    `snapshot` is the last seq of the last complete snapshot, `seen` the highest seq taken, and
    `running` the last seq of the snapshot that `seen` lies in, SEQ_MAX if that is not known.
    """

    log: FailoverLog = NO_LOG
    snapshot: Seq = NO_SEQ
    seen: Seq = NO_SEQ
    running: Seq = SEQ_MAX


class Refuse(msgspec.Struct, frozen=True):
    """Nothing can be streamed from there now.  Reload the map, and try again."""

    reason: RefuseReason
    detail: str


class Start(msgspec.Struct, frozen=True):
    seq: Seq
    reason: StartReason
    detail: str


def find_start(
    master: FailoverLog, client: Place, high: Seq | None = None, purged: Seq = NO_SEQ
) -> Start | Refuse:
    """Where the client has to roll back to, which is where it streams from.

    `high` is the master's highest seq and `purged` its purge seq, where they are known."""
    if not master.entries:
        return Refuse(RefuseReason.NO_MASTER, "it has no failover log: there was no master yet")
    known = client.log.position_of(master.newest)
    if known is not None and known > 0:
        detail = (
            f"its newest failover id {master.newest:016x} is older than "
            f"{client.log.newest:016x}, which is known here"
        )
        return Refuse(RefuseReason.STALE_MASTER, detail)
    found = _compare(master, client)
    if high is not None and found.seq > high:
        detail = f"the start is {found.seq}, but it has only {high} of the same history"
        return Refuse(RefuseReason.LAGGING, detail)
    if NO_SEQ < found.seq < purged:
        detail = f"deletions up to {purged} are forgotten there, and {found.seq} lies below"
        return Start(NO_SEQ, StartReason.PURGED, detail)
    return found


def _compare(master: FailoverLog, client: Place) -> Start:
    if not client.log.entries and not client.seen:
        return Start(NO_SEQ, StartReason.FIRST, "nothing was streamed yet")
    if master == client.log:
        return Start(client.seen, StartReason.EQUAL_LOGS, "the failover logs are equal")
    mine = client.log.up_to(client.snapshot)
    for at_mine, entry in enumerate(mine.entries):
        at_master = master.position_of(entry.id)
        if at_master is not None:
            return _between(master, mine, client, at_master, at_mine)
    return Start(NO_SEQ, StartReason.NO_COMMON_ID, "no failover id is in both logs")


def _between(
    master: FailoverLog, mine: FailoverLog, client: Place, at_master: int, at_mine: int
) -> Start:
    """The common id is found: compare the next newer entries."""
    common = f"{mine.entries[at_mine].id:016x}"
    if not at_master and not at_mine:
        larger = max(client.seen, client.snapshot)
        return Start(Seq(larger), StartReason.SAME_BRANCH, f"nothing is newer than {common}")
    of_master = master.entries[at_master - 1].seq if at_master else client.seen
    of_mine = mine.entries[at_mine - 1].seq if at_mine else client.snapshot
    is_my_branch = client.log.newest == mine.entries[at_mine].id  # None was dropped.
    if is_my_branch and client.running <= of_master and client.seen > of_mine:
        detail = f"the running snapshot ends at {client.running}, and the master went on at "
        return Start(client.seen, StartReason.SNAPSHOT_CONTAINED, f"{detail}{of_master}")
    start = Seq(min(of_master, of_mine))
    return Start(start, StartReason.BRANCHED, f"both share {common} up to {start}")
