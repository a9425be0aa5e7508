"""The audit: one task for each node and part, one group for each part, one verdict for each log.

What is found is looked at again: the nodes of a log, and who holds what, may change while copies
are read, and only what is still wrong afterwards is wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from millrace.client.cluster import Client
from millrace.core.auditing import Part, judge
from millrace.core.sequenced.verifying import FINDINGS_MAX, Finding, Verdict
from millrace.lsn import show
from millrace.spark import workers
from millrace.spark.pipelines.audit import copies as tasks
from millrace.spark.pipelines.audit.planning import (
    Plan,
    Surroundings,
    find_logs,
    look_around,
    plan_log,
)
from millrace.spark.pipelines.context import Context, Progress
from millrace.types import LogInfo, WritePath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOKS_MAX: Final = 3
FINDINGS_SHOWN: Final = 20
VERDICTS: Final = "log string, verdict binary"


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str  # Addresses of nodes.
    logs: tuple[str, ...] = ()  # Names or patterns; none: all logs.


class LogReport(msgspec.Struct, frozen=True):
    log: str
    kind: WritePath
    verdict: Verdict
    is_deleted: bool = False  # Since the audit began: nothing of it was to be looked at any more.

    @property
    def is_sound(self) -> bool:
        return self.verdict.is_sound

    def show(self, finding: Finding) -> str:
        """For people: which positions of which log, what, and on which nodes."""
        as_text = show if self.kind is WritePath.SEQUENCED else str
        positions = f"{as_text(finding.first)}..{as_text(finding.last)}"
        return f"{finding.wrong.value}: log {self.log}: {positions}: {finding.detail}"


class AuditReport(msgspec.Struct, frozen=True):
    logs: tuple[LogReport, ...]

    @property
    def is_sound(self) -> bool:
        return all(each.is_sound for each in self.logs)

    def lines(self) -> Iterator[str]:
        for each in self.logs:
            if each.is_deleted:
                yield f"deleted: {each.kind.value} log {each.log}: while it was to be audited"
                continue
            verdict = each.verdict
            counted = f"{verdict.blocks} blocks, {verdict.records} records, {verdict.copies} copies"
            wrong = sum(verdict.counts.values())
            sound = "ok" if each.is_sound else f"{wrong} deviations"
            yield f"{sound}: {each.kind.value} log {each.log}: {counted}"
            yield from (each.show(finding) for finding in verdict.findings[:FINDINGS_SHOWN])
            if wrong > FINDINGS_SHOWN:
                yield f"... and {wrong - FINDINGS_SHOWN} more in log {each.log}"


def run_audit(settings: AuditSettings, context: Context) -> None:
    report = audit(context.spark, settings)
    for line in report.lines():
        context.say(line)
    copies_read = sum(each.verdict.copies for each in report.logs)
    context.report(Progress(batch=1, rows=copies_read, note="every copy read"))
    details = msgspec.to_builtins(report, str_keys=True)
    context.conclude("\n".join(report.lines()), is_good=report.is_sound, details=details)


def audit(spark: "SparkSession", settings: AuditSettings) -> AuditReport:
    client = workers.client(settings.cluster)
    infos = workers.run(find_logs(client, settings.logs))
    return audit_logs(spark, settings, client, infos)


def audit_logs(
    spark: "SparkSession", settings: AuditSettings, client: Client, infos: Sequence[LogInfo]
) -> AuditReport:
    reports = _look(spark, settings, client, infos)
    for _ in range(LOOKS_MAX - 1):
        suspects = [info for info in infos if not reports[info.name].is_sound]
        if not suspects:
            break
        reports |= _look(spark, settings, client, suspects)
    return AuditReport(tuple(reports[info.name] for info in infos))


def copies(spark: "SparkSession", settings: AuditSettings) -> "DataFrame":
    """A row for each copy that any node holds; for looking around in it."""
    client = workers.client(settings.cluster)
    infos = workers.run(find_logs(client, settings.logs))
    parts = [part for plan in _plans(client, infos) for part in plan.parts]
    return _copies(spark, settings, client, parts)


def _plans(client: Client, infos: Sequence[LogInfo]) -> list[Plan]:
    return [workers.run(plan_log(client, info)) for info in infos]


def _copies(
    spark: "SparkSession", settings: AuditSettings, client: Client, parts: Sequence[Part]
) -> "DataFrame":
    found = [
        tasks.Task(settings.cluster, client.id, number, part, node)
        for number, part in enumerate(parts)
        for node in part.nodes
    ]
    frame = spark.range(0, len(found), 1, max(1, len(found)))
    return frame.mapInArrow(partial(_read_all, found), tasks.SCHEMA)


def _read_all(
    found: Sequence[tasks.Task], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0):
            yield from tasks.read(found[number.as_py()])


def _look(
    spark: "SparkSession", settings: AuditSettings, client: Client, infos: Sequence[LogInfo]
) -> dict[str, LogReport]:
    plans = _plans(client, infos)
    reports = {plan.info.name: _report_of(plan) for plan in plans}
    parts = [part for plan in plans for part in plan.parts]
    around = workers.run(look_around(client))
    rows = _copies(spark, settings, client, parts)
    judged = rows.groupBy("part").applyInArrow(_judge_of(parts, around), VERDICTS)
    for row in judged.collect() if parts else ():
        _add(reports[row["log"]].verdict, msgspec.msgpack.decode(row["verdict"], type=Verdict))
    return reports


def _report_of(plan: Plan) -> LogReport:
    """As far as no copies need be read."""
    kind = plan.info.attributes.write_path
    return LogReport(plan.info.name, kind, plan.findings, plan.is_deleted)


def _judge_of(parts: Sequence[Part], around: Surroundings) -> Callable[[pa.Table], pa.Table]:
    def judge_part(table: pa.Table) -> pa.Table:  # Spark goes by the types.
        part = parts[table.column("part")[0].as_py()]
        verdict = judge(part, tasks.evidence_in(table), around.locations, around.statuses)
        return pa.table({"log": [part.log], "verdict": [msgspec.msgpack.encode(verdict)]})

    return judge_part


def _add(total: Verdict, more: Verdict) -> None:
    total.blocks += more.blocks
    total.records += more.records
    total.bytes += more.bytes
    total.copies += more.copies
    total.surplus += more.surplus
    total.nodes = tuple(sorted({*total.nodes, *more.nodes}))
    for wrong, count in more.counts.items():
        total.counts[wrong] = total.counts.get(wrong, 0) + count
    total.findings += more.findings[: FINDINGS_MAX - len(total.findings)]
