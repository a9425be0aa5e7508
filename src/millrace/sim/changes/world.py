"""A world of documents in which queries read the changes, in place of followers."""

import msgspec

from millrace.core.documents.document import Document, PartitionId
from millrace.sim.changes.query import Query
from millrace.sim.documents.histories import compare
from millrace.sim.documents.shape import DocumentsShape, draw
from millrace.sim.documents.verdict import master_of
from millrace.sim.documents.world import CLIENTS_FROM, DocumentsWorld
from millrace.sim.seeds import parse
from millrace.sim.trace import Listener

QUERIES_FROM = CLIENTS_FROM + 40


class ChangesWorld(DocumentsWorld):
    def __init__(
        self,
        seed: int | str,
        listener: Listener | None = None,
        shape: DocumentsShape | None = None,
    ) -> None:
        super().__init__(seed, listener, shape or shape_of(parse(seed).number))
        self.queries = [self.add(Query(self, QUERIES_FROM + at, f"q{at + 1}")) for at in range(2)]

    def _start_clients(self) -> None:
        super()._start_clients()
        for query in self.queries:
            query.start()

    def _missing(self) -> str | None:
        return super()._missing() or next(
            (why for query in self.queries if (why := self._query_missing(query))), None
        )

    def _query_missing(self, query: Query) -> str:
        if not query.is_up or not query.is_idle or query.checkpoint.is_open:
            return query.explain()
        for number, each in query.settled().items():
            master = master_of(self, number)
            if (each.place.seq, each.place.log.newest) != (master.high, master.log.newest):
                return f"{query.explain()}; the master has {master.high}"
        return ""

    def _check_end(self) -> None:
        super()._check_end()
        for query in self.queries:
            for at in range(self.shape.partitions):
                self._compare(query, PartitionId(at))

    def _compare(self, query: Query, number: PartitionId) -> None:
        master = master_of(self, number)
        truth = self.ledger.histories.documents(number, master.log.newest, master.high)
        reread = query.checkpoint.reread.get(number, 0)
        found: dict[bytes, Document] = {}
        for key, row in query.checkpoint.table.rows(number).items():
            # Who reads a partition again cannot know which keys do not exist any more.
            is_excused = row.era < reread and key not in truth
            if row.document is not None and not is_excused:
                found[key] = row.document
        compare(f"{query.name}, partition {number}", found, truth)


def shape_of(seed: str) -> DocumentsShape:
    """Queries take the place of followers."""
    return msgspec.structs.replace(draw(seed), followers=0)
