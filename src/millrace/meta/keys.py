"""The keys of a cluster and the types of their values.

Values are JSON, so that people can read them with `etcdctl get --prefix`.  Every part of Millrace
that reads or writes a key does it through these names: no other module spells one.

  cluster               who this cluster is
  nodes/<node id>       a registered node, alive or not
  live/<node id>        the node runs; held by its lease
  log-names/<name>      a log's id and attributes
  next-log-id           the id that the next log gets
  projections/<log id>  who serves a log, in which epoch
  trims/<log id>        the position below which a log is forgotten
  keeper                the node that repairs chains; held by its lease

Unknown fields are ignored, so that an older version reads what a newer one wrote.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from millrace import errors
from millrace.core.projection import Projection
from millrace.meta.contract import Entry
from millrace.types import LogId, LogInfo, Lsn, NodeId, NodeInfo

T = TypeVar("T")
Id = TypeVar("Id")


class ClusterInfo(msgspec.Struct, frozen=True):
    name: str
    id: str  # Drawn when the cluster is made; nodes of another one are refused.


class LiveNode(msgspec.Struct, frozen=True):
    id: NodeId
    instance: str = ""  # As in NodeInfo: a node that lost its disk is another one.
    started_ms: int = 0
    is_full: bool = False  # Takes no new blocks.


class Trimmed(msgspec.Struct, frozen=True):
    end: Lsn


class Keeper(msgspec.Struct, frozen=True):
    node: NodeId
    since_ms: int = 0


class Value(Generic[T]):
    """How the value of a key is written and read; `decode` raises UnreadableMetadata."""

    def __init__(self, shape: type[T]) -> None:
        self._shape = shape
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(shape)

    def encode(self, value: T) -> bytes:
        return msgspec.json.encode(value)

    def decode(self, entry: Entry) -> T:
        try:
            return self._decoder.decode(entry.value)
        except msgspec.DecodeError as error:
            raise errors.UnreadableMetadata(
                f"metadata key {entry.key} at version {entry.version} does not hold a "
                f"{self._shape.__name__}: {error}; it begins with {entry.value[:60]!r}"
            ) from error

    def find(self, entry: Entry) -> T | None:
        """None if the key is absent."""
        return self.decode(entry) if entry.version else None


class SingleKey(Value[T]):
    def __init__(self, key: str, shape: type[T]) -> None:
        super().__init__(shape)
        self.key: Final = key


class KeyFamily(Value[T], Generic[Id, T]):
    """Keys that differ in an id, which is all that stands behind the prefix."""

    def __init__(self, prefix: str, parse: Callable[[str], Id], shape: type[T]) -> None:
        super().__init__(shape)
        self.prefix: Final = prefix
        self._parse = parse

    def key(self, id: Id) -> str:
        return f"{self.prefix}{id}"

    def id_of(self, key: str) -> Id:
        """The id in a key of this family; raises UnreadableMetadata for any other."""
        rest = key.removeprefix(self.prefix)
        try:
            if rest == key or not rest:
                raise ValueError("it has another prefix or no id")
            return self._parse(rest)
        except ValueError as error:
            raise errors.UnreadableMetadata(
                f"metadata key {key} is not one of {self.prefix}<id>: {error}"
            ) from error


def _node_id(text: str) -> NodeId:
    return NodeId(int(text))


def _log_id(text: str) -> LogId:
    return LogId(int(text))


CLUSTER: Final = SingleKey("cluster", ClusterInfo)
NODES: Final = KeyFamily("nodes/", _node_id, NodeInfo)
LIVE: Final = KeyFamily("live/", _node_id, LiveNode)
LOG_NAMES: Final = KeyFamily("log-names/", str, LogInfo)
NEXT_LOG_ID: Final = SingleKey("next-log-id", int)
PROJECTIONS: Final = KeyFamily("projections/", _log_id, Projection)
TRIMS: Final = KeyFamily("trims/", _log_id, Trimmed)
KEEPER: Final = SingleKey("keeper", Keeper)

FIRST_LOG_ID: Final = LogId(1)  # While `next-log-id` is absent.
