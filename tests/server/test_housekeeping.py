"""Which copies a node drops when what it read about their logs is old."""

from typing import Any

import pytest

from millrace.config import KeeperSettings
from millrace.core import messages as m
from millrace.core.projection import Projection
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.scenario.memory_store import MemoryStore
from millrace.server.housekeeping import Housekeeping
from millrace.server.membership import Membership
from millrace.server.shell import NodeShell
from millrace.types import Epoch, LogId, NodeId, NodeInfo, Role, Token
from tests.support.clusters import run

ME, LOG = NodeId(4), LogId(1)
AT_ONCE = KeeperSettings(interval_ms=5, retention_interval_ms=5, surplus_after_ms=0)


def projection(epoch: int, *chain: int) -> Projection:
    return Projection(LOG, Epoch(epoch), tuple(map(NodeId, chain)), NodeId(1), len(chain))


class OldListing(ClusterDirectory):
    """Lists what was there a while ago; a single projection is read as it is."""

    listing: tuple[Projection, ...] = ()

    async def projections(self) -> list[Projection]:
        return list(self.listing)


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
    store = MemoryStore()
    shell = NodeShell(store, NoOutbox(), lambda order: None)
    shell.handle(1, 1, m.Seal(LOG, Epoch(sealed_epoch), Token(1, 1)))
    store.run()
    info = NodeInfo(ME, "host:1", "", (Role.STORAGE,), "", "me")
    membership = Membership(repository, info, 60_000)
    await Housekeeping(ME, directory, shell, membership, AT_ONCE)._free()
    store.run()
    await repository.close()
    return LOG in store.logs()


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
