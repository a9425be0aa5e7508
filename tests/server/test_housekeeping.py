"""Which copies a node drops when what it read about their logs is old."""

from typing import Any

import pytest

from millrace.config import KeeperSettings
from millrace.core import messages as m
from millrace.core.commit.record import CommitRecord, StreamRecord, stream_log_of
from millrace.core.projection import Projection
from millrace.meta import keys
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.scenario.memory_store import MemoryStore
from millrace.server.housekeeping import Housekeeping
from millrace.server.membership import Membership
from millrace.server.shell import NodeShell
from millrace.types import Epoch, LogId, NodeId, NodeInfo, Role, StreamId, Token
from tests.support.clusters import run

ME, LOG, STREAM = NodeId(4), LogId(1), StreamId(1)
AT_ONCE = KeeperSettings(interval_ms=5, retention_interval_ms=5, surplus_after_ms=0)


def projection(epoch: int, *chain: int) -> Projection:
    return Projection(LOG, Epoch(epoch), tuple(map(NodeId, chain)), NodeId(1), len(chain))


class OldListing(ClusterDirectory):
    """Lists what was there a while ago; a single projection is read as it is."""

    listing: tuple[Projection, ...] = ()

    commit_listing: tuple[CommitRecord, ...] = ()

    async def projections(self) -> list[Projection]:
        return list(self.listing)

    async def commits(self) -> list[CommitRecord]:
        return list(self.commit_listing)


class NoOutbox:
    def answer(self, session: int, request: int, message: m.Message, release: Any = None) -> None:
        """Nobody waits for it."""

    def push(self, session: int, message: m.Message, release: Any = None) -> None:
        """Nobody waits for it."""

    def is_writable(self, session: int) -> bool:
        return True

    def after_others(self, call: Any) -> None:
        raise AssertionError("nobody reads here")


async def is_copy_kept(
    listed: Projection | None, current: Projection | None, sealed_epoch: int
) -> bool:
    repository = MemoryRepository()
    directory = OldListing(repository)
    assert await directory.next_log_id() == LOG
    if current is not None:
        assert await directory.replace_projection(current, 0)
    directory.listing = () if listed is None else (listed,)
    return LOG in await kept(directory, m.Seal(LOG, Epoch(sealed_epoch), Token(1, 1)))


async def kept(directory: ClusterDirectory, made_by: m.Message) -> list[LogId]:
    """What is left of the copy that a message makes."""
    store = MemoryStore()
    shell = NodeShell(store, NoOutbox(), lambda order: None, me=ME)
    shell.handle(1, 1, made_by)
    store.run()
    info = NodeInfo(ME, "host:1", "", (Role.STORAGE,), "", "me")
    membership = Membership(directory.repository, info, 60_000)
    await Housekeeping(ME, directory, shell, membership, AT_ONCE)._free()
    store.run()
    await directory.repository.close()
    return list(store.logs())


@pytest.mark.parametrize(
    ("listed", "current", "sealed_epoch", "is_kept"),
    [
        (projection(3, 1, 2, 3), projection(3, 1, 2, 3), 2, False),
        (projection(3, 1, 2, 3), projection(3, 1, 2, 3), 3, False),
        (projection(3, 1, 2, 3), projection(4, 1, 2, 4), 4, True),
        (projection(3, 1, 2, 3), projection(3, 1, 2, 3), 4, True),
        (projection(3, 1, 2, 4), projection(3, 1, 2, 4), 3, True),
        (None, None, 1, False),
        (None, projection(1, 1, 2, 4), 1, True),
    ],
    ids=[
        "left long ago",
        "left in this epoch",
        "a member since",
        "becoming a member",
        "a member",
        "deleted",
        "made since",
    ],
)
def test_a_copy_is_dropped_only_when_it_is_surplus_now(
    listed: Projection | None, current: Projection | None, sealed_epoch: int, is_kept: bool
) -> None:
    assert run(is_copy_kept(listed, current, sealed_epoch), 20) == is_kept


def test_a_trim_point_that_cannot_be_read_keeps_no_surplus_copy() -> None:
    async def work() -> list[LogId]:
        directory = OldListing(MemoryRepository())
        assert await directory.next_log_id() == LOG
        await directory.repository.set(keys.TRIMS.key(LOG), b"{", 0)
        current = projection(3, 1, 2, 3)
        assert await directory.replace_projection(current, 0)
        directory.listing = (current,)
        return await kept(directory, m.Seal(LOG, Epoch(3), Token(1, 1)))

    assert run(work(), 20) == []


RECORD = CommitRecord(LOG, Epoch(1), NodeId(1), 1, (StreamRecord(STREAM, Epoch(1), (NodeId(1),)),))


async def is_stream_kept(listed: CommitRecord | None, current: CommitRecord | None) -> bool:
    directory = OldListing(MemoryRepository())
    assert await directory.next_log_id() == LOG
    if current is not None:
        assert await directory.replace_commits(current, 0)
    directory.commit_listing = () if listed is None else (listed,)
    seal = m.SealStream(LOG, STREAM, Epoch(1))
    return stream_log_of(LOG, STREAM) in await kept(directory, seal)


@pytest.mark.parametrize(
    ("listed", "current", "is_kept"),
    [
        pytest.param(None, None, False, id="deleted while the node was away"),
        pytest.param(RECORD, RECORD, True, id="its committer knows whether it is needed"),
        pytest.param(None, RECORD, True, id="made since"),
    ],
)
def test_a_stream_is_dropped_with_its_log(
    listed: CommitRecord | None, current: CommitRecord | None, is_kept: bool
) -> None:
    assert run(is_stream_kept(listed, current), 20) == is_kept
