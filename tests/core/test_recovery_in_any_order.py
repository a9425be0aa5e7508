"""Whatever fails in whichever order: what was acknowledged stays, and all see the same."""

import random
from itertools import combinations

import pytest

from millrace.core.sequenced.purging import purge
from millrace.lsn import lsn_of, offset_of
from millrace.types import Epoch
from tests.core.recovering import recovered, recovery
from tests.core.sequenced_cluster import LOG, ModelCluster, data, nodes, show


class Story:
    """A log of a few epochs whose sequencers, recoveries and nodes fail as the seed draws it."""

    SIZE, COPIES = 5, 3

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = ModelCluster(self.SIZE, self.COPIES)
        self.acknowledged: list[tuple[int, int, int]] = []  # Epoch, offset, count.
        self.epoch = 1
        self.cluster.fails = self._fate

    def _fate(self) -> int:
        return self.chance.choices((-1, 0, 1), (3, 94, 3))[0]

    def append_some(self) -> None:
        """In the present epoch, onto the nodes that are up; some waves reach only a part."""
        offset = 1
        for _ in range(self.chance.randrange(6)):
            count_ = self.chance.randint(1, 3)
            for wave in range(1, self.chance.randint(1, 2) + 1):
                copyset = self.chance.sample(range(1, self.SIZE + 1), self.COPIES)
                reached = [
                    node
                    for node in copyset
                    if node not in self.cluster.down and self.chance.random() < 0.8
                ]
                self.cluster.append(data(self.epoch, offset, count_), reached, copyset, wave)
                if len(reached) == self.COPIES:
                    self.acknowledged.append((self.epoch, offset, count_))
                    break
            offset += count_

    def shake(self) -> None:
        """At most R - 1 nodes are down at a time."""
        size = self.chance.randrange(self.COPIES)
        self.cluster.down = set(nodes(*self.chance.sample(range(1, self.SIZE + 1), size)))

    def take_over(self) -> None:
        self.epoch += 1
        running = recovery(self.cluster, self.epoch)
        if self.chance.random() < 0.6:
            self.cluster.interrupt(running, self.chance.randrange(1, 12))
        else:
            self.cluster.paused = self.shake
            self.cluster.run(running)

    def finish(self) -> None:
        self.cluster.down.clear()
        self.cluster.fails = lambda: 0
        self.epoch += 1
        recovered(self.cluster, self.epoch)


@pytest.mark.parametrize("seed", range(300))
def test_acknowledged_blocks_survive_and_all_readers_see_the_same(seed: int) -> None:
    story = Story(seed)
    for _ in range(story.chance.randint(1, 4)):
        story.shake()
        story.append_some()
        story.shake()
        story.take_over()
    story.finish()
    cluster = story.cluster
    majorities = list(combinations(cluster.nodes, story.SIZE - story.COPIES + 1))
    for epoch in range(1, story.epoch):
        views = [cluster.seen_by(majority, epoch) for majority in majorities]
        assert all(view == views[0] for view in views), (epoch, views)
        assert "-" not in views[0]
        assert views[0][-1] == "BRIDGE"
    for epoch, offset, size in story.acknowledged:
        view = cluster.seen_by(cluster.nodes, epoch)
        assert view[offset - 1 : offset - 1 + size] == [f"d{offset}"] * size


@pytest.mark.parametrize("seed", range(100))
def test_a_finished_recovery_stands_although_a_stale_node_comes_back(seed: int) -> None:
    """Whoever was away during it is outvoted in every f-majority that it joins."""
    story = Story(seed)
    cluster = story.cluster
    story.append_some()
    cluster.fails = lambda: 0
    away = set(nodes(*story.chance.sample(range(1, 6), story.chance.randint(1, 2))))
    cluster.down = away
    recovered(cluster, 2)
    present = cluster.nodes.keys() - away
    view = cluster.seen_by(present, 1)
    for node in present:
        assert all(place.recovery == 2 for _, place in cluster.nodes[node].blocks.values())
    cluster.down = set()
    for majority in combinations(cluster.nodes, 3):
        assert cluster.seen_by(majority, 1) == view


@pytest.mark.parametrize("seed", range(60))
def test_a_stale_node_finds_out_what_it_holds_in_vain(seed: int) -> None:
    """Deciding again with the others it drops what was outvoted, and nothing that was
    acknowledged: afterwards what it holds is part of the one truth."""
    story = Story(seed)
    cluster = story.cluster
    story.append_some()
    cluster.fails = lambda: 0
    away = set(nodes(*story.chance.sample(range(1, 6), story.chance.randint(1, 2))))
    cluster.down = away
    recovered(cluster, 2)
    truth = cluster.seen_by(cluster.nodes.keys() - away, 1)
    cluster.down = set()
    for node in away:
        model = cluster.nodes[node]
        before = {block.first for block, _ in model.blocks.values()}
        for first in cluster.run(purge(LOG, node, Epoch(1), Epoch(2), ())):
            del model.blocks[first]
        after = {block.first for block, _ in model.blocks.values()}
        for block, _ in model.blocks.values():
            offset = offset_of(block.first)
            assert truth[offset - 1 : offset] == [show(block)]
        for epoch, offset, _ in story.acknowledged:
            assert lsn_of(Epoch(epoch), offset) not in before - after
        assert model.closed == 1, "nobody told it that its blocks are the truth"
    assert all(cluster.nodes[node].closed == 2 for node in cluster.nodes.keys() - away)
