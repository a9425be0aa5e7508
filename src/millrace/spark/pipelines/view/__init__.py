"""The pipeline `view`: an incremental map/reduce over a bucket's documents.

`job.py` is the query, `documents.py` and `groups.py` its two stages over shards, `reduces.py` what
is made of values, `query.py` how it is asked.  How a bucket is followed, and what a shard is, is in
`bucket_state`.
"""

from millrace.spark.pipelines.view.job import run_view
from millrace.spark.pipelines.view.query import ViewAnswer, ViewRow, query_view
from millrace.spark.pipelines.view.settings import Language, OnError, ResultKind, ViewSettings
from millrace.spark.pipelines.view.table import newest_version

__all__ = [
    "Language",
    "OnError",
    "ResultKind",
    "ViewAnswer",
    "ViewRow",
    "ViewSettings",
    "newest_version",
    "query_view",
    "run_view",
]
