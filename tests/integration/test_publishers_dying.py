"""Publishers that stop anywhere, for a while or for good: each version appears once, whole, in
every log, with the rows of one attempt."""

import asyncio
import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import msgspec
import pyarrow as pa
import pytest

from millrace.client import Client, Log, Reader
from millrace.client.publications import Staged
from millrace.client.publications.publishing import Publisher
from millrace.client.publications.staged_trimming import GRACE_MS
from millrace.client.publications.staging import TIME_TO_LIVE_MS
from millrace.core import publishing
from millrace.core.publications import PublicationRecord, staging_name
from millrace.core.publishing import AppendBlocks, Done, Effect, ReplaceRecord, Trouble
from millrace.errors import UsageError
from millrace.local import LocalCluster
from millrace.types import Gap, GapKind, Lsn, Record
from tests.support import publishing_process
from tests.support.clusters import connected, eventually, run

PATHS = ("sequenced", "chain", "commit")
ROWS = 10
WAIT_MS = 60_000
DEATHS = 3
PATIENCE_S = 150.0  # A process takes seconds to start where many do.
APPS = itertools.count(1)


class Stepping:
    """A publisher that takes a step when it is told to."""

    def __init__(self, work: publishing.Publishing, publisher: Publisher) -> None:
        self._publisher = publisher
        self._work = work
        self.effect: Effect = self._work.send(None)
        self.outcome: Done | Trouble | None = None

    @classmethod
    async def new(
        cls, client: Client, logs: list[Log], app: str, name: str, age_ms: int = 0
    ) -> "Stepping":
        """Of version 1; `age_ms`: it is begun so long ago, by its clock, and never comes again."""
        staged = await stage(client, logs, name)
        deadline_s = time.monotonic() + WAIT_MS / 1000
        drawing = random.Random(f"{app} {name}")
        marks = (drawing.getrandbits(63) for _ in itertools.count())
        now_ms = int(time.time() * 1000) - age_ms
        work = publishing.publish(app, 1, marks, now_ms, is_once=age_ms > 0)
        return cls(work, Publisher(client, app, 1, staged, deadline_s))

    async def perform(self, effect: Effect | None = None) -> None:
        """What it asked for, or something else, and hear what it wants then."""
        answer = await self._publisher.perform(effect or self.effect)
        try:
            self.effect = self._work.send(answer)
        except StopIteration as finished:
            self.outcome = finished.value

    async def until(self, kind: type[Effect]) -> None:
        while not isinstance(self.effect, kind):
            await self.perform()

    async def finish(self) -> Done | Trouble:
        while self.outcome is None:
            await self.perform()
        return self.outcome


async def stage(client: Client, logs: list[Log], name: str) -> list[Staged]:
    rows = pa.table({"value": [f"{name}-{number}".encode() for number in range(ROWS)]})
    return [await client.publications.stage(log.name, rows) for log in logs]


class Place(msgspec.Struct):
    """Logs of each kind, and where each of them ended when the test began."""

    client: Client
    logs: list[Log]
    begin: list[Lsn]
    app: str

    async def read(self) -> list[list[Record | Gap]]:
        """What each log has had since then."""
        found = []
        for log, first in zip(self.logs, self.begin, strict=True):
            async with await log.read(first) as reader:
                found.append([one async for one in reader.records(timeout_ms=WAIT_MS)])
        return found

    async def names(self) -> list[list[str]]:
        """Of the batches that appeared, each checked to be whole."""
        return [
            _names([one for one in seen if isinstance(one, Record)]) for seen in await self.read()
        ]

    async def publish(self, version: int, name: str) -> bool:
        """Whether it had been begun before."""
        staged = await stage(self.client, self.logs, name)
        published = await self.client.publications.publish(
            self.app, version, staged, timeout_ms=WAIT_MS
        )
        return published.is_repeated


def _names(rows: list[Record]) -> list[str]:
    values = [row.value.decode() for row in rows]
    batches = [values[at : at + ROWS] for at in range(0, len(values), ROWS)]
    names = [batch[0].rpartition("-")[0] for batch in batches]
    assert batches == [[f"{name}-{number}" for number in range(ROWS)] for name in names]
    return names


@asynccontextmanager
async def place(cluster: LocalCluster) -> AsyncIterator[Place]:
    async with connected(cluster) as client:
        logs = []
        for path in PATHS:
            name = f"dying-{path}"
            found = await client.find_log(name)
            logs.append(found or await client.create_log(name, replication=2, write_path=path))
        begin = [(await log.readable_bounds())[1] for log in logs]
        yield Place(client, logs, begin, f"dying-{next(APPS)}")


# -- For good -------------------------------------------------------------------------------------

STEPS = [
    pytest.param(0, "b", id="before it looked"),
    pytest.param(1, "b", id="when it had looked"),
    pytest.param(2, "b", id="when it had written its manifest"),
    pytest.param(3, "a", id="when it had begun"),
    pytest.param(4, "a", id="when it had appended"),
    pytest.param(5, "a", id="when it had noted"),
]


@pytest.mark.parametrize(("steps", "expected"), STEPS)
def test_a_publisher_dies(calm_cluster: LocalCluster, steps: int, expected: str) -> None:
    async def body() -> None:
        async with place(calm_cluster) as here:
            dying = await Stepping.new(here.client, here.logs, here.app, "a")
            for _ in range(steps):
                await dying.perform()
            assert await here.names() == [["a"] if steps >= 4 else []] * 3
            assert await here.publish(1, "b") == (expected == "a")
            assert await here.publish(2, "c") is False
            assert await here.names() == [[expected, "c"]] * 3

    run(body())


def test_a_publisher_dies_that_has_appended_to_one_of_its_logs(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with place(calm_cluster) as here:
            dying = await Stepping.new(here.client, here.logs, here.app, "a")
            await dying.until(AppendBlocks)
            assert isinstance(dying.effect, AppendBlocks)
            record = dying.effect.record
            first = msgspec.structs.replace(record, targets=record.targets[:1])
            await dying.perform(AppendBlocks(first))
            assert await here.publish(2, "c") is False, "the next version finishes this one first"
            assert await here.names() == [["a", "c"]] * 3
            gaps = [[one for one in seen if isinstance(one, Gap)] for seen in await here.read()]
            assert gaps == [[], [], []], "what was there was found, and is not void"

    run(body())


# -- For longer than rows are kept ----------------------------------------------------------------


async def forget_staged(client: Client, log: Log, before: Lsn | None = None) -> None:
    """What was staged for the log, or what lies below; as retention does it."""
    staging = await client.log(staging_name(log.info.id))
    await staging.trim(before or (await staging.readable_bounds())[1])


async def begun(here: Place) -> PublicationRecord:
    """A publisher dies that has begun."""
    dying = await Stepping.new(here.client, here.logs, here.app, "a")
    await dying.until(AppendBlocks)
    record, _ = await here.client.directory.read_publication(here.app)
    assert record is not None
    return record


def test_rows_that_are_gone_are_published_from_those_that_were_staged_again(
    calm_cluster: LocalCluster,
) -> None:
    async def body() -> None:
        async with place(calm_cluster) as here:
            await begun(here)
            for log in here.logs:
                await forget_staged(here.client, log)
            assert await here.publish(1, "b") is False
            assert await here.publish(1, "c") is True
            assert await here.names() == [["b"]] * 3

    run(body())


def test_rows_that_lie_below_the_trim_point_are_gone_also_if_their_manifest_is_not(
    calm_cluster: LocalCluster,
) -> None:
    async def body() -> None:
        async with place(calm_cluster) as here:
            record = await begun(here)
            assert record.manifest is not None
            assert record.manifest.log == staging_name(here.logs[0].info.id)
            await forget_staged(here.client, here.logs[0], before=record.manifest.lsn)
            assert await here.publish(1, "b") is False
            assert await here.names() == [["b"], ["a"], ["a"]]

    run(body())


def test_what_is_in_a_log_with_its_rows_stays_there_when_the_manifest_is_gone(
    calm_cluster: LocalCluster,
) -> None:
    async def body() -> None:
        async with place(calm_cluster) as here:
            dying = await Stepping.new(here.client, here.logs, here.app, "a")
            await dying.until(AppendBlocks)
            assert isinstance(dying.effect, AppendBlocks)
            record = dying.effect.record
            two = msgspec.structs.replace(record, targets=record.targets[:2])
            await dying.perform(AppendBlocks(two))
            await forget_staged(here.client, here.logs[0])
            assert await here.publish(1, "b") is False
            assert await here.names() == [["b"], ["a"], ["b"]]

    run(body())


def test_a_log_that_was_made_again_gets_the_rows_that_were_staged_for_it(
    calm_cluster: LocalCluster,
) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("remade", replication=2, write_path="chain")
            dying = await Stepping.new(client, [log], "remade", "a")
            await dying.until(AppendBlocks)
            await client.delete_log("remade")
            log = await client.create_log("remade", replication=2, write_path="chain")
            here = Place(client, [log], [Lsn(1)], "remade")
            assert await here.publish(1, "b") is False
            assert await here.names() == [["b"]]

    run(body())


def test_a_higher_version_goes_on_without_what_is_gone_and_says_so(
    calm_cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with place(calm_cluster) as here:
            await begun(here)
            for log in here.logs:
                await forget_staged(here.client, log)
            assert await here.client.publications.last(here.app) is None
            staged = await stage(here.client, here.logs, "c")
            published = await here.client.publications.publish(here.app, 2, staged)
            assert published.passed_over == (1,)
            assert "version 1 had been begun and could not be finished" in caplog.text
            with pytest.raises(UsageError, match="given up"):
                await here.publish(1, "b")
            assert await here.names() == [["c"]] * 3

    run(body())


LONG_AGO_MS = TIME_TO_LIVE_MS + GRACE_MS + 60_000


def test_what_nobody_finishes_does_not_hold_up_trimming_and_is_forgotten(
    calm_cluster: LocalCluster,
) -> None:
    """One driver died before it had appended, one before it had noted: both would come back under
    other names."""

    async def body() -> None:
        async with place(calm_cluster) as here:
            directory = here.client.directory
            lost = await Stepping.new(here.client, here.logs, here.app, "a", LONG_AGO_MS)
            await lost.until(AppendBlocks)
            other = f"{here.app}-appended"
            appended = await Stepping.new(here.client, here.logs, other, "b", LONG_AGO_MS)
            await appended.until(AppendBlocks)
            await appended.perform()
            for log, first in zip(here.logs, here.begin, strict=True):
                await log.trim(first)
            record, _ = await directory.read_publication(here.app)
            assert record is not None and not record.open_targets and not record.is_published
            assert len(record.void) == 3
            record, _ = await directory.read_publication(other)
            assert record is not None and record.is_published and not record.void
            await lost.perform()
            assert await here.names() == [["b"]] * 3, "what arrives late is void"

            async def find() -> PublicationRecord | None:
                return (await directory.read_publication(here.app))[0]

            for log in here.logs:
                await forget_staged(here.client, log)
            await eventually(find, lambda found: found is None, what="the keeper forgets it")
            assert not any(isinstance(one, Record) for seen in await here.read() for one in seen)

    run(body())


def test_what_goes_to_a_deleted_log_is_given_up(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with place(calm_cluster) as here:
            log = await here.client.create_log("deleted", replication=2, write_path="chain")
            dying = await Stepping.new(here.client, [log, here.logs[0]], here.app, "a")
            await dying.until(AppendBlocks)
            await here.client.delete_log("deleted")

            async def open_logs() -> list[str]:
                record, _ = await here.client.directory.read_publication(here.app)
                assert record is not None
                return [each.name for each in record.open_targets]

            await eventually(
                open_logs, lambda names: names == [here.logs[0].name], what="the keeper gives it up"
            )

    run(body())


# -- For a while ----------------------------------------------------------------------------------


def test_an_append_arrives_after_others_have_finished_it(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with place(calm_cluster) as here:
            late = await Stepping.new(here.client, here.logs, here.app, "a")
            await late.until(AppendBlocks)
            assert await here.publish(1, "b") is True
            outcome = await late.finish()
            assert isinstance(outcome, Done)
            assert await here.names() == [["a"]] * 3
            for log, seen in zip(here.logs, await here.read(), strict=True):
                *_, gap = seen
                assert isinstance(gap, Gap)
                assert (gap.kind, gap.last - gap.first + 1) == (GapKind.HOLE, ROWS)
                within = Lsn(gap.first + 1)
                assert await log.get(within) == Gap(GapKind.HOLE, within, within)
            assert await here.publish(2, "c") is False
            assert await here.names() == [["a", "c"]] * 3

    run(body())


def test_who_is_being_taken_over_hears_of_it(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with place(calm_cluster) as here:
            late = await Stepping.new(here.client, here.logs, here.app, "a")
            await late.until(AppendBlocks)
            taker = await Stepping.new(here.client, here.logs, here.app, "b")
            await taker.until(ReplaceRecord)
            await taker.perform()
            assert await late.finish() is Trouble.TAKEN_OVER
            assert await here.names() == [[]] * 3, "what was appended is void, the other not there"
            assert isinstance(await taker.finish(), Done)
            assert await here.names() == [["a"]] * 3

    run(body())


def test_what_a_reader_saw_cannot_be_taken_over(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with place(calm_cluster) as here:
            late = await Stepping.new(here.client, here.logs, here.app, "a")
            await late.until(AppendBlocks)
            taker = await Stepping.new(here.client, here.logs, here.app, "b")
            await taker.until(ReplaceRecord)  # It has looked, and not found what comes now.
            await late.perform()
            assert await here.names() == [["a"]] * 3
            await taker.perform()
            assert isinstance(await taker.finish(), Done)
            assert isinstance(await late.finish(), Done)
            assert await here.names() == [["a"]] * 3
            assert not any(isinstance(one, Gap) for seen in await here.read() for one in seen)

    run(body())


# -- By a signal ----------------------------------------------------------------------------------


@contextmanager
def publishing_in(
    cluster: LocalCluster, app: str, logs: list[str]
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", publishing_process.__name__]
    command += [",".join(cluster.addresses), app, *logs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


def test_processes_that_publish_are_killed(calm_cluster: LocalCluster) -> None:
    """A reader of each log follows; whenever it has had more, the publisher is killed."""

    async def body() -> None:
        async with place(calm_cluster) as here:
            names = [log.name for log in here.logs]
            followers = [
                await log.read(first, None)
                for log, first in zip(here.logs, here.begin, strict=True)
            ]
            heard: list[list[Record]] = [[] for _ in followers]
            hearing = [
                asyncio.create_task(_hear(*each)) for each in zip(followers, heard, strict=True)
            ]
            for _ in range(DEATHS):
                enough = min(map(len, heard)) + 3 * publishing_process.ROWS
                with publishing_in(calm_cluster, here.app, names):
                    await eventually(
                        partial(_has, heard, enough), what="rows of all logs", timeout_s=PATIENCE_S
                    )
            last = await here.client.publications.last(here.app)
            assert last is not None
            await publishing_process.publish(here.client, here.app, names, last + 1)
            await eventually(lambda: _have(heard, last + 1), what="the last version")
            versions = [_versions(rows) for rows in heard]
            assert versions[0] == versions[1] == versions[2]
            assert [version for version, _ in versions[0]] == list(range(last + 2))
            for task in hearing:
                task.cancel()
            for follower in followers:
                await follower.close()

    run(body(), timeout_s=DEATHS * PATIENCE_S)


async def _hear(follower: Reader, rows: list[Record]) -> None:
    async for one in follower.records():
        if isinstance(one, Record):
            rows.append(one)


async def _has(heard: list[list[Record]], count: int) -> bool:
    return min(map(len, heard)) >= count


async def _have(heard: list[list[Record]], version: int) -> bool:
    wanted = b"%d " % version
    return all(
        sum(row.value.startswith(wanted) for row in rows) == publishing_process.ROWS
        for rows in heard
    )


def _versions(rows: list[Record]) -> list[tuple[int, int]]:
    """Each version and the process that staged it, in order; each must be whole and there once."""
    said = [tuple(map(int, row.value.split())) for row in rows]
    found = [(version, process) for version, process, number in said if number == 0]
    size = publishing_process.ROWS
    assert said == [(*each, number) for each in found for number in range(size)]
    return found
