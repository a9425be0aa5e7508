"""A small real run against the limits, and what a run does with a peer that fails."""

import asyncio
import json
import tempfile
from pathlib import Path

import pytest

from bench import __main__ as command_line
from bench.limits import LimitsPeer
from bench.measure import Load
from bench.peer import Ack, Kind, PeerFailure
from bench.runner import Runner
from bench.workloads import FULL, QUICK, SIZES, Profile, Workload, payloads, plan

TINY = Profile("tiny", 2, 10.0, 1.0, 1, 5, 20, (50, 50, 50), (50, 50, 50), 50)


class BrokenPeer(LimitsPeer):
    """Starts, then fails every pipelined append."""

    name = "broken"

    async def append_pipelined(self, log: str, load: Load, window: int) -> None:
        raise PeerFailure("the disk is on fire")


class AbsentPeer(LimitsPeer):
    name = "absent"

    async def start(self, ack: Ack, directory: Path) -> None:
        raise PeerFailure("not installed")


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@pytest.mark.parametrize("profile", [FULL, QUICK], ids=lambda profile: profile.name)
def test_the_plan_of_everything_holds_every_pairing(profile: Profile) -> None:
    planned = plan("all", profile)
    for kind in (Kind.APPEND_ONE, Kind.APPEND_PIPELINED):
        chosen = {(w.payload_bytes, w.ack) for w in planned if w.kind is kind}
        assert chosen == {(size, ack) for size in SIZES for ack in Ack}
    assert {w.kind for w in planned} == set(Kind)
    assert len({w.name for w in planned}) == len(planned)


def test_payloads_are_reproducible_and_random() -> None:
    made = payloads(100, 1000)
    assert made == payloads(100, 1000)
    assert len(set(made)) == 1000
    assert {len(payload) for payload in made} == {100}


def test_payloads_repeat_only_out_of_the_reach_of_compression() -> None:
    made = payloads(10 * 1024, 2000)
    assert len(made) == 2000
    assert len({id(payload) for payload in made}) == 1638  # 16 MiB of them.


def test_limits_run_through_the_command_line(tmp_path: Path, temporary_files: Path) -> None:
    assert command_line.main(["limits", "--quick", "--out", str(tmp_path / "results")]) == 0
    (saved,) = (tmp_path / "results").glob("*-limits-quick.json")
    results = json.loads(saved.read_text())["results"]
    assert len(results) == len(plan("limits", QUICK))
    for result in results:
        summary = result["peers"]["limits"]["summary"]
        assert summary["records_per_second"] > 0
        assert summary["rounds"] >= 2
    assert list(temporary_files.iterdir()) == []


def test_reads_are_held_against_the_loopback(temporary_files: Path) -> None:
    workload = Workload(Kind.READ_ARROW, 1024, Ack.MEMORY, 50)
    (result,) = asyncio.run(Runner(TINY, [LimitsPeer()]).run([workload]))
    assert [s.records >= 50 for s in result.peers["limits"].samples] == [True, True]
    assert list(temporary_files.iterdir()) == []


def test_a_failing_peer_does_not_stop_the_others() -> None:
    workload = Workload(Kind.APPEND_PIPELINED, 1024, Ack.DISK, 50)
    runner = Runner(TINY, [AbsentPeer(), BrokenPeer(), LimitsPeer()])
    (result,) = asyncio.run(runner.run([workload]))
    assert runner.failures == {"absent": "not installed"}
    assert result.peers["broken"].failure == "the disk is on fire"
    assert result.peers["broken"].samples == []
    assert len(result.peers["limits"].samples) == 2


def test_a_cancelled_run_ends_its_processes_and_removes_its_files(temporary_files: Path) -> None:
    peer = LimitsPeer()
    receivers: list[int] = []

    class Cancelling(LimitsPeer):
        name = "cancelling"

        async def append(self, log: str, payload: bytes) -> None:
            receivers.extend([*self.process_ids(), *peer.process_ids()])
            raise asyncio.CancelledError

    workload = Workload(Kind.APPEND_ONE, 100, Ack.DISK, 50)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Runner(TINY, [peer, Cancelling()]).run([workload]))
    assert len(receivers) == 2
    assert not any(Path(f"/proc/{process_id}").exists() for process_id in receivers)
    assert list(temporary_files.iterdir()) == []


def test_the_fastest_window_is_the_one_that_is_measured() -> None:
    class Tunable(LimitsPeer):
        name = "tunable"
        windows: tuple[int, ...] = (1, 2, 3)

        async def append_pipelined(self, log: str, load: Load, window: int) -> None:
            # A window of 2 acknowledges a hundred times as many in the same time.
            await super().append_pipelined(log, load, window)
            load.acknowledged *= 100 if window == 2 else 1

    workload = Workload(Kind.APPEND_PIPELINED, 1024, Ack.DISK, 50)
    (result,) = asyncio.run(Runner(TINY, [Tunable()]).run([workload]))
    assert set(result.peers["tunable"].tried) == {"1", "2", "3"}
    assert result.peers["tunable"].way == "2"


@pytest.mark.parametrize("text", ["", "kafka", "nats,kafka"])
def test_an_unknown_peer_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        command_line.parse(["all", "--peers", text])
