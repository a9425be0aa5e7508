"""The people of commit logs: who makes them, who trims them, who changes their streams."""

from typing import TYPE_CHECKING

from millrace.core.commit.append import wake_committer
from millrace.core.commit.operating import NO_GENERATION, Operation
from millrace.core.commit.record import CommitRecord, StreamRecord, stream_log_of
from millrace.core.commit.streams_known import StreamsKnown
from millrace.core.messages import ActivateCommitter, CommitsChanged, GiveUpStream, TrimCommits
from millrace.core.procedure import Answer
from millrace.core.projection import choose_chain
from millrace.meta.keys import COMMITS
from millrace.sim.driver import Driver
from millrace.sim.part import LogRegistrar, LogTrimmer
from millrace.sim.schedule import MS, SECOND
from millrace.types import NO_NODE, Epoch, LogId, Lsn, NodeId, NodeInfo, StreamId

if TYPE_CHECKING:
    from millrace.sim.world import World

ASK_MS = 5_000
APPOINT_US = 5 * SECOND


class CommitRegistrar(LogRegistrar):
    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number, "creg")
        self.driver: Driver

    def on_start(self) -> None:
        self.driver = Driver(self)
        self._appoint()

    def _appoint(self) -> None:
        """As the keeper does: a log of which all replicas are lost has nobody else who would."""
        self.later(APPOINT_US, self._appoint)
        for record in self.world.commits.records():
            self._give_up_losses(record)
            waking = wake_committer(record.log, record, StreamsKnown())
            self.driver.start(waking, lambda _: None)

    def _give_up_losses(self, record: CommitRecord) -> None:
        """What an operator does who knows that the disks will not come back."""
        for stream in record.streams:
            if self.world.commits.ledger.is_lossy(stream_log_of(record.log, stream.stream)):
                self.operate(GiveUpStream(record.log, stream.stream))

    def make_log(self, log: LogId, infos: list[NodeInfo]) -> None:
        """Its record; the first append finds a committer, which opens the streams."""
        shape = self.world.commits.shape
        live = [info.id for info in infos]
        copies = min(shape.copies, len(live))
        streams = tuple(
            StreamRecord(
                StreamId(number),
                NO_GENERATION,
                choose_chain(stream_log_of(log, StreamId(number)), copies, infos, live),
            )
            for number in range(1, shape.streams + 1)
        )
        record = CommitRecord(log, Epoch(0), NO_NODE, copies, streams)
        self.world.metadata.put(COMMITS.key(log), COMMITS.encode(record), 0)

    def operate(self, operation: Operation) -> None:
        """As the command line does it, without a second try."""
        record = self.world.commits.ledger.truth(operation.log).record
        assert record is not None

        def answered(answer: Answer) -> None:
            outcome = "done" if isinstance(answer, CommitsChanged) else "refused"
            self.world.count(f"commit.operation_{outcome}")

        if record.committer != NO_NODE:
            self.trace(f"asks node {record.committer} for {operation}")
            self.ask(record.committer, operation, ASK_MS, answered)

    def activate(self, log: LogId, node: NodeId, suspects: tuple[NodeId, ...] = ()) -> None:
        self.ask(node, ActivateCommitter(log, suspects), ASK_MS, lambda _: None)


class CommitTrimmer(LogTrimmer):
    """Trims what was committed: a slow reader finds its position gone."""

    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number, "ccut")

    def on_start(self) -> None:
        self._wait()

    def _wait(self) -> None:
        self.later(int((50 + self.rng.random() * 400) * MS), self._trim)

    def _trim(self) -> None:
        if self.is_stopping:
            return
        self._wait()
        commits = self.world.commits
        log = self.rng.choice(commits.log_ids)
        truth = commits.ledger.truth(log)
        room = truth.high_watermark + 1 - truth.trim_end
        if room <= 0:
            return
        end = Lsn(truth.trim_end + int(self.rng.random() * room * 0.6))
        self.world.count("commit.trim")
        commits.registrar.operate(TrimCommits(log, end))
