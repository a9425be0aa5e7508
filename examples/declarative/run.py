"""Runs this project with Spark's own command, `spark-pipelines`, in its own folder.

    python run.py              # What has come since the last run.
    python run.py dry-run      # Only checks that the project is sound.

It finds Java, or takes the one that comes with Millrace, and keeps tables, their catalog and the
checkpoints here, so that the next run goes on where this one ends.
"""

import os
import re
import sys
from pathlib import Path

from millrace.spark.launch import launch_environment

HERE = Path(__file__).resolve().parent
SPEC = HERE / "spark-pipeline.here.yml"


def main() -> None:
    command, *options = sys.argv[1:] or ["run"]
    storage = f"storage: {(HERE / 'storage').as_uri()}"
    given = (HERE / "spark-pipeline.yml").read_text()
    SPEC.write_text(re.sub(r"^storage: .*$", storage, given, flags=re.MULTILINE))
    os.chdir(HERE)
    os.environ.update(launch_environment(os.environ, {"spark.master": "local"}, is_running=False))
    os.environ["SPARK_CONF_DIR"] = str(HERE / "conf")
    program = str(Path(sys.executable).parent / "spark-pipelines")
    os.execv(program, [program, command, "--spec", str(SPEC), *options])


if __name__ == "__main__":
    main()
