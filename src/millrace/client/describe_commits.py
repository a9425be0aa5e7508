"""All that is known of a commit log, for people."""

from typing import Any

import msgspec

from millrace.client.committer_questions import CommitterQuestions
from millrace.core.commit.record import CommitRecord
from millrace.core.messages import CommitsDescribed, DescribeCommits
from millrace.errors import MillraceError
from millrace.types import LogInfo, Lsn, NodeId


class CommitDescription(msgspec.Struct, frozen=True):
    """`explanation` is what the committer says of itself: who is silent and why, what is being
    reformed; empty if it does not answer.  `live` are the nodes of the cluster that are alive.
    `firsts` are the positions that streams begin at, each by its own; None: no replica tells."""

    info: LogInfo
    record: CommitRecord
    explanation: dict[str, Any]
    live: frozenset[NodeId]
    firsts: dict[int, Lsn | None]


async def describe_commits(
    info: LogInfo,
    record: CommitRecord,
    live: frozenset[NodeId],
    firsts: dict[int, Lsn | None],
    questions: CommitterQuestions,
    timeout_ms: int,
) -> CommitDescription:
    explanation: dict[str, Any] = {}
    try:
        answer = await questions.ask(DescribeCommits(info.id), CommitsDescribed, timeout_ms)
        explanation = msgspec.json.decode(answer.explanation)
    except MillraceError as error:
        explanation = {"trouble": str(error)}
    return CommitDescription(info, record, explanation, live, firsts)
