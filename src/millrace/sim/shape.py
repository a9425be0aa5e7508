"""What a seed makes of a run: sizes, limits, and which faults exist at all.

The swarm idea: most bugs need a particular mixture, and a run with every fault at once hides as
much as it shows.  So a seed first draws which families exist (often none, often one), then how
often they strike, then small limits.  Each concern draws from its own generator, so that a new
draw for one leaves the others as they were.
"""

from enum import Enum
from random import Random

import msgspec


class Family(Enum):
    """Kinds of faults; a run has some of them."""

    CRASH = "crash"  # A process dies and comes back, with its disk.
    POWER = "power"  # A machine dies: peers hear nothing of it.
    RESTART = "restart"  # A node is stopped in order and started again.
    WIPE = "wipe"  # A node comes back with an empty disk.
    PAUSE = "pause"
    CLOCK = "clock"
    RESET = "reset"  # A connection breaks, with what is under way on it.
    PARTITION = "partition"  # Two-way, between groups.
    ONE_WAY = "one_way"
    ISOLATE = "isolate"
    CLOG = "clog"  # A link holds everything for a while, then lets it go at once.
    LONG_DELAY = "long_delay"  # Past the time-outs.
    SLOW_DISK = "slow_disk"
    FULL_DISK = "full_disk"
    ROT = "rot"
    METADATA = "metadata"  # The repository is slow or away.
    CLIENT_CRASH = "client_crash"
    OPERATOR = "operator"  # Chains are changed for no reason at all.
    BLACKOUT = "blackout"  # Every member of a chain at once: the one fault that may lose data.


class Shape(msgspec.Struct, frozen=True):
    nodes: int
    replication: int
    logs: int
    writers: int
    readers: int
    appends_in_flight: int
    appends_max: int  # Of one writer.
    records_max: int
    value_bytes_max: int
    window_bytes: int
    send_buffer_bytes: int
    fill_wait_ms: tuple[int | None, ...]  # One for each reader.
    memory_share: float  # Of appends that are acknowledged from memory.
    think_us: int  # Mean time between two appends of a writer.
    delay_us: int  # Mean delay of a message.
    disk_us: int  # Mean time of a commit.
    ask_ms: int
    append_ms: int
    lease_ms: int
    keeper_ms: int
    chaos_us: int
    fault_us: int  # Mean time between two faults.
    families: tuple[Family, ...]
    trims: bool
    seals_for_good: bool

    @property
    def is_calm(self) -> bool:
        return not self.families


_FAMILIES = tuple(Family)


def draw(seed: int | str) -> Shape:
    rng = Random(f"{seed}/shape")
    nodes = rng.choice((3, 3, 3, 4, 5, 7))
    readers = rng.choice((1, 2, 3))
    return Shape(
        nodes=nodes,
        replication=min(nodes, rng.choice((1, 2, 2, 3, 3, 3))),
        logs=rng.choice((1, 1, 2)),
        writers=rng.choice((1, 2, 3)),
        readers=readers,
        appends_in_flight=rng.choice((1, 2, 4)),
        appends_max=rng.choice((30, 100, 300)),
        records_max=rng.choice((1, 1, 3, 8)),
        value_bytes_max=rng.choice((8, 40, 200)),
        window_bytes=rng.choice((1, 300, 2_000, 100_000)),
        send_buffer_bytes=rng.choice((200, 2_000, 1_000_000)),
        fill_wait_ms=tuple(rng.choice((None, 0, 5, 100)) for _ in range(readers)),
        memory_share=rng.choice((0.0, 0.0, 0.0, 0.5, 1.0)),
        think_us=rng.choice((500, 2_000, 10_000)),
        delay_us=rng.choice((50, 300, 2_000)),
        disk_us=rng.choice((20, 500, 5_000)),
        ask_ms=rng.choice((200, 500, 2_000)),
        append_ms=rng.choice((500, 3_000, 20_000)),
        lease_ms=rng.choice((1_000, 3_000)),
        keeper_ms=rng.choice((200, 1_000)),
        chaos_us=rng.choice((1_000_000, 3_000_000, 6_000_000)),
        fault_us=rng.choice((30_000, 150_000, 500_000)),
        families=_draw_families(Random(f"{seed}/families")),
        trims=rng.random() < 0.5,
        seals_for_good=rng.random() < 0.1,
    )


def _draw_families(rng: Random) -> tuple[Family, ...]:
    """None in one run of eight, one in a quarter; otherwise each with a probability that is
    drawn too, so that nearly all and nearly none both happen."""
    chance = rng.random()
    if chance < 0.125:
        return ()
    if chance < 0.375:
        return (rng.choice(_FAMILIES),)
    share = rng.random()
    return tuple(family for family in _FAMILIES if rng.random() < share)
