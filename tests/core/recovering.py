"""Recoveries of a model cluster's log, and what is there afterwards."""

from typing import Any

from millrace.core import procedure as p
from millrace.core.epochs import EpochRecord, ranges
from millrace.core.sequenced.recovery import Recovered, recover
from millrace.lsn import lsn_of
from millrace.types import AuthoritativeStatus, Epoch, NodeId
from tests.core.sequenced_cluster import ModelCluster, junk

UNDERREPLICATION = AuthoritativeStatus.UNDERREPLICATION
EMPTY = AuthoritativeStatus.AUTHORITATIVE_EMPTY
E1 = Epoch(1)


def recovery(cluster: ModelCluster, epoch: int = 2, **fields: Any) -> p.Procedure[Any]:
    """By a sequencer that has just claimed the epoch."""
    record = cluster.claim(epoch)
    known = ranges(cluster.changes, record)
    return recover(record, known, cluster.locations, dict(cluster.statuses), junk, **fields)


def recovered(cluster: ModelCluster, epoch: int = 2) -> EpochRecord:
    result = cluster.run(recovery(cluster, epoch))
    assert isinstance(result, Recovered), result
    assert result.record == cluster.record
    return result.record


def seen(cluster: ModelCluster, epoch: int = 1) -> str:
    return " ".join(cluster.seen_by(cluster.nodes.keys() - cluster.down, epoch))


def holders(cluster: ModelCluster, offset: int, epoch: int = 1) -> set[NodeId]:
    first = lsn_of(Epoch(epoch), offset)
    return {node.id for node in cluster.nodes.values() if first in node.blocks}
