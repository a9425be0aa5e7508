"""memcached's binary protocol: its requests, carried out, and answered with its statuses.

A client that has not said by HELLO that it knows the map is served wherever the partition is, and
what it writes into the partition field is ignored.  One that has gets NOT_MY_PARTITION, with the
map if it was not sent this one before.

I1  A quiet request is answered only if it fails; a quiet get only if it does not.
I2  What a change stream says goes to its session as it is, in the order of arrival.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from millrace.codec.memcached.binary import (
    COUNTER,
    EXPIRY,
    FLAGS_AND_EXPIRY,
    META,
    NUMBER,
    Frame,
    FrameDecoder,
    Refused,
    Request,
    encode_got,
    encode_refused,
    encode_response,
)
from millrace.codec.memcached.observing import TOKEN, decode_features, encode_features
from millrace.codec.memcached.opcodes import LOUD, Feature, Opcode, Status
from millrace.codec.memcached.pushes import BadMessage
from millrace.core.documents.document import Cas, PartitionId
from millrace.core.documents.operations import (
    NO_BUCKET,
    Command,
    DurabilityLevel,
    OperationStatus,
    Outcome,
    Verb,
)
from millrace.server.documents.backend import StreamOutlet, StreamSession
from millrace.server.documents.binary_answers import fail, refuse_partition, succeed
from millrace.server.documents.carrying_out import Later, carry_out, carry_out_anywhere
from millrace.server.documents.flushing import flush, flush_delay_s, flush_everywhere
from millrace.server.documents.many_documents import get_many, set_many
from millrace.server.documents.many_revisions import read_revisions, write_revisions
from millrace.server.documents.standings import STANDING_REQUESTS
from millrace.server.documents.visitor import Answer, Exclusive, Last, Pending, Visitor

DO_NOT_CREATE: Final = 0xFFFF_FFFF  # As the expiry of a counter.
SASL_MECHANISM: Final = b"PLAIN"
AUTHENTICATED: Final = b"Authenticated"
STREAM_OPCODES: Final = frozenset(
    [opcode for opcode in Opcode if opcode.name.startswith("DCP_")]
    + [Opcode.CHANGES, Opcode.BARRIER, Opcode.BARRIER_REACHED, Opcode.ALL_PARTITIONS]
    + [Opcode.SEQ_ACK, Opcode.FETCH, Opcode.REPAIR]
)

_VERBS: Final = {
    Opcode.GET: Verb.GET,
    Opcode.GETK: Verb.GET,
    Opcode.SET: Verb.SET,
    Opcode.ADD: Verb.ADD,
    Opcode.REPLACE: Verb.REPLACE,
    Opcode.DELETE: Verb.DELETE,
    Opcode.INCREMENT: Verb.INCREMENT,
    Opcode.DECREMENT: Verb.DECREMENT,
    Opcode.APPEND: Verb.APPEND,
    Opcode.PREPEND: Verb.PREPEND,
    Opcode.TOUCH: Verb.TOUCH,
    Opcode.GAT: Verb.GET_AND_TOUCH,
    Opcode.GATK: Verb.GET_AND_TOUCH,
    Opcode.SET_WITH_META: Verb.SET_REVISION,
    Opcode.DELETE_WITH_META: Verb.DELETE_REVISION,
}
# By the opcode as it is sent, quiet or not.
VERB_OF: Final[dict[int, Verb]] = {
    opcode: _VERBS[loud] for opcode in Opcode if (loud := LOUD.get(opcode, opcode)) in _VERBS
}
_WITH_KEY: Final = frozenset((Opcode.GETK, Opcode.GETKQ, Opcode.GATK, Opcode.GATKQ))
_QUIET: Final = frozenset(LOUD)
_READING: Final = (Verb.GET, Verb.GET_AND_TOUCH)
_COUNTING: Final = (Verb.INCREMENT, Verb.DECREMENT)
_STORING: Final = (Verb.SET, Verb.ADD, Verb.REPLACE)
_REVISING: Final = (Verb.SET_REVISION, Verb.DELETE_REVISION)
# Looking a member up in its enum takes longer than anything else of these lines.
_OK: Final = OperationStatus.OK
_GET: Final = Verb.GET
_DELETE: Final = Verb.DELETE
_NO_LEVEL: Final = DurabilityLevel.NONE


class BinaryConversation:
    def __init__(self, visitor: Visitor, outlet: StreamOutlet) -> None:
        self._visitor = visitor
        self._outlet = outlet
        self._decoder = FrameDecoder()
        self._session: StreamSession | None = None
        self._performers: dict[int, Callable[[Request], Answer]] = {
            **dict.fromkeys(VERB_OF, self._document),
            **dict.fromkeys(STREAM_OPCODES, self._stream),
            **{opcode: partial(ask, visitor) for opcode, ask in STANDING_REQUESTS.items()},
            Opcode.MULTI_GET: partial(get_many, visitor),
            Opcode.MULTI_SET: partial(set_many, visitor),
            Opcode.WRITE_REVISIONS: partial(write_revisions, visitor),
            Opcode.READ_REVISIONS: partial(read_revisions, visitor),
            Opcode.NOOP: succeed,
            Opcode.VERBOSITY: succeed,
            Opcode.QUIT: lambda request: Last(succeed(request)),
            Opcode.QUITQ: lambda _: Last(),
            Opcode.FLUSH: self._flush,
            Opcode.FLUSHQ: self._flush,
            Opcode.VERSION: self._version,
            Opcode.STAT: self._stat,
            Opcode.HELLO: self._hello,
            Opcode.SASL_LIST: lambda request: succeed(request, SASL_MECHANISM),
            Opcode.SASL_AUTH: _authenticate,
            Opcode.SASL_STEP: _authenticate,
            Opcode.SELECT_BUCKET: self._select_bucket,
        }

    @property
    def held_bytes(self) -> int:
        return self._decoder.held_bytes

    def feed(self, data: bytes) -> Sequence[Frame]:
        return self._decoder.feed(data)

    def perform(self, frame: Frame) -> Answer:
        if type(frame) is not Request:
            return self._perform_unusual(frame)
        performer = self._performers.get(frame.opcode)
        if performer is None:
            return fail(frame, Status.UNKNOWN_COMMAND)
        return performer(frame)

    def writable(self) -> None:
        if self._session is not None:
            self._session.writable()

    def closed(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.closed()

    def _perform_unusual(self, frame: Frame) -> Answer:
        if isinstance(frame, Refused):
            self._visitor.counts.malformed += 1
            answer = encode_refused(frame)
            return Last(answer) if frame.is_fatal else answer
        assert self._session is not None, "answers are decoded on a stream alone"
        self._session.receive(frame)
        return b""

    # -- Documents ----------------------------------------------------------------------------

    def _document(self, request: Request) -> Answer:
        verb = VERB_OF[request.opcode]
        host = self._visitor.host()
        outcome: Outcome | Later
        if host is None:
            outcome = NO_BUCKET
        elif self._visitor.is_map_aware:
            outcome = carry_out(host, PartitionId(request.partition), _command(verb, request))
        else:
            outcome = carry_out_anywhere(host, _command(verb, request))
        word = self._word_read if verb in _READING else self._word_change
        if type(outcome) is Outcome:
            return word(request, verb, outcome)
        assert not isinstance(outcome, Outcome)
        size = len(request.key) + len(request.value)
        # What this node has carried out waits for others; what it passes on is still to be done.
        is_wait = self._visitor.is_map_aware or (
            host is not None and host.active(host.partition_of(request.key)) is not None
        )
        return Pending(outcome, partial(word, request, verb), size, is_wait)

    def _word_read(self, request: Request, verb: Verb, outcome: Outcome) -> bytes:
        self._visitor.counts.count(verb, outcome)
        opcode = request.opcode
        document = outcome.document
        if document is None:
            return self._word_failure(request, outcome)
        key = document.key if opcode in _WITH_KEY else b""
        value = document.value or b""
        return encode_got(
            opcode, request.opaque, document.cas, document.flags, value, key, document.datatype
        )

    def _word_change(self, request: Request, verb: Verb, outcome: Outcome) -> bytes:
        self._visitor.counts.count(verb, outcome)
        if outcome.status is not _OK:
            return self._word_failure(request, outcome)
        opcode = request.opcode
        if opcode in _QUIET:
            return b""  # Keeps I1.
        document = outcome.document
        assert document is not None, "a change has its document"
        value = NUMBER.pack(outcome.number) if verb in _COUNTING else b""
        if self._visitor.wants_mutation_seqs:
            extras = TOKEN.pack(outcome.id, document.seq)
            return encode_response(opcode, 0, request.opaque, document.cas, value, extras)
        # A plain client is told of a deletion what memcached tells it: a document that is gone
        # has no CAS.
        cas = 0 if verb is _DELETE else document.cas
        return encode_response(opcode, 0, request.opaque, cas, value)

    def _word_failure(self, request: Request, outcome: Outcome) -> bytes:
        opcode, status = request.opcode, outcome.status
        if status is OperationStatus.NOT_FOUND and VERB_OF[opcode] in _READING:
            if opcode in _QUIET:
                return b""  # Keeps I1.
            if opcode in _WITH_KEY:
                return encode_response(opcode, status, request.opaque, key=request.key)
        if status is OperationStatus.NOT_MY_PARTITION:
            return refuse_partition(self._visitor, request)
        return fail(request, status)

    # -- The connection -----------------------------------------------------------------------

    def _hello(self, request: Request) -> Answer:
        """Grants those of the features asked for that there are."""
        try:
            asked = decode_features(request.value)
        except BadMessage as bad:
            return fail(request, bad.status)
        granted = [feature for feature in Feature if feature in asked]
        self._visitor.is_map_aware = Feature.MAP_AWARE in asked
        self._visitor.wants_mutation_seqs = Feature.MUTATION_SEQ in asked
        return succeed(request, encode_features(granted))

    def _select_bucket(self, request: Request) -> Answer:
        name = request.key.decode(errors="replace")
        if self._visitor.backend.bucket(name) is None:
            return fail(request, Status.NOT_FOUND)
        self._visitor.bucket = name
        self._visitor.map_told = b""
        return succeed(request)

    def _version(self, request: Request) -> Answer:
        return succeed(request, self._visitor.backend.version.encode())

    def _stat(self, request: Request) -> Answer:
        """One answer for each, and an empty one."""
        if request.key == b"reset":
            self._visitor.counts.reset()
            return succeed(request)
        stats = self._visitor.stats(request.key.decode(errors="replace"))
        if stats is None:
            return fail(request, Status.NOT_FOUND)
        answers = [
            encode_response(
                request.opcode, 0, request.opaque, 0, value.encode(), b"", name.encode()
            )
            for name, value in stats
        ]
        return b"".join([*answers, succeed(request)])

    def _flush(self, request: Request) -> Answer:
        visitor = self._visitor
        host = visitor.host()
        if host is None:
            return fail(request, Status.NO_BUCKET)
        visitor.counts.flushes += 1
        given_s = EXPIRY.unpack(request.extras)[0] if request.extras else 0
        delay_s = flush_delay_s(given_s, host.now_us())
        if delay_s:
            visitor.flushes.order(visitor.bucket, not visitor.is_map_aware, delay_s)
            return _word_flush(request, True)
        work = flush if visitor.is_map_aware else flush_everywhere
        return Exclusive(partial(work, host), partial(_word_flush, request))

    def _stream(self, request: Request) -> Answer:
        if self._session is None:
            self._session = self._visitor.backend.open_stream(self._visitor.bucket, self._outlet)
            self._decoder.takes_answers = True
        self._session.receive(request)
        return b""


def _command(verb: Verb, request: Request) -> Command:
    """The decoder has seen to it that the extras have the right size."""
    if verb is _GET:
        return Command(verb, request.key)
    flags = expiry_s = delta = revision = 0
    initial: int | None = None
    if verb in _STORING:
        flags, expiry_s = FLAGS_AND_EXPIRY.unpack(request.extras)
    elif verb in _COUNTING:
        delta, initial, expiry_s = COUNTER.unpack(request.extras)
        if expiry_s == DO_NOT_CREATE:
            initial = None
    elif verb in _REVISING:
        flags, expiry_s, _, revision = META.unpack(request.extras)
    elif request.extras:
        (expiry_s,) = EXPIRY.unpack(request.extras)
    level, timeout_ms = _NO_LEVEL, 0
    if request.durability is not None:
        level = DurabilityLevel(request.durability.level)
        timeout_ms = request.durability.timeout_ms or 0
    return Command(
        verb,
        request.key,
        request.value,
        flags,
        expiry_s,
        Cas(request.cas),
        delta,
        initial,
        request.datatype,
        level,
        timeout_ms,
        Cas(revision),
    )


def _authenticate(request: Request) -> bytes:
    """A placeholder: whoever names the mechanism is let in."""
    if request.key != SASL_MECHANISM:
        return fail(request, Status.AUTH_ERROR)
    return succeed(request, AUTHENTICATED)


def _word_flush(request: Request, is_whole: bool) -> bytes:
    if not is_whole:
        return fail(request, Status.TEMPORARY_FAILURE)
    return b"" if request.opcode in _QUIET else succeed(request)
