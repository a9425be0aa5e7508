"""Following the changes of a bucket: a consumer, what it hands out, where it keeps its place.

Also called `millrace.changes`.  The protocol's decisions are in `core/documents/`; here are the
connections, the order of what must be durable before what, and the application's side.
"""

from millrace.client.changes.batches import BatchCause, ChangeBatch, Lag
from millrace.client.changes.consumer import ChangeConsumer
from millrace.client.changes.file_state import FileConsumerState
from millrace.client.changes.offsets import Offset
from millrace.client.changes.states import ConsumerState, MemoryConsumerState

__all__ = [
    "BatchCause",
    "ChangeBatch",
    "ChangeConsumer",
    "ConsumerState",
    "FileConsumerState",
    "Lag",
    "MemoryConsumerState",
    "Offset",
]
