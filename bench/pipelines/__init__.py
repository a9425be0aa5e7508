"""Pipelines: what Spark writes and follows, beside what the plain client does on the same cluster.

One cluster and one session for all rows (`bench/spark/stage.py`), the peers of a row in turns.
"""
