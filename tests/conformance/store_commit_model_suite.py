"""Any order of commits, trims and crashes of a commit log reads like lists changed the same way."""

import random

import pytest

from millrace.core.commit.record import CommitContext, StreamCommit
from millrace.limits import MIB
from millrace.store.contract import Store
from millrace.types import FIRST_LSN, LSN_MAX, Ack, Block, LogId, Lsn, Version
from tests.conformance.commit_rig import ONE, TWO, context_of, emptied, run, runs_of
from tests.conformance.store_commit_suite import StoreCommitSuite
from tests.conformance.store_rig import PLACEMENT, StoreRig, held, known, make_block

STEPS = 120
WEIGHTS = {
    "write": 30,
    "commit": 40,
    "empty": 20,
    "trim": 6,
    "uncommit": 1,
    "drop": 1,
    "settle": 10,
    "reopen": 3,
    "crash": 8,
}


class Stream:
    """What a store has of one stream; entries of it by their local positions."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.places: dict[Lsn, Lsn] = {}  # Of committed entries in the log.
        self.committed: tuple[StreamCommit, ...] = ()  # As they were given.
        self.trim_end = FIRST_LSN
        self.context: CommitContext | None = None
        self.contexts: tuple[CommitContext | None, ...] = (None,)  # Since the last run was given.

    def copy(self) -> "Stream":
        twin = Stream()
        twin.blocks, twin.places = list(self.blocks), dict(self.places)
        twin.committed, twin.trim_end = self.committed, self.trim_end
        twin.context, twin.contexts = self.context, self.contexts
        return twin

    @property
    def end(self) -> Lsn:
        return self.blocks[-1].end if self.blocks else self.trim_end

    @property
    def local_end(self) -> Lsn:
        return self.context.local_end if self.context is not None else self.trim_end

    def held(self) -> list[Block]:
        return [block for block in self.blocks if block.end > self.trim_end]

    def facts(self) -> object:
        """All that a crash leaves or does not leave together."""
        local_end = self.context.local_end if self.context is not None else None
        firsts = [block.first for block in self.held()]
        return local_end, self.runs(), firsts, self.trim_end

    def runs(self) -> list[StreamCommit]:
        joined: list[StreamCommit] = []
        for each in self.committed:
            last = joined[-1] if joined else None
            if last is not None and (last.end, last.local_end) == (each.first, each.local):
                joined[-1] = run(each.version, last.local, last.first, last.count + each.count)
            else:
                joined.append(each)
        return [each for each in joined if each.local_end > self.trim_end]


class Trial:
    def __init__(self, rig: StoreRig, seed: int) -> None:
        self.rig = rig
        self.choices = random.Random(seed)
        self.streams = {ONE: Stream(), TWO: Stream()}
        self.version = 0
        self.high_watermark = 0
        self.since_settled = [self.snapshot()]  # After each mutation: a crash leaves one of them.

    @property
    def store(self) -> Store:
        return self.rig.store

    def snapshot(self) -> dict[LogId, Stream]:
        return {log: stream.copy() for log, stream in self.streams.items()}

    def step(self) -> None:
        log = self.choices.choice([ONE, TWO])
        stream = self.streams[log]
        match self.choices.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
            case "write":
                self.write(log, stream)
            case "commit":
                self.commit(log, stream)
            case "empty":
                self.commit_nothing(log, stream)
            case "trim":
                stream.trim_end = Lsn(self.choices.randint(stream.trim_end, stream.local_end))
                self.store.trim(log, stream.trim_end)
                self.forget_trimmed(stream)
            case "uncommit":
                self.uncommit(log, stream)
            case "drop":
                self.store.drop(log)
                self.streams[log] = Stream()
            case "settle":
                assert self.rig.settle() is None
                self.since_settled.clear()
            case "reopen":
                self.rig.reopen()
                self.since_settled.clear()
                for each in self.streams.values():
                    each.contexts = (each.context,)
            case "crash":
                self.crash()
        self.since_settled.append(self.snapshot())

    def write(self, log: LogId, stream: Stream) -> None:
        for _ in range(self.choices.randrange(1, 4)):
            size = self.choices.choice([10, 500, 6_000])
            block = make_block(stream.end, self.choices.randrange(1, 5), log=log, size=size)
            self.store.put(block, PLACEMENT, Ack.DISK)
            stream.blocks.append(block)
            self.since_settled.append(self.snapshot())

    def commit(self, log: LogId, stream: Stream) -> None:
        waiting = [block for block in stream.blocks if block.first >= stream.local_end]
        if not waiting:
            return
        taken = waiting[: self.choices.randrange(1, len(waiting) + 1)]
        self.high_watermark += self.choices.choice([0, 0, 5])  # Of streams that are not here.
        self.version += 1
        local, count = taken[0].first, taken[-1].end - taken[0].first
        commit = run(self.version, local, self.high_watermark + 1, count)
        self.high_watermark += count
        self.store.commit(log, context_of(commit), [commit])
        stream.committed += (commit,)
        stream.context = context_of(commit)
        stream.contexts = (stream.context,)
        for offset in range(count):
            stream.places[Lsn(local + offset)] = Lsn(commit.first + offset)

    def commit_nothing(self, log: LogId, stream: Stream) -> None:
        if stream.context is None:
            return
        self.version += 1
        stream.context = emptied(stream.context, Version(self.version), self.high_watermark)
        stream.contexts += (stream.context,)
        self.store.commit(log, stream.context, [])

    def forget_trimmed(self, stream: Stream) -> None:
        stream.places = {
            local: place for local, place in stream.places.items() if local >= stream.trim_end
        }
        stream.committed = tuple(stream.runs())
        stream.blocks = stream.held()

    def uncommit(self, log: LogId, stream: Stream) -> None:
        """And what is left of its blocks goes, as if it were brought up to date anew."""
        self.store.uncommit(log)
        stream.committed, stream.places = (), {}
        stream.context, stream.contexts = None, (None,)
        self.since_settled.append(self.snapshot())
        self.store.trim(log, stream.end)
        stream.trim_end, stream.blocks = stream.end, []

    def crash(self) -> None:
        self.rig.crash()
        left = {log: self.facts(log) for log in self.streams}
        self.streams = next(
            one
            for one in reversed(self.since_settled)
            if {log: stream.facts() for log, stream in one.items()} == left
        )
        for log, stream in self.streams.items():
            state = self.store.state(log)
            stream.context = None if state is None else state.context
            assert stream.context in stream.contexts
            stream.contexts = (stream.context,)
        self.since_settled.clear()

    def facts(self, log: LogId) -> object:
        state = self.store.state(log)
        if state is None:
            return Stream().facts()
        local_end = None if state.context is None else state.context.local_end
        return local_end, runs_of(self.store, log), held(self.store, log), state.trim_end

    def compare(self) -> None:
        for log, stream in self.streams.items():
            assert self.facts(log) == stream.facts()
            if self.store.state(log) is None:
                continue
            state, runs = known(self.store, log), stream.runs()
            assert state.context == stream.context
            assert (state.first_run, state.last_run) == (
                (runs[0], runs[-1]) if runs else (None, None)
            )
            local = Lsn(self.choices.randint(1, max(1, stream.end + 1)))
            assert self.store.locate(log, local) == stream.places.get(local)
        self.compare_shipment()

    def compare_shipment(self) -> None:
        first = Lsn(self.choices.randint(1, self.high_watermark + 2))
        end = Lsn(first + self.choices.choice([1, 5, 30, 10_000]))
        found = {
            Lsn(stream.places[local] - (local - block.first)): block
            for stream in self.streams.values()
            for block in stream.held()
            if (local := max(block.first, stream.trim_end)) in stream.places
            and stream.places[local] < end
            and stream.places[Lsn(block.end - 1)] >= first
        }
        shipment = self.store.ship_committed([ONE, TWO], first, end, MIB)
        assert [(one.first, bytes(one.data)) for one in shipment.blocks] == [
            (at, bytes(found[at].data)) for at in sorted(found)
        ]
        assert shipment.next_lsn == end
        shipment.release()
        extents = self.store.index_committed([ONE, TWO], first, end, 10_000)
        assert [each.first for each in extents] == sorted(found)


class StoreCommitModelSuite(StoreCommitSuite):
    @pytest.mark.parametrize("seed", range(12))
    def test_any_order_of_commits_reads_like_the_model(self, rig: StoreRig, seed: int) -> None:
        trial = Trial(rig, seed)
        for _ in range(STEPS):
            trial.step()
            trial.compare()
        rig.reopen()
        trial.compare()
        assert len(runs_of(rig.store, ONE, 1, LSN_MAX)) == len(trial.streams[ONE].runs())
