"""Whatever happens to the replicas of a stream: what is committed stays, and answers were true.

Appends, lost processes, slow disks, commits that only some hear of, reforms that are cut short and
nodes that learn come in any order; then all are started again, and what they hold is compared.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core import messages as m
from millrace.types import NodeId
from tests.core.commit.stream_cluster import Cluster, Node

NODES = st.integers(1, 3).map(NodeId)
SOME = st.integers(0, 3).map(NodeId)  # One node, or all of them: the power fails.
ALL = NodeId(0)
ACTS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("lose"), st.integers(1, 2)),
    st.tuples(st.just("slow"), SOME),
    st.tuples(st.just("work"), NODES),
    st.tuples(st.just("decide"), st.just(0)),
    st.tuples(st.just("tell"), NODES),
    st.tuples(st.just("crash"), SOME),
    st.tuples(st.just("start"), SOME),
    st.tuples(st.just("fire"), st.just(0)),
    st.tuples(st.just("commit"), st.just(0)),
    st.tuples(st.just("reform"), st.integers(0, 3)),
    st.tuples(st.just("join"), NODES),
    st.tuples(st.just("trim"), st.integers(1, 6)),
)


def act(cluster: Cluster, what: str, number: int, appends: int) -> None:
    nodes = [each for each in cluster.nodes.values() if number in (ALL, each.id)]
    match what:
        case "append":
            cluster.append(appends, number)
        case "step":
            for _ in range(number):
                cluster.step()
        case "lose":
            for _ in range(number):
                cluster.lose()
        case "decide":
            cluster.decide()
        case "tell":
            cluster.tell(NodeId(number))
        case "fire":
            cluster.fire()
        case "commit":
            cluster.commit()
        case "reform":
            cluster.reform(opened_max=number)
        case "trim":
            cluster.trim(min(number, cluster.record.high_watermark + 1))
        case "join" if nodes[0].is_up and number not in cluster.stream.replicas:
            cluster.reform(joining=nodes[0].id)
        case _:
            for node in nodes:
                act_on(node, what)


def act_on(node: Node, what: str) -> None:
    match what:
        case "slow":
            node.is_slow = not node.is_slow
        case "work" if node.is_up:
            node.store.run()
        case "crash" if node.is_up:
            node.crash()
        case "start" if not node.is_up:
            node.start()


def heal(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.is_slow = False
        if not node.is_up:
            node.start()
    cluster.run()
    assert cluster.reform(), "the replicas have all that is committed"
    for name in cluster.nodes:
        if name not in cluster.stream.replicas:
            assert cluster.reform(joining=name)
            assert name in cluster.stream.replicas, "it has learned"
    cluster.fire()
    cluster.commit()
    cluster.commit()


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTS, max_size=40))
def test_what_is_committed_stays_and_answers_were_true(acts: list[tuple[str, int]]) -> None:
    cluster = Cluster()
    for at, (what, number) in enumerate(acts, 1):
        act(cluster, what, number, at)
        cluster.check()
    heal(cluster)
    cluster.check()
    cluster.check_answers()
    committed = [node.committed() for node in cluster.nodes.values()]
    assert committed[0] == committed[1] == committed[2]
    for node in cluster.nodes.values():
        assert node.replica.state is m.ReplicaState.OPEN
        assert node.replica.local_end == cluster.stream.local_end
