"""The keys of a cluster and the types of their values.

Values are JSON, so that people can read them with `etcdctl get --prefix`.  Every part of Millrace
that reads or writes a key does it through these names: no other module spells one.

  cluster               who this cluster is
  nodes/<node id>       a registered node, alive or not
  live/<node id>        the node runs; held by its lease
  log-names/<name>      a log's id and attributes
  next-log-id           the id that the next log gets
  projections/<log id>  who serves a log, in which epoch
  epochs/<log id>       who sequences a log, in which epoch, on which nodes
  commits/<log id>      what a commit log's committer decided last, on which nodes its streams are
  status/<node id>      whether what a node does not have counts, and how it came to that
  rebuilds/<node id>/<node id>  how far the second node is with giving copies of the first to others
  trims/<log id>        the position below which a log is forgotten
  buckets/<name>        a bucket's attributes, and who has each of its partitions
  rebalances/<name>     what a bucket's last rebalance is to do, and how far it is
  failovers/<name>      which partitions of a bucket an operator wanted other masters of
  next-bucket-id        the id that the next bucket gets
  publications/<app>    what an application published last, or is publishing
  keeper                the node that repairs chains; held by its lease

Unknown fields are ignored, so that an older version reads what a newer one wrote.
"""

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from millrace import errors
from millrace.core.commit.record import CommitRecord
from millrace.core.documents.failover_request import FailoverRequest
from millrace.core.documents.map import BucketRecord
from millrace.core.documents.rebalance import RebalanceRecord
from millrace.core.epochs import EpochRecord
from millrace.core.projection import Projection
from millrace.core.publications import PublicationRecord
from millrace.core.statuses import NodeStatusEntry
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


class RebuildReport(msgspec.Struct, frozen=True):
    """What a donor says of one rebuilding: it has finished, or what it has done and what is left
    since it began anew."""

    version: int
    is_finished: bool = False
    blocks_done: int = 0
    bytes_done: int = 0
    blocks_left: int = 0
    bytes_left: int = 0
    waits_for: str = ""


class RebuildId(NamedTuple):
    """The node to be rebuilt, and the donor."""

    node: NodeId
    donor: NodeId

    def __str__(self) -> str:
        return f"{self.node}/{self.donor}"


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


def _rebuild_id(text: str) -> RebuildId:
    node, donor = text.split("/")
    return RebuildId(_node_id(node), _node_id(donor))


CLUSTER: Final = SingleKey("cluster", ClusterInfo)
NODES: Final = KeyFamily("nodes/", _node_id, NodeInfo)
LIVE: Final = KeyFamily("live/", _node_id, LiveNode)
LOG_NAMES: Final = KeyFamily("log-names/", str, LogInfo)
NEXT_LOG_ID: Final = SingleKey("next-log-id", int)
PROJECTIONS: Final = KeyFamily("projections/", _log_id, Projection)
EPOCHS: Final = KeyFamily("epochs/", _log_id, EpochRecord)
COMMITS: Final = KeyFamily("commits/", _log_id, CommitRecord)
STATUSES: Final = KeyFamily("status/", _node_id, NodeStatusEntry)
REBUILDS: Final = KeyFamily("rebuilds/", _rebuild_id, RebuildReport)
TRIMS: Final = KeyFamily("trims/", _log_id, Trimmed)
BUCKETS: Final = KeyFamily("buckets/", str, BucketRecord)
REBALANCES: Final = KeyFamily("rebalances/", str, RebalanceRecord)
FAILOVERS: Final = KeyFamily("failovers/", str, FailoverRequest)
NEXT_BUCKET_ID: Final = SingleKey("next-bucket-id", int)
PUBLICATIONS: Final = KeyFamily("publications/", str, PublicationRecord)
KEEPER: Final = SingleKey("keeper", Keeper)

FIRST_LOG_ID: Final = LogId(1)  # While `next-log-id` is absent.
FIRST_BUCKET_ID: Final = 1
