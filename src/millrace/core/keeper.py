"""What the keeper of a cluster does about its logs.

One node holds the keeper's lease.  Every round it looks at the projections and at who is alive
and plans at most one step for each log; the steps are safe whoever takes them, so a keeper that
has lost its lease without noticing does no harm.
"""

from collections.abc import Collection, Iterable
from enum import Enum

import msgspec

from millrace.core.messages import Describe, Described, Learn, Learned, Standing
from millrace.core.procedure import Answer, Ask, ClusterView, Procedure, ask, ask_all
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.repair import ChainTrouble, FillPolicy, MakeJunk, Patience, repair
from millrace.types import Epoch, LogId, Lsn, NodeId, NodeInfo, Role

LEARN_TIMEOUT_MS = 600_000
LEARN_ROUNDS_MAX = 8
CLOSE_ENOUGH = 1_024  # Positions left for the reconciliation to copy, while the log waits.
HOLES_MAX = 1_024  # Closed before a node learns; what is left the reconciliation copies.
HOLE_WAIT_MS = 1_000


class StepKind(Enum):
    SHRINK = "shrink"  # Take dead and incomplete nodes out of the chain.
    REPLACE_SEQUENCER = "replace_sequencer"
    GROW = "grow"  # Let a node learn, then add it.


class Step(msgspec.Struct, frozen=True):
    kind: StepKind
    log: LogId
    epoch: Epoch
    nodes: tuple[NodeId, ...]
    reason: ReconfigureReason


def plan(
    projections: Iterable[Projection],
    view: ClusterView,
    unusable: Collection[NodeId] = (),
) -> list[Step]:
    """`unusable` nodes are alive but must not take new chains, for example because they are
    full."""
    steps = []
    for projection in projections:
        step = _plan_one(projection, view, unusable)
        if step is not None:
            steps.append(step)
    return steps


def _plan_one(
    projection: Projection, view: ClusterView, unusable: Collection[NodeId]
) -> Step | None:
    dead = tuple(node for node in projection.chain if node not in view.live)
    log, epoch = projection.log, projection.epoch
    if dead and len(dead) < len(projection.chain):
        return Step(StepKind.SHRINK, log, epoch, dead, ReconfigureReason.UNREACHABLE)
    if projection.sequencer not in view.live and not dead:
        nodes = (projection.sequencer,)
        reason = ReconfigureReason.SEQUENCER_LOST
        return Step(StepKind.REPLACE_SEQUENCER, log, epoch, nodes, reason)
    if not dead and projection.is_degraded:
        learner = choose_learner(projection, view, unusable)
        if learner is not None:
            return Step(StepKind.GROW, log, epoch, (learner,), ReconfigureReason.GROWN)
    return None


def choose_learner(
    projection: Projection, view: ClusterView, unusable: Collection[NodeId]
) -> NodeId | None:
    """A live storage node outside the chain, in a rack the chain does not have if possible;
    logs begin at different nodes so that the work spreads."""
    racks = {node.location for node in view.nodes if node.id in projection.chain}

    def able(node: NodeInfo) -> bool:
        is_free = node.id not in projection.chain and node.id not in unusable
        return is_free and node.id in view.live and Role.STORAGE in node.roles

    able_nodes = sorted((node for node in view.nodes if able(node)), key=lambda node: node.id)
    if not able_nodes:
        return None
    start = projection.log % len(able_nodes)
    ring = able_nodes[start:] + able_nodes[:start]
    return next((node.id for node in ring if node.location not in racks), ring[0].id)


class Members(msgspec.Struct, frozen=True):
    """What the members of a chain say: the step that some of them need, and whether all of them
    answered and need none."""

    step: Step | None
    are_whole: bool


def find_incomplete(projection: Projection) -> Procedure[Step | None]:
    """The step that takes out members which lost what they held: wiped, or killed with blocks
    only in memory, and back before anybody missed them.  Writers and readers of a busy log find
    out by themselves; an idle log would only seem to have all its copies."""
    return (yield from look_at_members(projection)).step


def look_at_members(projection: Projection) -> Procedure[Members]:
    asks = [Ask(node, Describe(projection.log)) for node in projection.chain]
    answers = yield from ask_all(asks)
    lost = tuple(
        node
        for node, answer in zip(projection.chain, answers, strict=True)
        if isinstance(answer, Described) and _has_lost(answer, projection.epoch)
    )
    if not lost:
        return Members(None, all(_is_whole(answer, projection.epoch) for answer in answers))
    reason = ReconfigureReason.INCOMPLETE
    step = Step(StepKind.SHRINK, projection.log, projection.epoch, lost, reason)
    return Members(step, are_whole=False)


def _has_lost(described: Described, epoch: Epoch) -> bool:
    if described.epoch > epoch:
        return False  # The chain is being changed.
    return described.epoch < epoch or described.standing is not Standing.MEMBER


def _is_whole(answer: Answer, epoch: Epoch) -> bool:
    if not isinstance(answer, Described):
        return False
    return answer.epoch == epoch and answer.standing is Standing.MEMBER


def close_holes(projection: Projection, make_junk: MakeJunk) -> Procedure[None]:
    """A learner copies what is committed, which ends at the first hole; all that lies above is
    copied while the log is sealed.  So old holes are closed before anybody learns."""
    closed, patience = Lsn(0), Patience()
    for _ in range(HOLES_MAX):
        described = yield from ask(projection.tail, Describe(projection.log))
        if not isinstance(described, Described) or described.readable_end <= closed:
            return
        if described.end - described.readable_end <= CLOSE_ENOUGH:
            return
        closed = described.readable_end
        policy = FillPolicy(HOLE_WAIT_MS)
        result = yield from repair(projection, closed, policy, make_junk, patience)
        if isinstance(result, ChainTrouble):
            return


def teach(projection: Projection, learner: NodeId) -> Procedure[Answer]:
    """Let `learner` copy the log until little is left; answers Learned, or what stopped it."""
    others = projection.chain[:-1]
    request = Learn(projection.log, projection.epoch, projection.tail, others)
    before = 0
    rounds = 0
    while True:
        answer = yield from ask(learner, request, LEARN_TIMEOUT_MS)
        if not isinstance(answer, Learned):
            return answer
        rounds += 1
        if answer.contiguous_end - before <= CLOSE_ENOUGH or rounds >= LEARN_ROUNDS_MAX:
            return answer
        before = answer.contiguous_end
