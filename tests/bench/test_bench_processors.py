"""Which core is the bottleneck of a round."""

import os
import subprocess
import sys
import time

import pytest

from bench import report
from bench.measure import Sample
from bench.peer import Ack, Kind
from bench.processors import Busy, BusyWatch
from bench.runner import PeerResult, WorkloadResult
from bench.workloads import Workload

SECONDS = 0.4
SPIN = "while True: pass"


@pytest.mark.parametrize(
    ("thread", "machine", "bottleneck"),
    [
        pytest.param(0.97, 1.2, "a thread of the client", id="one thread"),
        pytest.param(0.5, 1.9, "all cores", id="everybody"),
        pytest.param(0.5, 1.2, "no core", id="nobody"),
        pytest.param(0.97, 1.99, "a thread of the client", id="one thread, and everybody"),
    ],
)
def test_what_is_saturated(thread: float, machine: float, bottleneck: str) -> None:
    assert Busy(thread, (0.1, 0.2), thread, "client", machine, 2).bottleneck == bottleneck


def test_it_is_told_in_cores() -> None:
    busy = Busy(0.5, (0.25, 0.125), 0.5, "client", 1.5, 2)
    assert str(busy) == (
        "client 0.50, servers 0.25 0.12, others 0.62, together 1.50 of 2 cores; "
        "busiest thread 0.50 (client); saturated: no core"
    )


def test_who_works_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN]) as spinning:
        try:
            watch = BusyWatch([os.getppid(), spinning.pid])
            end_s = time.process_time() + SECONDS / 2
            while time.process_time() < end_s:
                pass
            busy = watch.read()
        finally:
            spinning.kill()
    assert busy is not None
    assert busy.client > 0 and busy.servers[1] > 0
    assert busy.machine >= busy.client
    assert 0 < busy.thread <= max(busy.client, *busy.servers) + 0.1


def test_a_process_that_is_gone_uses_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    busy = BusyWatch([ended.pid]).read()
    assert busy is not None and busy.servers == (0.0,)


def test_the_report_tells_it_of_the_round_in_the_middle() -> None:
    def rounds(*rates: int) -> PeerResult:
        busy = [Busy(rate / 100, (), rate / 100, "client", 1.0, 2) for rate in rates]
        return PeerResult(
            [Sample(r, 0, 1.0, None, None, busy=b) for r, b in zip(rates, busy, strict=True)]
        )

    results = [
        WorkloadResult(Workload(kind, 1024, Ack.DISK, 10), {"commit": rounds(30, 10, 20)})
        for kind in (Kind.APPEND_ONE, Kind.APPEND_PIPELINED)
    ]
    (row,) = report.busy_rows(results)
    assert row.startswith("append, pipelined, 1 KiB, ack disk, commit: client 0.20, servers ")
