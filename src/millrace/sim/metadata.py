"""The metadata repository as one simulated process: the real registry behind real messages.

It is linearizable because it is one process that answers in order, and it loses nothing: what the
repository itself survives is the business of its own tests.  It can be slow or out of reach, which
is what its users must bear.
"""

from typing import TYPE_CHECKING

from millrace.core.messages import (
    Message,
    MetaDone,
    MetaEntry,
    MetaGet,
    MetaGrant,
    MetaKeepAlive,
    MetaLease,
    MetaList,
    MetaListing,
    MetaRevoke,
    MetaSet,
    Refusal,
    Refused,
)
from millrace.meta.contract import Conflict, Entry, LeaseExpired
from millrace.meta.state import RegistryState
from millrace.sim.network import Connection
from millrace.sim.process import Process
from millrace.sim.schedule import MS

if TYPE_CHECKING:
    from millrace.sim.stage import Stage

METADATA_NUMBER = 0
SERVICE_US = 30


class Metadata(Process):
    def __init__(self, world: "Stage") -> None:
        super().__init__(world, METADATA_NUMBER, "meta")
        self.state = RegistryState()
        self.slow_us = 0

    def asked(self, connection: Connection, request: int, message: Message) -> None:
        self.later(SERVICE_US + self.slow_us, self._serve, connection, request, message)

    def _serve(self, connection: Connection, request: int, message: Message) -> None:
        answer = self._answer_to(message)
        self.world.network.send(connection, self, answer, request, True)

    def _answer_to(self, message: Message) -> Message:
        now_ms = self.world.schedule.now_us // MS
        try:
            return self._perform(message, now_ms)
        except Conflict as conflict:
            return Refused(Refusal.CONFLICT, detail=str(conflict))
        except LeaseExpired as expired:
            return Refused(Refusal.NO_LEASE, detail=str(expired))

    def put(self, key: str, value: bytes, expected: int) -> None:
        """Of somebody whom the network does not bother."""
        self._set(key, value, expected, 0, self.world.schedule.now_us // MS)

    def _set(self, key: str, value: bytes, expected: int, lease: int, now_ms: int) -> Entry:
        entry = self.state.set(key, value, expected, lease, now_ms)
        self.world.entry_set(key, entry)
        return entry

    def _perform(self, message: Message, now_ms: int) -> Message:
        match message:
            case MetaGet(key):
                return _entry(self.state.get(key, now_ms))
            case MetaSet(key, value, expected, lease):
                return _entry(self._set(key, value, expected, lease, now_ms))
            case MetaList(prefix):
                entries, revision = self.state.list(prefix, now_ms)
                return MetaListing(tuple(_entry(entry) for entry in entries), revision)
            case MetaGrant(ttl_ms):
                return MetaLease(self.state.grant(ttl_ms, now_ms), ttl_ms)
            case MetaKeepAlive(lease):
                self.state.keep_alive(lease, now_ms)
                return MetaDone()
            case MetaRevoke(lease):
                self.state.revoke(lease, now_ms)
                return MetaDone()
        return Refused(Refusal.BAD_REQUEST, detail=type(message).__name__)


def _entry(entry: Entry) -> MetaEntry:
    return MetaEntry(entry.key, entry.value, entry.version, entry.lease)
