"""A watch of etcd: one streaming request, taken up again elsewhere when it breaks.

I1  The watch always goes on from the revision after the last one it passed on, so neither a
    broken connection nor another member makes it miss or repeat a change.
I2  A member without a leader ends the stream (`hasleader`); one that is silent for long is
    left for another.  A watcher is never stuck on a member that was cut off.
I3  When etcd has compacted the history, the watcher is told that it lost track.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import aiohttp
import msgspec

from millrace.meta.contract import Change, Entry
from millrace.meta.deadline import Deadline
from millrace.meta.gateway import (
    AttemptFailed,
    Gateway,
    Json,
    decode_bytes,
    encode_bytes,
    range_end,
)

SILENCE_S_MAX: Final = 60.0
HEADERS: Final = {"Grpc-Metadata-hasleader": "true"}


class EtcdWatch:
    def __init__(self, gateway: Gateway, namespace: bytes, prefix: str) -> None:
        self._gateway = gateway
        self._namespace = namespace
        self._first = namespace + prefix.encode()
        self._deadline: Deadline | None = None

    async def changes(self, revision: int) -> AsyncGenerator[Change, None]:
        while True:
            try:
                async with contextlib.aclosing(self._stream(revision)) as answers:
                    async for answer in answers:
                        change = self._change(answer, revision)
                        if change.entries or change.lost:
                            yield change
                        if change.lost:
                            return
                        revision = change.revision
            except AttemptFailed as failed:
                # The time begins with the first failure and ends with the first answer.
                self._deadline = self._deadline or self._gateway.deadline()
                if self._deadline.is_over:
                    raise self._gateway.unavailable(failed) from failed
                await self._gateway.pause_after_round(self._deadline)

    async def _stream(self, revision: int) -> AsyncGenerator[Json, None]:
        url = self._gateway.current_url()
        try:
            async with await self._open(url, revision) as response:
                with self._gateway.streaming(response) as content:
                    async for line in _lines(content):
                        answer: Json = msgspec.json.decode(line)
                        if "error" in answer:
                            raise AttemptFailed(f"{url}: {answer['error']}", is_definite=True)
                        self._deadline = None
                        yield answer["result"]
            raise AttemptFailed(f"{url} ended the watch", is_definite=True)
        except aiohttp.SocketTimeoutError:
            self._gateway.skip(url)  # Silence is no failure: another member is asked.
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            self._gateway.skip(url)
            raise AttemptFailed(f"{url}: {error or 'no answer'}", is_definite=True) from error
        except AttemptFailed:
            self._gateway.skip(url)
            raise

    async def _open(self, url: str, revision: int) -> aiohttp.ClientResponse:
        request = {
            "create_request": {
                "key": encode_bytes(self._first),
                "range_end": encode_bytes(range_end(self._first)),
                "start_revision": str(revision + 1),
                "progress_notify": True,
            }
        }
        # The gateway's first byte is etcd's word that the watch stands: it must come in time.
        async with asyncio.timeout(self._gateway.attempt_ms / 1_000):
            return await self._gateway.session().post(
                url + "/v3/watch",
                data=msgspec.json.encode(request),
                headers=HEADERS,
                timeout=aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S_MAX),
            )

    def _change(self, answer: Json, revision: int) -> Change:
        if answer.get("canceled"):
            return Change((), int(answer.get("compact_revision", revision)), lost=True)
        events = answer.get("events", ())
        if events:
            entries = tuple(self._entry(event) for event in events)
            return Change(entries, int(events[-1]["kv"]["mod_revision"]))
        if answer.get("created"):
            return Change((), revision)
        # A progress mark: everything up to the header's revision has been sent.
        return Change((), max(revision, int(answer["header"]["revision"])))

    def _entry(self, event: Json) -> Entry:
        pair = event["kv"]
        key = decode_bytes(pair["key"])[len(self._namespace) :].decode()
        if event.get("type") == "DELETE":
            return Entry(key, b"", 0)
        return Entry(
            key,
            decode_bytes(pair.get("value", "")),
            int(pair["mod_revision"]),
            int(pair.get("lease", 0)),
        )


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[bytes, None]:
    """Lines of any length; a line may hold a megabyte."""
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        *ended, rest = chunk.split(b"\n")
        for line in ended:
            parts.append(line)
            whole = b"".join(parts)
            parts.clear()
            if whole:
                yield whole
        if rest:
            parts.append(rest)
