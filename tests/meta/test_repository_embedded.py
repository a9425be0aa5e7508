"""The embedded repository keeps the contract, and keeps it across restarts and crashes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import lmdb
import pytest

from millrace import errors
from millrace.meta import registry_file
from millrace.meta.contract import ANY_VERSION, Entry, Repository
from millrace.meta.embedded import EmbeddedRepository, open_embedded
from tests.conformance.repository_suite import RepositorySuite
from tests.support.watching import Watcher


@asynccontextmanager
async def opened(path: Path, map_bytes: int = 64 << 20) -> AsyncIterator[EmbeddedRepository]:
    repository = await open_embedded(path, map_bytes=map_bytes)
    try:
        yield repository
    finally:
        await repository.close()


class TestEmbeddedRepository(RepositorySuite):
    @pytest.fixture(autouse=True)
    def directory(self, tmp_path: Path) -> None:
        self.path = tmp_path / "meta"

    def open(self) -> AbstractAsyncContextManager[Repository]:
        return opened(self.path)

    @asynccontextmanager
    async def open_unavailable(self) -> AsyncIterator[Repository]:
        async with opened(self.path) as repository:
            await repository.close()
            yield repository


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as repository:
            lease = await repository.grant(60_000)
            held = await repository.set("held", b"1", 0, lease)
            gone = await repository.set("gone", b"2", 0)
            await repository.delete("gone", gone.version)
            kept = await repository.set("kept", b"3", 0)
        async with opened(tmp_path) as repository:
            entries, revision = await repository.list("")
            assert entries == (held, kept) and revision == kept.version
            await repository.keep_alive(lease)
            assert await repository.grant(60_000) > lease
            again = await repository.set("gone", b"4", 0)
            assert again.version > kept.version
            await repository.revoke(lease)
            assert (await repository.list(""))[0] == (again, kept)

    asyncio.run(run())


def test_a_lease_begins_anew_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as repository:
            await repository.set("held", b"", 0, await repository.grant(300))
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        async with opened(tmp_path) as repository:
            _, revision = await repository.list("")
            async with Watcher(repository, "", revision) as watcher:
                assert await watcher.entries(1) == [Entry("held", b"", 0)]
            assert loop.time() - started_s >= 0.3
        async with opened(tmp_path) as repository:
            assert (await repository.list(""))[0] == ()

    asyncio.run(run())


def test_watching_from_before_a_restart_is_lost(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as repository:
            first = await repository.set("a", b"", 0)
            last = await repository.set("b", b"", 0)
        async with opened(tmp_path) as repository:
            for revision in (first.version, last.version + 5):
                changes = [change async for change in repository.watch("", revision)]
                assert [change.lost for change in changes] == [True]
            async with Watcher(repository, "", last.version) as watcher:
                new = await repository.set("c", b"", 0)
                assert await watcher.entries(1) == [new]

    asyncio.run(run())


def test_operations_share_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    commit = registry_file.RegistryFile.commit

    def counted(file: registry_file.RegistryFile, batch: registry_file.Batch) -> None:
        batches.append(len(batch.entries))
        commit(file, batch)

    monkeypatch.setattr(registry_file.RegistryFile, "commit", counted)

    async def run() -> None:
        async with opened(tmp_path) as repository:
            await asyncio.gather(*(repository.set(f"k/{i}", b"", 0) for i in range(200)))

    asyncio.run(run())
    assert sum(batches) == 200 and len(batches) <= 3


def test_a_full_disk_is_said_and_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path, map_bytes=1 << 20) as repository:
            small = await repository.set("small", b"1", 0)
            async with Watcher(repository, "", small.version) as watcher:
                with pytest.raises(errors.MetadataUnavailable) as caught:
                    await repository.set("large", b"x" * (1 << 20), 0)
                assert caught.value.is_definite
                await watcher.until(lambda: watcher.has_ended)
                assert [change.lost for change in watcher.changes] == [True]
            assert (await repository.list(""))[0] == (small,)
            after = await repository.set("small", b"2", small.version)
        async with opened(tmp_path, map_bytes=1 << 20) as repository:
            assert (await repository.list(""))[0] == (after,)

    asyncio.run(run())


# -- Opening ----------------------------------------------------------------------------------


def fill(path: Path) -> None:
    async def run() -> None:
        async with opened(path) as repository:
            for number in range(50):
                await repository.set(f"k/{number}", b"value " * 200, 0)

    asyncio.run(run())


def refused(path: Path, kind: type[errors.MillraceError]) -> str:
    async def run() -> None:
        async with opened(path):
            pass

    with pytest.raises(kind) as caught:
        asyncio.run(run())
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_garbage_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "data.mdb").write_bytes(b"garbage" * 10_000)
    assert "backup" in refused(tmp_path, errors.CorruptStore)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    data = tmp_path / "data.mdb"
    os.truncate(data, data.stat().st_size // 2)
    assert "bytes" in refused(tmp_path, errors.CorruptStore)


def test_a_changed_value_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    data = tmp_path / "data.mdb"
    content = data.read_bytes()
    assert b"value value" in content
    data.write_bytes(content.replace(b"value value", b"value vAlue"))
    assert "checksum" in refused(tmp_path, errors.CorruptStore)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    with lmdb.open(str(tmp_path), max_dbs=3) as env, env.begin(write=True) as transaction:
        transaction.put(b"format", b"2", db=env.open_db(b"about", transaction))
    assert "format 2" in refused(tmp_path, errors.WrongDataDirectory)


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path):
            with pytest.raises(errors.DirectoryInUse, match="another process"):
                await open_embedded(tmp_path)
        async with opened(tmp_path):
            pass

    asyncio.run(run())


# -- Crashing ---------------------------------------------------------------------------------

CHILD = """
import asyncio, sys
from pathlib import Path
from millrace.meta.contract import ANY_VERSION
from millrace.meta.embedded import open_embedded

async def write(repository, writer):
    number = 0
    while True:
        number += 1
        entry = await repository.set(f"w/{writer}", b"%d" % number, ANY_VERSION)
        print(writer, number, entry.version, flush=True)

async def main():
    repository = await open_embedded(Path(sys.argv[1]))
    await asyncio.gather(*(write(repository, writer) for writer in range(5)))

asyncio.run(main())
"""


def test_what_was_answered_survives_kill_9(tmp_path: Path) -> None:
    last_revision = 0
    for answers_wanted in (1, 40, 300):
        acknowledged = crash_after(tmp_path, answers_wanted)

        async def check(acknowledged: dict[str, tuple[int, int]] = acknowledged) -> int:
            async with opened(tmp_path) as repository:
                for writer, (number, version) in acknowledged.items():
                    entry = await repository.get(f"w/{writer}")
                    # One more write may have been stored without being answered.
                    assert int(entry.value) >= number and entry.version >= version
                marker = await repository.set("marker", b"", ANY_VERSION)
                return marker.version

        revision = asyncio.run(check())
        assert revision > max(version for _, version in acknowledged.values()) > last_revision
        last_revision = revision


def crash_after(path: Path, answers_wanted: int) -> dict[str, tuple[int, int]]:
    """The newest answer that each writer of the child got before it was killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    acknowledged: dict[str, tuple[int, int]] = {}
    count = 0
    for line in child.stdout:
        if not line.endswith("\n"):
            break  # Killed while it wrote this line.
        writer, number, version = line.split()
        acknowledged[writer] = (int(number), int(version))
        count += 1
        if count == answers_wanted:
            child.send_signal(signal.SIGKILL)
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    assert count >= answers_wanted
    return acknowledged
