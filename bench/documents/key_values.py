"""Sets and gets: every server gets the same documents from the same client, in turns.

1. Before the first round everything is stored once, so that every set replaces a document and every
   get finds one.
2. Lanes are made before the clock starts, and answers are checked after it has stopped.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from bench.documents.lanes import drive
from bench.documents.profile import DocumentsProfile
from bench.documents.requests import VALUE_BYTES, Operation, Route, check, lane, make_documents
from bench.documents.results import BUCKET_SETS, Measured, Round
from bench.documents.rounds import RoundClock, play
from bench.documents.servers import DocumentServer, MillraceServer
from millrace.client import Bucket

STORE_TIMEOUT_MS: Final = 60_000


async def measure(
    servers: Sequence[DocumentServer], profile: DocumentsProfile, into: list[Measured]
) -> None:
    documents = make_documents(profile.documents)
    routes = {server.name: server.routes(documents) for server in servers}
    for server in servers:
        await _round(server, routes[server.name], Operation.SET)  # Keeps 1.
    for operation in Operation:
        peers = {
            server.name: partial(_round, server, routes[server.name], operation)
            for server in servers
        }
        await play(operation.value, peers, profile.rounds, into)


async def _round(server: DocumentServer, routes: Sequence[Route], operation: Operation) -> Round:
    lanes = [lane(operation, route) for route in routes]  # Keeps 2.
    clock = RoundClock(server.process_ids())
    drive(lanes)
    clock.answered()
    if operation is not Operation.GET:
        await server.settle()
    played = clock.settled(sum(each.documents for each in lanes), VALUE_BYTES)
    for each, route in zip(lanes, routes, strict=True):
        check(operation, route, each)
    return played


async def measure_bucket(
    servers: Sequence[MillraceServer], profile: DocumentsProfile, into: list[Measured]
) -> None:
    """The same through the client that applications use, whose own work counts then."""
    documents = make_documents(profile.documents)
    items = list(zip(documents.keys, documents.values, strict=True))

    async def store(server: MillraceServer, bucket: Bucket) -> Round:
        clock = RoundClock(server.process_ids())
        await bucket.set_many(items, timeout_ms=STORE_TIMEOUT_MS)
        clock.answered()
        await server.settle()
        return clock.settled(len(items), VALUE_BYTES)

    peers = {server.name: partial(store, server, server.bucket) for server in servers}
    await play(BUCKET_SETS, peers, profile.rounds, into)
