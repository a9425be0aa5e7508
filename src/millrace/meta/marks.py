"""Marks: how a change in etcd is made exactly once although its answer may be lost.

A compare-and-set that is simply sent again can fail because of its own first attempt, and
comparing values does not help: another writer may have written the same bytes.  So each change
also writes a mark, a key that belongs to this client alone, in the same transaction, and demands
that the mark has not moved since the last change.  Mark and key then carry the same revision.
A repetition that finds the key in another state, and its mark unmoved, moves the mark as well,
marked as refused: an attempt that is still on its way can no longer succeed.

  I1  Of all attempts of one change at most one takes effect: it moves the mark the others need.
  I2  A mark that moved as done names the revision of the change, whatever happened to its key
      since; a mark that moved as refused says that no attempt took effect or ever will.
  I3  One mark serves one change at a time; a mark whose change ended unknown is never used again,
      because a late attempt may still move it.
  I4  Marks hang on a lease, so a client that is gone leaves nothing behind.
"""

import asyncio
from typing import Final

from millrace.meta.gateway import Gateway, Json, encode_bytes

DONE: Final = b"done"
REFUSED: Final = b"refused"
MARK_TTL_S: Final = 3_600
MARK_AGE_S_MAX: Final = 1_200  # Well before the lease ends; no change takes that long.


class MarkGone(Exception):
    """The mark vanished with its lease before the change was made; nothing was done."""


class Mark:
    __slots__ = ("key", "lease", "revision")

    def __init__(self, key: str, lease: int) -> None:
        self.key = key  # Base64, as the gateway takes it.
        self.lease = lease
        self.revision = 0  # Of its last change; 0: never written.

    def is_unmoved(self) -> Json:
        return compare_revision(self.key, self.revision)

    def move(self, outcome: bytes) -> Json:
        put = {"key": self.key, "value": encode_bytes(outcome), "lease": str(self.lease)}
        return {"request_put": put}

    def refuse_later_attempts(self) -> Json:
        """In a transaction of its own: a mark that moved as done must not lose its revision."""
        return {"request_txn": {"compare": [self.is_unmoved()], "success": [self.move(REFUSED)]}}


def compare_revision(key: str, revision: int) -> Json:
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


class Marks:
    def __init__(self, gateway: Gateway, prefix: bytes) -> None:
        self._gateway = gateway
        self._prefix = prefix
        self._free: list[Mark] = []
        self._lease = 0
        self._granted_s = 0.0
        self._made = 0
        self._granting = asyncio.Lock()

    async def take(self) -> Mark:
        await self._renew_lease()
        if self._free:
            return self._free.pop()
        self._made += 1
        name = self._prefix + f"{self._lease}/{self._made}".encode()
        return Mark(encode_bytes(name), self._lease)

    def give_back(self, mark: Mark, revision: int) -> None:
        mark.revision = revision
        if mark.lease == self._lease:
            self._free.append(mark)

    def forget_lease(self) -> None:
        """etcd may no longer know it: begin with another."""
        self._lease = 0

    async def _renew_lease(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._granting:
            if self._lease and loop.time() - self._granted_s < MARK_AGE_S_MAX:
                return
            self._granted_s = loop.time()
            answer = await self._gateway.read("/v3/lease/grant", {"TTL": str(MARK_TTL_S)})
            self._lease = int(answer["ID"])
            self._free.clear()
