"""What a seed makes of a world of documents: sizes, limits, and which troubles exist at all.

As elsewhere a seed first draws which troubles there are, often none or one, then how often they
strike; each concern draws from a generator of its own.
"""

from enum import Enum
from random import Random

import msgspec


class DocumentsTrouble(Enum):
    CRASH = "crash"  # A node dies and comes back, with what its disk had.
    RESTART = "restart"  # A node is stopped in order and started again.
    WIPE = "wipe"  # A node comes back with an empty disk.
    PAUSE = "pause"  # Past its lease.
    STALE_MASTER = "stale_master"  # It loses the repository, and takes its lease for good.
    BLOCK = "block"  # Between two processes, both ways.
    ONE_WAY = "one_way"
    RESET = "reset"  # A connection breaks, with what is under way on it.
    SLOW_NODE = "slow_node"
    SLOW_DISK = "slow_disk"
    FULL_DISK = "full_disk"  # Writes fail.
    UNDO_KILLED = "undo_killed"  # A node dies in the middle of an undo, or its master does.
    MASTER_KILLED = "master_killed"  # When its copies lack some of what it has.
    SUCCESSOR_KILLED = "successor_killed"  # Somebody is promoted, and dies soon after.
    MOVE = "move"  # The keeper moves a master or a copy for no reason.
    FAIL_OVER = "fail_over"  # An operator wants another master for no reason.
    KEEPER_CRASH = "keeper_crash"
    FOLLOWER_CRASH = "follower_crash"
    METADATA = "metadata"  # The repository is slow.


class DocumentsShape(msgspec.Struct, frozen=True):
    nodes: int
    partitions: int
    replicas: int
    keepers: int  # More than one: they do not know of each other.
    writers: int
    followers: int
    keys: int
    value_bytes_max: int
    commands_at_once: int  # Of one writer.
    durable_share: float  # Of changes that are waited for.
    delete_share: float
    expiry_share: float
    think_us: int  # Mean time between two commands of a burst.
    burst: int  # Mean number of commands in one.
    rest_us: int  # Mean time between two bursts.
    delay_us: int  # Mean delay of a message.
    disk_us: int
    ask_ms: int
    lease_ms: int
    keeper_ms: int
    patience_ms: int
    upkeep_ms: int
    purge_after_s: int
    memory_bytes: int
    ring_entries: int
    follower_us: int  # Mean time that an application takes for a batch.
    barrier_ms: int
    send_buffer_bytes: int
    chaos_us: int
    trouble_us: int  # Mean time between two troubles.
    knows_calm: bool  # A keeper that leaves a bucket alone while nothing happens to it.
    troubles: tuple[DocumentsTrouble, ...]

    @property
    def is_calm(self) -> bool:
        return not self.troubles


_TROUBLES = tuple(DocumentsTrouble)
_PARTING = (
    DocumentsTrouble.STALE_MASTER,
    DocumentsTrouble.MASTER_KILLED,
    DocumentsTrouble.SUCCESSOR_KILLED,
    DocumentsTrouble.UNDO_KILLED,
)
NEVER_S = 1_000_000


def draw(seed: str) -> DocumentsShape:
    rng = Random(f"{seed}/documents")
    nodes = rng.choice((3, 3, 3, 4, 4, 5))
    commands_at_once, burst = rng.choice((1, 2, 5)), rng.choice((3, 10, 25))
    return DocumentsShape(
        nodes=nodes,
        partitions=rng.choice((1, 1, 2, 3)),
        replicas=rng.choice((1, 1, 2, 2)),
        keepers=rng.choice((1, 1, 2)),
        writers=rng.choice((1, 2, 3)),
        followers=rng.choice((1, 1, 2)),
        keys=rng.choice((3, 8, 30)),
        value_bytes_max=rng.choice((8, 40, 200)),
        commands_at_once=commands_at_once,
        durable_share=rng.choice((0.0, 0.1, 0.5)),
        delete_share=rng.choice((0.1, 0.3, 0.5)),
        expiry_share=rng.choice((0.0, 0.0, 0.2)),
        think_us=rng.choice((300, 2_000, 20_000)),
        burst=burst,
        rest_us=rng.choice((15_000, 30_000)) * burst * commands_at_once,
        delay_us=rng.choice((200, 1_000, 5_000)),
        disk_us=rng.choice((200, 2_000, 15_000)),
        ask_ms=rng.choice((200, 500)),
        lease_ms=rng.choice((200, 400)),
        keeper_ms=rng.choice((120, 240)),
        patience_ms=rng.choice((100, 500)),
        upkeep_ms=rng.choice((50, 200)),
        purge_after_s=rng.choice((0, 1, NEVER_S, NEVER_S, NEVER_S)),
        memory_bytes=rng.choice((1, 1_000, 1 << 20)),
        ring_entries=rng.choice((2, 20, 1_000, 1_000)),
        follower_us=rng.choice((200, 3_000, 20_000)),
        barrier_ms=rng.choice((60, 400)),
        send_buffer_bytes=rng.choice((200, 2_000, 1_000_000)),
        chaos_us=rng.choice((2_000_000, 4_000_000, 5_000_000)),
        trouble_us=rng.choice((150_000, 300_000, 600_000)),
        knows_calm=Random(f"{seed}/keepers").random() < 0.5,
        troubles=_draw_troubles(Random(f"{seed}/documents-troubles")),
    )


def _draw_troubles(rng: Random) -> tuple[DocumentsTrouble, ...]:
    """None in a tenth of the runs, one in a fifth; otherwise each as likely as the seed says."""
    chance = rng.random()
    if chance < 0.1:
        return ()
    if chance < 0.3:
        return (rng.choice(_TROUBLES),)
    share = 0.1 + 0.9 * rng.random()
    drawn = tuple(one for one in _TROUBLES if rng.random() < share)
    # What makes histories part is what all the rules are for: it strikes more often than others.
    return drawn + tuple(one for one in _PARTING if rng.random() < 0.7) * 2
