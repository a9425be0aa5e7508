"""What happened when, as curves: pure, from the acknowledgements and Spark's micro-batches.

Times are seconds since the first append that was measured; what came before is the start of each
sum.
"""

from itertools import pairwise

import msgspec

from millrace.demo.spark_messages import Batch


class Steps(msgspec.Struct, frozen=True):
    """Value i holds between edges i and i + 1."""

    edges_s: list[float]
    values: list[float]


class Timeline(msgspec.Struct):
    started_s: float = 0.0  # This and the others in seconds since 1970.
    killed_s: float = 0.0
    restored_s: float = 0.0  # The log had all its copies again.
    # The first acknowledgement by a chain without the node; None if everything was acknowledged
    # before.
    resumed_s: float | None = None
    killed: int = 0  # The node.
    acknowledgements: list[tuple[float, int]] = []
    batches: list[Batch] = []

    def append_rate(self, step_s: float) -> Steps:
        """Acknowledged records a second, in steps of equal length."""
        sums = self._appended()
        count = max(1, int(sums[-1][0] / step_s) + 1)
        values = [0.0] * count
        for (_, before), (at_s, total) in pairwise(sums):
            values[int(at_s / step_s)] += (total - before) / step_s
        return Steps([index * step_s for index in range(count + 1)], values)

    def input_rate(self) -> Steps:
        """Records a second that Spark took in, a step for each micro-batch."""
        edges_s, values = [0.0], []
        for batch in self.measured():
            done_s = batch.done_s - self.started_s
            if done_s > edges_s[-1]:
                values.append(batch.rows / (done_s - edges_s[-1]))
                edges_s.append(done_s)
        return Steps(edges_s, values)

    def lag(self) -> list[tuple[float, int]]:
        """Records that were acknowledged and not yet counted by Spark, at each change."""
        before = sum(batch.rows for batch in self.batches) - sum(
            batch.rows for batch in self.measured()
        )
        changes = [(0.0, -before)]
        appended = 0
        for at_s, total in self._appended():
            changes.append((at_s, total - appended))
            appended = total
        changes += [(batch.done_s - self.started_s, -batch.rows) for batch in self.measured()]
        points: list[tuple[float, int]] = []
        behind = 0
        for at_s, change in sorted(changes, key=lambda each: each[0]):
            behind += change
            # Spark may count a record before its writer hears of the acknowledgement.
            points.append((at_s, max(0, behind)))
        return points

    def measured(self) -> list[Batch]:
        """The micro-batches that were done after the start."""
        return [batch for batch in self.batches if batch.done_s > self.started_s]

    def _appended(self) -> list[tuple[float, int]]:
        """Sums from the start on; the first is what was appended before."""
        before = max((n for at_s, n in self.acknowledgements if at_s <= self.started_s), default=0)
        after = [(at_s - self.started_s, n) for at_s, n in self.acknowledgements]
        return [(0.0, before), *(each for each in after if each[0] > 0)]
