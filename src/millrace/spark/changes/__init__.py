"""Spark's source `millrace-changes`: the changes of a bucket as rows, through failovers.

What is decided is in `core/documents/` (`change_query.py`, `change_ring.py`, `range_consumer.py`);
here are options, columns, offsets, and both sides that Spark runs: the driver plans (`stream.py`,
`batch.py`), tasks read (`task.py`, `reading.py`), and both meet in the ring (`ring.py`).
"""
