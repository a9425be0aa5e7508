"""What every metadata repository must do, whatever it is made of.

Derive a test class from `RepositorySuite`, say how to open the repository, and all of these run
against the real thing.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from millrace import errors, limits
from millrace.meta.contract import ANY_VERSION, Conflict, Entry, LeaseExpired, Repository
from tests.support.watching import Watcher

TEST_TIMEOUT_S = 60.0


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An async test that is given an open repository."""

    @functools.wraps(test)
    def run(self: "RepositorySuite") -> None:
        async def with_repository() -> None:
            async with asyncio.timeout(TEST_TIMEOUT_S), self.open() as repository:
                await test(self, repository)

        asyncio.run(with_repository())

    del run.__dict__["__wrapped__"]  # Else pytest would take `repository` for a fixture.
    return run


async def attempt(operation: Awaitable[Any]) -> Any:
    """The result, or the conflict."""
    try:
        return await operation
    except Conflict as conflict:
        return conflict


def is_unavailable(result: object) -> bool:
    return isinstance(result, errors.MetadataUnavailable)


class RepositorySuite:
    lease_ttl_ms = 1_000  # The shortest that etcd has; processors may be busy for a part of it.
    expiry_slack_ms = 5_000  # Machines pause; "soon" is no more precise than that.
    unavailable_timeout_ms = 500

    def open(self) -> AbstractAsyncContextManager[Repository]:
        raise NotImplementedError

    def open_unavailable(self) -> AbstractAsyncContextManager[Repository]:
        """One that cannot be reached, with `unavailable_timeout_ms`."""
        raise NotImplementedError

    # -- Keys and versions --------------------------------------------------------------------

    @scenario
    async def test_absent_key_has_version_zero(self, repository: Repository) -> None:
        assert await repository.get("nothing") == Entry("nothing", b"", 0)

    @scenario
    async def test_create_read_replace(self, repository: Repository) -> None:
        first = await repository.set("a", b"one", 0)
        assert await repository.get("a") == first == Entry("a", b"one", first.version)
        second = await repository.set("a", b"two", first.version)
        assert second.version > first.version > 0
        assert await repository.get("a") == second

    @scenario
    async def test_conflict_shows_what_is_there(self, repository: Repository) -> None:
        there = await repository.set("a", b"one", 0)
        for expected in (0, there.version + 1000):
            with pytest.raises(Conflict) as caught:
                await repository.set("a", b"two", expected)
            assert caught.value.current == there
        with pytest.raises(Conflict) as caught:
            await repository.set("absent", b"two", there.version)
        assert caught.value.current == Entry("absent", b"", 0)

    @scenario
    async def test_any_version_sets_whatever_is_there(self, repository: Repository) -> None:
        first = await repository.set("a", b"one", ANY_VERSION)
        second = await repository.set("a", b"two", ANY_VERSION)
        assert second.version > first.version
        assert (await repository.get("a")).value == b"two"

    @scenario
    async def test_delete(self, repository: Repository) -> None:
        there = await repository.set("a", b"one", 0)
        with pytest.raises(Conflict) as caught:
            await repository.delete("a", there.version + 1000)
        assert caught.value.current == there
        await repository.delete("a", there.version)
        assert (await repository.get("a")).version == 0
        await repository.delete("a", ANY_VERSION)
        await repository.delete("a", 0)
        with pytest.raises(Conflict):
            await repository.delete("a", there.version)

    @scenario
    async def test_a_version_never_comes_back(self, repository: Repository) -> None:
        seen = set()
        for _ in range(4):
            entry = await repository.set("a", b"same", 0)
            seen.add(entry.version)
            with pytest.raises(Conflict):
                await repository.set("a", b"late", entry.version - 1)
            await repository.delete("a", entry.version)
        assert len(seen) == 4 and sorted(seen)[-1] == entry.version
        with pytest.raises(Conflict):
            await repository.set("a", b"late", entry.version)

    @scenario
    async def test_one_of_many_creators_wins(self, repository: Repository) -> None:
        for round_number in range(5):
            key = f"race/{round_number}"
            # All write the same bytes: a loser must not take the winner's write for its own.
            results = await asyncio.gather(
                *(attempt(repository.set(key, b"same", 0)) for _ in range(20))
            )
            winners = [result for result in results if isinstance(result, Entry)]
            assert len(winners) == 1
            assert await repository.get(key) == winners[0]
            assert all(
                result.current == winners[0] for result in results if isinstance(result, Conflict)
            )

    @scenario
    async def test_counting_by_compare_and_set_loses_nothing(self, repository: Repository) -> None:
        await repository.set("count", b"0", 0)
        versions: list[int] = []

        async def add(times: int) -> None:
            while times:
                there = await repository.get("count")
                value = b"%d" % (int(there.value) + 1)
                result = await attempt(repository.set("count", value, there.version))
                if isinstance(result, Entry):
                    versions.append(result.version)
                    times -= 1

        await asyncio.gather(*(add(5) for _ in range(8)))
        assert (await repository.get("count")).value == b"40"
        assert len(set(versions)) == 40

    # -- Names, sizes, lists ------------------------------------------------------------------

    @scenario
    async def test_list_is_in_key_order(self, repository: Repository) -> None:
        keys = ["b/2", "b/10", "a", "b/é", "b/\U0001f30a", "b/\uffee", "b", "c", "b/"]
        for key in keys:
            await repository.set(key, key.encode(), 0)
        entries, revision = await repository.list("b/")
        expected = sorted(key for key in keys if key.startswith("b/"))
        assert [entry.key for entry in entries] == expected
        assert [entry.value.decode() for entry in entries] == expected
        everything, later = await repository.list("")
        assert [entry.key for entry in everything] == sorted(keys)
        assert later >= revision >= max(entry.version for entry in everything)
        assert (await repository.list("nothing/"))[0] == ()

    @scenario
    async def test_unicode_and_longest_keys(self, repository: Repository) -> None:
        for key in ("čeština/日本語 🌊", "x" * limits.KEY_BYTES_MAX, "é" * 240, "a b\n\t%/../"):
            entry = await repository.set(key, b"v", 0)
            assert await repository.get(key) == entry
            assert (await repository.list(key))[0] == (entry,)

    @scenario
    async def test_any_bytes_up_to_the_limit(self, repository: Repository) -> None:
        values = (b"", b"\x00\xff\n", bytes(range(256)) * (limits.VALUE_BYTES_MAX // 256))
        async with Watcher(repository, "v/", (await repository.list(""))[1]) as watcher:
            for number, value in enumerate(values):
                await repository.set(f"v/{number}", value, 0)
                assert (await repository.get(f"v/{number}")).value == value
            assert [entry.value for entry in await watcher.entries(3)] == list(values)

    @scenario
    async def test_a_listing_of_many_large_values(self, repository: Repository) -> None:
        value = b"x" * limits.VALUE_BYTES_MAX
        for number in range(7):
            await repository.set(f"large/{number}", value, 0)
        entries, _ = await repository.list("large/")
        assert [(entry.key, len(entry.value)) for entry in entries] == [
            (f"large/{number}", len(value)) for number in range(7)
        ]

    @scenario
    async def test_what_is_out_of_bounds_is_refused(self, repository: Repository) -> None:
        too_long = "é" * (limits.KEY_BYTES_MAX // 2 + 1)
        for operation in (
            repository.set("a", b"x" * (limits.VALUE_BYTES_MAX + 1), 0),
            repository.set(too_long, b"", 0),
            repository.set("", b"", 0),
            repository.set("\ud800", b"", 0),
            repository.set("a", b"", -2),
            repository.get(too_long),
            repository.delete(too_long, 0),
            repository.grant(0),
        ):
            with pytest.raises(errors.UsageError):
                await operation
        assert await repository.get("a") == Entry("a", b"", 0)

    # -- Watching -----------------------------------------------------------------------------

    @scenario
    async def test_watch_sees_every_change_in_order(self, repository: Repository) -> None:
        _, revision = await repository.list("w/")
        async with Watcher(repository, "w/", revision) as watcher:
            first = await repository.set("w/a", b"1", 0)
            second = await repository.set("w/a", b"2", first.version)
            await repository.set("elsewhere", b"", 0)
            await repository.delete("w/a", second.version)
            again = await repository.set("w/a", b"3", 0)
            seen = await watcher.entries(4)
            assert seen == [first, second, Entry("w/a", b"", 0), again]
            revisions = [change.revision for change in watcher.changes]
            assert revisions == sorted(set(revisions))
            assert revisions[-1] == again.version

    @scenario
    async def test_watch_goes_on_from_any_revision(self, repository: Repository) -> None:
        written = [await repository.set(f"w/{number}", b"", 0) for number in range(10)]
        for at, entry in enumerate(written[:-1]):
            async with Watcher(repository, "w/", entry.version) as watcher:
                assert await watcher.entries(len(written) - at - 1) == written[at + 1 :]

    @scenario
    async def test_listing_and_watching_misses_nothing(self, repository: Repository) -> None:
        async def write(writer: int) -> None:
            for number in range(20):
                await repository.set(f"w/{writer}/{number % 3}", b"%d" % number, ANY_VERSION)
                if number % 5 == 4:
                    await repository.delete(f"w/{writer}/{number % 3}", ANY_VERSION)

        async def follow(has_listed: asyncio.Event) -> dict[str, Entry]:
            entries, revision = await repository.list("w/")
            has_listed.set()
            picture = {entry.key: entry for entry in entries}
            async with Watcher(repository, "w/", revision) as watcher:
                await watcher.until(lambda: any(entry.key == "w/end" for entry in watcher.seen))
                for entry in watcher.seen:
                    assert not entry.version or entry.version > revision
                    picture[entry.key] = entry
            return {key: entry for key, entry in picture.items() if entry.version}

        followers = []
        listed = []
        for writer in range(4):  # Each follower begins among the writes of the writers.
            listed.append(asyncio.Event())
            followers.append(asyncio.create_task(follow(listed[-1])))
            await asyncio.gather(write(writer), write(writer + 4))
        await asyncio.gather(*(event.wait() for event in listed))
        await repository.set("w/end", b"", 0)
        pictures = await asyncio.gather(*followers)
        truth = {entry.key: entry for entry in (await repository.list("w/"))[0]}
        assert all(picture == truth for picture in pictures)

    @scenario
    async def test_two_watchers_do_not_disturb_each_other(self, repository: Repository) -> None:
        _, revision = await repository.list("")
        async with Watcher(repository, "a/", revision) as one:
            async with Watcher(repository, "", revision) as two:
                await repository.set("a/1", b"", 0)
                await repository.set("b/1", b"", 0)
                await two.entries(2)
            await repository.set("a/2", b"", 0)
            assert [entry.key for entry in await one.entries(2)] == ["a/1", "a/2"]
            assert [entry.key for entry in two.seen] == ["a/1", "b/1"]

    # -- Leases -------------------------------------------------------------------------------

    @scenario
    async def test_lease_expiry_removes_its_keys(self, repository: Repository) -> None:
        loop = asyncio.get_running_loop()
        _, revision = await repository.list("l/")
        async with Watcher(repository, "l/", revision) as watcher:
            started_s = loop.time()
            lease = await repository.grant(self.lease_ttl_ms)
            entry = await repository.set("l/a", b"1", 0, lease)
            await repository.set("l/b", b"2", 0, lease)
            await repository.set("l/stays", b"3", 0)
            assert entry.lease == lease
            assert await repository.get("l/a") == entry
            seen = await watcher.entries(5)
            elapsed_ms = (loop.time() - started_s) * 1_000
        assert self.lease_ttl_ms <= elapsed_ms <= self.lease_ttl_ms + self.expiry_slack_ms
        assert sorted(e.key for e in seen[3:]) == ["l/a", "l/b"]
        assert all(e.version == 0 for e in seen[3:])
        assert [e.key for e in (await repository.list("l/"))[0]] == ["l/stays"]
        with pytest.raises(LeaseExpired):
            await repository.keep_alive(lease)
        with pytest.raises(LeaseExpired):
            await repository.set("l/a", b"", 0, lease)

    @scenario
    async def test_keep_alive_extends(self, repository: Repository) -> None:
        lease = await repository.grant(self.lease_ttl_ms)
        entry = await repository.set("l/a", b"", 0, lease)
        async with Watcher(repository, "l/", entry.version) as watcher:
            for _ in range(6):
                await watcher.quiet_for(self.lease_ttl_ms // 4)
                await repository.keep_alive(lease)
            assert await repository.get("l/a") == entry
            assert (await watcher.entries(1))[0] == Entry("l/a", b"", 0)

    @scenario
    async def test_revoke_removes_at_once(self, repository: Repository) -> None:
        lease = await repository.grant(60_000)
        await repository.set("l/a", b"", 0, lease)
        await repository.set("l/b", b"", 0, lease)
        await repository.revoke(lease)
        assert (await repository.list("l/"))[0] == ()
        await repository.revoke(lease)
        with pytest.raises(LeaseExpired):
            await repository.keep_alive(lease)

    @scenario
    async def test_unknown_lease(self, repository: Repository) -> None:
        with pytest.raises(LeaseExpired):
            await repository.set("a", b"", 0, 123_456_789)
        with pytest.raises(LeaseExpired):
            await repository.keep_alive(123_456_789)
        assert (await repository.get("a")).version == 0

    @scenario
    async def test_a_key_leaves_its_lease(self, repository: Repository) -> None:
        first, second = await repository.grant(60_000), await repository.grant(60_000)
        assert first != second
        for key in ("freed", "moved", "remade"):
            await repository.set(key, b"", 0, first)
        freed = await repository.set("freed", b"", ANY_VERSION)
        moved = await repository.set("moved", b"", ANY_VERSION, second)
        await repository.delete("remade", ANY_VERSION)
        remade = await repository.set("remade", b"", 0)
        await repository.revoke(first)
        assert (await repository.list(""))[0] == (freed, moved, remade)
        await repository.revoke(second)
        assert (await repository.list(""))[0] == (freed, remade)

    # -- Being away ---------------------------------------------------------------------------

    def test_unavailable_is_said_in_time(self) -> None:
        async def run() -> None:
            async with self.open_unavailable() as repository:
                async with asyncio.timeout((self.unavailable_timeout_ms + 2_000) / 1_000):
                    results = await asyncio.gather(
                        repository.get("a"),
                        repository.set("a", b"", 0),
                        repository.delete("a", 0),
                        repository.list(""),
                        anext(repository.watch("", 0)),
                        repository.grant(1_000),
                        repository.keep_alive(1),
                        repository.revoke(1),
                        return_exceptions=True,
                    )
            assert [type(result) for result in results if not is_unavailable(result)] == []

        asyncio.run(run())

    @scenario
    async def test_closing_ends_watches(self, repository: Repository) -> None:
        async with Watcher(repository, "", (await repository.list(""))[1]) as watcher:
            await repository.set("a", b"", 0)
            await watcher.entries(1)
            await repository.close()
            await watcher.until(lambda: watcher.has_ended)
            assert isinstance(watcher.failure, errors.MetadataUnavailable)
        with pytest.raises(errors.MetadataUnavailable):
            await repository.get("a")
        await repository.close()
