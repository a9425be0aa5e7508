"""Addresses are reused: whoever answers there is asked only if it is who was meant."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from millrace.codec import frames
from millrace.core.messages import DescribeNode, Hello, Message, NodeDescribed, Pong
from millrace.errors import WrongPeer
from millrace.local import LocalCluster
from millrace.runtime.closing import CloseReason, cluster_mark
from millrace.runtime.session import Session
from millrace.runtime.transport import TransportCounters, listen, parse_address
from millrace.types import NodeId
from tests.support.clusters import (
    MakeCluster,
    assert_members_equal,
    connected,
    eventually,
    kill,
    run,
    start,
)

METADATA_NODE = 1


class Stranger:
    """Answers everything with something that answers nothing."""

    def __init__(self) -> None:
        self.counters = TransportCounters()
        self.address = ""
        self.asked: set[NodeId] = set()

    def opened(self, session: Session) -> None:
        pass

    def received(self, session: Session, request_id: int, message: Message) -> None:
        self.asked.add(session.peer.node)
        if request_id:
            session.answer(request_id, Pong())

    def writable(self, session: Session) -> None:
        pass

    def closed(self, session: Session, reason: str) -> None:
        pass


@contextlib.asynccontextmanager
async def stranger_at(address: str, cluster: str) -> AsyncIterator[Stranger]:
    stranger = Stranger()
    hello = Hello(frames.PROTOCOL_VERSION, cluster, NodeId(METADATA_NODE))
    listener = await listen(*parse_address(address), hello, stranger, None, stranger.counters)
    stranger.address = listener.address
    yield stranger
    await listener.close()


def test_a_client_asks_no_other_cluster_of_the_same_name(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with (
            connected(calm_cluster) as client,
            stranger_at("127.0.0.1:0", cluster_mark(client.name, "another")) as stranger,
        ):
            client.directory.addresses[NodeId(METADATA_NODE)] = stranger.address
            with pytest.raises(WrongPeer, match="another"):
                await client.ask_node(NodeId(METADATA_NODE), DescribeNode(), 3_000)
            assert not stranger.asked
            # The address was in doubt: now it is the right one again.
            answer = await client.ask_node(NodeId(METADATA_NODE), DescribeNode(), 3_000)
            assert isinstance(answer, NodeDescribed) and answer.node.id == METADATA_NODE

    run(body())


def test_no_copy_goes_to_another_node_at_the_address(calm_cluster: LocalCluster) -> None:
    async def body() -> None:
        async with connected(calm_cluster) as client:
            log = await client.create_log("readdressed", write_path="chain")
            await log.append(b"before")
            first, second, third = client.directory.addresses
            at = client.directory.addresses
            right = dict(at)
            at[first], at[second], at[third] = at[second], at[third], at[first]
            for number in range(10):
                await log.append(b"%d" % number)
            assert client.directory.addresses == right
            await assert_members_equal(client, log)

    run(body())


@pytest.mark.parametrize("is_same_cluster", [False, True], ids=["cluster", "rubbish"])
def test_nodes_outlive_a_stranger_at_the_metadata_address(
    make_cluster: MakeCluster, is_same_cluster: bool
) -> None:
    """Of another cluster; or of none, and then it answers rubbish."""

    async def body(cluster: LocalCluster) -> None:
        address = cluster.addresses[0]
        others = {NodeId(2), NodeId(3)}
        await kill(cluster, METADATA_NODE)
        mark = "" if is_same_cluster else cluster_mark(cluster.name, "another")
        async with stranger_at(address, mark) as stranger:

            async def was_met() -> bool:
                refused = stranger.counters.closes.get(CloseReason.WRONG_CLUSTER, 0)
                return stranger.asked >= others if is_same_cluster else refused >= 4

            await eventually(was_met, what="the nodes look for their repository")
            assert is_same_cluster or not stranger.asked
        await start(cluster, METADATA_NODE)
        assert all(cluster.is_running(node) for node in others)
        async with connected(cluster) as client:
            await eventually(
                lambda: asyncio.wait_for(all_live(client), 10), what="all nodes are back"
            )
            log = await client.create_log("after", write_path="chain")
            assert await log.append(b"here again") == 1

    async def all_live(client) -> bool:
        return len((await client.directory.view()).live) == 3

    run(body(make_cluster(3)))
