"""What a committer tells people of a stream: who is silent and why, what holds it up."""

from collections.abc import Mapping

from millrace.core.commit.care import Nodes, StreamCare
from millrace.core.commit.record import StreamRecord
from millrace.core.commit.reports import Reports
from millrace.core.messages import ReplicaState
from millrace.types import NodeId

Silences = Mapping[NodeId, int]  # For how many milliseconds a node has not answered.


def explain_stream(
    record: StreamRecord,
    copies: int,
    care: StreamCare,
    reports: Reports,
    nodes: Nodes,
    silent_ms: Silences,
) -> dict[str, object]:
    silent = {node: _why_silent(node, reports, silent_ms) for node in record.replicas}
    return {
        "generation": record.generation,
        "replicas": list(record.replicas),
        "is_open": record.is_open,
        "committed": record.local_end - 1,
        "lost": record.lost,
        "is_reforming": care.is_reforming,
        "learner": care.learner,
        "leaving": [*care.who_leaves(record), *care.who_yields(record, nodes)],
        "silent": {node: why for node, why in silent.items() if why},
        "trouble": care.trouble or care.lack(record, copies, nodes),
    }


def _why_silent(node: NodeId, reports: Reports, silent_ms: Silences) -> str:
    if node in silent_ms:
        return f"does not answer since {silent_ms[node]} ms"
    heard = reports.heard.get(node)
    if heard is None:
        return "has not reported yet"
    if heard.state is not ReplicaState.OPEN:
        return f"{heard.state.value}: {heard.why}" if heard.why else heard.state.value
    return ""
