"""A node with replicas of streams, for scenarios: its shell on a store in memory, which says what
it is told to keep and to forget.

The disk outlives the process.  It does its work when the cluster says so, unless it is held.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.core.commit.record import CommitContext, StreamCommit, stream_log_of, stream_of
from millrace.core.commit.replica import StreamReplica
from millrace.core.effects import Ticket
from millrace.core.messages import Message
from millrace.core.procedure import Failure, FailureKind
from millrace.scenario import commit_words as cw
from millrace.scenario import words as w
from millrace.scenario.commit_surroundings import CommitSurroundings, Done
from millrace.scenario.memory_store import MemoryStore
from millrace.server.shell import NodeShell, Release
from millrace.server.streams import StreamOrders
from millrace.types import FIRST_LSN, LSN_MAX, Ack, Block, LogId, Lsn, NodeId, Placement, StreamId

if TYPE_CHECKING:
    from millrace.scenario.commit_cluster import CommitCluster

SESSION = 1
Say = Callable[[str], None]


class SpokenStore(MemoryStore):
    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say

    def put(self, block: Block, placement: Placement, ack: Ack) -> None:
        self._say(f"stores {stream_of(block.log)}: {w.show_block(block)}")
        super().put(block, placement, ack)

    def commit(
        self, log: LogId, context: CommitContext | None, runs: Sequence[StreamCommit]
    ) -> None:
        placed = "".join(f" run {cw.show_commit(run)}" for run in runs)
        self._say(f"keeps {stream_of(log)}: context {cw.show_context(context)}{placed}")
        super().commit(log, context, runs)

    def uncommit(self, log: LogId) -> None:
        self._say(f"removes {stream_of(log)}: context and runs")
        super().uncommit(log)

    def remove(self, log: LogId, firsts: Sequence[Lsn]) -> None:
        if firsts:
            self._say(f"removes {stream_of(log)}: entries {','.join(map(str, firsts))}")
        super().remove(log, firsts)

    def trim(self, log: LogId, end: Lsn) -> None:
        self._say(f"trims {stream_of(log)}: entries below {end}")
        super().trim(log, end)

    def drop(self, log: LogId) -> None:
        self._say(f"drops {stream_of(log)}")
        super().drop(log)

    def show(self, log: LogId) -> str:
        """What is on the disk of a stream."""
        state = self.state(log)
        if state is None:
            return "nothing"
        runs = map(cw.show_commit, self.commit_runs(log, FIRST_LSN, LSN_MAX, LSN_MAX))
        held = map(w.show_block, self.scan(log, state.trim_end, LSN_MAX, LSN_MAX).blocks)
        trimmed = f" trimmed below {state.trim_end}" if state.trim_end > FIRST_LSN else ""
        return (
            f"context {cw.show_context(state.context)} runs {''.join(runs) or 'none'} "
            f"entries {' '.join(held) or 'none'}{trimmed}"
        )


class CommitNode:
    def __init__(self, cluster: "CommitCluster", node: NodeId) -> None:
        self.id = node
        self.name = w.show_node(node)
        self.cluster = cluster
        self.is_up = False
        self.is_held = False
        self.store = SpokenStore(lambda what: cluster.say(f"{self.name} {what}"))
        self._waiting: dict[int, Done] = {}
        self._requests = 0
        self.start()

    # -- Its life -----------------------------------------------------------------------------

    def start(self) -> None:
        self.is_up = True
        shell = NodeShell(self.store, self, lambda order: None, me=self.id)

        def answer(ticket: Ticket, message: Message) -> None:
            self.answer(*ticket, message)

        def is_over() -> bool:
            return not self.is_up or self.shell is not shell

        self.shell = shell
        StreamOrders(shell, CommitSurroundings(self.cluster, self.id, answer, is_over))

    def crash(self) -> None:
        """What is not on its disk is gone, and whoever waits hears nothing."""
        self.is_up = False
        self.store.crash()
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(Failure(FailureKind.LOST))

    def go(self) -> None:
        """Its disk is not held any more."""
        self.is_held = False

    def work(self) -> None:
        """The disk does what it was told."""
        if self.is_up and not self.is_held:
            self.store.run()

    def ask(self, message: Message, done: Done) -> None:
        self._requests += 1
        self._waiting[self._requests] = done
        self.shell.handle(SESSION, self._requests, message)

    # -- What people see ----------------------------------------------------------------------

    def replicas(self) -> list[StreamReplica]:
        """In the order of their streams, as the process knows them."""
        found = self.shell.core.replicas(w.LOG) if self.is_up else ()
        return sorted(found, key=lambda replica: replica.stream)

    def show_state(self) -> list[str]:
        if not self.is_up:
            return [f"{self.name} is down"]
        return [f"{self.name} {_show_replica(each)}" for each in self.replicas()]

    def show_disk(self, stream: StreamId) -> str:
        return f"{self.name} {stream}: {self.store.show(stream_log_of(w.LOG, stream))}"

    def show_counts(self) -> list[str]:
        return [f"{self.name} {each.stream}: {_show_counts(each)}" for each in self.replicas()]

    # -- What its shell needs -----------------------------------------------------------------

    def answer(
        self, session: int, request: int, message: Message, release: Release | None = None
    ) -> None:
        done = self._waiting.pop(request, None)
        if done is not None:
            done(message)

    def push(self, session: int, message: Message, release: Release | None = None) -> None:
        """Read streams are not part of these scenarios."""

    def is_writable(self, session: int) -> bool:
        return True

    def after_others(self, call: Callable[[], None]) -> None:
        """As `push`."""


def _show_replica(replica: StreamReplica) -> str:
    name = cw.show_stream(replica.stream, replica.generation)
    if not replica.is_valid:
        cause = replica.why.partition(":")[0]
        return f"{name}: {replica.state.value}" + (f" because {cause}" if cause else "")
    role = " primary" if replica.is_primary else ""
    held = w.show_range(replica.local_end, replica.entries.safe_end)
    return (
        f"{name}: {replica.state.value}{role} version {replica.version} "
        f"high {replica.high_watermark} committed below {replica.local_end} uncommitted {held}"
    )


def _show_counts(replica: StreamReplica) -> str:
    counts = replica.counts
    kinds: dict[str, Mapping[Any, int]] = {
        "blocks refused": counts.refused,
        "commits": counts.commits,
        "syncs refused": counts.syncs,
    }
    shown = (f"{kind} {show_tally(found)}" for kind, found in kinds.items() if found)
    return "; ".join(shown) or "nothing"


def show_tally(found: Mapping[Any, int]) -> str:
    """Of enums, by their values."""
    return ", ".join(f"{why.value} {count}" for why, count in found.items())
