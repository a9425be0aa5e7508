"""The public API: `connect()`, `Log`, `Reader`, `Bucket`; async, with a sync facade in
`millrace.sync`."""

from millrace.client.bucket import Bucket
from millrace.client.bucket_results import Changed, Counted, Found
from millrace.client.cluster import Client, ClusterStatus, connect
from millrace.client.describe import LogDescription
from millrace.client.describe_sequenced import SequencedDescription
from millrace.client.log import Log
from millrace.client.multi_reader import LogGap, LogRecords, MultiReader
from millrace.client.outcomes import UnknownAppend
from millrace.client.reader import Reader
from millrace.client.stream_reading import StreamEntry
from millrace.core.documents.revisions import Revision

__all__ = [
    "Bucket",
    "Changed",
    "Client",
    "ClusterStatus",
    "Counted",
    "Found",
    "Log",
    "LogDescription",
    "LogGap",
    "LogRecords",
    "MultiReader",
    "Reader",
    "Revision",
    "SequencedDescription",
    "StreamEntry",
    "UnknownAppend",
    "connect",
]
