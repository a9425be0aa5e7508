"""Recovery with all that it must know: where the unclean epochs lie, and who is authoritative."""

from collections.abc import Iterator

from millrace.core.epochs import EpochRecord
from millrace.core.procedure import DeadlinePassed, Failure, FailureKind, Procedure
from millrace.core.repair import MakeJunk
from millrace.core.sequenced.recovery import Recovered, recover
from millrace.core.sequenced.rewrite import Preempted
from millrace.core.sequenced.whereabouts import look_around
from millrace.types import Epoch


def recover_log(
    record: EpochRecord, make_junk: MakeJunk, waves: Iterator[int]
) -> Procedure[Recovered | Preempted | Failure]:
    try:
        known = yield from look_around(record, Epoch(record.clean + 1))
    except DeadlinePassed:
        return Failure(FailureKind.TIMED_OUT, f"log {record.log}: the repository is silent")
    if isinstance(known, Failure):
        return known
    return (
        yield from recover(record, known.ranges, known.locations, known.statuses, make_junk, waves)
    )
