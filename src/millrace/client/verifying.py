"""Checking a log: what `millrace log verify` does.

The replicas of a commit log may change while they are read: then what was found may be about
replicas that are not any more, and it is looked at again.
"""

from typing import TYPE_CHECKING, Final

from millrace.client.commit_records import CommitRecords
from millrace.client.epoch_history import EpochHistory
from millrace.core.commit.record import CommitRecord
from millrace.core.commit.verifying import verify_commits
from millrace.core.epochs import EpochRecord
from millrace.core.procedure import DeadlinePassed, Procedure
from millrace.core.sequenced.verifying import Verdict, verify
from millrace.errors import TimedOut
from millrace.types import Epoch, LogInfo, Lsn, NodeId

if TYPE_CHECKING:
    from millrace.client.cluster import Client

LOOKS_MAX: Final = 3


async def verify_sequenced_log(
    client: "Client",
    info: LogInfo,
    record: EpochRecord,
    readable: tuple[Lsn, Lsn],
    timeout_ms: int,
) -> Verdict:
    """Of the positions [first, end) that are readable now."""
    known = await EpochHistory(client, info, record).known(Epoch(1))
    first, end = readable
    check = verify(info.id, first, Lsn(end - 1), known.ranges, known.locations, known.statuses)
    return await _run(client, info, check, timeout_ms)


async def verify_commit_log(
    client: "Client", info: LogInfo, records: CommitRecords, timeout_ms: int
) -> Verdict:
    """Of what is committed now."""
    for _ in range(LOOKS_MAX):
        record = await records.refresh()
        verdict = await _run(client, info, verify_commits(record), timeout_ms)
        if verdict.is_sound or _replicas(await records.refresh()) == _replicas(record):
            break
    return verdict


def _replicas(record: CommitRecord) -> list[tuple[NodeId, ...]]:
    return [each.replicas for each in record.streams]


async def _run(
    client: "Client", info: LogInfo, check: Procedure[Verdict], timeout_ms: int
) -> Verdict:
    try:
        return await client.runner.run(check, timeout_ms)
    except DeadlinePassed:
        raise TimedOut(f"log {info.name!r} was not verified within {timeout_ms} ms") from None
