"""A simulated node's work as a donor, in rounds as `server/rebuilding.py` has them."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from millrace.codec.blocks import junk
from millrace.core.messages import MetaList, MetaListing, MetaSet, Release, Tail
from millrace.core.procedure import Answer
from millrace.core.sequenced.append import Seats
from millrace.core.sequenced.giving import Tally
from millrace.core.sequenced.rebuilding import LogWalk
from millrace.core.sequenced.replacing import Ward
from millrace.core.sequenced.tail import find_tail
from millrace.core.statuses import Entries
from millrace.meta.keys import REBUILDS, RebuildId, RebuildReport
from millrace.server.rebuilding import GIVES, ward_of
from millrace.server.status_keeping import finished_for
from millrace.sim.metadata import METADATA_NUMBER
from millrace.sim.schedule import MS
from millrace.sim.sequenced.surroundings import reports_of
from millrace.types import LogId, NodeId

if TYPE_CHECKING:
    from millrace.sim.node import Node

ROUND_US = 150 * MS


class Donor:
    """For one life of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._seats = Seats()
        self._is_walking = False

    def begin(self) -> None:
        self._node.later(ROUND_US, self.begin)
        board = self._node.board
        entries, mine = board.entries, board.mine
        is_wanted = any(entry.rebuild for entry in entries.values())
        if self._is_walking or not is_wanted or (mine and mine.status not in GIVES):
            return
        listed = partial(self._listed, entries)
        self._node.ask(METADATA_NUMBER, MetaList(REBUILDS.prefix), 0, listed)

    def _listed(self, entries: Entries, answer: Answer) -> None:
        if not isinstance(answer, MetaListing) or self._is_walking:
            return
        reports = reports_of(answer.entries)
        wanted = {node: entry.rebuild for node, entry in entries.items() if entry.rebuild}
        finished = {n: finished_for(n, version, reports) for n, version in wanted.items()}
        ward = ward_of(self._node.node, entries, finished)
        left = {n: version for n, version in wanted.items() if ward.me not in finished[n]}
        if left:
            self._is_walking = True
            self._walk(ward, left, Tally(), iter(list(self._node.store.logs())))

    def _walk(
        self, ward: Ward, wanted: dict[NodeId, int], tally: Tally, logs: Iterator[LogId]
    ) -> None:
        """Log after log; then tell who is done with."""
        for log in logs:
            state = self._node.store.state(log)
            if state is None or not state.is_scattered:
                continue
            readable_end = self._node.shell.core.storage(log).readable_end
            walk = LogWalk(log, ward, state.trim_end, state.end, readable_end, tally, junk)
            before = tally.unsettled

            def walked(trouble: object, log: LogId = log, before: int = before) -> None:
                if trouble is not None:
                    self._is_walking = False
                    return
                if tally.unsettled > before:
                    self._learn_released(log)
                self._walk(ward, wanted, tally, logs)

            self._node.driver.start(walk.run(), walked)
            return
        self._is_walking = False
        self._node.world.count("rebuild.blocks", tally.blocks_done)
        for node, version in wanted.items():
            if not tally.blocks_left.get(node):
                self._report(RebuildId(node, ward.me), RebuildReport(version, is_finished=True))

    def _learn_released(self, log: LogId) -> None:
        def told(tail: Tail | None) -> None:
            if tail is not None:
                release = Release(log, tail.epoch, tail.released, tail.released)
                self._node.tell_myself(release)

        self._node.driver.start(find_tail(log, self._seats), told)

    def _report(self, id: RebuildId, report: RebuildReport) -> None:
        self._node.world.count("rebuild.finished")
        told = MetaSet(REBUILDS.key(id), REBUILDS.encode(report), -1, 0)
        self._node.ask(METADATA_NUMBER, told, 0, lambda _: None)
