"""The keeper's loop: the node that holds the keeper's lease looks after every log.

The steps are planned by `core/keeper.py`; each is safe whoever takes it.  Steps of different logs
run side by side, a bounded number at a time, and a log has at most one step under way.  A log
whose step failed is left alone for a while.  Chores go through all logs, each in a task of its
own, so that a slow node holds up no step.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from millrace.codec.blocks import junk
from millrace.config import KeeperSettings
from millrace.core.keeper import Step, StepKind, close_holes, look_at_members, plan, teach
from millrace.core.messages import Learned, Refusal, Refused
from millrace.core.procedure import ClusterView, DeadlinePassed, Failure
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.reconfigure import Change
from millrace.core.trim import retention_point, trim
from millrace.errors import MillraceError, UnreadableMetadata
from millrace.meta import keys
from millrace.meta.contract import Conflict, LeaseExpired
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.procedures import ProcedureRunner
from millrace.server.ages import kept_us, oldest_us
from millrace.server.backoff import Backoff
from millrace.server.commit_keeping import CommitKeeping
from millrace.server.documents.cluster_keeping import ClusterKeeping
from millrace.server.membership import Membership
from millrace.server.nodeset_keeping import NodesetKeeping
from millrace.server.sequenced_keeping import SequencedKeeping
from millrace.server.staged_keeping import StagedKeeping
from millrace.server.status_keeping import StatusKeeping
from millrace.server.whole_chains import Lives, WholeChains
from millrace.types import FIRST_LSN, LogAttributes, LogId, Lsn, NodeId

STEPS_AT_ONCE = 4
STEP_TIMEOUT_MS = 900_000
TRIM_TIMEOUT_MS = 10_000
CHECK_TIMEOUT_MS = 4_000
HOLES_TIMEOUT_MS = 60_000
REST_S = 1.0
NAMELESS_S_MAX = 60.0  # Longer than the creation of a log takes from projection to name.

logger = logging.getLogger("millrace")


class KeeperLoop:
    def __init__(
        self,
        node: NodeId,
        directory: ClusterDirectory,
        runner: ProcedureRunner,
        membership: Membership,
        settings: KeeperSettings,
    ) -> None:
        self.is_keeper = False
        self.steps_done: dict[StepKind, int] = dict.fromkeys(StepKind, 0)
        self.steps_failed = 0
        self._node = node
        self._directory = directory
        self._runner = runner
        self._membership = membership
        self._settings = settings
        self._busy: dict[LogId, asyncio.Task[None]] = {}
        self._resting: dict[NodeId, float] = {}  # Learners that did not answer, until when.
        self._backoff = Backoff()
        self._sequenced = SequencedKeeping(directory, runner)
        self._commits = CommitKeeping(directory, runner)
        self._staged = StagedKeeping(directory)
        self._buckets = ClusterKeeping(directory, runner)
        self._nodesets = NodesetKeeping(directory, runner)
        self._statuses = StatusKeeping(directory, runner, settings)
        self._whole = WholeChains()
        self._chores: dict[str, asyncio.Task[None]] = {}
        self._chores_begun_s = 0.0
        self._nameless_since_s: dict[LogId, float] = {}

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._settings.interval_ms / 1000)
                try:
                    self.is_keeper = await self._hold_lease()
                    if self.is_keeper:
                        await self._round()
                except UnreadableMetadata as error:
                    self._log("keeper.unreadable", detail=str(error))
                except (MillraceError, LeaseExpired) as error:
                    self.is_keeper = False
                    self._log("keeper.waiting", detail=str(error))
        finally:
            for task in (*self._busy.values(), *self._chores.values()):
                task.cancel()

    async def _hold_lease(self) -> bool:
        repository = self._directory.repository
        entry = await repository.get(keys.KEEPER.key)
        keeper = keys.KEEPER.find(entry)
        if keeper is not None:
            return keeper.node == self._node and entry.lease == self._membership.lease
        mine = keys.Keeper(self._node, int(time.time() * 1000))
        try:
            await repository.set(
                keys.KEEPER.key, keys.KEEPER.encode(mine), 0, self._membership.lease
            )
        except Conflict:
            return False
        self._log("keeper.elected", node=self._node)
        return True

    async def _round(self) -> None:
        view = await self._directory.view()
        projections = await self._directory.projections()
        by_log = {projection.log: projection for projection in projections}
        now_s = asyncio.get_running_loop().time()
        self._resting = {node: until for node, until in self._resting.items() if until > now_s}
        self._backoff.look(view.live, set(by_log))
        for step in plan(projections, view, view.full | self._resting.keys()):
            self._begin(step, by_log[step.log])
        self._begin_chore("appoint_sequencers", partial(self._sequenced.appoint, view))
        self._begin_chore("keep_nodesets", partial(self._nodesets.look, view))
        self._begin_chore("keep_statuses", partial(self._statuses.look, view))
        self._begin_chore("keep_buckets", partial(self._buckets.look, view))
        if now_s - self._chores_begun_s >= self._settings.retention_interval_ms / 1000:
            self._chores_begun_s = now_s
            self._begin_chores(projections, view)

    def _begin(self, step: Step, projection: Projection) -> None:
        if step.log in self._busy or len(self._busy) >= STEPS_AT_ONCE:
            return
        if self._backoff.is_resting(step.log, asyncio.get_running_loop().time()):
            return
        task = asyncio.create_task(self._take(step, projection))
        self._busy[step.log] = task
        task.add_done_callback(partial(self._step_ended, step.log))

    def _begin_chores(self, projections: list[Projection], view: ClusterView) -> None:
        # A member that is away would only be waited for; a step deals with it.
        whole = [each for each in projections if view.live.issuperset(each.chain)]
        self._begin_chore("find_incomplete", partial(self._find_incomplete, whole, view.lives))
        self._begin_chore("apply_retention", partial(self._apply_retention, whole))
        self._begin_chore("forget_nameless", partial(self._forget_nameless, projections))
        self._begin_chore("keep_staged", self._staged.look)
        self._begin_chore("retain_sequenced", self._sequenced.retain)
        self._begin_chore("retain_commits", self._commits.retain)
        self._begin_chore("appoint_committers", self._commits.appoint)
        self._begin_chore("forget_nameless_sequenced", self._sequenced.forget_nameless)
        self._begin_chore("drop_deleted_buckets", partial(self._buckets.drop_leftovers, view))

    def _begin_chore(self, name: str, chore: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if name not in self._chores:
            task = self._chores[name] = asyncio.create_task(chore())
            task.add_done_callback(partial(self._chore_ended, name))

    def _chore_ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._chores.pop(name, None)
        if not task.cancelled() and task.exception() is not None:
            self._log("keeper.chore_failed", chore=name, detail=repr(task.exception()))

    async def _find_incomplete(self, projections: list[Projection], lives: Lives) -> None:
        loop = asyncio.get_running_loop()
        self._whole.keep_only({projection.log for projection in projections})
        for projection in projections:
            if projection.log in self._busy or len(self._busy) >= STEPS_AT_ONCE:
                continue
            if self._whole.has(projection, lives, loop.time()):
                continue
            try:
                found = await self._runner.run(look_at_members(projection), CHECK_TIMEOUT_MS)
            except DeadlinePassed:
                continue
            if found.step is not None:
                self._begin(found.step, projection)
            elif found.are_whole:
                self._whole.add(projection, lives, loop.time())

    def _step_ended(self, log: LogId, task: asyncio.Task[None]) -> None:
        self._busy.pop(log, None)
        if not task.cancelled() and task.exception() is not None:
            self._backoff.failed(log, asyncio.get_running_loop().time())
            self.steps_failed += 1
            self._log("keeper.step_failed", log=log, detail=repr(task.exception()))

    async def _take(self, step: Step, projection: Projection) -> None:
        self._log("keeper.step", kind=step.kind.value, log=step.log, nodes=step.nodes)
        if step.kind is StepKind.GROW:
            failed = await self._grow(step, projection)
        else:
            change = Change(
                step.log, step.reason, frozenset(step.nodes), only_from=projection.epoch
            )
            failed = await self._change(change)
        if failed is None:
            self.steps_done[step.kind] += 1
            self._backoff.succeeded(step.log)
        else:
            self.steps_failed += 1
            self._log("keeper.step_failed", kind=step.kind.value, log=step.log, detail=failed)
            current, _ = await self._directory.read_projection(step.log)
            if current is not None and current.epoch == projection.epoch:
                # Otherwise somebody changed the chain meanwhile: the plan was old, not hopeless.
                self._backoff.failed(step.log, asyncio.get_running_loop().time())

    async def _grow(self, step: Step, projection: Projection) -> str | None:
        learner = step.nodes[0]
        try:
            await self._runner.run(close_holes(projection, junk), HOLES_TIMEOUT_MS)
        except DeadlinePassed:
            self._log("keeper.holes_left", log=step.log)
        try:
            learned = await self._runner.run(teach(projection, learner), STEP_TIMEOUT_MS)
        except DeadlinePassed:
            return "learning took too long"
        if not isinstance(learned, Learned):
            # The learner may be fenced above the chain by an attempt that did not finish; a new
            # epoch lifts the chain over it.
            if isinstance(learned, Refused) and learned.reason is Refusal.EPOCH:
                await self._change(
                    Change(step.log, ReconfigureReason.FENCED, only_from=projection.epoch)
                )
            if isinstance(learned, Failure):
                # It does not answer: let others learn until its lease shows whether it lives.
                loop = asyncio.get_running_loop()
                self._resting[learner] = loop.time() + REST_S
            return f"node {learner} could not learn: {learned}"
        # Only from the epoch it learned in: later it may hold what the chain has since replaced.
        return await self._change(
            Change(step.log, step.reason, only_from=projection.epoch, add=(learner,))
        )

    async def _change(self, change: Change) -> str | None:
        result = await self._runner.change_chain(change, STEP_TIMEOUT_MS)
        return result.detail if isinstance(result, Failure) else None

    async def _forget_nameless(self, projections: list[Projection]) -> None:
        """A client that died while it made or deleted a log leaves a projection that nobody can
        find.  The nodes drop their copies when it is gone."""
        infos = await self._directory.logs()
        named = {info.id for info in infos}
        nameless = [each.log for each in projections if each.log not in named]
        now_s = asyncio.get_running_loop().time()
        since_s = self._nameless_since_s
        self._nameless_since_s = {log: since_s.get(log, now_s) for log in nameless}
        for log, first_seen_s in list(self._nameless_since_s.items()):
            if now_s - first_seen_s > NAMELESS_S_MAX:
                await self._directory.remove_projection(log)
                self._log("keeper.nameless_forgotten", log=log)

    async def _apply_retention(self, projections: list[Projection]) -> None:
        by_log = {projection.log: projection for projection in projections}
        ends = await self._directory.trim_ends()
        for info in await self._directory.logs():
            projection, end = by_log.get(info.id), ends.get(info.id, FIRST_LSN)
            # Of a log whose trim point cannot be read nothing more is forgotten.
            if projection is not None and end is not None and info.id not in self._busy:
                await self._retain(projection, info.attributes, end)

    async def _retain(
        self, projection: Projection, attributes: LogAttributes, known_end: Lsn
    ) -> None:
        """Age and size, and whatever trim point a node has missed."""
        procedure = retention_point(
            projection, oldest_us(attributes), attributes.retention_bytes, kept_us(attributes)
        )
        try:
            point = await self._runner.run(procedure, TRIM_TIMEOUT_MS)
            if not isinstance(point, int):
                return  # The chain is changing; the next round will do.
            end = known_end
            if point > known_end:
                end = await self._directory.raise_trim(projection.log, point)
            if end > FIRST_LSN:
                await self._runner.run(trim(projection, end), TRIM_TIMEOUT_MS)
        except DeadlinePassed:
            self._log("keeper.retention_late", log=projection.log)

    def _log(self, event: str, **fields: object) -> None:
        logger.info(event, extra={"fields": fields})
