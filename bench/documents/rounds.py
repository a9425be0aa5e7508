"""Rounds of one workload, with the peers in turns, and what one round took.

The order of the peers turns from round to round, as in `bench/runner.py`.

1. A peer that fails keeps the figures it has; the others go on.
"""

import gc
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from bench.documents.results import Measured, Round
from bench.measure import tree_cpu_seconds
from bench.peer import PeerFailure
from bench.progress import progress
from millrace.errors import MillraceError

PlayRound = Callable[[], Awaitable[Round]]


class RoundClock:
    """Takes the time of one round: from its making to `answered` to `settled`."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        self._cpu_s = tree_cpu_seconds(servers)
        self._client_cpu_s = time.process_time()
        self._began_s = time.perf_counter()
        self._seconds = 0.0
        self._client_seconds = 0.0

    def answered(self) -> None:
        """All answers are there."""
        self._seconds = time.perf_counter() - self._began_s
        self._client_seconds = time.process_time() - self._client_cpu_s

    def settled(self, documents: int, value_bytes: int) -> Round:
        """The server has nothing left to do for it."""
        settled_seconds = time.perf_counter() - self._began_s
        after_s = tree_cpu_seconds(self._servers)
        server_s = None if after_s is None or self._cpu_s is None else after_s - self._cpu_s
        return Round(
            documents, value_bytes, self._seconds, settled_seconds, server_s, self._client_seconds
        )


async def play(
    workload: str, peers: Mapping[str, PlayRound], rounds: int, into: list[Measured]
) -> None:
    progress(workload)
    measured = [Measured(workload, name) for name in peers]
    into += measured
    for number in range(rounds):
        turn = number % max(1, len(measured))
        for each in measured[turn:] + measured[:turn]:
            if not each.failure:
                await _play_one(each, peers[each.peer])


async def _play_one(measured: Measured, play_round: PlayRound) -> None:
    gc.collect()
    try:
        played = await play_round()
    except (PeerFailure, MillraceError) as failure:  # Keeps 1.
        measured.failure = str(failure)
        progress(f"  {measured.peer:11}failed: {failure}")
        return
    measured.rounds.append(played)
    progress(f"  {measured.peer:11}{played.rate:12,.0f}/s")
