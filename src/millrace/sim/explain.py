"""A run told so that a person can follow it: a column for each process, newest events last."""

from collections import deque

from millrace.core.commit.record import stream_log_of
from millrace.lsn import show
from millrace.sim.documents.explain import describe_shape, describe_state
from millrace.sim.documents.world import DocumentsWorld
from millrace.sim.run import REPLAY, make_world
from millrace.sim.stage import Stage
from millrace.sim.violation import Violation
from millrace.sim.world import World

EVENTS_SHOWN = 200
COLUMN = 5
DETAIL = 150


def explain(seed: int | str, events_shown: int = EVENTS_SHOWN) -> str:
    """The last events before the end, the state of every process, and how to see it again."""
    newest: deque[tuple[int, str, str]] = deque(maxlen=events_shown)
    world = make_world(seed, lambda now_us, name, what: newest.append((now_us, name, what)))
    verdict = _verdict(world)
    names = [process.name for process in world.processes.values()]
    replay = REPLAY.format(seed=seed)
    shape, state = _told(world)
    lines = [replay, verdict, "", shape, "", _header(names)]
    lines += [_line(names, *event) for event in newest]
    lines += ["", *state, "", verdict, replay]
    return "\n".join(lines)


def _told(world: Stage) -> tuple[str, list[str]]:
    """What the seed made of it, and how everything stands."""
    if isinstance(world, DocumentsWorld):
        return describe_shape(world), describe_state(world)
    assert isinstance(world, World)
    logs = [*_logs(world), *_sequenced_logs(world), *_commit_logs(world)]
    return _shape(world), [*logs, "", *_processes(world)]


def _verdict(world: Stage) -> str:
    try:
        world.run()
    except Violation as broken:
        return f"violated: {broken}"
    except Exception as error:  # The run is over: whatever a core lets out is a finding.
        return f"crashed: {type(error).__name__}: {error}"
    return "all guarantees held"


def _shape(world: World) -> str:
    shape = world.shape
    families = ", ".join(family.value for family in shape.families) or "none"
    return (
        f"{shape.nodes} nodes, R={shape.replication}, {shape.logs} logs, {shape.writers} writers, "
        f"{shape.readers} readers, up to {shape.records_max} records a block, "
        f"{shape.memory_share:.0%} from memory; faults: {families}{_sequenced_shape(world)}"
    )


def _sequenced_shape(world: World) -> str:
    if world.commits.has_logs:
        return _commit_shape(world)
    if not world.sequenced.has_logs:
        return ""
    shape = world.sequenced.shape
    factors = ", ".join(f"{scope.word}: {factor}" for scope, factor in shape.replication.factors)
    troubles = ", ".join(trouble.value for trouble in shape.troubles) or "none"
    return f"; {shape.logs} sequenced logs, {{{factors}}}, troubles: {troubles}"


def _commit_shape(world: World) -> str:
    shape = world.commits.shape
    troubles = ", ".join(trouble.value for trouble in shape.troubles) or "none"
    return (
        f"; {shape.logs} commit logs of {shape.streams} streams, {shape.copies} copies, "
        f"troubles: {troubles}"
    )


def _header(names: list[str]) -> str:
    return f"{'time ms':>12}  " + "".join(f"{name:<{COLUMN}}" for name in names)


def _line(names: list[str], now_us: int, name: str, what: str) -> str:
    """A mark in the column of the process that moved, then what happened."""
    marks = "".join(f"{'*' if name == one else '.':<{COLUMN}}" for one in names)
    text = what if len(what) <= DETAIL else what[: DETAIL - 3] + "..."
    return f"{now_us / 1000:>12.3f}  {marks} {name}: {text}"


def _logs(world: World) -> list[str]:
    lines = []
    for log in world.log_ids:
        truth = world.ledger.truth(log)
        if not truth.projections:
            lines.append(f"log {log}: never made")
            continue
        projection = world.projection(log)
        lines.append(
            f"log {log}: epoch {projection.epoch}, chain {projection.chain}, sequencer "
            f"{projection.sequencer}, acknowledged up to {truth.acked_last}, trimmed to "
            f"{truth.trim_end}"
        )
        for node in world.nodes:
            stored = node.disk.logs.get(log)
            if stored is not None:
                last = max(stored.blocks, default=0)
                lines.append(
                    f"  {node.name}: {stored.fence.standing.value} at epoch {stored.fence.epoch}, "
                    f"{len(stored.blocks)} blocks up to {last}, trimmed to {stored.trim_end}"
                )
    return lines


def _sequenced_logs(world: World) -> list[str]:
    lines = []
    for log in world.sequenced.log_ids:
        truth = world.sequenced.ledger.truth(log)
        if not truth.records:
            lines.append(f"log {log}: never made")
            continue
        record = truth.record
        lines.append(
            f"log {log}: epoch {record.epoch} of node {record.sequencer} on {record.nodeset}, "
            f"clean up to {record.clean}, released {show(truth.released)}, acknowledged up to "
            f"{show(truth.acked_last)}, trimmed to {show(truth.trim_end)}"
        )
        for node in world.nodes:
            stored = node.disk.logs.get(log)
            if stored is not None:
                lines.append(
                    f"  {node.name}: {stored.fence.standing.value}, sealed for epoch "
                    f"{stored.fence.epoch}, {len(stored.blocks)} blocks, released "
                    f"{show(stored.marks.released)}"
                )
    return lines


def _commit_logs(world: World) -> list[str]:
    lines = []
    for record in world.commits.records():
        truth = world.commits.ledger.truth(record.log)
        lines.append(
            f"log {record.log}: term {record.term} of node {record.committer}, version "
            f"{record.version}, up to {record.high_watermark}, acknowledged up to "
            f"{truth.acked_last}, trimmed to {truth.trim_end}"
        )
        for stream in record.streams:
            lines.append(
                f"  stream {stream.stream}: generation {stream.generation} on "
                f"{list(stream.replicas)}, committed up to {stream.local_end - 1}"
            )
            stored = (
                (node, node.disk.logs.get(stream_log_of(record.log, stream.stream)))
                for node in world.nodes
            )
            lines += [
                f"    {node.name}: sealed for {held.fence.epoch}, {len(held.blocks)} blocks, "
                f"{held.context}"
                for node, held in stored
                if held is not None
            ]
    return lines


def _processes(world: World) -> list[str]:
    lines = []
    for process in world.processes.values():
        state = "paused" if process.is_paused else "up" if process.is_up else "down"
        lines.append(f"{process.name}: {state}, {process.asks_waiting} questions open")
    appends = [
        (writer.name, token, operation.run)
        for writer in world.writers
        for token, operation in writer.under_way.items()
    ]
    for part in world.parts:
        appends += [
            (writer.name, token, operation.run)
            for writer in part.writers
            for token, operation in writer.under_way.items()
        ]
    for name, token, run in appends:
        waits_for = "nothing" if run is None else run.waits_for
        lines.append(f"{name}: appends {token}, waits for {waits_for}")
    streams = [
        (reader.name, reading.stream.explain())
        for reader in world.readers
        for reading in reader.readings.values()
    ]
    for part in world.parts:
        streams += [
            (reader.name, reading.stream.explain())
            for reader in part.readers
            for reading in reader.readings.values()
        ]
    lines += [f"{name}: {explained}" for name, explained in streams]
    return lines
