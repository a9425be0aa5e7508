"""The pipeline `restore`: what a backup holds, into another cluster or the same one.

Everything that could be refused is looked at before anything is written: the folder's files, the
logs and buckets that are there.
"""

from pathlib import Path

import msgspec

from millrace.client.log import Log
from millrace.errors import DamagedBackup, UsageError
from millrace.spark import workers
from millrace.spark.buckets.options import DURABILITIES
from millrace.spark.pipelines.backup.checking import check_files
from millrace.spark.pipelines.backup.manifest import Chain, SavedLog
from millrace.spark.pipelines.backup.planning import named
from millrace.spark.pipelines.backup.running import parse_until
from millrace.spark.pipelines.context import Context, Progress
from millrace.spark.pipelines.restore import buckets, logs
from millrace.spark.pipelines.restore.buckets import Conflict, Wish
from millrace.spark.pipelines.restore.choosing import Chosen, LogSource, choose_sources
from millrace.spark.pipelines.restore.logs import RestoredLog
from millrace.spark.pipelines.restore.state import StateFile
from millrace.types import LogAttributes, WritePath


class RestoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str  # Where to restore to: addresses of nodes.
    folder: str  # That of the backup.
    logs: tuple[str, ...] | None = None  # Names or patterns; all, unless buckets are named.
    buckets: tuple[str, ...] | None = None  # Names or patterns; all, unless logs are named.
    run: int | None = None  # As of this run of the backup; the last one if it is not given.
    until: str = ""  # A time, or JSON with a position for each log: nothing from there on.
    conflict: Conflict = Conflict.REFUSE  # About documents that the bucket has already.
    write_path: WritePath | None = None  # Another kind of log than the saved one.
    replication: int | None = None  # Other than the saved one.
    durability: str = "majority"  # When a document counts as restored: none, majority, ...

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.durability not in DURABILITIES:
            raise UsageError(
                f"durability = {self.durability!r}: give one of {', '.join(DURABILITIES)}"
            )


def run_restore(settings: RestoreSettings, context: Context) -> None:
    chain = _chain(settings)
    bound = parse_until(settings.until)
    chosen = choose_sources(chain, *named(settings.logs, settings.buckets), bound)
    problems = check_files(chosen.files(chain))
    if problems:
        raise DamagedBackup(f"{settings.folder} is damaged: " + "; ".join(map(str, problems)))
    client = workers.client(settings.cluster)
    asked = {"folder": str(chain.folder), "until": settings.until, "cluster_id": client.id}
    asked["run"] = str(settings.run or "")
    states = StateFile(context.state, asked)
    targets = {
        each.saved.name: logs.open_target(client, each, _attributes(each.saved, settings), states)
        for each in chosen.logs
    }
    for bucket in chosen.buckets:
        buckets.open_target(client, bucket, settings.conflict, states)
    _Restoring(settings, context, states, chosen).run(targets)


def _chain(settings: RestoreSettings) -> Chain:
    folder = Path(settings.folder).absolute()
    chain = Chain.read(folder)
    if not chain.runs:
        raise UsageError(f"folder={settings.folder}: there is no complete run of a backup")
    return chain if settings.run is None else chain.until(settings.run)


def _attributes(saved: SavedLog, settings: RestoreSettings) -> LogAttributes:
    attributes = saved.attributes
    if settings.write_path is not None:
        attributes = msgspec.structs.replace(attributes, write_path=settings.write_path)
    if settings.replication is not None:
        attributes = msgspec.structs.replace(attributes, replication=settings.replication)
    return attributes


class _Restoring:
    def __init__(
        self, settings: RestoreSettings, context: Context, states: StateFile, chosen: Chosen
    ) -> None:
        self._settings = settings
        self._context = context
        self._states = states
        self._chosen = chosen
        self._client = workers.client(settings.cluster)
        self._rows = 0

    def run(self, targets: dict[str, Log]) -> None:
        lines: list[str] = []
        for source in self._chosen.logs:
            if self._context.is_stopping:
                return
            restored = self._log(source, targets[source.saved.name])
            lines.append(restored.line())
            self._context.say(lines[-1])
        for bucket in self._chosen.buckets:
            if self._context.is_stopping:
                return
            made = buckets.restore_bucket(
                self._context.spark,
                self._client,
                self._settings.cluster,
                bucket,
                Wish(self._settings.conflict, DURABILITIES[self._settings.durability]),
            )
            lines.append(made.line())
            self._context.say(lines[-1])
            self._rows += made.written + made.renewed
            self._tell(bucket.saved.name, 0)
        self._context.conclude("\n".join(lines), details={"rows": self._rows})

    def _log(self, source: LogSource, target: Log) -> RestoredLog:
        app = f"restore/{self._states.state.id}/{target.info.id}"
        restored = logs.restore_log(
            self._context.spark,
            self._client,
            self._settings.cluster,
            source,
            target,
            app,
            lambda rows: self._tell(source.saved.name, rows),
        )
        self._rows += restored.rows
        return restored

    def _tell(self, name: str, rows: int) -> None:
        self._context.report(Progress(rows=self._rows + rows, note=name))
