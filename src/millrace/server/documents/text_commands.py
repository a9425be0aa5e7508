"""memcached's text protocol: its commands, carried out, and its words for how they ended.

A text client knows no partitions: whatever it asks is carried out wherever the key's partition is.

I1  A command that said `noreply` is never answered, whatever becomes of it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from millrace.codec.memcached import text
from millrace.codec.memcached.text import TextDecoder
from millrace.codec.memcached.text_commands import (
    BAD_LINE,
    Command,
    Count,
    Delete,
    FlushAll,
    Get,
    Quit,
    Rejected,
    Stats,
    Store,
    StoreVerb,
    Touch,
    Verbosity,
    Version,
)
from millrace.core.documents import operations
from millrace.core.documents.document import Cas
from millrace.core.documents.operations import OperationStatus, Outcome, Verb
from millrace.server.documents.carrying_out import Later, Many, ManyReads, carry_out_anywhere
from millrace.server.documents.flushing import flush_delay_s, flush_everywhere
from millrace.server.documents.visitor import Answer, Exclusive, Last, Pending, Visitor

NO_BUCKET: Final = b"SERVER_ERROR no bucket\r\n"
AMBIGUOUS: Final = b"SERVER_ERROR it may have happened, or not\r\n"
UNKNOWN_GROUP: Final = b"CLIENT_ERROR no such statistics\r\n"
TOO_MUCH: Final = b"SERVER_ERROR out of memory writing get response\r\n"
TOO_MANY_KEYS: Final = b"CLIENT_ERROR too many keys\r\n"
KEYS_MAX: Final = 16_384  # Of one get: some ten milliseconds.
NO_DOCUMENT_CAS: Final = Cas(2**64 - 1)  # For `cas` with 0, which no document has either.

_VERBS: Final = {
    StoreVerb.SET: Verb.SET,
    StoreVerb.ADD: Verb.ADD,
    StoreVerb.REPLACE: Verb.REPLACE,
    StoreVerb.APPEND: Verb.APPEND,
    StoreVerb.PREPEND: Verb.PREPEND,
    StoreVerb.CAS: Verb.SET,
}
_FAILURES: Final = {
    OperationStatus.NOT_FOUND: text.NOT_FOUND,
    OperationStatus.EXISTS: text.EXISTS,
    OperationStatus.TOO_LARGE: text.TOO_LARGE,
    OperationStatus.INVALID: BAD_LINE,
    OperationStatus.NOT_STORED: text.NOT_STORED,
    OperationStatus.BAD_DELTA: text.NOT_A_NUMBER,
    OperationStatus.NOT_MY_PARTITION: text.TEMPORARY_FAILURE,  # It is moving just now.
    OperationStatus.NO_BUCKET: NO_BUCKET,
    OperationStatus.TEMPORARY_FAILURE: text.TEMPORARY_FAILURE,
    OperationStatus.AMBIGUOUS: AMBIGUOUS,
}
# Who stores under a condition is told that it did not hold, not why.
_CONDITION_FAILURES: Final = _FAILURES | {
    OperationStatus.NOT_FOUND: text.NOT_STORED,
    OperationStatus.EXISTS: text.NOT_STORED,
}
_CONDITIONAL: Final = (StoreVerb.ADD, StoreVerb.REPLACE)


class TextConversation:
    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self._decoder = TextDecoder()
        self._performers: dict[type, Callable[[Any], Answer]] = {
            Get: self._get,
            Store: self._store,
            Delete: self._delete,
            Count: self._count,
            Touch: self._touch,
            FlushAll: self._flush,
            Verbosity: lambda command: b"" if command.is_quiet else text.OK,
            Stats: self._stats,
            Version: lambda _: text.encode_version(visitor.backend.version),
            Quit: lambda _: Last(),
            Rejected: self._reject,
        }

    @property
    def held_bytes(self) -> int:
        return self._decoder.held_bytes

    def feed(self, data: bytes) -> Sequence[Command]:
        return self._decoder.feed(data)

    def perform(self, command: Command) -> Answer:
        return self._performers[type(command)](command)

    def writable(self) -> None:
        """Nothing is pushed."""

    def closed(self) -> None:
        """Nothing is kept."""

    # -- Documents ----------------------------------------------------------------------------

    def _carry_out(self, command: operations.Command) -> Outcome | Later:
        host = self._visitor.host()
        if host is None:
            return operations.NO_BUCKET
        return carry_out_anywhere(host, command)

    def _get(self, get: Get) -> Answer:
        if len(get.keys) == 1 and get.expiry is None:
            return self._get_one(get)
        host = self._visitor.host()
        if host is None:
            return NO_BUCKET
        if len(get.keys) > KEYS_MAX:
            return TOO_MANY_KEYS
        verb = Verb.GET if get.expiry is None else Verb.GET_AND_TOUCH
        expiry_s = get.expiry or 0
        commands = [operations.Command(verb, key, expiry_s=expiry_s) for key in get.keys]
        reads = ManyReads(host, commands, map(host.partition_of, get.keys), is_forwarding=True)
        word = partial(self._word_values, verb, get.has_cas)
        return word(reads.outcomes) if reads.is_complete else Exclusive(reads.forward, word)

    def _get_one(self, get: Get) -> Answer:
        outcome = self._carry_out(operations.Command(Verb.GET, get.keys[0]))
        if isinstance(outcome, Outcome):
            return self._word_values(Verb.GET, get.has_cas, [outcome])
        return Pending(outcome, lambda done: self._word_values(Verb.GET, get.has_cas, [done]))

    def _word_values(self, verb: Verb, has_cas: bool, outcomes: Many) -> bytes:
        """A document that cannot be read now must not be taken for one that does not exist."""
        if outcomes is None:
            return TOO_MUCH
        parts: list[bytes] = []
        for outcome in outcomes:
            self._visitor.counts.count(verb, outcome)
            document = outcome.document
            if document is not None:
                cas = document.cas if has_cas else None
                parts.append(
                    text.encode_value(document.key, document.flags, document.value or b"", cas)
                )
            elif outcome.status is not OperationStatus.NOT_FOUND:
                return _FAILURES[outcome.status]
        parts.append(text.END)
        return b"".join(parts)

    def _store(self, store: Store) -> Answer:
        cas = Cas(store.cas) or NO_DOCUMENT_CAS if store.verb is StoreVerb.CAS else Cas(0)
        command = operations.Command(
            _VERBS[store.verb], store.key, store.value, store.flags, store.expiry, cas
        )
        failures = _CONDITION_FAILURES if store.verb in _CONDITIONAL else _FAILURES
        return self._answer(command, text.STORED, failures, store.is_quiet)

    def _delete(self, delete: Delete) -> Answer:
        command = operations.Command(Verb.DELETE, delete.key)
        return self._answer(command, text.DELETED, _FAILURES, delete.is_quiet)

    def _count(self, count: Count) -> Answer:
        verb = Verb.DECREMENT if count.is_decrement else Verb.INCREMENT
        command = operations.Command(verb, count.key, delta=count.delta)
        return self._answer(command, None, _FAILURES, count.is_quiet)

    def _touch(self, touch: Touch) -> Answer:
        command = operations.Command(Verb.TOUCH, touch.key, expiry_s=touch.expiry)
        return self._answer(command, text.TOUCHED, _FAILURES, touch.is_quiet)

    def _answer(
        self,
        command: operations.Command,
        success: bytes | None,
        failures: dict[OperationStatus, bytes],
        is_quiet: bool,
    ) -> Answer:
        """`success` None: the number that a counter has become."""
        outcome = self._carry_out(command)
        word = partial(self._word, command.verb, success, failures, is_quiet)
        if isinstance(outcome, Outcome):
            return word(outcome)
        return Pending(outcome, word, len(command.key) + len(command.value))

    def _word(
        self,
        verb: Verb,
        success: bytes | None,
        failures: dict[OperationStatus, bytes],
        is_quiet: bool,
        outcome: Outcome,
    ) -> bytes:
        self._visitor.counts.count(verb, outcome)
        if is_quiet:
            return b""  # Keeps I1.
        if outcome.status is not OperationStatus.OK:
            return failures[outcome.status]
        return text.encode_number(outcome.number) if success is None else success

    # -- The rest -----------------------------------------------------------------------------

    def _flush(self, command: FlushAll) -> Answer:
        visitor = self._visitor
        host = visitor.host()
        if host is None:
            return b"" if command.is_quiet else NO_BUCKET
        visitor.counts.flushes += 1
        delay_s = flush_delay_s(command.delay_s, host.now_us())
        if delay_s:
            visitor.flushes.order(visitor.bucket, True, delay_s)
            return b"" if command.is_quiet else text.OK
        return Exclusive(partial(flush_everywhere, host), partial(_word_flush, command.is_quiet))

    def _stats(self, command: Stats) -> Answer:
        if command.group == b"reset":
            self._visitor.counts.reset()
            return text.RESET
        stats = self._visitor.stats(command.group.decode(errors="replace"))
        if stats is None:
            return UNKNOWN_GROUP
        return b"".join([*(text.encode_stat(name, value) for name, value in stats), text.END])

    def _reject(self, rejected: Rejected) -> Answer:
        self._visitor.counts.malformed += 1
        answer = b"" if rejected.is_quiet else rejected.answer
        return Last(answer) if rejected.is_fatal else answer


def _word_flush(is_quiet: bool, is_whole: bool) -> bytes:
    if is_quiet:
        return b""
    return text.OK if is_whole else text.TEMPORARY_FAILURE
