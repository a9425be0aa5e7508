"""Bringing another node's replica of a stream to where this node's is: the source's side (M7).

The source reads its own stream like anybody else and sends what the destination asks for, batch by
batch.  What it promises is what was committed when it was asked; the stream may go on meanwhile.

I1  The context goes with the last batch, and ends where that ends.
I2  A sync that fails leaves the destination as far as it came: the next one goes on from there.
I3  Each run says the version that committed it, or a later one: versions go up along the stream.
"""

from typing import Final

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.core.messages import (
    FetchStream,
    Message,
    Refusal,
    Refused,
    StreamPage,
    StreamSynced,
    SyncInit,
    SyncRange,
    SyncReplicate,
    SyncTaken,
)
from millrace.core.procedure import Answer, DeadlinePassed, Failure, Procedure, ask
from millrace.limits import READ_BATCH_BYTES
from millrace.types import Lsn, NodeId, Version

SYNC_STEP_TIMEOUT_MS: Final = 10_000


def sync(offer: SyncInit, destination: NodeId) -> Procedure[Message]:
    """What to answer to whoever wanted it: StreamSynced, or a refusal."""
    try:
        return (yield from _sync(offer, destination))
    except DeadlinePassed:
        return _failed(offer, "it took too long")


def _sync(offer: SyncInit, destination: NodeId) -> Procedure[Message]:
    wanted = yield from ask(destination, offer, SYNC_STEP_TIMEOUT_MS)
    if not isinstance(wanted, SyncRange):
        return _failed(offer, f"node {destination} takes no offer: {_said(wanted)}")
    at = wanted.first
    is_done = wanted.is_complete
    while not is_done:
        batch = yield from _read(offer, at)
        if isinstance(batch, Refused):
            return batch
        is_done = batch.context is not None
        taken = yield from ask(destination, batch, SYNC_STEP_TIMEOUT_MS)
        if not isinstance(taken, SyncTaken):
            return _failed(offer, f"node {destination} does not go on: {_said(taken)}")
        if not is_done and taken.end <= at:
            return _failed(offer, f"node {destination} comes no further than {at}")
        at = taken.end
    return StreamSynced(offer.end)


def _read(offer: SyncInit, at: Lsn) -> Procedure[SyncReplicate | Refused]:
    """The next batch, or what there is to say instead.  Keeps I1."""
    if at >= offer.end:
        return _batch(offer, StreamPage(at, at, (), ()), at, offer.context)
    question = FetchStream(offer.log, offer.stream, at, offer.end, READ_BATCH_BYTES)
    page = yield from ask(offer.source, question, SYNC_STEP_TIMEOUT_MS)
    if not isinstance(page, StreamPage):
        return _failed(offer, f"the source cannot be read: {_said(page)}")
    if not page.blocks or page.blocks[0].first > at:
        return _failed(offer, f"what lies at {at} was trimmed meanwhile: begin again")
    is_last = page.blocks[-1].end >= offer.end
    return _batch(offer, page, at, offer.context if is_last else None)


def _batch(
    offer: SyncInit, page: StreamPage, at: Lsn, context: CommitContext | None
) -> SyncReplicate:
    return SyncReplicate(
        offer.log,
        offer.stream,
        offer.generation,
        offer.source,
        page.blocks,
        _runs(page, at, None if offer.context is None else offer.context.version),
        context,
    )


def _runs(page: StreamPage, at: Lsn, newest: Version | None) -> tuple[StreamCommit, ...]:
    """Keeps I3: the source may have joined what is offered with later commits, of which the context
    does not know.  Where the first block lies across the trim point only its upper part counts."""
    runs: list[StreamCommit] = []
    for block, first, version in zip(page.blocks, page.firsts, page.versions, strict=True):
        local = max(block.first, at)
        known = version if newest is None else min(version, newest)
        place = Lsn(first + local - block.first)
        runs.append(StreamCommit(known, local, place, block.end - local))
    return tuple(runs)


def _said(answer: Answer) -> str:
    match answer:
        case Refused(reason, _, detail):
            return f"{reason.value} {detail}"
        case Failure(kind, detail):
            return f"{kind.value} {detail}"
    return f"unexpected {type(answer).__name__}"


def _failed(offer: SyncInit, why: str) -> Refused:
    return Refused(Refusal.UNAVAILABLE, offer.generation, why)
