"""The committers that a node hosts: a log has at most one here, and only after this node has
claimed a term of it."""

from millrace.core.effects import Ticket
from millrace.server.hosted_committer import CommitterRequest, HostedCommitter
from millrace.server.hosting import Forget, Hosting
from millrace.server.needs import Surroundings
from millrace.types import LogId, NodeId


class Committing(Hosting[CommitterRequest]):
    def __init__(self, me: NodeId, surroundings: Surroundings) -> None:
        def make(log: LogId, forget: Forget[CommitterRequest]) -> HostedCommitter:
            return HostedCommitter(log, me, surroundings, forget)

        super().__init__(make)

    def handle(self, ticket: Ticket, request: CommitterRequest) -> None:
        self.serve(request.log, ticket, request)
