"""Who is in the cluster, and how a node is."""

import msgspec

from millrace.core.documents.document import PartitionId
from millrace.core.messages.root import Message
from millrace.types import NodeInfo


class DescribeCluster(Message, frozen=True):
    pass


class ClusterDescribed(Message, frozen=True):
    """`metadata` lists the addresses that answer Meta* requests, best first.  `cluster` is the
    name; `cluster_id` tells clusters of the same name apart."""

    cluster: str
    nodes: tuple[NodeInfo, ...]
    metadata: tuple[str, ...]
    cluster_id: str = ""


class DescribeNode(Message, frozen=True):
    pass


class DamagedPartition(msgspec.Struct, frozen=True, array_like=True):
    bucket: int  # Its id.
    number: PartitionId


class HostedDocuments(msgspec.Struct, frozen=True, array_like=True):
    """The store of documents, which has room of its own.  `damaged` are partitions that cannot be
    written and so take no changes, the first of them if there are many; `damage` is why."""

    bytes_used: int
    bytes_total: int
    is_full: bool
    damaged: tuple[DamagedPartition, ...] = ()
    damage: str = ""


class NodeDescribed(Message, frozen=True):
    """The bytes are the logs', and so is `is_full`: no more blocks are taken."""

    node: NodeInfo
    uptime_ms: int
    logs: int
    bytes_used: int
    bytes_total: int
    is_full: bool
    is_keeper: bool
    connections: int
    software: str
    documents: HostedDocuments | None = None
