"""Who is asked when nobody knows a log's committer: its own record names the last one.

A node that is asked and is not the committer becomes it, or says who is (`claiming.py`), so a wrong
guess costs one question.
"""

from millrace.core.commit.record import CommitRecord
from millrace.core.procedure import (
    ClusterView,
    DeadlinePassed,
    Failure,
    ListNodes,
    Procedure,
    ReadCommits,
)
from millrace.core.sequenced.preferred import preferred_sequencer
from millrace.types import NO_NODE, LogId, NodeId


def find_committer(log: LogId) -> Procedure[NodeId]:
    """NO_NODE: there is no such log, or nobody can tell now."""
    try:
        read: tuple[CommitRecord | None, int] | Failure = yield ReadCommits(log)
        view: ClusterView | Failure = yield ListNodes()
    except DeadlinePassed:
        return NO_NODE
    if isinstance(read, Failure) or isinstance(view, Failure) or read[0] is None:
        return NO_NODE
    if read[0].committer in view.live:
        return read[0].committer
    return preferred_sequencer(log, view.nodes, view.live) or NO_NODE
