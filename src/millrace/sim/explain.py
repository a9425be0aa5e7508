"""A run told so that a person can follow it: a column for each process, newest events last."""

from collections import deque

from millrace.sim.run import REPLAY
from millrace.sim.violation import Violation
from millrace.sim.world import World

EVENTS_SHOWN = 200
COLUMN = 5
DETAIL = 150


def explain(seed: int | str, events_shown: int = EVENTS_SHOWN) -> str:
    """The last events before the end, the state of every process, and how to see it again."""
    newest: deque[tuple[int, str, str]] = deque(maxlen=events_shown)
    world = World(seed, listener=lambda now_us, name, what: newest.append((now_us, name, what)))
    verdict = _verdict(world)
    names = [process.name for process in world.processes.values()]
    replay = REPLAY.format(seed=seed)
    lines = [replay, verdict, "", _shape(world), "", _header(names)]
    lines += [_line(names, *event) for event in newest]
    lines += ["", *_logs(world), "", *_processes(world), "", verdict, replay]
    return "\n".join(lines)


def _verdict(world: World) -> str:
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
        f"{shape.memory_share:.0%} from memory; faults: {families}"
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


def _processes(world: World) -> list[str]:
    lines = []
    for process in world.processes.values():
        state = "paused" if process.is_paused else "up" if process.is_up else "down"
        lines.append(f"{process.name}: {state}, {process.asks_waiting} questions open")
    for writer in world.writers:
        for token, operation in writer.under_way.items():
            waits_for = operation.run.waits_for if operation.run is not None else "nothing"
            lines.append(f"{writer.name}: appends {token}, waits for {waits_for}")
    for reader in world.readers:
        for reading in reader.readings.values():
            lines.append(f"{reader.name}: {reading.stream.explain()}")
    return lines
