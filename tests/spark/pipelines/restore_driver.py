"""A restore in a process of its own, for a test that kills it: CLUSTER FOLDER HOME."""

import sys
from pathlib import Path

import millrace.spark
from millrace.spark.pipelines.context import Context
from millrace.spark.pipelines.restore import RestoreSettings, run_restore
from tests.support.spark import quick_settings


def main() -> None:
    cluster, folder, home = sys.argv[1:]
    spark = millrace.spark.session("restore", "local[2]", **quick_settings(Path(home)))
    run_restore(RestoreSettings(cluster=cluster, folder=folder), Context.at(home, spark))
    spark.stop()


if __name__ == "__main__":
    main()
