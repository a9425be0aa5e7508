"""Publications: which of the blocks that publish count, and who may say so (pure).

Rows are written first where nobody looks (staged), and appear in one or several logs by one block
in each.  Who publishes may die or hang anywhere, its append may arrive late, others may finish for
it.  What is true is decided by one record for each application, `publications/<app>`, which is
changed by compare-and-set alone.

    begin    version v, a mark for each log, where its rows are       the commit point: v will be
    note     the block with the log's mark is in the log, at `where`  for good
    take over   what is not noted gets another mark, the old is void  for good
    give up  the rows or the log are gone: its mark is void for good  until v is begun again

A publication is published when all of its logs are noted, and lost when it was given up in one of
them and none is open.  Whoever comes with a lost version begins it again, with rows of its own for
the logs that are not noted; whoever comes with a higher one passes it over, which is remembered.

  I1  Of one (application, version, log) at most one block is ever valid: a mark is noted or void,
      never both, because both are changes of one record.
  I2  What a reader has handed out stays valid: it hands out only what is noted, and what is noted
      does not become void.
  I3  Whoever begins `v` knows that all versions below are decided.
  I4  Void marks are remembered as long as the record: their blocks may arrive at any time.  A
      record is removed only if it is published and nothing of it is void, or if no row is left
      that any of its blocks could show.
  I5  Nobody is told that a version was published that was passed over.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from hashlib import sha256
from typing import Final

import msgspec

from millrace.types import NO_LSN, LogId, Lsn

STAGING_PREFIX: Final = "@staged/"
APP_CHARS_MAX: Final = 1_024
APP_KEY_BYTES_MAX: Final = 200  # A longer name is hashed in its key.
VOID_MARKS_MAX: Final = 8_192  # Of one application: as many crashes while it published.
LOGS_MAX: Final = 1_024  # That one publication goes to.


class Target(msgspec.Struct, frozen=True):
    """What is published in one log."""

    log: LogId
    name: str
    rows: int
    mark: int  # The block with it is the one.
    since: Lsn  # The block is not below.
    where: Lsn = NO_LSN  # Where it begins; NO_LSN: not noted yet.
    rows_end: Lsn = NO_LSN  # Its rows lie below, in the staging log; NO_LSN: nobody knows.
    is_lost: bool = False  # Given up; its mark is void.

    @property
    def is_noted(self) -> bool:
        return self.where != NO_LSN

    @property
    def is_open(self) -> bool:
        return not self.is_noted and not self.is_lost


class ManifestPlace(msgspec.Struct, frozen=True):
    """The record of a staging log that says what is published, for whoever finishes it."""

    log: str
    lsn: Lsn


class PublicationRecord(msgspec.Struct, frozen=True):
    app: str
    version: int
    targets: tuple[Target, ...]
    manifest: ManifestPlace | None  # None: nothing is published with this version.
    void: tuple[int, ...] = ()  # Marks, of all versions.
    begun_ms: int = 0
    before: int | None = None  # The version that was published before.
    lost: tuple[int, ...] = ()  # Versions that were passed over: each has left void marks.
    is_once: bool = False  # The application has this version alone.

    @property
    def is_published(self) -> bool:
        return all(each.is_noted for each in self.targets)

    @property
    def open_targets(self) -> tuple[Target, ...]:
        return tuple(each for each in self.targets if each.is_open)

    @property
    def passed_over(self) -> tuple[int, ...]:
        """Versions that are missing between this one and what was published before."""
        before = -1 if self.before is None else self.before
        return tuple(each for each in self.lost if each > before)

    def target(self, log: LogId) -> Target | None:
        return next((each for each in self.targets if each.log == log), None)


# -- Publishing -----------------------------------------------------------------------------------


class Course(Enum):
    """What `publish(app, version)` is to do."""

    NOTHING = "nothing"  # It was published.
    BEGIN = "begin"
    BEGIN_AGAIN = "begin_again"  # In the logs that are not noted: it is lost there.
    FINISH = "finish"  # What the record says comes first, whoever began it.
    TOO_LATE = "too_late"  # It is lost, and was passed over.


def course(record: PublicationRecord | None, version: int) -> Course:
    if record is None:
        return Course.BEGIN
    if record.version > version:  # Somebody went on: this one is decided (I3).
        return Course.TOO_LATE if version in record.lost else Course.NOTHING  # Keeps I5.
    if record.open_targets:
        return Course.FINISH
    if record.version < version:
        return Course.BEGIN
    return Course.NOTHING if record.is_published else Course.BEGIN_AGAIN


def begin(
    record: PublicationRecord | None,
    app: str,
    version: int,
    targets: tuple[Target, ...],
    manifest: ManifestPlace | None,
    now_ms: int,
    is_once: bool = False,
) -> PublicationRecord:
    """The record that follows this one."""
    chosen = course(record, version)
    assert chosen in (Course.BEGIN, Course.BEGIN_AGAIN)  # Keeps I3.
    if record is None:
        return PublicationRecord(app, version, targets, manifest, (), now_ms, is_once=is_once)
    if chosen is Course.BEGIN_AGAIN:
        return _begin_again(record, targets, manifest, now_ms)
    is_lost = not record.is_published
    return PublicationRecord(
        app,
        version,
        targets,
        manifest,
        record.void,
        now_ms,
        before=record.before if is_lost else record.version,
        lost=(*record.lost, record.version) if is_lost else record.lost,
    )


def _begin_again(
    record: PublicationRecord,
    targets: tuple[Target, ...],
    manifest: ManifestPlace | None,
    now_ms: int,
) -> PublicationRecord:
    """Keeps I2: what is noted stays.  It may be in other logs now, so what is void of it could be
    anywhere: its record is not removed any more."""
    noted = tuple(each for each in record.targets if each.is_noted)
    logs = {each.log for each in noted}
    return msgspec.structs.replace(
        record,
        targets=noted + tuple(each for each in targets if each.log not in logs),
        manifest=manifest,
        begun_ms=now_ms,
        is_once=False,
    )


def note(record: PublicationRecord, found: Mapping[int, Lsn]) -> PublicationRecord | None:
    """With what was found: marks, and where their blocks begin.  None if nothing is new."""
    targets = tuple(
        msgspec.structs.replace(each, where=found[each.mark])
        if each.is_open and each.mark in found  # Keeps I1: what was given up is void.
        else each
        for each in record.targets
    )
    return None if targets == record.targets else msgspec.structs.replace(record, targets=targets)


def take_over(record: PublicationRecord, marks: Iterator[int]) -> PublicationRecord | None:
    """Other marks for what is not noted; whoever holds the old ones cannot succeed any more.  None:
    too many are void already."""
    void = record.void + tuple(each.mark for each in record.open_targets)
    if len(void) > VOID_MARKS_MAX:
        return None
    targets = tuple(
        msgspec.structs.replace(each, mark=next(marks)) if each.is_open else each
        for each in record.targets
    )
    return msgspec.structs.replace(record, targets=targets, void=void)


def abandon(record: PublicationRecord, logs: Collection[LogId]) -> PublicationRecord:
    """Given up in these logs, which are gone, or whose rows are: nothing of what was begun appears
    there any more.  That is not published: who comes with the same version begins it again."""
    given_up = [each for each in record.open_targets if each.log in logs]
    return msgspec.structs.replace(
        record,
        targets=tuple(
            msgspec.structs.replace(each, is_lost=True) if each in given_up else each
            for each in record.targets
        ),
        void=record.void + tuple(each.mark for each in given_up),
    )


def is_removable(record: PublicationRecord) -> bool:
    """Whether readers know without the record what they would know with it (I4)."""
    return record.is_published and not record.void


def is_forgettable(record: PublicationRecord, gone: Collection[LogId]) -> bool:
    """Of an application that publishes once, if there is no row left in these logs that was staged
    for it: whatever block of it is met or still arrives, it shows nothing (I4)."""
    is_gone = all(each.log in gone for each in record.targets)
    return record.is_once and not record.open_targets and is_gone


# -- Reading --------------------------------------------------------------------------------------


class Standing(Enum):
    """What a block that publishes is, by the record."""

    VALID = "valid"
    VOID = "void"  # Nothing was published there.
    MAY_BE_NOTED = "may_be_noted"  # It is in the log: note it, and it is valid.


def standing_of(
    record: PublicationRecord | None, log: LogId, version: int, mark: int, first: Lsn
) -> Standing:
    """Of a block of `log` at `first`, by a record that was read after the block was seen: it was
    begun before the block was appended."""
    if record is None:
        return Standing.VALID
    if mark in record.void:
        return Standing.VOID
    if record.version != version:
        return Standing.VALID  # Above: decided (I3).  Below: a record that was removed, see I4.
    target = record.target(log)
    if target is None or target.mark != mark:
        return Standing.VOID
    if target.is_noted:
        return Standing.VALID if target.where == first else Standing.VOID
    return Standing.MAY_BE_NOTED


def decides(record: PublicationRecord | None, log: LogId, version: int) -> bool:
    """Whether what the record says of this version in this log stands for good, so that it need
    not be read again.  A version that is lost may be begun again, also in other logs."""
    if record is None or record.version < version:
        return False
    if record.version > version:
        return True
    target = record.target(log)
    return target is not None and target.is_noted


# -- Names ----------------------------------------------------------------------------------------


def staging_name(log: LogId) -> str:
    """The log that rows lie in which are to appear in this one."""
    return f"{STAGING_PREFIX}{log}"


def staged_for(name: str) -> LogId | None:
    """The log whose rows lie in the one of this name; None if that is no staging log."""
    rest = name.removeprefix(STAGING_PREFIX)
    return LogId(int(rest)) if rest != name and rest.isdigit() else None


def app_key(app: str) -> str:
    """The application as part of a metadata key."""
    encoded = app.encode()
    if len(encoded) <= APP_KEY_BYTES_MAX and app.isprintable():
        return app
    return f"sha256-{sha256(encoded).hexdigest()}"
