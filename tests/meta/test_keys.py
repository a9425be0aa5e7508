"""Keys have one spelling each, and their values can be read by people and by other versions."""

from typing import Any

import pytest

from millrace import errors
from millrace.core.documents.document import FailoverId
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.placement import Copies
from millrace.core.documents.rebalance import RebalanceRecord, RebalanceState
from millrace.core.projection import Projection
from millrace.meta import keys
from millrace.meta.contract import Entry
from millrace.types import Epoch, LogAttributes, LogId, LogInfo, Lsn, NodeId, NodeInfo

NODE = NodeInfo(NodeId(3), "host:7000", "r.d.c.w.k")
LOG = LogInfo(LogId(5), "orders", LogAttributes(), 1)
PROJECTION = Projection(LogId(5), Epoch(2), (NodeId(1), NodeId(2)), NodeId(1), 2)
BUCKET = BucketRecord(
    7, "orders", BucketAttributes(), (Seat(3, FailoverId(2**64 - 1), NodeId(1), (NodeId(2),)),)
)
REBALANCE = RebalanceRecord(
    (NodeId(1), NodeId(2)), RebalanceState.RUNNING, (Copies(NodeId(1), (NodeId(2),)),), 4, 1
)

SINGLE: list[tuple[keys.SingleKey[Any], str, Any]] = [
    (keys.CLUSTER, "cluster", keys.ClusterInfo("main", "id")),
    (keys.NEXT_LOG_ID, "next-log-id", 6),
    (keys.NEXT_BUCKET_ID, "next-bucket-id", 2),
    (keys.KEEPER, "keeper", keys.Keeper(NodeId(1), 7)),
]
FAMILIES: list[tuple[keys.KeyFamily[Any, Any], Any, str, Any]] = [
    (keys.NODES, NodeId(3), "nodes/3", NODE),
    (keys.LIVE, NodeId(3), "live/3", keys.LiveNode(NodeId(3), "x", 1)),
    (keys.LOG_NAMES, "orders/eu", "log-names/orders/eu", LOG),
    (keys.PROJECTIONS, LogId(5), "projections/5", PROJECTION),
    (keys.TRIMS, LogId(5), "trims/5", keys.Trimmed(Lsn(100))),
    (keys.BUCKETS, "orders", "buckets/orders", BUCKET),
    (keys.REBALANCES, "orders", "rebalances/orders", REBALANCE),
    (keys.REBUILDS, keys.RebuildId(NodeId(3), NodeId(1)), "rebuilds/3/1", keys.RebuildReport(2)),
]


@pytest.mark.parametrize(("key", "spelling", "value"), SINGLE, ids=[each[1] for each in SINGLE])
def test_single_keys(key: keys.SingleKey[Any], spelling: str, value: Any) -> None:
    assert key.key == spelling
    assert key.decode(Entry(spelling, key.encode(value), 1)) == value


@pytest.mark.parametrize(
    ("family", "id", "spelling", "value"), FAMILIES, ids=[each[2] for each in FAMILIES]
)
def test_families(family: keys.KeyFamily[Any, Any], id: Any, spelling: str, value: Any) -> None:
    assert family.key(id) == spelling
    assert family.id_of(spelling) == id
    assert family.decode(Entry(spelling, family.encode(value), 1)) == value
    assert family.find(Entry(spelling, b"", 0)) is None


def test_values_are_json_for_people() -> None:
    assert keys.TRIMS.encode(keys.Trimmed(Lsn(7))) == b'{"end":7}'
    assert b'"address":"host:7000"' in keys.NODES.encode(NODE)


def test_fields_of_a_newer_version_are_ignored() -> None:
    entry = Entry("keeper", b'{"node":1,"since_ms":2,"mood":"good"}', 4)
    assert keys.KEEPER.decode(entry) == keys.Keeper(NodeId(1), 2)


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"{}", b'{"id":"three"}', b"[1]"])
def test_unreadable_values_say_where_and_what(value: bytes) -> None:
    with pytest.raises(errors.UnreadableMetadata, match=r"nodes/3 at version 9 .* NodeInfo"):
        keys.NODES.decode(Entry("nodes/3", value, 9))


@pytest.mark.parametrize("key", ["rebuilds/3", "rebuilds/3/1/2", "rebuilds/3/x", "nodes/3"])
def test_unreadable_pairs_of_ids(key: str) -> None:
    with pytest.raises(errors.UnreadableMetadata):
        keys.REBUILDS.id_of(key)


@pytest.mark.parametrize("key", ["nodes/", "nodes/x", "trims/3", ""])
def test_unreadable_ids(key: str) -> None:
    with pytest.raises(errors.UnreadableMetadata):
        keys.NODES.id_of(key)
