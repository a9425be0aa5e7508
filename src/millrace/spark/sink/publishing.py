"""What the driver does when all tasks have staged their rows: publish them, and say what became of
it if that fails.

I1  While its name is remembered a publication may be repeated: it is tried again when the cluster
    does not answer.  The name of a write that never comes again is forgotten when it is published,
    and not before; that this fails is no reason to try again.
I2  Nothing is ever taken back: who aborts leaves what it staged where it is.  It goes when the log
    forgets what was published about that time: by its retention, by `log trim`, or never.
"""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from millrace.client.cluster import Client
from millrace.client.publications import Published, Staged
from millrace.errors import (
    PublicationTakenOver,
    StagedTooOld,
    Unavailable,
    UnknownLog,
    UsageError,
)
from millrace.spark import workers
from millrace.spark.sink.options import SinkOptions
from millrace.spark.sink.staging import missing_log

_log: Final = logging.getLogger("millrace.spark")


class Publication(msgspec.Struct, frozen=True):
    """What is published under which name, and how messages call it."""

    app: str
    version: int
    title: str
    is_once: bool = False


def check_log(options: SinkOptions) -> None:
    """Before a task runs; rows that name their logs are checked as they come."""
    name = options.log
    if name is None:
        return

    async def look(client: Client) -> None:
        try:
            await client.log(name)
        except UnknownLog:
            raise missing_log(client, name) from None

    workers.call(options, look)


def publish(options: SinkOptions, publication: Publication, staged: Sequence[Staged]) -> None:
    """Keeps I1."""

    async def work(client: Client) -> Published:
        return await client.publications.publish(
            publication.app,
            publication.version,
            staged,
            is_once=publication.is_once,
            timeout_ms=options.timeout_ms,
        )

    try:
        published = workers.call(options, work)
    except (StagedTooOld, PublicationTakenOver, Unavailable) as failure:
        raise _failed(publication, failure) from None
    if published.is_repeated and not publication.is_once:
        _log.warning("%s: published before, not written again", publication.title)


def tell_skipped(publication: Publication, count: int) -> None:
    if count:
        _log.warning(
            "%s: %d rows without a value or a log were left out (onNull=skip)",
            publication.title,
            count,
        )


def _failed(publication: Publication, failure: Exception) -> UsageError | Unavailable:
    front = f"failed to publish {publication.title}: {failure}"
    match failure:
        case StagedTooOld():
            return StagedTooOld(
                f"{front}. None of the rows that this attempt staged is in a log: start it again"
            )
        case PublicationTakenOver():
            return PublicationTakenOver(
                f"{front}. Somebody else writes under the same name: let one driver at a time run "
                "a query from one checkpointLocation, or a write with one txnAppId"
            )
    if publication.is_once:
        return Unavailable(
            f"{front}. Each log has all of its rows or none: look before you write again, or give "
            "txnAppId and txnVersion, with which a write may be repeated"
        )
    return Unavailable(f"{front}. Start it again: what was published is not written twice")
