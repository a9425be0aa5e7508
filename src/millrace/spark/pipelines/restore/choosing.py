"""Which files of a backup make up what is to be restored, and up to where.

Logs can end at any position or time.  Of a document a run has the version that was the newest when
it was made, so a bucket can be had as of a run: the last one that was complete at the time.
"""

from pathlib import Path

import msgspec

from millrace.errors import UsageError
from millrace.spark.options import EARLIEST, LATEST, Bound
from millrace.spark.pipelines.backup.manifest import (
    Chain,
    Manifest,
    SavedBucket,
    SavedFile,
    SavedLog,
)
from millrace.spark.pipelines.backup.planning import choose
from millrace.types import FIRST_LSN, LSN_MAX, Gap, Lsn


class LogSource(msgspec.Struct, frozen=True):
    """Files in order of positions; `version` n publishes file n, from 1 on."""

    saved: SavedLog  # As the last run has it.
    first: Lsn
    end: Lsn  # Nothing at or above it.
    time_end_us: int | None  # Nothing behind the first record of this time or later.
    files: tuple[tuple[str, SavedFile], ...]
    gaps: tuple[Gap, ...]

    @property
    def is_dense(self) -> bool:
        """Whether it holds each position from the first on: then they can be the same again."""
        return self.first == FIRST_LSN and not self.gaps


class BucketSource(msgspec.Struct, frozen=True):
    saved: SavedBucket
    run: int  # The documents are those of the end of this run.
    files: dict[int, tuple[str, ...]]  # By run; each partition from its last full run on.


class Chosen(msgspec.Struct, frozen=True):
    logs: tuple[LogSource, ...]
    buckets: tuple[BucketSource, ...]

    def files(self, chain: Chain) -> list[tuple[Path, SavedFile]]:
        """All that is needed, to be checked."""
        needed = {path for log in self.logs for path, _ in log.files}
        needed |= {path for each in self.buckets for paths in each.files.values() for path in paths}
        return [(path, file) for path, file in chain.files() if str(path) in needed]


def choose_sources(
    chain: Chain,
    logs: tuple[str, ...] | None,
    buckets: tuple[str, ...] | None,
    until: Bound | None,
) -> Chosen:
    """`chain` ends with the run that is wanted; raises UsageError for what it does not have."""
    try:
        log_names = choose([each.name for run in chain.runs for each in run.logs], logs, "logs")
        saved = [each.name for run in chain.runs for each in run.buckets]
        bucket_names = choose(saved, buckets, "buckets")
    except LookupError as word:
        raise UsageError(f"{chain.folder} holds nothing that matches {word}") from None
    at_time = _at_time(chain, until)
    return Chosen(
        tuple(_log_source(chain, name, until) for name in log_names),
        tuple(_bucket_source(at_time, name) for name in bucket_names),
    )


def _at_time(chain: Chain, until: Bound | None) -> Chain:
    """The runs that buckets are taken from."""
    if until is None or until.time_us is None:
        return chain
    kept = [run for run in chain.runs if run.finished_ms * 1000 <= until.time_us]
    return chain.until(kept[-1].run) if kept else Chain(chain.folder, [], {})


def _log_source(chain: Chain, name: str, until: Bound | None) -> LogSource:
    parts = chain.log_parts(name)
    place = LATEST if until is None else until.places.get(name, until.everywhere or LATEST)
    time_end_us = None if until is None else until.times_us.get(name, until.time_us)
    end = _end(place, parts[-1][1])
    files = [(str(chain.path(run, file)), file) for run, saved in parts for file in saved.files]
    gaps = [gap for _, saved in parts for gap in saved.gaps]
    return LogSource(
        parts[-1][1],
        parts[0][1].first,
        end,
        time_end_us,
        tuple((path, file) for path, file in files if file.first < end),
        tuple(gap for gap in gaps if gap.first < end),
    )


def _end(place: str | int, saved: SavedLog) -> Lsn:
    if place == LATEST:
        return LSN_MAX
    if place == EARLIEST:
        return Lsn(0)
    assert isinstance(place, int)
    if place > saved.end:
        raise UsageError(
            f"until: log {saved.name!r} was saved up to {saved.end}, and not up to {place}"
        )
    return Lsn(place)


def _bucket_source(chain: Chain, name: str) -> BucketSource:
    """Of the last run that has it."""
    found = [(run, bucket) for run in chain.runs if (bucket := run.bucket(name)) is not None]
    if not found:
        raise UsageError(
            f"until: no run of {chain.folder} that has bucket {name!r} was complete at that time; "
            "restore without it (option buckets), or as of a later time"
        )
    last, saved = found[-1]
    files: dict[int, list[str]] = {}
    for each in saved.partitions:
        for run, part in chain.bucket_parts(name, each.partition):
            files.setdefault(run.run, []).extend(_paths(chain, run, part, each.partition))
    return BucketSource(saved, last.run, {run: tuple(paths) for run, paths in files.items()})


def _paths(chain: Chain, run: Manifest, saved: SavedBucket, partition: int) -> list[str]:
    return [str(chain.path(run, file)) for file in saved.files if file.partition == partition]
