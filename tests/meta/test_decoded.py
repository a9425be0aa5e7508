"""Records that are listed again and again are decoded once, and what is given out is never old."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace.errors import UnreadableMetadata
from millrace.meta import keys
from millrace.meta.contract import ANY_VERSION, Entry
from millrace.meta.decoded import DecodedFamily
from millrace.meta.directory import ClusterDirectory
from millrace.meta.memory import MemoryRepository
from millrace.types import LogAttributes, LogId, LogInfo, Lsn, NodeId, NodeInfo


def info(log: int, name: str = "orders") -> LogInfo:
    return LogInfo(LogId(log), name, LogAttributes(), 0)


def entry(log: int, version: int, name: str = "orders") -> Entry:
    return Entry(keys.LOG_NAMES.key(name), keys.LOG_NAMES.encode(info(log, name)), version)


def test_an_unchanged_record_is_the_same_object() -> None:
    family = DecodedFamily(keys.LOG_NAMES)
    (orders,) = family.listed((entry(1, 5),))
    again, users = family.listed((entry(1, 5), entry(2, 6, "users")))
    assert again is orders and users == info(2, "users")
    assert family.find(entry(1, 5)) is orders
    assert family.by_id((entry(1, 5),)) == {"orders": orders}


@pytest.mark.parametrize(
    "now",
    [entry(7, 6), entry(7, 5)],
    ids=["another version", "another value, as in a repository from a copy"],
)
def test_a_record_that_was_written_is_decoded_anew(now: Entry) -> None:
    family = DecodedFamily(keys.LOG_NAMES)
    assert family.listed((entry(1, 5),)) == [info(1)]
    assert family.find(now) == info(7)
    assert family.listed((now,)) == [info(7)]


def test_the_same_value_in_another_version_is_another_object() -> None:
    family = DecodedFamily(keys.LOG_NAMES)
    (before,) = family.listed((entry(1, 5),))
    (after,) = family.listed((entry(1, 6),))
    assert after == before and after is not before


def test_nothing_is_kept_of_records_that_are_gone() -> None:
    family = DecodedFamily(keys.LOG_NAMES)
    (orders,) = family.listed((entry(1, 5),))
    assert family.listed(()) == [] and family.find(Entry(entry(1, 5).key, b"", 0)) is None
    assert family.find(entry(1, 5)) is not orders


def test_what_cannot_be_read_stays_unreadable() -> None:
    family = DecodedFamily(keys.LOG_NAMES)
    for _ in range(2):
        with pytest.raises(UnreadableMetadata):
            family.listed((Entry(keys.LOG_NAMES.key("orders"), b"{", 5),))


def test_of_records_that_are_for_themselves_a_bad_one_is_told_once_and_the_others_are_given_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    family = DecodedFamily(keys.TRIMS)
    good = Entry("trims/2", b'{"end": 7}', 6)
    strange = Entry("trims/all", b'{"end": 8}', 7)
    for value in (b"{", b"[]"):
        for others in ((good,), (good, strange)):
            bad = Entry("trims/1", value, 5)
            found = list(family.each((bad, *others)))
            assert found == [(1, None, 5), (2, keys.Trimmed(Lsn(7)), 6)]
    told = [record.__dict__["fields"]["detail"].split()[2] for record in caplog.records]
    assert told == ["trims/1", "trims/all", "trims/1", "trims/all"]


def on_a_directory(body: Callable[[ClusterDirectory], Awaitable[None]]) -> None:
    async def work() -> None:
        await body(ClusterDirectory(MemoryRepository()))

    asyncio.run(work())


def test_a_log_that_is_deleted_and_made_again_is_the_new_one() -> None:
    async def body(directory: ClusterDirectory) -> None:
        await directory.add_log(info(1))
        assert await directory.logs() == [info(1)]
        await directory.remove_log(info(1))
        await directory.add_log(info(2))
        assert await directory.logs() == [info(2)]

    on_a_directory(body)


NODE = NodeId(3)


async def appear(directory: ClusterDirectory, *, is_full: bool = False) -> None:
    """Under a lease of its own, with the same words as ever."""
    repository = directory.repository
    live = keys.LIVE.encode(keys.LiveNode(NODE, "here", 1, is_full))
    lease = await repository.grant(10_000)
    await repository.set(keys.LIVE.key(NODE), live, ANY_VERSION, lease)


def test_a_view_is_the_same_until_a_node_comes_goes_or_lives_anew() -> None:
    async def body(directory: ClusterDirectory) -> None:
        node = keys.NODES.encode(NodeInfo(NODE, "host:1"))
        await directory.repository.set(keys.NODES.key(NODE), node, 0)
        unseen = await directory.view()
        assert unseen.live == frozenset() and directory.addresses == {NODE: "host:1"}
        await appear(directory)
        first = await directory.view()
        assert first.live == {NODE} and await directory.view() is first
        await appear(directory)
        second = await directory.view()
        assert second.live == first.live and second.lives != first.lives
        await appear(directory, is_full=True)
        assert (await directory.view()).full == {NODE}

    on_a_directory(body)
