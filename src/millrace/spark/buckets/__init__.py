"""Spark writes buckets: `df.write.format("millrace-bucket")` and `writeStream`.

Rows are upserts and deletions by key, so writing them again does nothing more: tasks write straight
into the bucket (`writing.py`), and there is nothing to commit.  What the columns mean is in
`columns.py`, what may be asked for in `options.py`.
"""
