"""Requests to the masters of partitions, wherever they are by now.

The first attempt goes to whom the map names, over a connection that is there: this is nearly every
request, and costs one look-up.  Whatever comes of it that is no answer goes the long way: read the
map anew, pause, try again, until the time is up.

I1  A change is sent again only when it certainly was not carried out.  Else ChangeUnknown.
I2  Each attempt after the first is preceded by a pause, which doubles to PAUSE_MS_MAX.
I3  A connection on which answers are waited for long (durability) is not the one of the others:
    answers leave a node in the order of the requests.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from millrace.client.bucket_map import PartitionMap
from millrace.client.bucket_results import RETRIED, status_word
from millrace.codec.memcached.binary import Response, encode_request
from millrace.codec.memcached.observing import decode_features, encode_features
from millrace.codec.memcached.opcodes import Feature, Opcode, Status
from millrace.core.documents.document import PartitionId
from millrace.errors import (
    ChangeUnknown,
    MetadataUnavailable,
    NotConnected,
    PartitionUnavailable,
    Unavailable,
)
from millrace.runtime.document_link import DocumentLink, DocumentLinks

DIAL_TIMEOUT_MS: Final = 3_000
PAUSE_MS: Final = 10
PAUSE_MS_MAX: Final = 320
GRACE_MS: Final = 500  # How much longer than the node itself we wait for it to give a wait up.

_FEATURES: Final = (
    Feature.MUTATION_SEQ,
    Feature.SELECT_BUCKET,
    Feature.FRAMED_REQUEST,
    Feature.SYNC_REPLICATION,
    Feature.MAP_AWARE,
)

Encode = Callable[[int], bytes]  # The frame with this opaque.


async def greet(link: DocumentLink, name: str, bucket: str) -> None:
    """Say what we understand and which bucket is meant; raises NotConnected."""
    hello = link.ask(lambda opaque: _hello(name, opaque))
    select = link.ask(
        lambda opaque: encode_request(Opcode.SELECT_BUCKET, bucket.encode(), opaque=opaque)
    )
    greeted, selected = await asyncio.gather(hello, select)
    granted = decode_features(greeted.value)
    if greeted.status != Status.SUCCESS or Feature.MAP_AWARE not in granted:
        raise NotConnected(f"{link.address} does not know the map of partitions")
    if selected.status != Status.SUCCESS:
        word = status_word(selected.status)
        raise NotConnected(f"{link.address} does not serve bucket {bucket!r} yet: {word}")


def _hello(name: str, opaque: int) -> bytes:
    return encode_request(Opcode.HELLO, name.encode(), encode_features(_FEATURES), opaque=opaque)


class Asker:
    def __init__(self, map: PartitionMap, name: str) -> None:
        self.map = map
        self._name = name
        self._loop = asyncio.get_running_loop()
        self.quick = DocumentLinks(self._greet, DIAL_TIMEOUT_MS)
        self.patient = DocumentLinks(self._greet, DIAL_TIMEOUT_MS)  # Keeps I3.

    async def _greet(self, link: DocumentLink) -> None:
        await greet(link, self._name, self.map.record.name)

    async def close(self) -> None:
        await asyncio.gather(self.quick.close(), self.patient.close(), self.map.close())

    async def ask(
        self,
        partition: PartitionId,
        encode: Encode,
        timeout_ms: int,
        *,
        is_change: bool,
        is_patient: bool = False,
    ) -> Response:
        """The master's answer, whatever it says but "not here, not now".

        Raises PartitionUnavailable, UnknownBucket; ChangeUnknown if `is_change`."""
        links = self.patient if is_patient else self.quick
        link = links.current(self.map.masters[partition])
        began_s = self._loop.time()
        trouble = ""
        if link is not None:
            try:
                response = await link.ask(encode, timeout_ms)
            except Unavailable as error:
                trouble = _judge(error, is_change)
            else:
                if response.status not in RETRIED:
                    return response
                trouble = f"{link.address} says {status_word(response.status)}"
        until_s = began_s + timeout_ms / 1000
        return await self._ask_again(partition, encode, until_s, is_change, links, trouble)

    async def _ask_again(
        self,
        partition: PartitionId,
        encode: Encode,
        until_s: float,
        is_change: bool,
        links: DocumentLinks,
        trouble: str,
    ) -> Response:
        pause_ms = 0
        while (left_s := until_s - self._loop.time()) > 0:
            if trouble:
                await asyncio.sleep(min(pause_ms / 1000, left_s))  # Keeps I2.
                pause_ms = min(2 * pause_ms or PAUSE_MS, PAUSE_MS_MAX)
                await self.reload(until_s)
            address = self.map.masters[partition]
            if not address:
                trouble = "it has no master"
                continue
            try:
                response = await self._ask_once(links, address, encode, until_s)
            except Unavailable as error:
                trouble = _judge(error, is_change)
                continue
            if response.status not in RETRIED:
                return response
            trouble = f"{address} says {status_word(response.status)}"
        raise PartitionUnavailable(
            f"nobody served partition {partition} of bucket {self.map.record.name!r} in time: "
            f"{trouble or 'there was none'}"
        )

    async def _ask_once(
        self, links: DocumentLinks, address: str, encode: Encode, until_s: float
    ) -> Response:
        try:
            async with asyncio.timeout_at(until_s):
                link = await links.get(address)
        except TimeoutError as error:
            raise NotConnected(f"{address} could not be reached in time") from error
        left_ms = max(1, int((until_s - self._loop.time()) * 1000))
        return await link.ask(encode, left_ms)

    async def reload(self, until_s: float) -> None:
        """As well as can be: without the repository the old map must do."""
        try:
            async with asyncio.timeout_at(until_s):
                await self.map.reload()
        except (TimeoutError, MetadataUnavailable):
            pass


def _judge(error: Unavailable, is_change: bool) -> str:
    """Why to try again.  Keeps I1."""
    if is_change and not error.is_definite:
        raise ChangeUnknown(f"{error}; the change may have been made") from error
    return str(error)
