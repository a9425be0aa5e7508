"""Worlds `changes:<seed>`: a bucket whose changes are read by queries, as Spark's source does it.

The cluster and its troubles are those of `sim/documents/`.  A query's driver and tasks run the
decisions of `core/documents/` on virtual lines and time, are killed, repeated and speculated, and
merge what they read into a table by key.  In the end the table is the bucket (G10).
"""
