"""Reforming a stream: who goes on, and with what."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from millrace.core.commit.record import Loss, StreamRecord
from millrace.core.commit.reform import (
    SYNC_REST_ENTRIES,
    CannotReform,
    OpenedReplicas,
    ReformPlan,
    SealedReplicas,
    join_replicas,
    open_replicas,
    seal_replicas,
    sync_replica,
)
from millrace.core.messages import (
    Commit,
    CommitTaken,
    Dropped,
    Message,
    OpenStream,
    Refusal,
    Refused,
    ReplicaState,
    RetireStream,
    SealStream,
    StreamOpened,
    StreamReport,
    StreamSealed,
    StreamSynced,
    SyncStream,
)
from millrace.core.procedure import Answer, Ask, Failure, FailureKind, Procedure
from millrace.types import Epoch, LogId, Lsn, NodeId, StreamId, Version
from tests.core.commit.playing import played

LOG, ONE = LogId(7), StreamId(1)
A, B, C, D = (NodeId(number) for number in (1, 2, 3, 4))
AWAY = Failure(FailureKind.CONNECT)
GENERATION = Epoch(4)
COMMITTED_END = Lsn(11)
LAST = Lsn(19)


def stream() -> StreamRecord:
    return StreamRecord(ONE, GENERATION, (A, B, C), local_end=COMMITTED_END)


def plan(**fields: tuple[NodeId, ...]) -> ReformPlan:
    catch_up = Commit(LOG, Epoch(1), A, Version(5), Lsn(20), Lsn(1), ())
    return ReformPlan(LOG, stream(), catch_up, **fields)


def holds(
    end: int,
    *,
    local_end: int = COMMITTED_END,
    version: int = 5,
    opened: int = GENERATION,
    is_valid: bool = True,
    why: str = "",
) -> Message:
    return StreamSealed(
        Epoch(5), Version(version), Lsn(local_end), Lsn(end), is_valid, why, Epoch(opened), LAST
    )


class Nodes:
    """Answers by node and kind of message; whatever else is asked is refused."""

    def __init__(
        self, answers: Mapping[tuple[NodeId, type[Message]], Answer | list[Answer]]
    ) -> None:
        self._answers = dict(answers)
        self.asked: list[tuple[NodeId, Message]] = []

    def answer(self, ask: Ask) -> Answer:
        self.asked.append((ask.node, ask.message))
        found = self._answers.get((ask.node, type(ask.message)), AWAY)
        return found.pop(0) if isinstance(found, list) else found


def result_of(procedure: Procedure[Any], nodes: Nodes) -> Any:
    return played(procedure, nodes.answer)


def sealed(**ends: Message) -> Nodes:
    return Nodes({(NodeId("abcd".index(name) + 1), SealStream): end for name, end in ends.items()})


def test_all_go_on_with_what_all_hold() -> None:
    found = result_of(seal_replicas(plan()), sealed(a=holds(15), b=holds(13), c=holds(14)))
    assert found == SealedReplicas(Epoch(5), (A, B, C), Lsn(13))


def test_whoever_does_not_answer_is_left_out() -> None:
    found = result_of(seal_replicas(plan()), sealed(b=holds(13), c=holds(14)))
    assert found == SealedReplicas(Epoch(5), (B, C), Lsn(13))


def test_one_replica_is_enough() -> None:
    found = result_of(seal_replicas(plan()), sealed(c=holds(14)))
    assert found == SealedReplicas(Epoch(5), (C,), Lsn(14))


def test_whoever_lacks_what_is_committed_does_not_go_on() -> None:
    found = result_of(seal_replicas(plan()), sealed(a=holds(10), b=holds(11), c=AWAY))
    assert found == SealedReplicas(Epoch(5), (B,), Lsn(11))


def test_whoever_does_not_know_where_its_entries_are_does_not_go_on() -> None:
    """They were committed and all had taken it, so that nobody else can tell: memory was lost."""
    forgetful = msgspec.structs.replace(holds(14), local_end=Lsn(7))
    found = result_of(seal_replicas(plan()), sealed(a=forgetful, b=holds(13)))
    assert found == SealedReplicas(Epoch(5), (B,), Lsn(13))
    found = result_of(seal_replicas(plan()), sealed(a=forgetful))
    assert isinstance(found, CannotReform)
    assert "node 1 does not know any more where 7..10 are in the log" in found.why


@pytest.mark.parametrize(
    ("left", "heir", "end"),
    [
        pytest.param({"a": holds(9), "b": holds(10), "c": holds(8)}, B, 10, id="who-has-most"),
        pytest.param({"a": holds(9), "b": holds(9), "c": holds(9)}, A, 9, id="the-primary"),
        pytest.param(
            {"a": holds(15, local_end=8), "b": holds(14, local_end=9), "c": holds(15, local_end=7)},
            B,
            9,
            id="as-far-as-somebody-knows-where-it-lies",
        ),
    ],
)
def test_what_nobody_has_is_given_up_when_all_have_answered(
    left: dict[str, Message], heir: NodeId, end: int
) -> None:
    found = result_of(seal_replicas(plan()), sealed(**left))
    assert found == SealedReplicas(Epoch(5), (heir,), Lsn(end), is_lossy=True, last=LAST)


def test_a_learner_forgets_what_was_given_up() -> None:
    loss = Loss(5, Version(7), Lsn(4))
    stream_then = msgspec.structs.replace(stream(), loss=loss)
    nodes = Nodes(
        {
            (D, SealStream): [holds(9), holds(1, local_end=1)],
            (D, RetireStream): Dropped(),
            (A, SyncStream): StreamSynced(COMMITTED_END),
        }
    )
    assert result_of(sync_replica(LOG, stream_then, D), nodes) == StreamSynced(COMMITTED_END)
    asked = [type(message) for node, message in nodes.asked if node == D]
    assert asked == [SealStream, RetireStream, SealStream]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(holds(4, local_end=4), id="nothing-of-it"),
        pytest.param(holds(9, version=8), id="heard-of-it-since"),
    ],
)
def test_a_learner_that_has_nothing_of_what_was_given_up_keeps_what_it_has(answer: Message) -> None:
    stream_then = msgspec.structs.replace(stream(), loss=Loss(5, Version(7), Lsn(4)))
    answers = {(D, SealStream): answer, (A, SyncStream): StreamSynced(COMMITTED_END)}
    nodes = Nodes(answers)
    assert isinstance(result_of(sync_replica(LOG, stream_then, D), nodes), StreamSynced)
    assert not any(isinstance(message, RetireStream) for _, message in nodes.asked)


def test_without_anybody_who_has_all_that_is_committed_nothing_changes() -> None:
    nodes = sealed(a=holds(10), b=holds(20, is_valid=False, why="it is learning"))
    found = result_of(seal_replicas(plan()), nodes)
    assert isinstance(found, CannotReform)
    assert "lost the committed entries 10..10" in found.why
    assert "node 2: it is learning" in found.why
    assert "node 3 does not answer" in found.why


def test_what_was_written_in_an_earlier_generation_does_not_count() -> None:
    """It missed the last opening, which cut off what it still holds above what is committed."""
    nodes = sealed(a=holds(15), b=holds(18, opened=GENERATION - 1), c=AWAY)
    found = result_of(seal_replicas(plan()), nodes)
    assert found == SealedReplicas(Epoch(5), (A, B), COMMITTED_END)


def test_a_reform_that_was_cut_short_is_outbid() -> None:
    fenced = Refused(Refusal.EPOCH, Epoch(8))
    answers: list[Answer] = [fenced, holds(12)]
    nodes = Nodes({(A, SealStream): answers, (B, SealStream): [holds(12), holds(12)]})
    found = result_of(seal_replicas(plan()), nodes)
    assert found == SealedReplicas(Epoch(9), (A, B), Lsn(12))


def test_a_node_joins_with_what_a_replica_gives_it() -> None:
    nodes = Nodes(
        {
            (A, SealStream): holds(13),
            (D, SealStream): holds(1, opened=0),
            (A, Commit): CommitTaken(()),
            (A, SyncStream): StreamSynced(COMMITTED_END),
        }
    )
    found = result_of(seal_replicas(plan(joining=(D,))), nodes)
    assert found == SealedReplicas(Epoch(5), (A,), Lsn(13), waiting=(D,))
    joined = result_of(join_replicas(plan(joining=(D,)), found), nodes)
    assert joined == SealedReplicas(Epoch(5), (A, D), COMMITTED_END)


def test_a_node_that_could_not_be_synced_waits_for_the_next_time() -> None:
    nodes = Nodes(
        {(A, SealStream): holds(13), (D, SealStream): holds(1), (A, Commit): CommitTaken(())}
    )
    waiting = result_of(seal_replicas(plan(joining=(D,))), nodes)
    found = result_of(join_replicas(plan(joining=(D,)), waiting), nodes)
    assert found == SealedReplicas(Epoch(5), (A,), Lsn(13))


def test_nothing_is_cut_off_for_a_node_that_was_given_all_that_the_others_hold() -> None:
    """It was committed between the seal and the joining."""
    sealed = SealedReplicas(Epoch(5), (A, B), Lsn(13), waiting=(D,))
    committed = msgspec.structs.replace(stream(), local_end=Lsn(13))
    now = msgspec.structs.replace(plan(joining=(D,)), stream=committed)
    nodes = Nodes({(A, Commit): CommitTaken(()), (A, SyncStream): StreamSynced(Lsn(13))})
    found = result_of(join_replicas(now, sealed), nodes)
    assert found == SealedReplicas(Epoch(5), (A, B, D), Lsn(13))


@pytest.mark.parametrize(
    ("yielding", "joins", "copies", "go_on"),
    [
        pytest.param((B,), True, 3, (A, C, D), id="one comes and one leaves"),
        pytest.param((A,), True, 3, (B, C, D), id="the primary hands over"),
        pytest.param((B,), False, 3, (A, B, C), id="nobody leaves before somebody came"),
        pytest.param((A, B), True, 3, (B, C, D), id="as many leave as came"),
        pytest.param((B,), True, 4, (A, B, C, D), id="the stream lacks one anyway"),
    ],
)
def test_whoever_yields_leaves_when_enough_others_go_on(
    yielding: tuple[NodeId, ...], joins: bool, copies: int, go_on: tuple[NodeId, ...]
) -> None:
    wanted = msgspec.structs.replace(plan(joining=(D,)), yielding=yielding, copies=copies)
    sealed = SealedReplicas(Epoch(5), (A, B, C), COMMITTED_END, waiting=(D,))
    synced: Answer = StreamSynced(COMMITTED_END) if joins else AWAY
    nodes = Nodes({(A, Commit): CommitTaken(()), (A, SyncStream): synced})
    assert result_of(join_replicas(wanted, sealed), nodes).replicas == go_on


def test_whoever_leaves_is_left_out_unless_it_is_the_only_one() -> None:
    both = sealed(a=holds(13), b=holds(12))
    found = result_of(seal_replicas(plan(leaving=(B,))), both)
    assert found == SealedReplicas(Epoch(5), (A,), Lsn(13))
    alone = sealed(b=holds(12))
    found = result_of(seal_replicas(plan(leaving=(B,))), alone)
    assert found == SealedReplicas(Epoch(5), (B,), Lsn(12))


def test_opening_tells_who_did_not() -> None:
    report = StreamReport(ONE, GENERATION, ReplicaState.OPEN, Version(5), COMMITTED_END, 0)
    nodes = Nodes({(A, OpenStream): StreamOpened(report), (C, OpenStream): StreamOpened(report)})
    found = result_of(open_replicas(LOG, stream(), Lsn(12)), nodes)
    assert found == OpenedReplicas({A: report, C: report}, (B,))


def test_a_learner_is_synced_by_any_replica_that_can() -> None:
    nodes = Nodes({(D, SealStream): holds(1), (C, SyncStream): StreamSynced(Lsn(9))})
    assert result_of(sync_replica(LOG, stream(), D), nodes) == StreamSynced(Lsn(9))
    sources = [node for node, message in nodes.asked if isinstance(message, SyncStream)]
    assert sources == [A, B, C]


def test_a_learner_is_synced_again_until_little_is_left() -> None:
    ends = [SYNC_REST_ENTRIES * 5, SYNC_REST_ENTRIES * 7, SYNC_REST_ENTRIES * 7 + 1]
    answers: list[Answer] = [StreamSynced(Lsn(end)) for end in ends]
    nodes = Nodes({(D, SealStream): holds(1), (A, SyncStream): answers})
    assert result_of(sync_replica(LOG, stream(), D), nodes) == StreamSynced(Lsn(ends[-1]))
