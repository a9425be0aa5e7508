"""The repository in etcd, for clusters that must survive the loss of any machine.

Keys live under a namespace, so that several clusters share one etcd.  A key's version is its
`mod_revision`, which is never used twice; the repository's revision is etcd's.  Leases are whole
seconds and etcd has a least time, so a lease may last a little longer than asked, never less.

  I1  Reads are linearizable (etcd's default) and can be repeated; so can granting, keeping alive
      and revoking a lease.
  I2  A change takes effect at most once and its answer is never guessed (`marks.py`): it either
      happened at a known revision, or conflicts with another's, or is reported as unknown.
  I3  Every operation ends within the timeout plus one pause.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from millrace import errors
from millrace.meta import bounds
from millrace.meta.contract import ANY_VERSION, Change, Conflict, Entry, LeaseExpired
from millrace.meta.deadline import Deadline
from millrace.meta.etcd_watch import EtcdWatch
from millrace.meta.gateway import (
    NOT_FOUND,
    OUT_OF_RANGE,
    AttemptFailed,
    Gateway,
    GatewayRefused,
    Json,
    decode_bytes,
    encode_bytes,
    range_end,
)
from millrace.meta.marks import DONE, REFUSED, Mark, MarkGone, Marks, compare_revision

TIMEOUT_MS: Final = 5_000
MARKS_SUFFIX: Final = "-marks"
LIST_PAGE_KEYS: Final = 500


class EtcdRepository:
    """`endpoints` are host:port or URLs; `namespace` comes before every key."""

    def __init__(
        self,
        endpoints: Sequence[str],
        namespace: str = "millrace/",
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._gateway = Gateway(endpoints, timeout_ms)
        root = namespace.strip("/")
        if not root or root.endswith(MARKS_SUFFIX):
            raise errors.BadConfiguration(f"etcd: {namespace!r} cannot be the prefix of the keys")
        self._namespace = f"{root}/".encode()
        # Beside the keys, not below them: no listing and no watch shows a mark.
        self._marks = Marks(self._gateway, f"{root}{MARKS_SUFFIX}/".encode())

    async def get(self, key: str) -> Entry:
        bounds.check_key(key)
        answer = await self._read("/v3/kv/range", {"key": self._name(key)})
        return self._entry(key, _only(answer))

    async def set(self, key: str, value: bytes, expected: int, lease: int = 0) -> Entry:
        bounds.check_key(key)
        bounds.check_value(key, value)
        put = {"key": self._name(key), "value": encode_bytes(value), "lease": str(lease)}
        version = await self._change(key, {"request_put": put}, expected, lease)
        return Entry(key, value, version, lease)

    async def delete(self, key: str, expected: int) -> None:
        bounds.check_key(key)
        await self._change(key, {"request_delete_range": {"key": self._name(key)}}, expected, 0)

    async def list(self, prefix: str) -> tuple[tuple[Entry, ...], int]:
        bounds.check_prefix(prefix)
        while True:
            try:
                return await self._list_pages(prefix)
            except GatewayRefused as refused:
                # Compacted between two pages: the listing begins again.
                if refused.code != OUT_OF_RANGE:
                    raise _refusal(refused) from refused

    def watch(self, prefix: str, revision: int) -> AsyncGenerator[Change, None]:
        bounds.check_prefix(prefix)
        return EtcdWatch(self._gateway, self._namespace, prefix).changes(revision)

    async def grant(self, ttl_ms: int) -> int:
        # Granting twice because an answer was lost leaves a lease without keys, which runs out.
        bounds.check_ttl(ttl_ms)
        answer = await self._read("/v3/lease/grant", {"TTL": str(-(-ttl_ms // 1_000))})
        return int(answer["ID"])

    async def keep_alive(self, lease: int) -> None:
        answer = await self._read("/v3/lease/keepalive", {"ID": str(lease)})
        if int(answer["result"].get("TTL", 0)) <= 0:
            raise LeaseExpired(f"lease {lease} is unknown or has run out")

    async def revoke(self, lease: int) -> None:
        try:
            await self._gateway.read("/v3/lease/revoke", {"ID": str(lease)})
        except GatewayRefused as refused:
            if refused.code != NOT_FOUND:
                raise _refusal(refused) from refused

    async def close(self) -> None:
        await self._gateway.close()

    # -- Inner workings -----------------------------------------------------------------------

    async def _read(self, path: str, body: Json) -> Json:
        try:
            return await self._gateway.read(path, body)
        except GatewayRefused as refused:
            raise _refusal(refused) from refused

    async def _check_lease(self, lease: int) -> None:
        answer = await self._read("/v3/lease/timetolive", {"ID": str(lease)})
        if int(answer.get("TTL", 0)) < 0:
            raise LeaseExpired(f"lease {lease} is unknown or has run out")

    async def _list_pages(self, prefix: str) -> tuple[tuple[Entry, ...], int]:
        first = self._namespace + prefix.encode()
        body: Json = {
            "key": encode_bytes(first),
            "range_end": encode_bytes(range_end(first)),
            "limit": str(LIST_PAGE_KEYS),
        }
        entries: list[Entry] = []
        while True:
            answer = await self._gateway.read("/v3/kv/range", body)
            # All pages show the revision of the first.
            body.setdefault("revision", answer["header"]["revision"])
            pairs = answer.get("kvs", ())
            entries.extend(entry_of(self._namespace, pair) for pair in pairs)
            if not answer.get("more"):
                return tuple(entries), int(body["revision"])
            body["key"] = encode_bytes(decode_bytes(pairs[-1]["key"]) + b"\0")

    async def _change(self, key: str, request: Json, expected: int, lease: int) -> int:
        """The revision at which `request` took effect; raises Conflict or LeaseExpired."""
        bounds.check_expected(expected)
        deadline = self._gateway.deadline()
        while True:
            try:
                return await self._change_once(key, request, expected, deadline)
            except MarkGone:
                self._marks.forget_lease()
            except GatewayRefused as refused:
                if refused.code != NOT_FOUND:
                    raise _refusal(refused) from refused
                if lease:
                    await self._check_lease(lease)
                # The lease is there, so it was the marks' that is gone: nothing was done.
                self._marks.forget_lease()

    async def _change_once(self, key: str, request: Json, expected: int, deadline: Deadline) -> int:
        """However many attempts it takes: the mark sees to it that one takes effect."""
        mark = await self._marks.take()
        attempts_unknown = 0
        while True:
            body = self._transaction(key, request, expected, mark, attempts_unknown > 0)
            try:
                answer = await self._gateway.request("/v3/kv/txn", body, deadline)
            except AttemptFailed as failed:
                attempts_unknown += not failed.is_definite
                if deadline.is_over:
                    raise self._give_up(key, mark, attempts_unknown, failed) from failed
                await self._gateway.pause_after_round(deadline)
                continue
            return self._outcome(key, answer, mark, attempts_unknown)

    def _transaction(
        self, key: str, request: Json, expected: int, mark: Mark, is_repeated: bool
    ) -> Json:
        compare = [mark.is_unmoved()]
        if expected != ANY_VERSION:
            compare.append(compare_revision(self._name(key), expected))
        failure = [{"request_range": {"key": name}} for name in (self._name(key), mark.key)]
        if is_repeated:
            failure.append(mark.refuse_later_attempts())
        return {"compare": compare, "success": [request, mark.move(DONE)], "failure": failure}

    def _outcome(self, key: str, answer: Json, mark: Mark, attempts_unknown: int) -> int:
        revision = int(answer["header"]["revision"])
        if answer.get("succeeded"):
            self._marks.give_back(mark, revision)
            return revision
        found, found_mark = (_only(part["response_range"]) for part in answer["responses"][:2])
        moved = int(found_mark.get("mod_revision", 0))
        if moved == mark.revision:
            # Not moved, or, if this was a repetition, moved just now to refuse the others.
            self._marks.give_back(mark, revision if attempts_unknown else moved)
            raise Conflict(self._entry(key, found))
        if not moved:
            if attempts_unknown:
                raise errors.MetadataOutcomeUnknown(f"{key} may have been changed: read it again")
            raise MarkGone(key)
        self._marks.give_back(mark, moved)
        if decode_bytes(found_mark["value"]) == REFUSED:
            raise Conflict(self._entry(key, found))
        return moved

    def _give_up(
        self, key: str, mark: Mark, attempts_unknown: int, failed: AttemptFailed
    ) -> errors.MetadataUnavailable:
        unavailable = self._gateway.unavailable(failed)
        if attempts_unknown:
            return errors.MetadataOutcomeUnknown(f"{key} may have been changed: {unavailable}")
        self._marks.give_back(mark, mark.revision)
        return unavailable

    def _name(self, key: str) -> str:
        return encode_bytes(self._namespace + key.encode())

    def _entry(self, key: str, pair: Json) -> Entry:
        return entry_of(self._namespace, pair) if pair else Entry(key, b"", 0)


def entry_of(namespace: bytes, pair: Json) -> Entry:
    return Entry(
        decode_bytes(pair["key"])[len(namespace) :].decode(),
        decode_bytes(pair.get("value", "")),
        int(pair["mod_revision"]),
        int(pair.get("lease", 0)),
    )


def _only(answer: Json) -> Json:
    pairs: list[Json] = answer.get("kvs", [])
    return pairs[0] if pairs else {}


def _refusal(refused: GatewayRefused) -> errors.MetadataUnavailable:
    return errors.MetadataUnavailable(f"etcd refused the request: {refused}")
