"""What is wrong with a log, told from what its nodes hold."""

from collections.abc import Callable

import pytest
from sequenced_cluster import LOG, ModelCluster, data, junk, nodes

from millrace.core.epochs import EpochRange
from millrace.core.replication import Replication
from millrace.core.sequenced.verifying import FINDINGS_MAX, Verdict, Wrong, verify
from millrace.lsn import lsn_of
from millrace.types import (
    FIRST_LSN,
    AuthoritativeStatus,
    Block,
    EntryKind,
    Epoch,
    NodeId,
    Placement,
    Token,
)

RELEASED = lsn_of(Epoch(1), 8)
BLOCKS = 8  # Of one record each; enough for several pages of a model node.


def sound() -> ModelCluster:
    cluster = ModelCluster(5)
    for offset in range(1, BLOCKS + 1):
        first = offset % 5
        cluster.append(data(1, offset), (first + 1, (first + 1) % 5 + 1, (first + 2) % 5 + 1))
    return cluster


def look(cluster: ModelCluster, epochs: int = 1) -> Verdict:
    spans = [EpochRange(Epoch(1), Epoch(epochs), tuple(cluster.nodes), Replication.of(3))]
    released = RELEASED if epochs == 1 else lsn_of(Epoch(epochs), 1)
    found: Verdict = cluster.run(
        verify(LOG, FIRST_LSN, released, spans, cluster.locations, cluster.statuses)
    )
    return found


def a_holder(cluster: ModelCluster, offset: int) -> NodeId:
    return min(n for n, node in cluster.nodes.items() if lsn_of(Epoch(1), offset) in node.blocks)


def test_a_sound_log() -> None:
    verdict = look(sound())
    assert verdict.is_sound
    counted = (verdict.blocks, verdict.records, verdict.copies, verdict.surplus)
    assert counted == (BLOCKS, BLOCKS, 3 * BLOCKS, 0)
    assert verdict.nodes == nodes(1, 2, 3, 4, 5)


def lose_everywhere(cluster: ModelCluster) -> None:
    for node in cluster.nodes.values():
        node.blocks.pop(lsn_of(Epoch(1), 4), None)


def lose_the_last(cluster: ModelCluster) -> None:
    for node in cluster.nodes.values():
        node.blocks.pop(RELEASED, None)


def lose_one(cluster: ModelCluster) -> None:
    del cluster.nodes[a_holder(cluster, 4)].blocks[lsn_of(Epoch(1), 4)]


def be_silent(cluster: ModelCluster) -> None:
    cluster.down.add(a_holder(cluster, 4))


def differ(cluster: ModelCluster) -> None:
    node = cluster.nodes[a_holder(cluster, 4)]
    old, placement = node.blocks[lsn_of(Epoch(1), 4)]
    other = Block(LOG, old.first, 1, old.epoch, old.kind, Token(9, 9), 12, b"y")
    node.blocks[old.first] = other, placement


def name_another(cluster: ModelCluster) -> None:
    for node in cluster.nodes.values():
        held = node.blocks.get(lsn_of(Epoch(1), 4))
        if held is not None:
            others = [n for n in cluster.nodes if n not in held[1].copyset]
            named = Placement((*held[1].copyset[:2], others[0]), held[1].wave)
            node.blocks[held[0].first] = held[0], named


@pytest.mark.parametrize(
    ("harm", "wrong"),
    [
        (lose_everywhere, {Wrong.NOT_TILED: 1}),
        (lose_the_last, {Wrong.NOT_TILED: 1}),
        (lose_one, {Wrong.TOO_FEW_COPIES: 1, Wrong.NOT_HELD: 1}),
        (differ, {Wrong.DIFFERENT: 1, Wrong.TOO_FEW_COPIES: 1, Wrong.NOT_HELD: 1}),
        (name_another, {Wrong.NOT_HELD: 1}),
    ],
    ids=lambda harm: getattr(harm, "__name__", ""),
)
def test_what_is_wrong(harm: Callable[[ModelCluster], None], wrong: dict[Wrong, int]) -> None:
    cluster = sound()
    harm(cluster)
    verdict = look(cluster)
    assert verdict.counts == wrong
    for finding in verdict.findings:
        assert finding.first == lsn_of(Epoch(1), 8 if harm is lose_the_last else 4)


def test_a_silent_node_has_no_copies_that_count() -> None:
    cluster = sound()
    be_silent(cluster)
    verdict = look(cluster)
    assert verdict.counts[Wrong.SILENT_NODE] == 1
    assert verdict.counts[Wrong.TOO_FEW_COPIES] > 1


def test_an_empty_node_need_not_answer_and_its_copies_do_not_count() -> None:
    cluster = sound()
    cluster.statuses[NodeId(5)] = AuthoritativeStatus.AUTHORITATIVE_EMPTY
    assert look(cluster).counts.keys() == {Wrong.TOO_FEW_COPIES}
    cluster.down.add(NodeId(5))
    assert Wrong.SILENT_NODE not in look(cluster).counts


def test_a_copy_too_many_is_harmless() -> None:
    cluster = sound()
    block, placement = cluster.nodes[a_holder(cluster, 4)].blocks[lsn_of(Epoch(1), 4)]
    other = next(n for n in cluster.nodes if n not in placement.copyset)
    cluster.nodes[other].put(block, placement)
    verdict = look(cluster)
    assert (verdict.is_sound, verdict.surplus) == (True, 1)


def test_epochs_end_where_they_end_and_begin_at_one() -> None:
    cluster = sound()
    bridge = junk(LOG, lsn_of(Epoch(1), 9), 1, EntryKind.BRIDGE)
    for node in cluster.nodes.values():
        node.put(bridge, Placement(nodes(1, 2, 3), 1, Epoch(2)))
    cluster.append(data(2, 1), (1, 2, 3))
    assert look(cluster, epochs=2).is_sound
    late = ModelCluster(5)
    late.append(data(2, 2), (1, 2, 3))
    assert look(late, epochs=2).counts == {Wrong.NOT_TILED: 1}


def test_what_was_trimmed_is_not_missed() -> None:
    cluster = sound()
    for node in cluster.nodes.values():
        node.trim_end = lsn_of(Epoch(1), 5)
        node.blocks = {at: held for at, held in node.blocks.items() if at >= node.trim_end}
    verdict = look(cluster)
    assert (verdict.is_sound, verdict.blocks) == (True, 4)


def test_a_block_across_the_trim_point_is_there() -> None:
    cluster = ModelCluster(3)
    block = data(1, 1, 4)
    cluster.append(block, (1, 2, 3))
    cluster.append(data(1, 5), (1, 2, 3))
    for offset in (6, 7, 8):
        cluster.append(data(1, offset), (1, 2, 3))
    for node in cluster.nodes.values():
        node.trim_end = lsn_of(Epoch(1), 3)
    verdict = look(cluster)
    assert (verdict.is_sound, verdict.blocks, verdict.records) == (True, 5, 6)


def test_many_findings_are_counted_and_some_are_told() -> None:
    verdict = Verdict()
    for offset in range(2 * FINDINGS_MAX):
        at = lsn_of(Epoch(1), offset)
        verdict.add(Wrong.NOT_TILED, at, at, "")
    assert verdict.counts == {Wrong.NOT_TILED: 2 * FINDINGS_MAX}
    assert len(verdict.findings) == FINDINGS_MAX
