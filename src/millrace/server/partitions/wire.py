"""Change streams as frames: a producer's session on the documents port, a replica's line to one.

I1  What cannot be understood is answered with the protocol's status; the connection goes on.
I2  A line tells its listener that it is closed once, and nothing afterwards.
I3  A line tells an answer before whatever was pushed after it: the first changes of a stream come
    right behind the answer to its request.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from millrace.codec.memcached.binary import Request, Response, encode_error, encode_response
from millrace.codec.memcached.opcodes import Opcode, Status
from millrace.codec.memcached.pushes import BadMessage, decode_push, encode_push
from millrace.codec.memcached.streams import (
    decode_answer,
    decode_message,
    encode_answer,
    encode_message,
)
from millrace.core.documents.document import PartitionId
from millrace.core.documents.message_sizes import message_bytes
from millrace.core.documents.messages import (
    AllPartitions,
    BarrierReached,
    ConsumerNotice,
    ConsumerRequest,
    Noop,
    Open,
    ProducerAnswer,
    ProducerPush,
    StreamRequest,
)
from millrace.errors import ProtocolError, Unavailable
from millrace.runtime.document_link import Answerer, DocumentLink, dial_documents
from millrace.server.documents.backend import StreamOutlet
from millrace.server.partitions.bucket import BucketPartitions
from millrace.server.partitions.sessions import ProducerSession
from millrace.server.partitions.surroundings import Listener, Surroundings

DIAL_MS = 3_000
ANSWER_MS = 60_000  # Longer than a consumer waits.


class WireSession:
    """The producer's side; it is both the front end's session and the producer's outlet."""

    def __init__(
        self,
        find: Callable[[str, int], BucketPartitions | None],
        selected: str,
        around: Surroundings,
        outlet: StreamOutlet,
    ) -> None:
        self._find = find
        self._selected = selected
        self._around = around
        self._outlet = outlet
        self._bucket: BucketPartitions | None = None
        self._session: ProducerSession | None = None
        self._frame: Request | None = None  # The one that is being answered.
        self._opaques: dict[PartitionId, int] = {}

    # -- What arrives -------------------------------------------------------------------------

    def receive(self, frame: Request | Response) -> None:
        if isinstance(frame, Response):
            if self._session is not None:
                self._session.heard()
            return
        try:
            message = decode_message(frame)
        except BadMessage as error:  # Keeps I1.
            self._outlet.write(encode_error(frame.opcode, error.status, frame.opaque))
            return
        self._frame = frame
        if isinstance(message, Open) and not self._open(message):
            self._outlet.write(encode_error(frame.opcode, Status.NO_BUCKET, frame.opaque))
        elif self._session is None:
            self._outlet.write(encode_error(frame.opcode, Status.INVALID_ARGUMENTS, frame.opaque))
        else:
            if isinstance(message, StreamRequest):
                self._opaques[message.partition] = frame.opaque
            self._session.receive(message)

    def _open(self, message: Open) -> bool:
        """Whether there is such a bucket; a second Open is the producer's to refuse."""
        if self._session is not None:
            return True
        bucket = self._find(message.bucket or self._selected, message.bucket_id)
        if bucket is None:
            return False
        self._bucket = bucket
        self._session = ProducerSession(
            bucket, self._around, self, bucket.acknowledged, bucket.attributes.value_bytes_max
        )
        bucket.add_session(self._session)
        return True

    def writable(self) -> None:
        if self._session is not None:
            self._session.writable()

    def closed(self) -> None:
        if self._session is not None and self._bucket is not None:
            self._bucket.remove_session(self._session)
            self._session.closed()

    # -- What the producer says ---------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        return not self._outlet.is_congested

    def answer(self, request: ConsumerRequest, answer: ProducerAnswer) -> None:
        assert self._frame is not None
        self._outlet.write(encode_answer(answer, self._frame.opcode, self._frame.opaque))

    def push(self, pushes: list[ProducerPush]) -> None:
        assert self._session is not None
        is_batched = self._session.producer.settings.is_batched
        frames: list[bytes] = []
        for push in pushes:
            frames += encode_push(push, self._opaque(push), is_batched=is_batched)
        self._outlet.write(b"".join(frames))

    def _opaque(self, push: ProducerPush) -> int:
        if isinstance(push, (Noop, AllPartitions, BarrierReached)):
            return 0
        return self._opaques.get(push.partition, 0)

    def close(self) -> None:
        self._outlet.close()


class WireLine:
    """A consumer's side: dials, and turns frames into messages for its listener."""

    def __init__(self, find_address: Callable[[], str], listener: Listener) -> None:
        self._find_address = find_address
        self._listener: Listener | None = listener
        self._link: DocumentLink | None = None
        self._task = asyncio.create_task(self._dial())

    async def _dial(self) -> None:
        try:
            link = await dial_documents(self._find_address(), DIAL_MS)
        except Unavailable as error:
            self._end(str(error))
            return
        link.on_push = self._pushed
        link.on_closed = self._lost
        self._link = link
        if not link.is_open:  # It was closed before anybody listened.
            self._lost()
        elif self._listener is not None:
            self._listener.opened()

    def ask(self, request: ConsumerRequest, ticket: int) -> None:
        link = self._link
        if link is None or not link.is_open:
            return  # The listener hears of it.
        answerer = Answerer(partial(self._answered, request, ticket), self._unanswered)
        link.ask_for(answerer, partial(encode_message, request), ANSWER_MS)  # Keeps I3.

    def tell(self, notice: ConsumerNotice) -> None:
        if self._link is not None:
            self._link.send(encode_message(notice))

    def close(self) -> None:
        self._listener = None
        self._task.cancel()
        if self._link is not None:
            self._link.close()

    def _unanswered(self, error: Unavailable) -> None:
        """No answer for so long: nothing else will come either."""
        if self._link is not None and self._link.is_open:
            self._link.close()

    def _answered(self, request: ConsumerRequest, ticket: int, response: Response) -> None:
        try:
            answer = decode_answer(response, request)
        except ProtocolError as error:
            self._broke(str(error))
            return
        if self._listener is not None:
            self._listener.answered(ticket, answer)

    def _pushed(self, frame: Request) -> None:
        try:
            push = decode_push(frame)
        except ProtocolError as error:
            self._broke(str(error))
            return
        if isinstance(push, Noop) and self._link is not None:
            self._link.send(encode_response(Opcode.DCP_NOOP, Status.SUCCESS, frame.opaque))
        if self._listener is not None:
            self._listener.pushed(push, message_bytes(push))

    def _broke(self, why: str) -> None:
        self._end(f"it broke the protocol: {why}")
        if self._link is not None:
            self._link.close()

    def _lost(self) -> None:
        self._end("the connection was lost")

    def _end(self, why: str) -> None:
        """Keeps I2."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.closed(why)
