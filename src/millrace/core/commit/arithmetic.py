"""What is committed next: from the record and the reports to the next record (varlog 5.3, M5).

Only two numbers of a stream matter: where the record says that its committed part ends, and the
least end that its replicas reported.  So a late report commits nothing twice, whatever it says of
versions and of what was not committed when it was sent.

  I1  Positions are given densely, each once, to the streams in the order of their numbers.
  I2  The version goes up by one if something is committed, and only then.
  I3  Nothing of a stream is committed that some replica of its generation did not report.
  I4  A commit stays in the history until all replicas have reported its version, and a history has
      at most HISTORY_MAX commits: a stream waits for its slowest replica rather than to forget what
      that one needs.

Commits in a history are never joined, even if they continue one another: a node is sent those above
its version, and a joined one would begin below what it has, or be left out.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from millrace.core.commit.record import CommitRecord, Loss, StreamCommit, StreamRecord
from millrace.core.messages.commit import Commit, StreamCommits, StreamReport
from millrace.types import Lsn, NodeId, StreamId, Version

HISTORY_MAX: Final = 64  # Of one stream; each is in the record and may be in each Commit.

StreamReports = Mapping[NodeId, StreamReport]


def next_record(
    record: CommitRecord, reports: Mapping[StreamId, StreamReports]
) -> CommitRecord | None:
    """None if there is nothing to commit.  Streams that are being reformed are to be left out of
    `reports`: nothing of them is committed meanwhile."""
    if record.is_sealed:
        return None
    version = Version(record.version + 1)
    high_watermark = record.high_watermark
    streams = []
    for before in record.streams:
        known = reports.get(before.stream, {})
        stream = forget_taken(before, known)
        count = _committable(stream, known)
        if count:
            commit = StreamCommit(version, stream.local_end, Lsn(high_watermark + 1), count)
            stream = _committed(stream, commit)
            high_watermark = stream.last
        streams.append(stream)
    if high_watermark == record.high_watermark:
        return None
    return msgspec.structs.replace(
        record, version=version, high_watermark=high_watermark, streams=tuple(streams)
    )


def forget_taken(stream: StreamRecord, reports: StreamReports) -> StreamRecord:
    """Without the commits that all replicas have reported (I4)."""
    counted = _counted(stream, reports)
    if not stream.history or counted is None:
        return stream
    taken = min(each.version for each in counted)
    history = tuple(each for each in stream.history if each.version > taken)
    return msgspec.structs.replace(stream, history=history)


def commits_for(record: CommitRecord, node: NodeId, versions: Mapping[StreamId, Version]) -> Commit:
    """For a node that reported these versions: of each of its streams all commits above, none if
    there are only empty ones.  A stream without a version is one that the node never reported."""
    mine = (each for each in record.streams if node in each.replicas)
    return Commit(
        record.log,
        record.term,
        record.committer,
        record.version,
        record.high_watermark,
        record.trim_end,
        tuple(_commits_above(each, versions.get(each.stream, Version(0))) for each in mine),
        _version_first(record),
    )


def without_lost(stream: StreamRecord, end: Lsn, last: Lsn, version: Version) -> StreamRecord:
    """No replica has what was committed at local position `end` or above any more: the stream goes
    on from there, and the log's positions of what is lost stay nobody's.  `last` is where the entry
    below `end` lies, if the history does not say it; `version` is the record's."""
    kept = [each for each in stream.history if each.local < end]
    history = tuple(
        msgspec.structs.replace(each, count=min(each.count, end - each.local)) for each in kept
    )
    return msgspec.structs.replace(
        stream,
        local_end=end,
        last=Lsn(history[-1].end - 1) if history else last,
        history=history,
        loss=Loss(
            stream.lost + stream.local_end - end,
            version,
            end if stream.loss is None else min(end, stream.loss.local),
        ),
    )


def with_stream(record: CommitRecord, stream: StreamRecord) -> CommitRecord:
    """In the place of the one of its number, or as a new one."""
    others = (each for each in record.streams if each.stream != stream.stream)
    return msgspec.structs.replace(record, streams=_in_order((*others, stream)))


def _committable(stream: StreamRecord, reports: StreamReports) -> int:
    """How many entries can be committed now (I3, I4)."""
    counted = _counted(stream, reports)
    if counted is None or not stream.is_open or len(stream.history) >= HISTORY_MAX:
        return 0
    return max(0, min(each.end for each in counted) - stream.local_end)


def _counted(stream: StreamRecord, reports: StreamReports) -> list[StreamReport] | None:
    """A report of this generation from each replica; None if one is missing."""
    found = [reports.get(node) for node in stream.replicas]
    counted = [each for each in found if each is not None and each.generation == stream.generation]
    return counted if counted and len(counted) == len(found) else None


def _committed(stream: StreamRecord, commit: StreamCommit) -> StreamRecord:
    return msgspec.structs.replace(
        stream,
        local_end=commit.local_end,
        last=Lsn(commit.end - 1),
        history=(*stream.history, commit),
    )


def _version_first(record: CommitRecord) -> Lsn:
    """Where the positions of the newest version begin: the commits of a version stay in the
    histories until there is a next one."""
    newest = (each.history[-1] for each in record.streams if each.history)
    firsts = (each.first for each in newest if each.version == record.version)
    return min(firsts, default=Lsn(record.high_watermark + 1))


def _commits_above(stream: StreamRecord, version: Version) -> StreamCommits:
    commits = tuple(each for each in stream.history if each.version > version)
    return StreamCommits(stream.stream, stream.generation, commits, stream.local_end)


def _in_order(streams: Iterable[StreamRecord]) -> tuple[StreamRecord, ...]:
    return tuple(sorted(streams, key=lambda each: each.stream))
