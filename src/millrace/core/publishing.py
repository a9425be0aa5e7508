"""How a publication is made, finished for somebody, and believed: procedures that ask for what they
need and are told (pure).

Whoever runs one performs each effect and sends back what came of it; it may stop at any of them,
for good.  That the next one who comes can go on rests on `publications.py`.

  I1  Nothing is appended with a mark that was not in the record before.
  I2  Who reports that something is published has read or written a record that says so.
  I3  Whose marks are void does not succeed with them, whatever became of its appends.
  I4  What is given up is not reported as published: it is begun again, with the rows of whoever
      comes with the same version, or it is too late for it.
"""

from collections.abc import Collection, Generator, Iterator, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from millrace.core import publications as rules
from millrace.core.publications import (
    Course,
    ManifestPlace,
    PublicationRecord,
    Standing,
    Target,
)
from millrace.types import LogId, Lsn

ATTEMPTS_MAX: Final = 64  # Of a change that others were quicker with.


# -- Effects --------------------------------------------------------------------------------------


class ReadRecord(msgspec.Struct, frozen=True):
    """Answered with `Held`."""


class Held(msgspec.Struct, frozen=True):
    record: PublicationRecord | None
    at: int  # Its version in the repository; 0: there is none.


class ReplaceRecord(msgspec.Struct, frozen=True):
    """Compare-and-set.  Answered with the new version, or 0 if somebody else was first."""

    record: PublicationRecord
    expected: int


class Prepare(msgspec.Struct, frozen=True):
    """Look where each log ends, and write down what is to be published.  Answered with
    `Prepared`."""


class Prepared(msgspec.Struct, frozen=True):
    targets: tuple[Target, ...]
    manifest: ManifestPlace | None


class Look(msgspec.Struct, frozen=True):
    """Are there blocks with the marks of the record's open logs?  Answered with `Looked`."""

    record: PublicationRecord


class Looked(msgspec.Struct, frozen=True):
    found: Mapping[int, Lsn]  # Marks, and where their blocks begin.
    gone: Collection[LogId]  # Logs that do not exist any more, or whose rows do not: not found.


class AppendBlocks(msgspec.Struct, frozen=True):
    """One to each open log, with its mark.  Answered with the marks of those that were
    acknowledged, and where they begin."""

    record: PublicationRecord


Effect = ReadRecord | ReplaceRecord | Prepare | Look | AppendBlocks


# -- Publishing -----------------------------------------------------------------------------------


class Done(msgspec.Struct, frozen=True):
    record: PublicationRecord
    is_repeated: bool = False  # It had been begun, and perhaps published, before.


class Trouble(Enum):
    TAKEN_OVER = "taken_over"  # Somebody else goes on with it.
    NOT_APPENDED = "not_appended"  # A block was not acknowledged: whoever comes next finishes it.
    CROWDED = "crowded"  # Many do it at once, and others were always quicker.
    WORN_OUT = "worn_out"  # It was interrupted so often that its record is full.
    PASSED_OVER = "passed_over"  # It was given up, and a higher version begun since.
    FORGOTTEN = "forgotten"  # Its record is gone: a call of its own saw to the end of it, or none.


Publishing = Generator[Effect, Any, Done | Trouble]
Attempt = Generator[Effect, Any, Done | Trouble | None]  # None: look at the record again.


def publish(
    app: str, version: int, marks: Iterator[int], now_ms: int, is_once: bool = False
) -> Publishing:
    for _ in range(ATTEMPTS_MAX):
        held: Held = yield ReadRecord()
        match rules.course(held.record, version):
            case Course.NOTHING:
                assert held.record is not None
                return Done(held.record, is_repeated=True)
            case Course.TOO_LATE:
                return Trouble.PASSED_OVER
            case Course.FINISH:
                finished = yield from _finish(held, marks)
                if isinstance(finished, Trouble):
                    return finished
                if finished is not None and finished.record.version == version:
                    return Done(finished.record, is_repeated=True)
            case Course.BEGIN | Course.BEGIN_AGAIN:
                ready: Prepared = yield Prepare()
                begun = rules.begin(
                    held.record, app, version, ready.targets, ready.manifest, now_ms, is_once
                )
                at: int = yield ReplaceRecord(begun, held.at)
                carried_out = (yield from _carry_out(begun, at)) if at else None
                if carried_out is not None:
                    return carried_out
    return Trouble.CROWDED


def _carry_out(record: PublicationRecord, at: int) -> Attempt:
    """Keeps I1."""
    found: Mapping[int, Lsn] = {}
    if record.open_targets:
        found = yield AppendBlocks(record)
    return (yield from _note(record, at, found))


def _note(record: PublicationRecord, at: int, found: Mapping[int, Lsn]) -> Attempt:
    """Keeps I2, I3 and I4."""
    current: PublicationRecord | None = record
    for _ in range(ATTEMPTS_MAX):
        if current is None:
            return Trouble.FORGOTTEN
        if current.version != record.version:  # Somebody has finished it or not, and gone on.
            return None if record.version in current.lost else Done(record)
        noted = rules.note(current, found)
        if noted is None or (yield ReplaceRecord(noted, at)):
            return _outcome(noted or current, found)
        held: Held = yield ReadRecord()
        current, at = held.record, held.at
    return Trouble.CROWDED


def _outcome(standing: PublicationRecord, found: Mapping[int, Lsn]) -> Done | Trouble | None:
    if standing.is_published:
        return Done(standing)
    if not standing.open_targets:
        return None  # It was given up somewhere.
    is_void = not set(found).isdisjoint(standing.void)
    return Trouble.TAKEN_OVER if is_void else Trouble.NOT_APPENDED


def _finish(held: Held, marks: Iterator[int]) -> Attempt:
    """Publish what the record says, whoever began it, as far as that can be done."""
    record = held.record
    assert record is not None
    looked: Looked = yield Look(record)
    known = rules.abandon(rules.note(record, looked.found) or record, looked.gone)
    taken = rules.take_over(known, marks)
    if taken is None:
        return Trouble.WORN_OUT
    at: int = yield ReplaceRecord(taken, held.at)
    return (yield from _carry_out(taken, at)) if at else None


def give_up(held: Held, log: LogId) -> Generator[Look | ReplaceRecord, Any, bool]:
    """What nobody goes on with any more is decided in this log: if its block is there it is noted,
    if not it is given up.  False if the record has changed meanwhile."""
    record = held.record
    assert record is not None
    here = tuple(each for each in record.open_targets if each.log == log)
    looked: Looked = yield Look(msgspec.structs.replace(record, targets=here))
    left = rules.abandon(rules.note(record, looked.found) or record, (log,))
    return bool((yield ReplaceRecord(left, held.at)))


# -- Reading --------------------------------------------------------------------------------------


class Settled(msgspec.Struct, frozen=True):
    """Whether a block counts, and the record that says so."""

    is_valid: bool
    record: PublicationRecord | None


def settle(
    known: PublicationRecord | None, log: LogId, version: int, mark: int, first: Lsn
) -> Generator[ReadRecord | ReplaceRecord, Any, Settled]:
    """Of a block of the log at `first`; `known` is what was read before.  A block that may be noted
    is: it is in the log, and only then may anybody hand it out."""
    if rules.decides(known, log, version):
        standing = rules.standing_of(known, log, version, mark, first)
        return Settled(standing is Standing.VALID, known)
    while True:
        held: Held = yield ReadRecord()
        standing = rules.standing_of(held.record, log, version, mark, first)
        if standing is not Standing.MAY_BE_NOTED:
            return Settled(standing is Standing.VALID, held.record)
        assert held.record is not None
        noted = rules.note(held.record, {mark: first})
        assert noted is not None
        if (yield ReplaceRecord(noted, held.at)):
            return Settled(True, noted)
