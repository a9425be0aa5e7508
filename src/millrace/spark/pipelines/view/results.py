"""Where a view's results go, batch by batch.

The results of a batch are in the shards before they are written here, and come again as they were
if the batch is run again: upserts of documents stay the same, a log has them once because they are
published under the view's id and the batch's number, a table gets the same version.
"""

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from millrace.spark.pipelines.view.settings import ResultKind, ViewSettings
from millrace.spark.pipelines.view.table import ResultTable


class Results:
    def __init__(self, settings: ViewSettings, id: str) -> None:
        self._settings = settings
        self._app = f"view-{id}"
        is_table = settings.result is ResultKind.TABLE
        self._table = ResultTable(Path(settings.target)) if is_table else None
        if self._table is not None:
            self._table.check()

    def begin(self, batch: int) -> Path | None:
        """Where the tasks write the results as Parquet, if they do."""
        return None if self._table is None else self._table.begin(batch)

    def write(self, results: DataFrame, batch: int) -> None:
        """Runs the batch: `results` is what the tasks will give."""
        settings = self._settings
        cluster = settings.target_cluster or settings.cluster
        match settings.result:
            case ResultKind.BUCKET:
                target = results.write.format("millrace-bucket").option("bucket", settings.target)
                target.mode("append").option("cluster", cluster).save()
            case ResultKind.LOG:
                target = _told(results).write.format("millrace").option("log", settings.target)
                target = target.option("txnAppId", self._app).option("txnVersion", batch)
                target.mode("append").option("cluster", cluster).save()
            case ResultKind.STATE | ResultKind.TABLE:
                results.write.format("noop").mode("overwrite").save()
        if self._table is not None:
            self._table.publish(batch, settings.shards)


def _told(results: DataFrame) -> DataFrame:
    """{"key": ..., "value": ...}, or {"key": ..., "deleted": true}; both are JSON already."""
    key, value = (f.col(name).cast("string") for name in ("key", "value"))
    told = f.when(
        f.col("value").isNull(), f.concat(f.lit('{"key":'), key, f.lit(',"deleted":true}'))
    ).otherwise(f.concat(f.lit('{"key":'), key, f.lit(',"value":'), value, f.lit("}")))
    return results.select("key", told.cast("binary").alias("value"))
