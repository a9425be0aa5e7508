"""Backup: logs and buckets as Parquet files in a folder, each run on top of the one before.

`manifest.py` says what a folder holds, `planning.py` what a run saves, `logs.py` and `buckets.py`
are the tasks that save it into `files.py`; `checking.py` proves a folder whole.  The other
direction is `pipelines/restore`.
"""

from millrace.spark.pipelines.backup.checking import Problem, check_folder
from millrace.spark.pipelines.backup.manifest import Chain, Manifest
from millrace.spark.pipelines.backup.running import BackupSettings, run_backup

__all__ = ["BackupSettings", "Chain", "Manifest", "Problem", "check_folder", "run_backup"]
