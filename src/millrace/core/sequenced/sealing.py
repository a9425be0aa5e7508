"""Sealing a log for good: the epoch store is told once nothing is under way any more.

I1  Only the sequencer of the newest epoch seals, after its last append was answered: so the last
    record is known, and stays the last.
I2  It is told once: the record of an epoch that is over is not touched.
"""

from typing import Final

import msgspec

from millrace.core.epochs import EpochRecord
from millrace.core.procedure import (
    DeadlinePassed,
    Failure,
    FailureKind,
    Pause,
    Procedure,
    ReadEpochs,
    ReplaceEpochs,
)
from millrace.core.sequenced.activation import NotMine
from millrace.types import Lsn

ATTEMPTS_MAX: Final = 8
PAUSE_MS: Final = 20


def mark_sealed(record: EpochRecord, last: Lsn) -> Procedure[EpochRecord | NotMine | Failure]:
    """`record` is that of the activation, `last` the log's last record.  A failure says nothing
    about whether it is marked: try again."""
    trouble = Failure(FailureKind.METADATA, f"the epoch store changed {ATTEMPTS_MAX} times")
    try:
        for _ in range(ATTEMPTS_MAX):
            read: tuple[EpochRecord | None, int] | Failure = yield ReadEpochs(record.log)
            if isinstance(read, Failure):
                return read
            current, version = read
            if current is None:
                return Failure(FailureKind.UNKNOWN_LOG, f"log {record.log} was removed")
            if current.epoch != record.epoch:  # Keeps I1 and I2.
                return NotMine(current.sequencer, current.epoch)
            if current.is_sealed:
                return current
            marked = msgspec.structs.replace(current, is_sealed=True, tail=max(current.tail, last))
            replaced: bool | Failure = yield ReplaceEpochs(marked, version)
            if replaced is True:
                return marked
            trouble = replaced if isinstance(replaced, Failure) else trouble
            yield Pause(PAUSE_MS)
    except DeadlinePassed:
        return Failure(FailureKind.TIMED_OUT, f"log {record.log} was not marked in time")
    return trouble
