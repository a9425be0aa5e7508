"""What operations on documents give back, and how the answers that refuse are told.

I1  An error is definite exactly when the document certainly was not changed by the call.
"""

from struct import Struct
from typing import Final

import msgspec

from millrace.codec.memcached.binary import FLAGS, Response
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.core.documents.document import Cas, FailoverId, PartitionId, Seq
from millrace.core.documents.messages import MutationToken
from millrace.errors import (
    CasMismatch,
    DocumentExists,
    DocumentMissing,
    DurabilityImpossible,
    DurabilityUnknown,
    MillraceError,
    NotACounter,
    PartitionUnavailable,
    ProtocolError,
    UsageError,
    ValueTooLarge,
)


class Found(msgspec.Struct, frozen=True, gc=False):
    """A document as it was read.  `cas` names this version of it."""

    value: bytes
    cas: Cas
    flags: int = 0


class Changed(msgspec.Struct, frozen=True, gc=False):
    """A change that was made.  `token` names it for `Bucket.wait`."""

    cas: Cas
    token: MutationToken


class Counted(msgspec.Struct, frozen=True, gc=False):
    """What a counter stands at after a change."""

    number: int
    cas: Cas
    token: MutationToken


_SUCCESS: Final = int(Status.SUCCESS)
_NOT_FOUND: Final = int(Status.NOT_FOUND)
_TOKEN: Final = Struct(">QQ")  # Extras of the answer to a change: failover id, seq.

# Nothing was done, and the next attempt may succeed: elsewhere, or later.
RETRIED: Final = frozenset(
    (
        Status.NOT_MY_PARTITION,
        Status.TEMPORARY_FAILURE,
        Status.BUSY,
        Status.NO_MEMORY,
        Status.NO_BUCKET,
        Status.SYNC_WRITE_IN_PROGRESS,
    )
)


def status_word(status: int) -> str:
    try:
        return Status(status).name
    except ValueError:
        return f"status {status:#04x}"


def refusal_of(opcode: int, status: int, key: bytes, has_cas: bool, detail: str) -> MillraceError:
    """The error that an answer to a request for `key` stands for.  Keeps I1."""
    who = f"document {key!r}"
    if status == Status.KEY_EXISTS:
        if opcode == Opcode.ADD:
            return DocumentExists(f"{who} exists already; `set` replaces it")
        return CasMismatch(f"{who} was changed since; read it again")
    if status in (Status.NOT_FOUND, Status.NOT_STORED):
        if has_cas:
            return CasMismatch(f"{who} does not exist, or was deleted since; read it again")
        return DocumentMissing(f"{who} does not exist")
    if status in RETRIED:
        return PartitionUnavailable(f"{who} cannot be served now: {status_word(status)}")
    kind = _KINDS.get(status)
    if kind is None:
        return ProtocolError(f"{who}: answered with {status_word(status)} {detail}".rstrip())
    return kind(f"{who}: {_WORDS[status]}")


_KINDS: Final[dict[int, type[MillraceError]]] = {
    Status.TOO_LARGE: ValueTooLarge,
    Status.INVALID_ARGUMENTS: UsageError,
    Status.DELTA_BADVAL: NotACounter,
    Status.DURABILITY_IMPOSSIBLE: DurabilityImpossible,
    Status.SYNC_WRITE_AMBIGUOUS: DurabilityUnknown,
}
_WORDS: Final[dict[int, str]] = {
    Status.TOO_LARGE: "its value would be larger than the bucket takes",
    Status.INVALID_ARGUMENTS: "the node does not take these arguments",
    Status.DELTA_BADVAL: "its value is not a decimal number below 2^64",
    Status.DURABILITY_IMPOSSIBLE: "its partition has too few copies for this durability",
    Status.SYNC_WRITE_AMBIGUOUS: (
        "it was changed, but the copies did not confirm it in time; read it, or wait with a "
        "longer timeout_ms"
    ),
}


def refusal_in(response: Response, key: bytes, has_cas: bool) -> MillraceError:
    detail = response.value[:200].decode(errors="replace")
    return refusal_of(response.opcode, response.status, key, has_cas, detail)


def found_in(response: Response, key: bytes) -> Found | None:
    if response.status == _SUCCESS:
        return Found(response.value, Cas(response.cas), FLAGS.unpack_from(response.extras)[0])
    if response.status == _NOT_FOUND:
        return None
    raise refusal_in(response, key, has_cas=False)


def changed_by(response: Response, key: bytes, partition: PartitionId, cas: Cas) -> Changed:
    """Raises what the answer says."""
    if response.status != _SUCCESS:
        raise refusal_in(response, key, has_cas=bool(cas))
    if len(response.extras) != _TOKEN.size:
        raise ProtocolError(f"a change of {key!r} was answered without its seq")
    id, seq = _TOKEN.unpack(response.extras)
    made = Cas(response.cas)
    return Changed(made, MutationToken(partition, FailoverId(id), Seq(seq), made))
