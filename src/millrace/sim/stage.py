"""What every simulated world is made of: time, a trace, counters, processes, and a network.

`World` has logs on it, `DocumentsWorld` buckets; processes, the network, the repository and the
driver of procedures know no more of either than what is here.
"""

from collections import Counter
from typing import TYPE_CHECKING, Protocol, TypeVar

from millrace.core.procedure import Note
from millrace.meta.contract import Entry
from millrace.sim.schedule import Schedule
from millrace.sim.seeds import parse
from millrace.sim.trace import Listener, Trace
from millrace.sim.violation import Violation

if TYPE_CHECKING:
    from millrace.sim.network import Network
    from millrace.sim.process import Process

EVENTS_MAX = 400_000

P = TypeVar("P", bound="Process")


class StageShape(Protocol):
    @property
    def ask_ms(self) -> int: ...

    @property
    def send_buffer_bytes(self) -> int: ...


class Stage:
    shape: StageShape
    network: "Network"
    block_bytes_max: int  # The largest that one message carries.

    def __init__(self, seed: int | str, listener: Listener | None = None) -> None:
        parsed = parse(seed)
        self.name = seed
        self.seed, self.kind = parsed.number, parsed.kind
        self.schedule = Schedule()
        self.trace = Trace(listener)
        self.counters: Counter[str] = Counter()
        self.processes: dict[int, Process] = {}

    def run(self) -> None:
        """Raises Violation, or whatever else the cores let out."""
        raise NotImplementedError

    def count(self, name: str, times: int = 1) -> None:
        self.counters[name] += times

    def entry_set(self, key: str, entry: Entry) -> None:
        """The repository holds it from now on."""
        raise NotImplementedError

    def noted(self, process: str, note: Note) -> None:
        """A procedure says something worth a line."""
        raise NotImplementedError

    def add(self, process: P) -> P:
        self.processes[process.number] = process
        return process

    def let_pass(self, time_us: int) -> None:
        self.schedule.run(self.schedule.now_us + time_us, self._may_go_on)

    def _may_go_on(self) -> bool:
        if self.schedule.events > EVENTS_MAX:
            raise Violation("G13", f"more than {EVENTS_MAX} events: somebody is busy for nothing")
        return True
