"""A proxy in front of a server that can lose answers: the request is done, nobody is told."""

import asyncio
import contextlib
from types import TracebackType

CHUNK_BYTES = 65_536


class LossyProxy:
    """While `answers_to_lose` is above 0, the next answer to a transaction is thrown away and
    its connection closed; the server has done the work by then."""

    def __init__(self, endpoint: str) -> None:
        self._host, _, port = endpoint.partition(":")
        self._port = int(port)
        self._tasks: set[asyncio.Task[None]] = set()
        self.answers_to_lose = 0
        self.endpoint = ""

    async def __aenter__(self) -> "LossyProxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"127.0.0.1:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        is_transaction = False

        async def requests() -> None:
            nonlocal is_transaction
            while chunk := await reader.read(CHUNK_BYTES):
                if chunk.startswith(b"POST "):
                    is_transaction = chunk.startswith(b"POST /v3/kv/txn")
                far_writer.write(chunk)
                await far_writer.drain()

        sending = asyncio.create_task(requests())
        try:
            while chunk := await far_reader.read(CHUNK_BYTES):
                if is_transaction and self.answers_to_lose > 0:
                    self.answers_to_lose -= 1
                    return
                writer.write(chunk)
                await writer.drain()
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending
            far_writer.close()
