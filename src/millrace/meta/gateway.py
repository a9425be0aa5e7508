"""One request to etcd: its JSON gateway over HTTP, with the next endpoint when one fails.

etcd's own Python clients need gRPC; the gateway of the same server needs only HTTP, which this
package already speaks.  The gateway writes 64-bit numbers as decimal text, bytes as base64, and
leaves out what is zero.

  I1  Whoever sends a change learns whether an earlier attempt may still take effect: `request`
      tries once, `read` tries until its time is over and is for what can be repeated freely.
  I2  Every attempt has a time limit, so a member that hangs costs a part of the time, not all.
"""

import base64
import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from millrace import errors
from millrace.meta.deadline import Deadline

NOT_FOUND: Final = 5
RESOURCE_EXHAUSTED: Final = 8
OUT_OF_RANGE: Final = 11
FINAL_CODES: Final = frozenset({3, NOT_FOUND, 6, 7, 9, OUT_OF_RANGE, 12, 16})
ATTEMPT_MS_MAX: Final = 1_500  # A proposal that died with its leader is never answered.
PAUSE_MS: Final = 100  # Between rounds over the endpoints, while members elect a leader.
LARGE_BODY_BYTES: Final = 64 * 1024

Json = dict[str, Any]


class GatewayRefused(Exception):
    """etcd answered with an error that trying again does not change; nothing was done."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class AttemptFailed(Exception):
    """One endpoint did not answer; `is_definite` says that it cannot have got the request."""

    def __init__(self, detail: str, is_definite: bool) -> None:
        super().__init__(detail)
        self.is_definite = is_definite


class Gateway:
    def __init__(self, endpoints: Sequence[str], timeout_ms: int) -> None:
        if not endpoints:
            raise errors.BadConfiguration("etcd: give at least one endpoint, like host:2379")
        self._urls = [(e if "://" in e else f"http://{e}").rstrip("/") for e in endpoints]
        self.timeout_ms = timeout_ms
        # Two tries fit into the time even when the first member hangs.
        self.attempt_ms = min(ATTEMPT_MS_MAX, max(50, timeout_ms * 2 // 5))
        self._current = 0
        self._failures = 0
        self._session: aiohttp.ClientSession | None = None
        self._streams: set[aiohttp.ClientResponse] = set()
        self._is_closed = False

    def deadline(self) -> Deadline:
        return Deadline(self.timeout_ms)

    async def request(self, path: str, body: Json, deadline: Deadline) -> Json:
        """One attempt at the current endpoint; a failure moves on to the next one."""
        url = self._urls[self._current]
        limit_ms = min(self.attempt_ms, deadline.left_ms())
        try:
            async with self.session().post(
                url + path,
                data=encode_body(body),
                timeout=aiohttp.ClientTimeout(total=max(1, limit_ms) / 1_000),
            ) as response:
                status = response.status
                answer = msgspec.json.decode(await response.read())
        except aiohttp.ClientConnectorError as error:
            raise self._fail(url, str(error), is_definite=True) from error
        except TimeoutError as error:
            raise self._fail(url, f"no answer in {limit_ms} ms", is_definite=False) from error
        except (aiohttp.ClientError, msgspec.DecodeError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise self._fail(url, detail, is_definite=False) from error
        return self._check(url, status, answer)

    async def read(self, path: str, body: Json) -> Json:
        """For what may be done twice: tries the endpoints in turn until the time is over."""
        deadline = self.deadline()
        while True:
            try:
                return await self.request(path, body, deadline)
            except AttemptFailed as failed:
                if deadline.is_over:
                    raise self.unavailable(failed) from failed
                await self.pause_after_round(deadline)

    async def pause_after_round(self, deadline: Deadline) -> None:
        if self._failures % len(self._urls) == 0:
            await deadline.pause(PAUSE_MS)

    def unavailable(self, failed: AttemptFailed) -> errors.MetadataUnavailable:
        return errors.MetadataUnavailable(
            f"etcd at {', '.join(self._urls)} did not answer in {self.timeout_ms} ms: {failed}"
        )

    def session(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise errors.MetadataUnavailable("the metadata repository is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
            )
        return self._session

    def current_url(self) -> str:
        return self._urls[self._current]

    def skip(self, url: str) -> None:
        """`url` does not serve; whoever asks next begins at another endpoint."""
        self._failures += 1
        if self._urls[self._current] == url:
            self._current = (self._current + 1) % len(self._urls)

    @contextlib.contextmanager
    def streaming(self, response: aiohttp.ClientResponse) -> Iterator[aiohttp.StreamReader]:
        """The body of a response that has no end; `close` ends it."""
        self._streams.add(response)
        try:
            yield response.content
        finally:
            self._streams.discard(response)

    async def close(self) -> None:
        self._is_closed = True
        for response in self._streams:
            # Closing a session does not wake those who read from it.
            response.content.set_exception(aiohttp.ClientConnectionError("closed"))
        if self._session is not None:
            await self._session.close()

    def _check(self, url: str, status: int, answer: Any) -> Json:
        if status == 200 and isinstance(answer, dict) and "error" not in answer:
            self._failures = 0
            return answer
        code, message = status, str(answer)
        if isinstance(answer, dict):
            code, message = int(answer.get("code", status)), str(answer.get("message", answer))
        if code in FINAL_CODES or (code == RESOURCE_EXHAUSTED and "too many" not in message):
            raise GatewayRefused(code, message)
        raise self._fail(url, message, is_definite=False)

    def _fail(self, url: str, detail: str, is_definite: bool) -> AttemptFailed:
        self.skip(url)
        return AttemptFailed(f"{url}: {detail}", is_definite)


def encode_body(body: Json) -> bytes | io.BytesIO:
    data = msgspec.json.encode(body)
    # The HTTP client sends a file-like body piece by piece, other callers get their turn.
    return io.BytesIO(data) if len(data) > LARGE_BODY_BYTES else data


def encode_bytes(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def decode_bytes(text: str) -> bytes:
    return base64.b64decode(text)


def range_end(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin with `prefix`; a zero byte means no end."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\0"
