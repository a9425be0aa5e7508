"""Who keeps the processors busy during a round: which process, which thread, the whole machine.

A rate that does not rise with more streams, or more nodes, needs a reason.  Either one thread has a
core for itself all the time, or the processes together have all cores; both are told in cores: 1.0
is one core for the whole of the round.

1. Whatever ran beside the benchmark counts for the machine, and for nobody else.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SATURATED: Final = 0.9  # Of a core, or of all of them: the rest is lost in changing turns.
_PROC: Final = Path("/proc")
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_IDLE: Final = slice(3, 5)  # In the first line of /proc/stat: idle, and waiting for the disk.

Ticks = dict[str, dict[int, int]]  # Of each process, by thread.


@dataclass(frozen=True, slots=True)
class Busy:
    """In cores.  `client` is this process; servers are in the order in which their peer tells
    them; `thread` is the busiest of all."""

    client: float
    servers: tuple[float, ...]
    thread: float
    thread_of: str
    machine: float
    cores: int

    @property
    def bottleneck(self) -> str:
        if self.thread >= SATURATED:
            return f"a thread of the {self.thread_of}"
        if self.machine >= SATURATED * self.cores:
            return "all cores"
        return "no core"

    @property
    def others(self) -> float:
        """What ran beside the benchmark."""
        return max(0.0, self.machine - self.client - sum(self.servers))

    def __str__(self) -> str:
        servers = " ".join(f"{each:.2f}" for each in self.servers)
        return (
            f"client {self.client:.2f}, servers {servers}, others {self.others:.2f}, together "
            f"{self.machine:.2f} of {self.cores} cores; busiest thread {self.thread:.2f} "
            f"({self.thread_of}); saturated: {self.bottleneck}"
        )


class BusyWatch:
    """From its making to `read`."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._processes = {"client": os.getpid()}
        self._processes |= {f"server {at}": each for at, each in enumerate(servers, 1)}
        self._began_s = time.perf_counter()
        self._ticks = self._look()
        self._machine_ticks = _machine_ticks()

    def read(self) -> Busy | None:
        """None where there is no `/proc`."""
        seconds = max(time.perf_counter() - self._began_s, 1e-9)
        after, machine_ticks = self._look(), _machine_ticks()
        if machine_ticks is None or self._machine_ticks is None:
            return None
        cores = {
            name: {
                thread: (ticks - self._ticks[name].get(thread, 0)) / _TICKS_PER_SECOND / seconds
                for thread, ticks in threads.items()
            }
            for name, threads in after.items()
        }
        thread, thread_of = max(
            ((most, name) for name, each in cores.items() for most in each.values()),
            default=(0.0, ""),
        )
        client, *servers = (sum(each.values()) for each in cores.values())
        machine = (machine_ticks - self._machine_ticks) / _TICKS_PER_SECOND / seconds
        return Busy(client, tuple(servers), thread, thread_of, machine, os.cpu_count() or 1)

    def _look(self) -> Ticks:
        return {name: _thread_ticks(process) for name, process in self._processes.items()}


def _thread_ticks(process_id: int) -> dict[int, int]:
    """User and system time of each thread that runs; none of a process that is gone."""
    found: dict[int, int] = {}
    try:
        for entry in (_PROC / str(process_id) / "task").iterdir():
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            found[int(entry.name)] = int(fields[11]) + int(fields[12])
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def _machine_ticks() -> int | None:
    """All but idle ones."""
    try:
        fields = [int(each) for each in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    except FileNotFoundError:
        return None
    return sum(fields) - sum(fields[_IDLE])
