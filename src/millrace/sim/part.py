"""The logs of one kind in a world, with all who use them; a world may have none of the kind.

What may be destroyed without losing more than the kind promises to keep, each kind says itself.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from millrace.sim.process import Process
from millrace.sim.stream_reader import StreamReader
from millrace.sim.troubles import TroubleNemesis
from millrace.sim.writer import AppendingClient
from millrace.types import LogId, Lsn, NodeInfo

if TYPE_CHECKING:
    from millrace.sim.world import World

W = TypeVar("W", bound=AppendingClient[Any, Any])
R = TypeVar("R", bound=StreamReader)


class PartShape(Protocol):
    @property
    def logs(self) -> int: ...

    @property
    def trims(self) -> bool: ...


class LogRegistrar(Process):
    """Makes logs of the kind."""

    world: "World"

    def make_log(self, log: LogId, infos: list[NodeInfo]) -> None:
        raise NotImplementedError


class LogTrimmer(Process):
    world: "World"
    is_stopping = False


class Part(Generic[W, R]):
    registrar: LogRegistrar
    trimmer: LogTrimmer
    nemesis: TroubleNemesis[Any]

    def __init__(self, shape: PartShape, has_logs: bool, first_log: int) -> None:
        self.has_logs = has_logs
        self.log_ids = [LogId(first_log + at) for at in range(shape.logs if has_logs else 0)]
        self.writers: list[W] = []
        self.readers: list[R] = []
        self._trims = shape.trims

    # -- What kinds differ in -------------------------------------------------------------------

    def make_clients(self) -> tuple[list[W], list[R]]:
        raise NotImplementedError

    def end_of(self, log: LogId) -> Lsn:
        """Up to where everybody must be able to read."""
        raise NotImplementedError

    # -- A run ----------------------------------------------------------------------------------

    def people(self) -> list[Process]:
        """All its processes, made when the rest of the world is there."""
        if not self.has_logs:
            return []
        self.writers, self.readers = self.make_clients()
        return [self.registrar, self.trimmer, *self.clients]

    @property
    def clients(self) -> Sequence[W | R]:
        return [*self.writers, *self.readers]

    def found(self, infos: list[NodeInfo]) -> None:
        if self.has_logs:
            self.registrar.start()
            for log in self.log_ids:
                self.registrar.make_log(log, infos)

    def begin(self) -> None:
        for client in self.clients:
            client.start()
        if self.has_logs and self._trims:
            self.trimmer.start()
        self.nemesis.begin()

    def stop(self) -> None:
        """The faults are over."""
        self.nemesis.stop()
        self.trimmer.is_stopping = True
        for client in self.clients:
            client.is_stopping = True

    def probe(self) -> None:
        """Append to every log, and read each once more from its begin."""
        for at, log in enumerate(self.log_ids):
            self.writers[at % len(self.writers)].begin_append(log)
            self.readers[at % len(self.readers)].audit(log, self.end_of(log))
