"""The pipeline `search`: a full-text index over a bucket's JSON documents.

`texts.py` says what of a document is searched, `index.py` is a shard, `job.py` the query that keeps
them up to date, `query.py` how they are asked.  How a bucket is followed is in
`bucket_state`.
"""

from millrace.spark.pipelines.search.index import Hit
from millrace.spark.pipelines.search.job import run_search
from millrace.spark.pipelines.search.query import SearchAnswer, query_search
from millrace.spark.pipelines.search.settings import SearchSettings, Tokenizer

__all__ = ["Hit", "SearchAnswer", "SearchSettings", "Tokenizer", "query_search", "run_search"]
