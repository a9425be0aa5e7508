"""Producers of a few partitions, and what their consumers hear, in short words."""

from millrace.core.documents.document import FailoverId, PartitionId, Seq
from millrace.core.documents.messages import (
    AllPartitions,
    BarrierReached,
    Changes,
    ProducerPush,
    SeqAdvanced,
    SnapshotMarker,
    StreamAnswered,
    StreamEnd,
    StreamFlag,
    StreamRequest,
    StreamStatus,
)
from millrace.core.documents.producer import Producer
from tests.core.documents.stream_rig import Node, opened

CAFE = FailoverId(0xCAFE)
P1, P2 = PartitionId(1), PartitionId(2)
PLENTY = 1 << 30
NO_FLAGS = StreamFlag(0)


def request(number: int = 0, start: int = 0, flags: StreamFlag = NO_FLAGS) -> StreamRequest:
    seq = Seq(start)
    return StreamRequest(PartitionId(number), seq, CAFE, seq, seq, flags=flags)


def streaming(node: Node, flags: StreamFlag = NO_FLAGS) -> Producer:
    """A producer of all its partitions."""
    producer = opened(node)
    for number in node.partitions:
        answer = producer.handle(request(number, flags=flags), 0)
        assert isinstance(answer, StreamAnswered)
        assert answer.status is StreamStatus.OK
    return producer


def told(pushes: list[ProducerPush]) -> list[str]:
    """In short: what a consumer hears."""
    return [word for push in pushes for word in words(push)]


def words(push: ProducerPush) -> list[str]:
    match push:
        case SnapshotMarker(number, first, last):
            return [f"p{number} ({first}, {last}]"]
        case Changes(documents=documents):
            return [f"{one.key.decode()}{'-' * one.is_deleted}@{one.seq}" for one in documents]
        case SeqAdvanced(seq=seq):
            return [f"advanced {seq}"]
        case StreamEnd(number, reason):
            return [f"p{number} ended {reason.name}"]
        case AllPartitions(cycle):
            return [f"all {cycle}"]
        case BarrierReached(cookie):
            return [f"barrier {cookie}"]
    return ["noop"]


def pump(producer: Producer, now_ms: int = 0, bytes_max: int = PLENTY) -> list[str]:
    return told(producer.pump(now_ms, bytes_max))
