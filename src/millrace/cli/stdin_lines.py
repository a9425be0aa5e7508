"""The lines of stdin for a program that does other things meanwhile.

A daemon thread reads: files cannot be polled, and a blocked read must not keep the process from
ending.

  I1  About WAITING_BYTES_MAX bytes are read ahead of what is taken.
  I2  A line is handed on as soon as it is whole; the last one needs no line end.
"""

import asyncio
import os
import sys
import threading
from typing import Final

from millrace.errors import MillraceError, RecordTooLarge, UsageError
from millrace.limits import MIB, RECORD_BYTES_MAX

READ_BYTES: Final = 1 * MIB
WAITING_BYTES_MAX: Final = 8 * MIB


class StdinLines:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._failure: MillraceError | None = None
        self._is_ended = False
        threading.Thread(target=self._read, name="millrace-stdin", daemon=True).start()

    async def take(self) -> list[bytes]:
        """All lines that have come, at least one; none at the end."""
        while True:
            await self._news.wait()
            self._news.clear()
            with self._changed:
                lines, self._lines = self._lines, []
                self._waiting_bytes = 0
                self._changed.notify()
                is_ended, failure = self._is_ended, self._failure
            if is_ended:
                self._news.set()
            if lines or (is_ended and failure is None):
                return lines
            if failure is not None:
                raise failure

    def _read(self) -> None:
        failure: MillraceError | None = None
        try:
            self._read_all(sys.stdin.fileno())
        except MillraceError as error:
            failure = error
        except (OSError, ValueError) as error:
            failure = UsageError(f"stdin cannot be read: {error}")
        with self._changed:
            self._is_ended, self._failure = True, failure
        self._tell()

    def _read_all(self, file: int) -> None:
        rest = bytearray()
        while data := os.read(file, READ_BYTES):
            rest += data
            if b"\n" in data:
                *lines, last = bytes(rest).split(b"\n")
                rest = bytearray(last)
                self._hand_on(lines)
            if len(rest) > RECORD_BYTES_MAX:
                raise RecordTooLarge(
                    f"a line of stdin is larger than {RECORD_BYTES_MAX} bytes, the largest record"
                )
        if rest:
            self._hand_on([bytes(rest)])

    def _hand_on(self, lines: list[bytes]) -> None:
        with self._changed:
            while self._waiting_bytes > WAITING_BYTES_MAX:  # Keeps I1.
                self._changed.wait()
            self._lines += lines
            self._waiting_bytes += sum(map(len, lines)) + len(lines)
        self._tell()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:
            return  # The loop was closed: nobody waits any more.
