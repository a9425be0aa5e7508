"""The logs that a node writes for others: those whose sequencer or committer it is, or tries to be.

I1  A log is hosted once here.
"""

from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

from millrace.core.effects import Ticket
from millrace.types import LogId

Request = TypeVar("Request", contravariant=True)


class HostedLog(Protocol[Request]):
    """One log, from the first request for it until it is forgotten."""

    log: LogId

    @property
    def is_active(self) -> bool: ...

    def handle(self, ticket: Ticket, request: Request) -> None: ...

    def close(self) -> None: ...

    def explain(self) -> dict[str, object]: ...


Forget = Callable[[HostedLog[Request]], None]


class Hosting(Generic[Request]):
    def __init__(self, make: Callable[[LogId, Forget[Request]], HostedLog[Request]]) -> None:
        """`make` is given what a log calls when it is not hosted here any more."""
        self._make = make
        self._hosted: dict[LogId, HostedLog[Request]] = {}
        self._missing: set[LogId] = set()  # Without a record in the last listing.

    def __len__(self) -> int:
        return sum(each.is_active for each in self._hosted.values())

    def serve(self, log: LogId, ticket: Ticket, request: Request) -> None:
        """Keeps I1."""
        hosted = self._hosted.get(log)
        if hosted is None:
            hosted = self._hosted[log] = self._make(log, self._forget)
        hosted.handle(ticket, request)

    def _forget(self, hosted: HostedLog[Request]) -> None:
        if self._hosted.get(hosted.log) is hosted:
            del self._hosted[hosted.log]

    def keep_only(self, logs: Collection[LogId]) -> None:
        """These are all that exist.  A listing may be older than a log that was just made, so one
        is dropped when it is missing twice."""
        missing = {log for log, each in self._hosted.items() if each.is_active} - set(logs)
        for log in missing & self._missing:
            self.drop(log)
        self._missing = missing

    def drop(self, log: LogId) -> None:
        """The log was deleted."""
        hosted = self._hosted.pop(log, None)
        if hosted is not None:
            hosted.close()

    def close(self) -> None:
        for log in list(self._hosted):
            self.drop(log)

    def explain(self) -> dict[LogId, dict[str, object]]:
        return {log: each.explain() for log, each in self._hosted.items() if each.is_active}
