"""The sequencers that a node hosts: a log has at most one here, and only after this node has
claimed an epoch of it."""

from millrace.core.effects import Ticket
from millrace.core.repair import MakeJunk
from millrace.core.sequenced.sequencer import Place
from millrace.server.hosted import Hosted, SequencerRequest
from millrace.server.hosting import Forget, Hosting
from millrace.server.needs import Surroundings
from millrace.types import LogId, NodeId

__all__ = ["SequencerRequest", "Sequencing", "Surroundings"]


class Sequencing(Hosting[SequencerRequest]):
    def __init__(
        self, me: NodeId, surroundings: Surroundings, place: Place, make_junk: MakeJunk
    ) -> None:
        def make(log: LogId, forget: Forget[SequencerRequest]) -> Hosted:
            return Hosted(log, me, surroundings, place, make_junk, forget)

        super().__init__(make)

    def handle(self, ticket: Ticket, request: SequencerRequest) -> None:
        self.serve(request.log, ticket, request)
