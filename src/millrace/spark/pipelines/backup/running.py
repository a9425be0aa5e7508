"""The pipeline `backup`: one run, on top of those that the folder has.

The folder must be seen under the same path by the driver and by all executors.
"""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from millrace.errors import UsageError
from millrace.spark import workers
from millrace.spark.options import Bound
from millrace.spark.options import parse as parse_options
from millrace.spark.pipelines.backup import manifest as manifests
from millrace.spark.pipelines.backup.buckets import save_buckets
from millrace.spark.pipelines.backup.logs import save_logs
from millrace.spark.pipelines.backup.manifest import Chain, Manifest, Mode
from millrace.spark.pipelines.backup.planning import Wanted, named, plan_run
from millrace.spark.pipelines.context import Context, Progress
from millrace.spark.pipelines.whole_files import make_folder


class BackupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An empty tuple of logs or buckets means none of them, and all of the others."""

    cluster: str  # Addresses of nodes.
    folder: str  # Where the backup is; all of Spark's workers must see it under this path.
    logs: tuple[str, ...] | None = None  # Names or patterns; all, unless buckets are named.
    buckets: tuple[str, ...] | None = None  # Names or patterns; all, unless logs are named.
    mode: Mode = Mode.AUTO  # On top of the last run, or full; auto: full if there is none.
    until: str = ""  # Logs only up to there: a time, or JSON with a position for each log.


def run_backup(settings: BackupSettings, context: Context) -> None:
    folder = Path(settings.folder).absolute()
    make_folder(folder)
    until = parse_until(settings.until)
    wanted = Wanted(*named(settings.logs, settings.buckets), settings.mode, until)
    with _alone(folder):
        made = _run(settings, context, folder, wanted)
    note = f"run {made.run} is complete"
    context.report(Progress(batch=made.run, rows=made.rows, note=note))
    for line in _lines(made):
        context.say(line)
    context.conclude("\n".join(_lines(made)), details={"run": made.run, "rows": made.rows})


def _run(settings: BackupSettings, context: Context, folder: Path, wanted: Wanted) -> Manifest:
    started_ms = time.time_ns() // 1_000_000
    chain = Chain.read(folder)
    client = workers.client(settings.cluster)
    plan = workers.run(plan_run(client, chain, wanted))
    number = 1 + (chain.last.run if chain.last is not None else 0)
    run = manifests.begin_run(folder, number)
    context.say(f"run {number}: {len(plan.logs)} logs, {len(plan.buckets)} buckets, into {run}")
    # Buckets first: their ends are those of the moment when they are read, and logs, whose ends
    # are fixed, lose nothing by waiting.
    buckets = save_buckets(context.spark, settings.cluster, client.id, plan.buckets, run)
    logs = save_logs(context.spark, settings.cluster, plan.logs, run)
    made = Manifest(
        number,
        settings.mode,
        client.name,
        client.id,
        started_ms,
        time.time_ns() // 1_000_000,
        chain.last.run if chain.last is not None else 0,
        chain.sha256(chain.last.run) if chain.last is not None else "",
        logs,
        buckets,
    )
    _remove_strays(run, made)
    manifests.write(folder, made)
    return made


def _remove_strays(run: Path, made: Manifest) -> None:
    """Files of attempts that did not count."""
    named = {run / file.path for each in made.parts for file in each.files}
    for path in run.rglob("*.parquet"):
        if path not in named:
            path.unlink()


def _lines(made: Manifest) -> Iterator[str]:
    for log in made.logs:
        kind = "full" if log.is_full else "on top"
        kinds = ", ".join(sorted({gap.kind.value for gap in log.gaps}))
        gaps = f", {len(log.gaps)} gaps ({kinds})" if log.gaps else ""
        yield f"log {log.name}: {log.rows} records up to {log.end}, {kind}{gaps}"
    for bucket in made.buckets:
        full = sum(each.is_full for each in bucket.partitions)
        yield f"bucket {bucket.name}: {bucket.rows} changes, {full} partitions full"


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another backup into {folder} is running: wait for it, or give another folder"
            ) from None
        yield


def parse_until(text: str) -> Bound | None:
    """A time, or JSON with a position for each log, as the options of the source are written."""
    if not text:
        return None
    option = "endingOffsets" if text.lstrip().startswith("{") else "endingTimestamp"
    given = {"cluster": "-", "log": "-", option: text}
    try:
        bound = parse_options(given).ending
    except UsageError as error:
        raise UsageError(f"until={text!r}: {error}") from None
    assert bound is not None
    return msgspec.structs.replace(bound, option="until")
