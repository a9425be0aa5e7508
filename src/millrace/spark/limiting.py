"""How far one micro-batch goes: what waits, cut back to the limits in records and in bytes.

I1  Only records that are there count: what lies between the epochs of a sequenced log takes no part
    of a limit, and is passed in one step.
I2  A batch that does not take all of a log ends right behind a record.
"""

from collections.abc import Mapping

from millrace.client.log import Log
from millrace.core.runs import Runs
from millrace.spark import bounds, plan
from millrace.spark.options import Options
from millrace.types import Lsn


async def limited(
    options: Options,
    logs: Mapping[str, Log],
    runs: Mapping[str, Runs],
    begins: Mapping[str, Lsn],
    ends: Mapping[str, Lsn],
) -> dict[str, Lsn]:
    """Where each log is read to.  `runs` are those of what waits: from `begins` to `ends`."""
    found = dict(ends)
    if not options.fail_on_data_loss:  # What was trimmed takes no part of a limit.
        now = await bounds.of_each(logs, bounds.readable_ends)
        begins = {name: min(ends[name], max(begins[name], now[name].start)) for name in ends}
    records = options.records_per_trigger
    if records is not None:
        waiting = {name: runs[name].within(begins[name], ends[name]) for name in ends}
        shares = plan.share(records, waiting)
        for name in ends:
            if shares[name] < waiting[name]:
                found[name] = _after(runs[name], begins[name], shares[name])
    size = options.bytes_per_trigger
    if size is not None:
        found = await _within_bytes(size, logs, begins, found)
    return found


def _after(runs: Runs, begin: Lsn, records: int) -> Lsn:
    """The end of the first records from `begin` on."""
    return runs.lsn(runs.flat(begin) + records) if records else begin


async def _within_bytes(
    size: int, logs: Mapping[str, Log], begins: Mapping[str, Lsn], ends: dict[str, Lsn]
) -> dict[str, Lsn]:
    surveys = {
        name: await bounds.survey(log, begins[name], ends[name]) for name, log in logs.items()
    }
    waiting = {name: each.size_bytes for name, each in surveys.items()}
    if sum(waiting.values()) <= size:
        return ends
    shares = plan.share(size, waiting)
    for name, each in surveys.items():
        if waiting[name]:
            ends[name] = await _reach(logs[name], each, shares[name])
    return ends


async def _reach(log: Log, survey: plan.Survey, size: int) -> Lsn:
    """The position up to which about `size` bytes lie, at least one record on.  The piece in which
    it falls is weighed once more: it may be large."""
    runs, left = survey.runs, size
    for part in survey.weights:
        if left < part.size_bytes:
            finer = await bounds.survey(log, runs.lsn(part.first), runs.lsn(part.end))
            if not finer.weights:
                return runs.lsn(part.end)
            found = finer.runs.lsn(plan.reach(finer.weights, left))
            return max(found, runs.lsn(runs.begin + 1))
        left -= part.size_bytes
    return survey.end
