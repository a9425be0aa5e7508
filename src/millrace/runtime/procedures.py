"""Runs the core's procedures on asyncio: performs each effect, sends the answer back in.

One runner serves a whole process.  A chain is changed by one reconfiguration at a time: whoever
else wants the same log changed waits for its result.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, assert_never

from millrace.codec.blocks import lone_record, values
from millrace.core.commit.record import CommitRecord
from millrace.core.documents.map import BucketRecord
from millrace.core.epochs import EpochRecord
from millrace.core.messages import Message
from millrace.core.procedure import (
    Answer,
    AppendNodesetChange,
    Ask,
    AskAll,
    ClusterView,
    DeadlinePassed,
    Effect,
    Failure,
    FailureKind,
    ListNodes,
    Note,
    Pause,
    Procedure,
    ReadBucket,
    ReadCommits,
    ReadEpochs,
    ReadNodesetChanges,
    ReadProjection,
    ReadStatuses,
    Reconfigure,
    Refresh,
    RenewRebuilds,
    ReplaceBucket,
    ReplaceCommits,
    ReplaceEpochs,
    ReplaceProjection,
)
from millrace.core.projection import Projection
from millrace.core.reconfigure import Change, reconfigure
from millrace.core.repair import MakeJunk
from millrace.core.sequenced.metadata_log import READ_TIMEOUT_MS, append_change, read_changes
from millrace.errors import MessageTooLarge, MillraceError
from millrace.runtime.asks import AnswerWaiter
from millrace.runtime.hot_run import AskNow, HotRun, Waiter, failure_of
from millrace.types import AuthoritativeStatus, Epoch, LogId, NodeId, Token

T = TypeVar("T")
ASK_TIMEOUT_MS = 3_000
RECONFIGURE_TIMEOUT_MS = 30_000
REFRESH_PATIENCE_MS = 1_500  # A chain that is being changed is left in peace for so long.
REFRESH_PAUSE_MS = 20
REFRESH_PAUSE_MS_MAX = 160

logger = logging.getLogger("millrace")

AskNode = Callable[[NodeId, Message, int], Awaitable[Message]]
Noted = Callable[[str, dict[str, object]], None]


def _never_now(node: NodeId, message: Message, timeout_ms: int, waiter: AnswerWaiter) -> bool:
    """For a process that need not be fast: each procedure runs in a task."""
    return False


class Directory(Protocol):
    """What procedures need of the metadata repository; raises MetadataUnavailable."""

    async def read_projection(self, log: LogId) -> tuple[Projection | None, int]: ...

    async def replace_projection(self, projection: Projection, expected: int) -> bool: ...

    async def read_epochs(self, log: LogId) -> tuple[EpochRecord | None, int]: ...

    async def replace_epochs(self, record: EpochRecord, expected: int) -> bool: ...

    async def read_commits(self, log: LogId) -> tuple[CommitRecord | None, int]: ...

    async def replace_commits(self, record: CommitRecord, expected: int) -> int: ...

    async def read_bucket(self, name: str) -> tuple[BucketRecord | None, int]: ...

    async def replace_bucket(self, record: BucketRecord, expected: int) -> int: ...

    async def statuses(self) -> Mapping[NodeId, AuthoritativeStatus]: ...

    async def renew_rebuilds(
        self, nodes: Iterable[NodeId]
    ) -> Mapping[NodeId, AuthoritativeStatus]: ...

    async def view(self) -> ClusterView: ...


class ProcedureRunner:
    def __init__(
        self,
        ask_node: AskNode,
        directory: Directory,
        make_junk: MakeJunk,
        noted: Noted | None = None,
        ask_timeout_ms: int = ASK_TIMEOUT_MS,
        ask_now: AskNow = _never_now,
    ) -> None:
        self._ask_node = ask_node
        self._directory = directory
        self._make_junk = make_junk
        self._noted = noted
        self._ask_timeout_ms = ask_timeout_ms
        self._ask_now = ask_now
        self._client = secrets.randbits(63)
        self._proposals = 0
        self._changes: dict[LogId, asyncio.Task[Projection | Failure]] = {}
        self._handed_over: set[asyncio.Task[None]] = set()
        self.projections: dict[LogId, Projection] = {}  # The newest seen of each log.

    async def run(self, procedure: Procedure[T], timeout_ms: int) -> T:
        """The procedure's result; it is told when its time is up, and may still answer."""
        deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        try:
            effect = next(procedure)
        except StopIteration as stop:
            result: T = stop.value
            return result
        return await self._run_from(procedure, effect, deadline_s)

    def begin(self, procedure: Procedure[T], timeout_ms: int, waiter: Waiter[T]) -> None:
        """As `run`, for procedures that are nearly always a few asks of connected nodes: tells
        the waiter, and makes a task only when it must."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        HotRun(
            procedure,
            deadline_s,
            waiter,
            self._ask_now,
            self._ask_timeout_ms,
            self._hand_over,
            loop,
        ).step(None)

    def _hand_over(
        self, procedure: Procedure[T], effect: Effect, deadline_s: float, waiter: Waiter[T]
    ) -> None:
        task = asyncio.create_task(self._tell(procedure, effect, deadline_s, waiter))
        self._handed_over.add(task)
        task.add_done_callback(self._handed_over.discard)

    async def _tell(
        self, procedure: Procedure[T], effect: Effect, deadline_s: float, waiter: Waiter[T]
    ) -> None:
        try:
            result = await self._run_from(procedure, effect, deadline_s)
        except Exception as error:  # Whatever it is belongs to the one who waits.
            waiter.set_exception(error)
        else:
            waiter.set_result(result)

    async def _run_from(self, procedure: Procedure[T], effect: Effect, deadline_s: float) -> T:
        """Perform the effect that the procedure has come to, and all that follow."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                left_ms = int((deadline_s - loop.time()) * 1000)
                if left_ms <= 0:
                    effect = procedure.throw(DeadlinePassed())
                elif type(effect) is Ask:
                    # An ask has its own timer and needs no second one.
                    effect = procedure.send(await self._ask(effect, left_ms))
                else:
                    try:
                        async with asyncio.timeout_at(deadline_s):
                            answer = await self._perform(effect, left_ms)
                    except TimeoutError:
                        effect = procedure.throw(DeadlinePassed())
                    else:
                        effect = procedure.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            procedure.close()

    async def change_chain(self, change: Change, timeout_ms: int) -> Projection | Failure:
        """Run a reconfiguration that nobody else may share."""
        procedure = reconfigure(change, self.next_token(), self._make_junk)
        result = await self.run(procedure, timeout_ms)
        if isinstance(result, Projection):
            self._seen(result)
        return result

    def _seen(self, projection: Projection) -> None:
        known = self.projections.get(projection.log)
        if known is None or known.epoch < projection.epoch:
            self.projections[projection.log] = projection

    def next_token(self) -> Token:
        self._proposals += 1
        return Token(self._client, self._proposals)

    async def _perform(self, effect: Effect, left_ms: int) -> Any:
        match effect:
            case Ask():
                return await self._ask(effect, left_ms)
            case AskAll(asks):
                return list(await asyncio.gather(*(self._ask(ask, left_ms) for ask in asks)))
            case Note(event, fields):
                self._note(event, fields)
                return None
            case Pause(ms):
                await asyncio.sleep(ms * random.uniform(0.75, 1.25) / 1000)
                return None
            case Refresh(log, epoch):
                return await self._refresh(log, epoch)
            case Reconfigure():
                return await self._reconfigure(effect)
            case ReadProjection(log):
                return await self._or_failure(self._directory.read_projection(log))
            case ReplaceProjection(projection, expected):
                replacing = self._directory.replace_projection(projection, expected)
                return await self._or_failure(replacing)
            case ReadEpochs(log):
                return await self._or_failure(self._directory.read_epochs(log))
            case ReplaceEpochs(record, expected):
                return await self._or_failure(self._directory.replace_epochs(record, expected))
            case ReadCommits(log):
                return await self._or_failure(self._directory.read_commits(log))
            case ReplaceCommits(commits, expected):
                return await self._or_failure(self._directory.replace_commits(commits, expected))
            case ReadBucket(name):
                return await self._or_failure(self._directory.read_bucket(name))
            case ReplaceBucket(bucket, expected):
                return await self._or_failure(self._directory.replace_bucket(bucket, expected))
            case ReadNodesetChanges(log):
                reading = read_changes(log, values)
                return await self.run(reading, min(left_ms, READ_TIMEOUT_MS))
            case AppendNodesetChange(log, change):
                appending = append_change(log, change, self.next_token(), lone_record)
                return await self.run(appending, left_ms)
            case ReadStatuses():
                return await self._or_failure(self._directory.statuses())
            case RenewRebuilds(nodes):
                return await self._or_failure(self._directory.renew_rebuilds(nodes))
            case ListNodes():
                return await self._or_failure(self._directory.view())
            case _:
                assert_never(effect)

    async def _ask(self, ask: Ask, left_ms: int) -> Answer:
        timeout_ms = ask.timeout_ms or self._ask_timeout_ms
        try:
            return await self._ask_node(ask.node, ask.message, min(timeout_ms, left_ms))
        except MessageTooLarge:
            raise  # The caller's fault, and the same at every node.
        except MillraceError as error:
            return failure_of(error)

    async def _refresh(self, log: LogId, epoch: Epoch) -> Projection | Failure:
        """Nodes are sealed some time before the projection that needs it is there: their blocks
        are made equal in between.  Whoever is impatient begins that work anew."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + REFRESH_PATIENCE_MS / 1000
        pause_ms = REFRESH_PAUSE_MS
        while True:
            read = await self._or_failure(self._directory.read_projection(log))
            if isinstance(read, Failure):
                return read
            projection = read[0]
            if projection is not None:
                self._seen(projection)
            if projection is None:
                return Failure(FailureKind.UNKNOWN_LOG, f"log {log} does not exist")
            if projection.epoch >= epoch or loop.time() >= deadline_s:
                return projection
            await asyncio.sleep(pause_ms * random.uniform(0.75, 1.25) / 1000)
            pause_ms = min(2 * pause_ms, REFRESH_PAUSE_MS_MAX)

    async def _reconfigure(self, effect: Reconfigure) -> Projection | Failure:
        log = effect.seen.log
        running = self._changes.get(log)
        if running is None:
            change = Change(log, effect.reason, effect.suspects, only_from=effect.seen.epoch)
            running = asyncio.create_task(self.change_chain(change, RECONFIGURE_TIMEOUT_MS))
            self._changes[log] = running
            running.add_done_callback(lambda _: self._changes.pop(log, None))
        return await asyncio.shield(running)

    async def _or_failure(self, operation: Awaitable[T]) -> T | Failure:
        try:
            return await operation
        except MillraceError as error:
            return Failure(FailureKind.METADATA, str(error))

    def _note(self, event: str, fields: dict[str, object]) -> None:
        logger.info(event, extra={"fields": fields})
        if self._noted is not None:
            self._noted(event, fields)
