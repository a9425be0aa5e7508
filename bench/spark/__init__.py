"""Spark: reading logs against the same Arrow batches from memory and against Parquet."""
