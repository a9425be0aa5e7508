"""A log's metadata log: a small sequenced log that says where blocks of each epoch may lie (R14).

Written by an activation that changes the nodeset, before anything is appended in the new epoch;
read by recoveries and by readers of old epochs.  Its own nodeset is configured for the cluster, so
it needs none itself.  It has a handful of records in its life and is read whole: every node is
asked for all that it has, and the answer counts when an f-majority gave theirs.

  I1  A change that was recorded is among those read: a block that is missing at an f-majority of
      nodes was never acknowledged.  One that was not acknowledged may be among them: its epoch
      is empty, so it does no harm.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from millrace.core.append import Appended
from millrace.core.epochs import EpochRecord, NodesetChange, metadata_log_of
from millrace.core.messages import (
    DescribeSequenced,
    FetchCopies,
    Fetched,
    SequencedDescribed,
)
from millrace.core.procedure import (
    Ask,
    ClusterView,
    DeadlinePassed,
    Failure,
    FailureKind,
    ListNodes,
    Pause,
    Procedure,
    ReadEpochs,
    ReadStatuses,
    ask,
    ask_all,
)
from millrace.core.replication import Authority, authority
from millrace.core.sequenced.append import Seats, SequencedAppend
from millrace.limits import READ_BATCH_BYTES
from millrace.types import (
    FIRST_LSN,
    Ack,
    AuthoritativeStatus,
    Block,
    EntryKind,
    LogId,
    Lsn,
    NodeId,
    Token,
)

MakeRecord = Callable[[LogId, bytes, Token], Block]  # A block of one record, not yet placed.
ReadRecords = Callable[[Block], list[bytes]]
PAUSE_MS: Final = 50
PAUSE_MS_MAX: Final = 1_000
PAGES_MAX: Final = 64  # Of one node; the log is small.

READ_TIMEOUT_MS = 10_000  # Whoever reads those of many logs must come to the next one.

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(NodesetChange).decode


def append_change(
    log: LogId, change: NodesetChange, token: Token, make_record: MakeRecord
) -> Procedure[bool | Failure]:
    block = make_record(metadata_log_of(log), _encode(change), token)
    outcome = yield from SequencedAppend(block, Ack.DISK, Seats()).run()
    if isinstance(outcome, Appended):
        return True
    detail = f"the nodeset of log {log} was not recorded: {outcome.detail}"
    return Failure(FailureKind.METADATA, detail)


def read_changes(
    log: LogId, read_records: ReadRecords
) -> Procedure[tuple[NodesetChange, ...] | Failure]:
    """In the order in which they were recorded."""
    pause_ms, trouble = PAUSE_MS, "nobody was asked"
    try:
        while True:
            blocks = yield from _read_once(metadata_log_of(log))
            if not isinstance(blocks, str):
                values = [value for block in blocks for value in read_records(block)]
                return tuple(_decode(value) for value in values)
            trouble = blocks
            yield Pause(pause_ms)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)
    except DeadlinePassed:
        return Failure(FailureKind.TIMED_OUT, f"the metadata log of log {log}: {trouble}")


def _read_once(log: LogId) -> Procedure[list[Block] | str]:
    """All record blocks, or what is in the way."""
    read: tuple[EpochRecord | None, int] | Failure = yield ReadEpochs(log)
    if isinstance(read, Failure):
        return read.detail
    record = read[0]
    if record is None:
        return []
    statuses: Mapping[NodeId, AuthoritativeStatus] | Failure = yield ReadStatuses()
    if isinstance(statuses, Failure):
        return statuses.detail
    view: ClusterView | Failure = yield ListNodes()
    if isinstance(view, Failure):
        return view.detail
    locations = {node.id: node.location for node in view.nodes}
    nodes = record.nodeset
    answers = yield from ask_all([Ask(node, DescribeSequenced(log)) for node in nodes])
    described = {
        node: answer
        for node, answer in zip(nodes, answers, strict=True)
        if isinstance(answer, SequencedDescribed)
    }
    found: dict[Lsn, Block] = {}
    voted: list[NodeId] = []
    for node, holds in described.items():
        blocks = yield from _fetch(node, log, holds.end)
        if blocks is not None:
            found |= {block.first: block for block in blocks}
            voted.append(node)
    said = authority(record.replication, nodes, locations, statuses, voted)
    if said is Authority.NONE:  # Keeps I1.
        return f"nodes {sorted(set(nodes) - set(voted))} do not answer"
    return [found[first] for first in sorted(found) if found[first].kind is EntryKind.DATA]


def _fetch(node: NodeId, log: LogId, end: Lsn) -> Procedure[list[Block] | None]:
    blocks: list[Block] = []
    first = FIRST_LSN
    for _ in range(PAGES_MAX):
        if first >= end:
            return blocks
        answer = yield from ask(node, FetchCopies(log, first, end, READ_BATCH_BYTES))
        if not isinstance(answer, Fetched):
            return None
        blocks += answer.blocks
        first = answer.next_lsn
    return None
