"""The keeper's loop on a repository in memory, with nodes that do not answer unless told to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from millrace.codec.blocks import junk
from millrace.config import KeeperSettings
from millrace.core.commit.record import CommitRecord, StreamRecord
from millrace.core.epochs import EpochRecord
from millrace.core.messages import (
    Describe,
    Described,
    DescribeSequenced,
    FindSize,
    Message,
    Position,
    SequencedDescribed,
    Standing,
    Trim,
    TrimCommits,
    TrimSequenced,
)
from millrace.core.projection import Projection
from millrace.core.replication import Replication
from millrace.errors import NotConnected
from millrace.meta import keys
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.runtime.procedures import ProcedureRunner
from millrace.server import backoff, keeper
from millrace.server.backoff import Backoff
from millrace.server.keeper import STEPS_AT_ONCE, KeeperLoop
from millrace.server.membership import Membership
from millrace.types import (
    Ack,
    Epoch,
    LogAttributes,
    LogId,
    LogInfo,
    Lsn,
    NodeId,
    NodeInfo,
    Role,
    StreamId,
    WritePath,
)
from tests.support.clusters import eventually, run

ALONE = NodeId(1)
OTHER = NodeId(2)
QUICK = KeeperSettings(interval_ms=5, retention_interval_ms=5, surplus_after_ms=60_000)
ATTRIBUTES = LogAttributes(WritePath.CHAIN, 1, Ack.DISK, True, None, None)


class Rig:
    """One live node that is the keeper; what it asks of nodes is written down, and answered only as
    `answers` say."""

    def __init__(self) -> None:
        self.repository = MemoryRepository()
        self.directory = ClusterDirectory(self.repository)
        self.asked: list[Message] = []
        self.answers: dict[type[Message], Message] = {}
        runner = ProcedureRunner(self._ask, self.directory, junk)
        info = NodeInfo(ALONE, "host:1", "", (Role.STORAGE,), "", "one")
        self.membership = Membership(self.repository, info, 60_000)
        self.keeper = KeeperLoop(ALONE, self.directory, runner, self.membership, QUICK)

    async def _ask(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        self.asked.append(message)
        if type(message) in self.answers:
            return self.answers[type(message)]
        raise NotConnected(f"node {node} does not answer")

    async def add(self, log: int, *, replication: int = 1, is_named: bool = True) -> None:
        chain = (ALONE,)
        projection = Projection(LogId(log), Epoch(1), chain, ALONE, replication)
        assert await self.directory.replace_projection(projection, 0)
        if is_named:
            await self.directory.add_log(LogInfo(LogId(log), f"log{log}", ATTRIBUTES, 0))


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.membership.register()
    task = asyncio.create_task(rig.keeper.run())
    try:
        yield rig
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await rig.repository.close()


async def _logs_with_projections(rig: Rig) -> list[int]:
    return [projection.log for projection in await rig.directory.projections()]


def test_a_projection_without_a_name_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "NAMELESS_S_MAX", 0.05)

    async def body() -> None:
        async with running() as rig:
            await rig.add(1)
            await rig.add(2, is_named=False)
            await eventually(
                lambda: _logs_with_projections(rig),
                lambda logs: logs == [1],
                what="the end of the nameless",
            )

    run(body(), 20)


def test_a_projection_without_a_name_has_time_to_get_one() -> None:
    async def body() -> None:
        async with running() as rig:
            await rig.add(1, is_named=False)
            seen = len(rig.asked)
            await eventually(lambda: _asked(rig), lambda count: count > seen + 5, what="rounds")
            assert await _logs_with_projections(rig) == [1]

    run(body(), 20)


async def _asked(rig: Rig) -> int:
    return len(rig.asked)


def test_logs_that_cannot_be_helped_leave_the_places_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are more of them than places, and they come first in every plan."""
    monkeypatch.setattr(backoff, "PAUSE_S", 30.0)

    async def body() -> None:
        async with running() as rig:
            # Another storage node seems alive, so every log wants to grow; nobody answers.
            other = NodeInfo(OTHER, "host:2", "", (Role.STORAGE,), "", "two")
            lease = await rig.repository.grant(60_000)
            for log in range(1, 3 * STEPS_AT_ONCE + 1):
                await rig.add(log, replication=2)
            live = keys.LIVE.encode(keys.LiveNode(OTHER, "two", 0))
            await rig.repository.set(keys.NODES.key(OTHER), keys.NODES.encode(other), 0)
            await rig.repository.set(keys.LIVE.key(OTHER), live, 0, lease)

            async def helped() -> set[int]:
                return {message.log for message in rig.asked if type(message).__name__ == "Learn"}  # type: ignore[attr-defined]

            await eventually(helped, lambda logs: len(logs) == 3 * STEPS_AT_ONCE, what="turns")

    run(body(), 30)


BAD, TRIMMED = LogId(1), LogId(2)


async def chained(rig: Rig, log: LogId) -> None:
    assert await rig.directory.replace_projection(Projection(log, Epoch(1), (ALONE,), ALONE, 1), 0)


async def sequenced(rig: Rig, log: LogId) -> None:
    record = EpochRecord(log, Epoch(1), ALONE, (ALONE,), Replication.of(1), since=Epoch(1))
    assert await rig.directory.replace_epochs(record, 0)


async def committed(rig: Rig, log: LogId) -> None:
    stream = StreamRecord(StreamId(1), Epoch(1), (ALONE,), local_end=Lsn(10), last=Lsn(9))
    record = CommitRecord(log, Epoch(1), ALONE, 1, (stream,), high_watermark=Lsn(9))
    assert await rig.directory.replace_commits(record, 0)


@pytest.mark.parametrize(
    ("write", "trim"),
    [
        (chained, Trim(TRIMMED, Epoch(1), Lsn(5))),
        (sequenced, TrimSequenced(TRIMMED, Lsn(5))),
        (committed, TrimCommits(TRIMMED, Lsn(5))),
    ],
    ids=["chain", "sequenced", "commit"],
)
def test_a_log_whose_trim_point_cannot_be_read_keeps_what_it_has_and_holds_up_no_other(
    write: Callable[[Rig, LogId], Awaitable[None]], trim: Message
) -> None:
    async def body() -> None:
        async with running() as rig:
            ends = (Lsn(1), Lsn(10), Lsn(10), Lsn(10))
            rig.answers[Describe] = Described(Epoch(1), Standing.MEMBER, *ends, 9, 900)
            rig.answers[DescribeSequenced] = SequencedDescribed(
                Epoch(1), Standing.MEMBER, Lsn(1), Lsn(9), Lsn(10), 9, 900
            )
            rig.answers[FindSize] = Position(Lsn(10))
            await rig.repository.set(keys.TRIMS.key(BAD), b'{"end": "later"}', 0)
            assert await rig.directory.raise_trim(TRIMMED, Lsn(5)) == 5
            greedy = msgspec.structs.replace(ATTRIBUTES, retention_bytes=1)
            for log, attributes in ((BAD, greedy), (TRIMMED, ATTRIBUTES)):
                await write(rig, log)
                await rig.directory.add_log(LogInfo(log, f"log{log}", attributes, 0))

            async def asked() -> list[Message]:
                return [message for message in rig.asked if type(message) is type(trim)]

            said = await eventually(asked, lambda seen: len(seen) > 2, what="rounds")
            assert set(said) == {trim}

    run(body(), 20)


def test_members_that_had_all_are_asked_again_when_they_live_anew() -> None:
    async def body() -> None:
        async with running() as rig:
            ends = (Lsn(1),) * 4
            rig.answers[Describe] = Described(Epoch(1), Standing.MEMBER, *ends, 0, 0)
            rounds = 0
            listed = rig.directory.trim_ends

            async def counted() -> dict[LogId, Lsn | None]:
                nonlocal rounds
                rounds += 1
                return await listed()

            rig.directory.trim_ends = counted  # type: ignore[method-assign]
            await rig.add(1)

            async def rounds_now() -> int:
                return rounds

            async def asked() -> int:
                return sum(type(message) is Describe for message in rig.asked)

            await eventually(asked, lambda count: count == 1, what="the first ask")
            seen = rounds
            await eventually(rounds_now, lambda now: now > seen + 10, what="more rounds")
            assert await asked() == 1
            live = await rig.repository.get(keys.LIVE.key(ALONE))
            await rig.repository.set(live.key, live.value, live.version, live.lease)
            await eventually(asked, lambda count: count == 2, what="the ask of its new life")

    run(body(), 20)


def test_the_pause_doubles_up_to_a_bound_and_is_forgotten() -> None:
    pauses, log, now_s = Backoff(), LogId(1), 0.0
    lengths = []
    for _ in range(8):
        pauses.failed(log, now_s)
        length = next(s for s in range(1, 100) if not pauses.is_resting(log, now_s + s))
        lengths.append(length)
        now_s += length
    assert lengths == [1, 2, 4, 8, 15, 15, 15, 15]
    pauses.succeeded(log)
    assert not pauses.is_resting(log, now_s)
    pauses.failed(log, now_s)
    assert pauses.is_resting(log, now_s + 0.9)
    assert not pauses.is_resting(log, now_s + 1.1)


def test_a_node_that_comes_or_goes_ends_all_pauses() -> None:
    pauses, log = Backoff(), LogId(1)
    pauses.look(frozenset({ALONE}), {log})
    pauses.failed(log, 0.0)
    pauses.look(frozenset({ALONE}), {log})
    assert pauses.is_resting(log, 0.5)
    pauses.look(frozenset({ALONE, OTHER}), {log})
    assert not pauses.is_resting(log, 0.5)
