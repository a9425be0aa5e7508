"""The public API: `connect()`, `Log`, `Reader`; async, with a sync facade in `millrace.sync`."""

from millrace.client.cluster import Client, ClusterStatus, connect
from millrace.client.describe import LogDescription
from millrace.client.log import Log
from millrace.client.outcomes import UnknownAppend
from millrace.client.reader import Reader

__all__ = ["Client", "ClusterStatus", "Log", "LogDescription", "Reader", "UnknownAppend", "connect"]
