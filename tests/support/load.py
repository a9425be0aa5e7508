"""A heavy load whose outcome can be checked record by record.

Writers append values that name themselves, keep what they were told about each, and resume
every append whose outcome is unknown.  A reader follows the log from its start through all of it.
At the end the two accounts must agree (G1, G2, G3, L6).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from millrace.client import Log, UnknownAppend
from millrace.errors import MillraceError, Unavailable
from millrace.types import Gap, GapKind, Lsn, Record

PAUSE_AFTER_REFUSAL_S = 0.02
PATIENT_MS = (5_000, 30_000)
IMPATIENT_MS = (4, 15, 60)


class Ledger:
    """What the writers were told."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, Lsn] = {}
        self.refused: set[bytes] = set()
        self.unknown = 0  # Outcomes that had to be settled by resuming.
        self._changed = asyncio.Event()

    def acknowledge(self, value: bytes, lsn: Lsn) -> None:
        self.acknowledged[value] = lsn
        self._changed.set()

    def refuse(self, value: bytes, error: MillraceError) -> None:
        assert error.is_definite, error
        self.refused.add(value)

    async def grown_by(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait until so many more appends are acknowledged."""
        target = len(self.acknowledged) + count
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.acknowledged) < target:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            missing = target - len(self.acknowledged)
            raise AssertionError(f"{missing} of {count} appends made no progress") from None


class Load:
    """Writers of one log, each with one append under way."""

    def __init__(
        self,
        log: Log,
        ledger: Ledger,
        name: str,
        writers: int,
        timeouts_ms: Sequence[int],
        seed: int,
    ) -> None:
        self._timeouts_ms = timeouts_ms
        self._log = log
        self._ledger = ledger
        self._stopping = False
        self._tasks = [
            asyncio.create_task(self._write(f"{name}.{number}", random.Random(f"{seed}.{number}")))
            for number in range(writers)
        ]

    async def stop(self) -> None:
        """Let every writer learn the outcome of its last append."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, name: str, choices: random.Random) -> None:
        number = 0
        while not self._stopping:
            number += 1
            value = f"{name}.{number} ".encode() + choices.randbytes(choices.choice((8, 200, 3000)))
            try:
                lsn = await self._log.append(value, timeout_ms=choices.choice(self._timeouts_ms))
            except UnknownAppend as unknown:
                await self._settle(value, unknown)
            except Unavailable as error:
                self._ledger.refuse(value, error)
                await asyncio.sleep(PAUSE_AFTER_REFUSAL_S)
            else:
                self._ledger.acknowledge(value, lsn)

    async def _settle(self, value: bytes, unknown: UnknownAppend) -> None:
        self._ledger.unknown += 1
        while True:
            try:
                appended = await self._log.resume(unknown, timeout_ms=3_000)
            except UnknownAppend as again:
                unknown = again
            except MillraceError as error:
                self._ledger.refuse(value, error)
                return
            else:
                self._ledger.acknowledge(value, appended.first)
                return


@asynccontextmanager
async def load_on(
    logs: list[Log], ledger: Ledger, *, writers: int = 32, seed: int = 0
) -> AsyncIterator[None]:
    """Writers on each of these handles of one log, for as long as the block runs.  Every second
    handle is impatient, so that outcomes stay unknown and must be settled."""
    loads = [
        Load(log, ledger, f"c{number}", writers, IMPATIENT_MS if number % 2 else PATIENT_MS, seed)
        for number, log in enumerate(logs)
    ]
    try:
        yield
        await asyncio.gather(*(load.stop() for load in loads))
    finally:
        await asyncio.gather(*(load.cancel() for load in loads))


class Tape:
    """Everything a reader saw, in order; refuses whatever does not tile (G2)."""

    def __init__(self, first: int = 1) -> None:
        self.next_lsn = Lsn(first)
        self.values: dict[Lsn, bytes] = {}
        self.gaps: list[Gap] = []

    def take(self, item: Record | Gap) -> None:
        if isinstance(item, Gap):
            assert item.first == self.next_lsn, f"{item} at {self.next_lsn}"
            assert item.last >= item.first
            self.gaps.append(item)
            self.next_lsn = Lsn(item.last + 1)
        else:
            assert item.lsn == self.next_lsn, f"record {item.lsn} at {self.next_lsn}"
            self.values[item.lsn] = item.value
            self.next_lsn = Lsn(item.lsn + 1)


class Follower:
    """Reads a log from its start, for as long as it takes."""

    def __init__(self, log: Log, fill_after_ms: int = 300) -> None:
        self.tape = Tape()
        self._advanced = asyncio.Event()
        self._task = asyncio.create_task(self._follow(log, fill_after_ms))

    async def reach(self, end: int, timeout_s: float = 60.0) -> None:
        """Wait until everything below `end` was seen."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.tape.next_lsn < end:
                    self._advanced.clear()
                    waiting = asyncio.create_task(self._advanced.wait())
                    await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
                    if self._task.done():
                        self._task.result()
        except TimeoutError:
            waits = self._reader.explain()
            raise AssertionError(f"the follower did not reach {end}: {waits}") from None

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self, log: Log, fill_after_ms: int) -> None:
        self._reader = await log.read("start", None, fill_after_ms=fill_after_ms)
        async with self._reader as reader:
            async for item in reader:
                self.tape.take(item)
                self._advanced.set()


async def read_all(log: Log) -> Tape:
    """What is there from the trim point to the end."""
    start, _ = await log.bounds()
    tape = Tape(start)
    async with await log.read("start", "end", fill_after_ms=0) as reader:
        async for item in reader:
            tape.take(item)
    return tape


def assert_agree(ledger: Ledger, tape: Tape) -> None:
    """Nothing acknowledged is missing or elsewhere, nothing is there twice, nothing refused is
    there, and no gap lies."""
    assert len(set(tape.values.values())) == len(tape.values), "a record is in the log twice"
    for value, lsn in ledger.acknowledged.items():
        assert tape.values.get(lsn) == value, f"{value[:20]!r} was acknowledged at {lsn}"
    surplus = set(tape.values.values()) - ledger.acknowledged.keys()
    assert not surplus & ledger.refused, "a refused record is in the log"
    assert not surplus, f"{len(surplus)} records that nobody was told about"
    assert {gap.kind for gap in tape.gaps} <= {GapKind.HOLE}, tape.gaps
