"""Restore: logs and buckets of a backup into a cluster, once, however often it is begun.

`choosing.py` says which files make up what is wanted, `logs.py` and `buckets.py` write them,
`state.py` is what a restore remembers.  The other direction is `pipelines/backup`.
"""

from millrace.spark.pipelines.restore.running import RestoreSettings, run_restore

__all__ = ["RestoreSettings", "run_restore"]
