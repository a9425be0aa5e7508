"""The time of one operation over all its attempts."""

import asyncio


class Deadline:
    def __init__(self, timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + timeout_ms / 1_000

    def left_ms(self) -> int:
        return max(0, round((self._end_s - self._loop.time()) * 1_000))

    @property
    def is_over(self) -> bool:
        return self.left_ms() == 0

    async def pause(self, pause_ms: int) -> None:
        await asyncio.sleep(min(pause_ms, self.left_ms()) / 1_000)
