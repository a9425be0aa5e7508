"""Millrace: a replicated log and change-stream store whose pipelines run on Spark."""

__version__ = "0.1.0"
