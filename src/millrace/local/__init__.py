"""A cluster of real processes on this machine: for `millrace dev`, demos, tests and benchmarks."""

from millrace.local.cluster import LocalCluster, LocalNode

__all__ = ["LocalCluster", "LocalNode"]
