"""The closing table: every number that the demo claims."""

import msgspec
from rich.table import Table

from millrace.core.projection import Projection
from millrace.demo.ledger import Counts, Ledger
from millrace.demo.proof import ReadBack, different_counts
from millrace.demo.records import RECORD_BYTES
from millrace.demo.timeline import Timeline

Row = tuple[str, str]


class Report(msgspec.Struct):
    ledger: Ledger
    read_back: ReadBack
    timeline: Timeline
    projection: Projection
    append_s: float
    measured: int  # Records that were appended in that time.
    rate: int  # Records a second that were asked for; 0: as many as go.
    counts: Counts | None = None  # Spark's, if it took part.

    @property
    def is_proven(self) -> bool:
        return self.read_back.is_equal(self.ledger) and (
            self.counts is None or not different_counts(self.counts, self.ledger)
        )

    @property
    def title(self) -> str:
        return "Nothing was lost" if self.is_proven else "Something is wrong"

    @property
    def summary(self) -> str:
        counted = "" if self.counts is None else f", {self.counts.total():,} counted by Spark"
        return (
            f"{self.ledger.appended:,} records appended, {self.read_back.records:,} read back"
            f"{counted}; node {self.timeline.killed} killed half-way"
        )

    def table(self) -> Table:
        table = Table(title=self.title)
        table.add_column("what")
        table.add_column("result", justify="right")
        for row in (*self._proof(), *self._failure(), *self._rates(), *self._spark_rates()):
            table.add_row(*row)
        return table

    def _proof(self) -> list[Row]:
        found = self.read_back
        gaps = ", ".join(f"{kind} {count}" for kind, count in sorted(found.gaps.items()))
        return [
            ("appended and acknowledged on disk", f"{self.ledger.appended:,}"),
            ("read back", f"{found.records:,} ({_verdict(found.is_equal(self.ledger))})"),
            *self._spark_proof(),
            ("missing / doubled / different", f"{found.missing} / {found.doubled} / {found.wrong}"),
            ("gaps by kind", gaps or "none"),
            ("appends with unknown outcome, resumed", str(self.ledger.resumed)),
        ]

    def _spark_proof(self) -> list[Row]:
        if self.counts is None:
            return []
        different = different_counts(self.counts, self.ledger)
        return [
            ("counted by Spark", f"{self.counts.total():,} ({_verdict(not different)})"),
            (
                "its counts by key and second",
                f"{len(self.counts):,}, {different or 'none'} different",
            ),
        ]

    def _failure(self) -> list[Row]:
        timeline = self.timeline
        resumed = "-"
        if timeline.resumed_s is not None:
            resumed = f"{(timeline.resumed_s - timeline.killed_s) * 1000:.0f} ms"
        return [
            ("node killed", str(timeline.killed)),
            ("appends went on after", resumed),
            ("third copy restored after", f"{timeline.restored_s - timeline.killed_s:.1f} s"),
            (
                "reconfigurations",
                f"{self.projection.changes} (now epoch {self.projection.epoch})",
            ),
            (
                "longest pause between acknowledgements",
                f"{self.ledger.longest_pause_s * 1000:.0f} ms",
            ),
        ]

    def _rates(self) -> list[Row]:
        found = self.read_back
        copies = found.bytes_received / max(found.bytes_delivered, 1)
        paced = ", as paced" if self.rate else ""
        return [
            ("copies received per record", f"{copies:.2f}"),
            ("append rate", _rate(self.measured, self.append_s) + paced),
            ("read rate", _rate(found.records, found.seconds)),
        ]

    def _spark_rates(self) -> list[Row]:
        if self.counts is None:
            return []
        steps = self.timeline.input_rate()
        rows = sum(batch.rows for batch in self.timeline.measured())
        return [
            ("Spark's input rate", _rate(rows, steps.edges_s[-1])),
            ("Spark's largest lag", f"{max(n for _, n in self.timeline.lag()):,} records"),
            ("Spark's micro-batches", str(len(self.timeline.batches))),
        ]


def _verdict(is_equal: bool) -> str:
    return "[green]equal[/green]" if is_equal else "[red]NOT EQUAL[/red]"


def _rate(count: int, seconds: float) -> str:
    per_second = count / max(seconds, 1e-9)
    return f"{per_second:,.0f} records/s ({per_second * RECORD_BYTES / 1e6:.0f} MB/s)"
