"""What a publication is to consist of, written down before it begins for whoever finishes it."""

from collections.abc import Sequence
from typing import Final

import msgspec

from millrace.client.publications.staging import Staged, together
from millrace.codec.published import StagedRows, draft_published
from millrace.core.publications import LOGS_MAX, PublicationRecord
from millrace.errors import CorruptBlock, StagedTooOld, UsageError
from millrace.types import LogId, Record


class ManifestEntry(msgspec.Struct, frozen=True, array_like=True):
    log: LogId
    name: str
    rows: StagedRows


class Manifest(msgspec.Struct, frozen=True):
    """What is published where, for whoever finishes it."""

    app: str
    version: int
    entries: tuple[ManifestEntry, ...]


_DECODER: Final = msgspec.msgpack.Decoder(Manifest)


def manifest_of(app: str, version: int, staged: Sequence[Staged]) -> Manifest:
    """Raises UsageError."""
    by_log: dict[LogId, list[Staged]] = {}
    for each in staged:
        by_log.setdefault(each.log_id, []).append(each)
    if len(by_log) > LOGS_MAX:
        raise UsageError(f"rows of {len(by_log)} logs: at most {LOGS_MAX} are published at once")
    entries = [
        ManifestEntry(log, several[0].log, rows)
        for log, several in by_log.items()
        if (rows := together(several)) is not None
    ]
    for entry in entries:
        draft_published(app, version, 0, entry.rows)  # What cannot be is told before it begins.
    return Manifest(app, version, tuple(entries))


def check_ages(staged: Sequence[Staged], now_ms: int) -> None:
    """Before they are published; whether others were, under the same version, is known by then.
    Raises StagedTooOld."""
    for each in staged:
        if each.place is None:
            continue
        age_ms = now_ms - each.place.staged_at_ms
        if age_ms > each.time_to_live_ms:
            raise StagedTooOld(
                f"rows of log {each.log!r} were staged {age_ms // 1000} s ago and are kept for "
                f"{each.time_to_live_ms // 1000} s only: stage them again"
            )


def decoded(read: Record, record: PublicationRecord) -> Manifest:
    try:
        manifest = _DECODER.decode(read.value)
    except (msgspec.DecodeError, UnicodeDecodeError) as invalid:
        raise CorruptBlock(f"the manifest at {record.manifest} cannot be read: {invalid}") from None
    if (manifest.app, manifest.version) != (record.app, record.version):
        raise CorruptBlock(f"the manifest at {record.manifest} is of another publication")
    return manifest
