"""Machine `change-stream`: the producer's end of one connection, and the partitions behind it."""

from collections.abc import Callable
from typing import Final

from millrace.core.documents.document import SEQ_MAX, FailoverId, PartitionState, Seq
from millrace.core.documents.messages import (
    Barrier,
    BufferAck,
    CloseStream,
    ConsumerRequest,
    Control,
    ProducerPush,
    StreamFlag,
    StreamRequest,
)
from millrace.core.documents.partition import OutOfOrder, Partition, UsedId
from millrace.core.documents.producer import Producer
from millrace.scenario import document_speech as speech
from millrace.scenario import document_words as dw
from millrace.scenario.document_server import DocumentServer
from millrace.scenario.machine import Command, Machine, Setting
from millrace.scenario.replica_line import ONE_CHANGE_BYTES, PLENTY_BYTES
from millrace.scenario.text import Words

SERVER: Final = "A"
FIRST_ID: Final = FailoverId(0xCAFEBABE)
NOW_US: Final = 1_000_000
REQUEST_USAGE: Final = "request [partition N] [start SEQ] [in SNAPSHOT] [id ID] [end SEQ] [FLAG...]"


class ChangeStreamMachine(Machine):
    name = "change-stream"

    def __init__(self) -> None:
        self._partitions = 1
        self._state = PartitionState.ACTIVE
        self._now_ms = 0
        self._term = 1
        self._made: tuple[DocumentServer, Producer] | None = None

    def settings(self) -> list[Setting]:
        return [
            Setting("partitions N", self._set_partitions),
            Setting("begins active|replica", self._set_state),
        ]

    def commands(self) -> list[Command]:
        actions: list[tuple[str, Callable[[Words], list[str]]]] = [
            ("set KEY[=VALUE]... [partition N]", self._store),
            ("delete KEY... [partition N]", self._delete),
            ("arrive SNAPSHOT CHANGE... [partition N]", self._arrive),
            ("flush [partition N]", self._flush),
            ("become STATE [partition N]", self._become),
            ("promote ID [partition N]", self._promote),
            ("control KEY VALUE", self._control),
            (REQUEST_USAGE, self._request),
            ("close [partition N]", lambda words: self._say(CloseStream(dw.take_partition(words)))),
            ("barrier COOKIE", lambda words: self._say(Barrier(words.take("a cookie")))),
            ("acknowledge BYTES", self._acknowledge),
            ("pump [CHANGES]", self._pump),
            ("after MS", self._after),
            ("views", lambda words: [f"views {self._server.views_held}"]),
        ]
        return [Command(usage, run) for usage, run in actions]

    def _set_partitions(self, words: Words) -> None:
        self._partitions = words.number("a number of partitions")

    def _set_state(self, words: Words) -> None:
        self._state = words.parse("active or replica", PartitionState)

    @property
    def _server(self) -> DocumentServer:
        return self._make()[0]

    @property
    def _producer(self) -> Producer:
        return self._make()[1]

    def _make(self) -> tuple[DocumentServer, Producer]:
        if self._made is None:
            server = DocumentServer(SERVER, range(self._partitions))
            for held in server.partitions.values():
                held.promote(self._term, FIRST_ID, is_takeover=False)
                held.set_state(self._state, self._term)
            self._made = server, server.open_producer("test:1", "active,replica", self._now_ms)
        return self._made

    def _take_held(self, words: Words) -> Partition:
        number = dw.take_partition(words)
        held = self._server.partition(number)
        if held is None:
            words.fail(f"there is no partition {number}")
        return held

    def _take_master(self, words: Words) -> Partition:
        held = self._take_held(words)
        if held.state is not PartitionState.ACTIVE:
            words.fail(f"partition {held.number} is {held.state.value}, and takes no changes")
        return held

    # -- What happens to the partitions -------------------------------------------------------

    def _store(self, words: Words) -> list[str]:
        documents = dw.take_new(words)
        held = self._take_master(words)
        for key, value in documents:
            held.store(key, value, 0, 0, NOW_US)
        return []

    def _delete(self, words: Words) -> list[str]:
        keys = dw.take_keys(words)
        held = self._take_master(words)
        for key in keys:
            held.delete(key, NOW_US)
        return []

    def _arrive(self, words: Words) -> list[str]:
        """From the master, if this is a replica."""
        first, last = words.parse("a snapshot such as (0,5]", dw.parse_snapshot)
        documents = []
        while words and words.peek() != "partition":
            documents.append(words.parse("a change such as k1@3=x", dw.parse_change))
        held = self._take_held(words)
        if held.state is PartitionState.ACTIVE:
            words.fail("a master follows nobody: write `begins replica`")
        try:
            held.begin_snapshot(first, last)
            held.apply(documents)
        except OutOfOrder as error:
            words.fail(str(error))
        return []

    def _flush(self, words: Words) -> list[str]:
        return [self._server.flush(self._take_held(words).number)]

    def _become(self, words: Words) -> list[str]:
        state = words.parse("replica, pending or dead", PartitionState)
        if state is PartitionState.ACTIVE:
            words.fail("a partition becomes active with `promote`")
        self._term += 1
        self._take_held(words).set_state(state, self._term)
        return []

    def _promote(self, words: Words) -> list[str]:
        id = words.parse("an id such as deadbeef", dw.parse_id)
        self._term += 1
        try:
            self._take_held(words).promote(self._term, id, is_takeover=False)
        except UsedId as error:
            words.fail(str(error))
        return []

    # -- What the consumer says ---------------------------------------------------------------

    def _say(self, message: ConsumerRequest) -> list[str]:
        return [speech.show_answer(self._producer.handle(message, self._now_ms))]

    def _control(self, words: Words) -> list[str]:
        return self._say(Control(words.take("a setting's name"), words.take("its value")))

    def _request(self, words: Words) -> list[str]:
        number, start, end, id = dw.take_partition(words), Seq(0), SEQ_MAX, FIRST_ID
        snapshot, flags = None, StreamFlag(0)
        while words:
            match words.take(REQUEST_USAGE):
                case "start":
                    start = Seq(words.number("a seq"))
                case "in":
                    snapshot = words.parse("a snapshot such as (0,5]", dw.parse_snapshot)
                case "id":
                    id = words.parse("an id such as cafebabe", dw.parse_id)
                case "end":
                    end = Seq(words.number("a seq"))
                case word if word in speech.FLAGS:
                    flags |= speech.FLAGS[word]
                case word:
                    words.fail(f"expected {REQUEST_USAGE}, found {word!r}")
        first, last = snapshot or (start, start)
        return self._say(StreamRequest(number, start, id, first, last, end, flags))

    def _acknowledge(self, words: Words) -> list[str]:
        self._producer.handle(BufferAck(words.number("bytes")), self._now_ms)
        return []

    # -- What the producer does ---------------------------------------------------------------

    def _pump(self, words: Words) -> list[str]:
        """So many changes at least, or all that may be sent."""
        if not words:
            return self._show(self._producer.pump(self._now_ms, PLENTY_BYTES))
        pushes: list[ProducerPush] = []
        for _ in range(words.number("a number of changes")):
            pushes += self._producer.pump(self._now_ms, ONE_CHANGE_BYTES)
        return self._show(pushes)

    def _show(self, pushes: list[ProducerPush]) -> list[str]:
        joined = speech.join_changes(pushes)
        if self._partitions == 1:
            return [speech.show_push(push) for push in joined]
        return [speech.show_with_partition(push) for push in joined]

    def _after(self, words: Words) -> list[str]:
        self._now_ms += words.number("milliseconds")
        return []
