"""A node's metrics, read from its counters when Prometheus asks, never on the hot path.

`METRICS` is the whole list; `docs/reference/metrics.md` is generated from it.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Reading = float | dict[str, float]


class MetricInfo(msgspec.Struct, frozen=True):
    name: str
    kind: str  # counter or gauge
    help: str
    label: str = ""


METRICS: tuple[MetricInfo, ...] = (
    MetricInfo("millrace_frames_received", "counter", "Frames received."),
    MetricInfo("millrace_frames_sent", "counter", "Frames sent."),
    MetricInfo("millrace_received_bytes", "counter", "Bytes received."),
    MetricInfo("millrace_sent_bytes", "counter", "Bytes sent."),
    MetricInfo("millrace_connections", "gauge", "Open connections."),
    MetricInfo("millrace_connections_closed", "counter", "Connections closed.", "reason"),
    MetricInfo("millrace_store_commits", "counter", "Transactions made durable."),
    MetricInfo("millrace_store_unsynced_bytes", "gauge", "Bytes waiting for fsync."),
    MetricInfo("millrace_store_used_bytes", "gauge", "Bytes of the data file in use."),
    MetricInfo("millrace_store_full", "gauge", "1 when the node takes no more blocks."),
    MetricInfo("millrace_store_logs", "gauge", "Logs of which the node holds something."),
    MetricInfo("millrace_store_blocks_read", "counter", "Blocks whose data was read to be sent."),
    MetricInfo("millrace_sequencers", "gauge", "Logs that the node sequences."),
    MetricInfo("millrace_corrupt_blocks", "counter", "Damaged blocks found; they are not served."),
    MetricInfo(
        "millrace_streams_refused",
        "counter",
        "Blocks, commits and synchronizations that replicas of streams did not take.",
        "reason",
    ),
    MetricInfo("millrace_keeper", "gauge", "1 on the node that looks after all logs."),
    MetricInfo("millrace_keeper_steps", "counter", "Steps the keeper finished.", "kind"),
    MetricInfo("millrace_keeper_steps_failed", "counter", "Steps the keeper could not finish."),
    MetricInfo(
        "millrace_rebuilt_blocks", "counter", "Blocks this node gave to others for lost nodes."
    ),
    MetricInfo("millrace_rebuilt_bytes", "counter", "Bytes of these blocks."),
    MetricInfo(
        "millrace_rebuild_left_blocks",
        "gauge",
        "Blocks held here that still name a lost node, at the last walk.",
        "node",
    ),
    MetricInfo("millrace_rebuild_left_bytes", "gauge", "Bytes of these blocks.", "node"),
    MetricInfo(
        "millrace_documents", "gauge", "Documents of partitions that the node is the master of."
    ),
    MetricInfo("millrace_document_partitions", "gauge", "Partitions held, by state.", "state"),
    MetricInfo("millrace_document_memory_bytes", "gauge", "Memory that documents take."),
    MetricInfo("millrace_document_queued_bytes", "gauge", "Changes that are not on disk yet."),
    MetricInfo("millrace_document_flushes", "counter", "Transactions of document changes."),
    MetricInfo("millrace_document_connections", "gauge", "Open connections of documents' clients."),
    MetricInfo("millrace_document_streams", "gauge", "Connections that follow changes."),
    MetricInfo("millrace_events", "counter", "Events noted by the protocol.", "event"),
    MetricInfo("millrace_uptime_seconds", "gauge", "Time since the node started."),
)


class NodeCollector(Collector):
    def __init__(self, read: Callable[[], dict[str, Reading]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        readings = self._read()
        assert readings.keys() == {info.name for info in METRICS}
        for info in METRICS:
            yield from self._family(info, readings[info.name])

    def _family(self, info: MetricInfo, reading: Reading) -> Iterator[Metric]:
        kind = CounterMetricFamily if info.kind == "counter" else GaugeMetricFamily
        family = kind(info.name, info.help, labels=[info.label] if info.label else None)
        if isinstance(reading, dict):
            for value, number in sorted(reading.items()):
                family.add_metric([value], number)
        else:
            family.add_metric([], reading)
        yield family


def registry_of(read: Callable[[], dict[str, Reading]]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(read))
    return registry


def document() -> str:
    """The reference page of all metrics, in Markdown."""
    lines = [
        "# Metrics",
        "",
        "<!-- Generated from src/millrace/server/metrics.py by `make docs`; do not edit. -->",
        "",
        "`GET /metrics` on a node's admin port; counters get the suffix `_total`.",
        "",
        "| metric | kind | label | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{info.name}` | {info.kind} | {info.label or '–'} | {info.help} |" for info in METRICS
    ]
    return "\n".join(lines) + "\n"
