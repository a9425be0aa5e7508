"""What a node's metrics say, read from its parts when somebody asks (`metrics.py` lists them)."""

from millrace.runtime.conditions import TransportCounters
from millrace.server.keeper import KeeperLoop
from millrace.server.metrics import Reading
from millrace.server.partitions.node_documents import NodeDocuments
from millrace.server.rebuilding import Rebuilding
from millrace.server.shell import NodeShell
from millrace.store.lmdb_store import LmdbStore
from millrace.types import NodeId


def readings_of_transport(counters: TransportCounters) -> dict[str, Reading]:
    return {
        "millrace_frames_received": counters.frames_in,
        "millrace_frames_sent": counters.frames_out,
        "millrace_received_bytes": counters.bytes_in,
        "millrace_sent_bytes": counters.bytes_out,
        "millrace_connections": counters.connections,
        "millrace_connections_closed": {k: float(v) for k, v in counters.closes.items()},
    }


def readings_of_store(store: LmdbStore, shell: NodeShell) -> dict[str, Reading]:
    usage = store.usage()
    return {
        "millrace_store_commits": store.commits,
        "millrace_store_unsynced_bytes": store.unsynced_bytes,
        "millrace_store_used_bytes": usage.bytes_used,
        "millrace_store_full": float(usage.is_full),
        "millrace_store_logs": len(store.logs()),
        "millrace_store_blocks_read": store.blocks_read,
        "millrace_corrupt_blocks": shell.corrupt_blocks,
        "millrace_streams_refused": {
            reason: float(count) for reason, count in shell.core.stream_refusals().items()
        },
    }


def readings_of_keeper(keeper: KeeperLoop, rebuilding: Rebuilding) -> dict[str, Reading]:
    return {
        "millrace_keeper": float(keeper.is_keeper),
        "millrace_keeper_steps": {
            kind.value: float(count) for kind, count in keeper.steps_done.items()
        },
        "millrace_keeper_steps_failed": keeper.steps_failed,
        "millrace_rebuilt_blocks": rebuilding.blocks_done,
        "millrace_rebuilt_bytes": rebuilding.bytes_done,
        "millrace_rebuild_left_blocks": _by_node(rebuilding.blocks_left),
        "millrace_rebuild_left_bytes": _by_node(rebuilding.bytes_left),
    }


def readings_of_documents(documents: NodeDocuments | None) -> dict[str, Reading]:
    if documents is None:
        return dict.fromkeys(DOCUMENT_METRICS, 0.0)
    return documents.readings()


DOCUMENT_METRICS = (
    "millrace_documents",
    "millrace_document_partitions",
    "millrace_document_memory_bytes",
    "millrace_document_queued_bytes",
    "millrace_document_flushes",
    "millrace_document_connections",
    "millrace_document_streams",
)


def _by_node(counts: dict[NodeId, int]) -> dict[str, float]:
    return {str(node): float(count) for node, count in counts.items()}
