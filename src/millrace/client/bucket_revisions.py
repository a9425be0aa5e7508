"""Versions of documents with the CAS they have elsewhere, offered to a bucket and read from it.

An offer that is made again changes nothing, so unlike other changes it is sent again when nobody
knows what became of it, and also when the copies did not confirm it in time.

I1  Offers of one key arrive in their order, but it does not matter: the highest stays.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from millrace.client.bucket_arguments import (
    EXPIRY_S_MAX,
    FLAGS_MAX,
    check_key,
    checked,
    durability_of,
    stored_extras,
)
from millrace.client.bucket_many import Rounds, Rows, Send, multi_request, raise_if_any_failed
from millrace.client.bucket_results import changed_by
from millrace.codec.memcached.binary import Durability
from millrace.codec.memcached.multi import MultiGet, decode_multi_stored, encode_multi_get
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.codec.memcached.revisions import (
    PlacedRevisions,
    decode_revisions_read,
    encode_revisions,
)
from millrace.core.documents.document import NO_CAS
from millrace.core.documents.revisions import Revision
from millrace.errors import UsageError
from millrace.runtime.document_link import DocumentLink

if TYPE_CHECKING:
    from millrace.client.bucket import Bucket

CAS_MAX: Final = 2**63 - 1
DATATYPE_MAX: Final = 2**8 - 1
_UNKNOWN: Final = object()  # The outcome of a key of which nothing is known.


async def write_revisions(
    bucket: "Bucket", rows: Sequence[Revision], durability: str | None, timeout_ms: int
) -> list[bool]:
    for revision in rows:
        _check(bucket, revision)
    wanted = None if durability is None else durability_of(durability, timeout_ms)
    keys = [revision.key for revision in rows]
    rounds = Rounds(bucket, keys, timeout_ms, is_patient=wanted is not None)
    sizes = [len(revision.key) + len(revision.value or b"") for revision in rows]
    await rounds.run(_writing(rounds, rows, wanted), sizes, is_change=False)
    raise_if_any_failed(rounds.outcomes)
    return [bool(outcome) for outcome in rounds.outcomes]


def _check(bucket: "Bucket", revision: Revision) -> None:
    check_key(revision.key)
    if revision.value is not None:
        bucket.check_value(revision.key, revision.value)
    if not isinstance(revision.cas, int) or not 0 < revision.cas <= CAS_MAX:
        raise UsageError(
            f"document {revision.key!r}: cas={revision.cas!r}: give the CAS that it has where it "
            "comes from"
        )
    checked(revision.flags, "flags", FLAGS_MAX)
    checked(revision.expiry_s, "expiry_s", EXPIRY_S_MAX)
    checked(revision.datatype, "datatype", DATATYPE_MAX)


def _writing(rounds: Rounds, revisions: Sequence[Revision], durability: Durability | None) -> Send:
    async def send(link: DocumentLink, rows: Rows, left_ms: int) -> Rows:
        placed = PlacedRevisions(
            [rounds.partitions[row] for row in rows], [revisions[row] for row in rows]
        )
        body = encode_revisions(placed)
        encode = multi_request(Opcode.WRITE_REVISIONS, body, durability)
        response = await link.ask(encode, left_ms)
        again = rounds.whole(response, rows)
        if again is not None:
            return again
        statuses = decode_multi_stored(response.value).statuses
        for row, status in zip(rows, statuses, strict=False):
            if status in (Status.SUCCESS, Status.KEY_EXISTS):
                rounds.outcomes[row] = status == Status.SUCCESS
            elif status == Status.INVALID_ARGUMENTS:
                rounds.outcomes[row] = _impossible(revisions[row])
        again = rounds.settle(response, rows, statuses)
        pairs = zip(rows, statuses, strict=True)
        unconfirmed = [row for row, status in pairs if status == Status.SYNC_WRITE_AMBIGUOUS]
        if unconfirmed:
            rounds.put_off("its copies did not confirm it in time")
        return again + unconfirmed

    return send


def _impossible(revision: Revision) -> UsageError:
    return UsageError(
        f"document {revision.key!r}: its cas {revision.cas} lies more than a day ahead of the "
        "node's clock: set the clocks of both clusters right"
    )


async def overwrite(
    bucket: "Bucket", revision: Revision, durability: str | None, timeout_ms: int
) -> None:
    """Whatever is there, as a change of the bucket's own: its master gives the CAS."""
    key, value = revision.key, revision.value
    if value is None:
        await bucket.delete(key, durability=durability, timeout_ms=timeout_ms)
        return
    bucket.check_value(key, value)
    extras = stored_extras(revision.flags, revision.expiry_s)
    datatype = checked(revision.datatype, "datatype", DATATYPE_MAX)
    response, partition = await bucket.change(
        Opcode.SET, key, value, extras, NO_CAS, durability, timeout_ms, datatype
    )
    changed_by(response, key, partition, NO_CAS)


async def read_revisions(
    bucket: "Bucket", keys: Iterable[bytes], timeout_ms: int
) -> dict[bytes, Revision]:
    wanted = list(dict.fromkeys(keys))
    for key in wanted:
        check_key(key)
    rounds = Rounds(bucket, wanted, timeout_ms)
    await rounds.run(_reading(rounds), None, is_change=False)
    raise_if_any_failed(rounds.outcomes)
    pairs = zip(wanted, rounds.outcomes, strict=True)
    return {key: found for key, found in pairs if found is not _UNKNOWN}


def _reading(rounds: Rounds) -> Send:
    async def send(link: DocumentLink, rows: Rows, left_ms: int) -> Rows:
        keys = [rounds.keys[row] for row in rows]
        body = encode_multi_get(MultiGet([rounds.partitions[row] for row in rows], keys))
        response = await link.ask(multi_request(Opcode.READ_REVISIONS, body), left_ms)
        if response.status == Status.TOO_LARGE and len(rows) > 1:
            half = len(rows) // 2
            first = await send(link, rows[:half], left_ms)
            return first + await send(link, rows[half:], left_ms)
        again = rounds.whole(response, rows)
        if again is not None:
            return again
        read = decode_revisions_read(response.value, keys)
        for row, status, revision in zip(rows, read.statuses, read.revisions, strict=True):
            if status == Status.SUCCESS:
                rounds.outcomes[row] = revision
            elif status == Status.NOT_FOUND:
                rounds.outcomes[row] = _UNKNOWN
        return rounds.settle(response, rows, read.statuses)

    return send
