"""Who is in the cluster, and how a node is."""

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


class NodeDescribed(Message, frozen=True):
    node: NodeInfo
    uptime_ms: int
    logs: int
    bytes_used: int
    bytes_total: int
    is_full: bool
    is_keeper: bool
    connections: int
    software: str
