"""The nemesis: does to the cluster what a seed's shape allows, and undoes it.

Each family strikes at random times, lasts for a random while, and is counted, so that a run over
many seeds can prove that every fault happened.  What must not be destroyed is asked of the atlas.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from millrace.sim.atlas import Atlas
from millrace.sim.process import Process
from millrace.sim.schedule import MS, SECOND
from millrace.sim.shape import Family

if TYPE_CHECKING:
    from millrace.sim.node import Node
    from millrace.sim.world import World

LONG_DELAY_SHARE = 0.002
Undo = Callable[[], None]


class Nemesis:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = Random(f"{world.seed}/nemesis")
        self.atlas = Atlas(world)
        self._undos: dict[int, Undo] = {}
        self._faults = 0
        self._is_stopped = True
        self._strikes: dict[Family, Callable[[], bool]] = {
            Family.CRASH: lambda: self._crash(is_silent=False),
            Family.POWER: lambda: self._crash(is_silent=True),
            Family.RESTART: self._restart,
            Family.WIPE: self._wipe,
            Family.PAUSE: self._pause,
            Family.CLOCK: self._clock,
            Family.RESET: self._reset,
            Family.PARTITION: self._partition,
            Family.ONE_WAY: self._one_way,
            Family.ISOLATE: self._isolate,
            Family.CLOG: self._clog,
            Family.SLOW_DISK: self._slow_disk,
            Family.FULL_DISK: self._full_disk,
            Family.ROT: self._rot,
            Family.METADATA: self._metadata,
            Family.CLIENT_CRASH: self._client_crash,
            Family.OPERATOR: self._operator,
            Family.BLACKOUT: self._blackout,
        }

    @property
    def faults(self) -> int:
        return self._faults

    def begin(self) -> None:
        self._is_stopped = False
        families = self._world.shape.families
        if Family.LONG_DELAY in families:
            self._world.network.long_delay_share = LONG_DELAY_SHARE
        if any(family in self._strikes for family in families):
            self._wait()

    def stop(self) -> None:
        """Undo everything that still lasts."""
        self._is_stopped = True
        self._world.network.long_delay_share = 0.0
        for undo in list(self._undos.values()):
            undo()
        self._undos.clear()

    def _wait(self) -> None:
        delay_us = 1 + int(2 * self._rng.random() * self._world.shape.fault_us)
        self._world.schedule.after(delay_us, self._strike)

    def _strike(self) -> None:
        if self._is_stopped:
            return
        able = [one for one in self._world.shape.families if one in self._strikes]
        family = self._rng.choice(able)
        if self._strikes[family]():
            self._faults += 1
            self._world.count(f"fault.{family.value}")
        self._wait()

    def _lasts(self, most_us: int, undo: Undo) -> None:
        """Undo a fault after a while, mostly short."""
        number = len(self._undos) + self._faults * 1_000
        while number in self._undos:
            number += 1
        self._undos[number] = undo
        delay_us = 1 + int(self._rng.random() ** 2 * most_us)
        self._world.schedule.after(delay_us, self._end, number)

    def _end(self, number: int) -> None:
        undo = self._undos.pop(number, None)
        if undo is not None:
            undo()

    # -- Processes ------------------------------------------------------------------------------

    def _up_nodes(self) -> list["Node"]:
        return [node for node in self._world.nodes if node.is_up]

    def _crash(self, *, is_silent: bool) -> bool:
        nodes = [node for node in self._up_nodes() if self.atlas.may_crash(node)]
        if not nodes:
            return False
        node = self._rng.choice(nodes)
        node.crash(is_silent=is_silent)
        self._lasts(2 * SECOND, lambda: self._start(node))
        return True

    def _restart(self) -> bool:
        nodes = [node for node in self._up_nodes() if not node.is_paused]
        if not nodes:
            return False
        node = self._rng.choice(nodes)
        node.stop()
        self._lasts(SECOND, lambda: self._start(node))
        return True

    def _start(self, process: Process) -> None:
        if not process.is_up:
            process.start()

    def _wipe(self) -> bool:
        nodes = [node for node in self._world.nodes if self.atlas.may_lose_disk(node)]
        if not nodes:
            return False
        node = self._rng.choice(nodes)
        node.crash(is_silent=self._rng.random() < 0.5)
        node.wipe()
        self._lasts(2 * SECOND, lambda: self._start(node))
        return True

    def _pause(self) -> bool:
        process = self._rng.choice(self._world.people())
        if not process.is_up or process.is_paused:
            return False
        process.pause()
        if self._world.shape.lease_ms < 3_000:
            self._world.count("fault.pause_past_lease")
        self._lasts(4 * SECOND, process.resume)
        return True

    def _clock(self) -> bool:
        process = self._rng.choice(self._world.people())
        process.clock_skew_us += int((self._rng.random() - 0.5) * 20 * SECOND)
        return True

    def _client_crash(self) -> bool:
        clients = [one for one in self._world.clients() if one.is_up]
        if not clients:
            return False
        client = self._rng.choice(clients)
        client.crash()
        self._lasts(500 * MS, lambda: self._start(client))
        return True

    def _blackout(self) -> bool:
        """Every member of a chain dies at once."""
        world = self._world
        log = self._rng.choice(world.log_ids)
        members = [world.node(number) for number in world.projection(log).chain]
        if any(self.atlas.is_being_changed(node, one) for node in members for one in world.log_ids):
            return False  # Which chain will stand, and so what is lost, is not decided.
        for node in members:
            node.crash(is_silent=self._rng.random() < 0.5)
            self._lasts(SECOND, partial(self._start, node))
        for one in world.log_ids:
            if not self.atlas.whole(one):
                world.ledger.blacked_out(one)
        return True

    # -- Network --------------------------------------------------------------------------------

    def _reset(self) -> bool:
        connections = self._world.network.connections()
        if not connections:
            return False
        connection = self._rng.choice(connections)
        self._world.trace.add(
            self._world.schedule.now_us,
            "net",
            f"#{connection.number} breaks: {connection.ends[0].name} {connection.ends[1].name}",
        )
        self._world.network.reset(connection)
        return True

    def _block(self, pairs: list[tuple[Process, Process]], most_us: int, what: str) -> bool:
        names = " ".join(f"{source.name}>{target.name}" for source, target in pairs)
        self._world.trace.add(self._world.schedule.now_us, "net", f"{what}: {names}")
        for source, target in pairs:
            self._world.network.block(source, target)
        self._lasts(most_us, lambda: self._unblock(pairs))
        return True

    def _unblock(self, pairs: list[tuple[Process, Process]]) -> None:
        self._world.trace.add(self._world.schedule.now_us, "net", "links open")
        for source, target in pairs:
            self._world.network.unblock(source, target)

    def _partition(self) -> bool:
        everybody = self._world.everybody()
        side = {process.number for process in everybody if self._rng.random() < 0.5}
        pairs = [
            (one, other)
            for one in everybody
            for other in everybody
            if (one.number in side) != (other.number in side)
        ]
        return bool(pairs) and self._block(pairs, 4 * SECOND, "partition")

    def _isolate(self) -> bool:
        everybody = self._world.everybody()
        lonely = self._rng.choice(everybody)
        others = [process for process in everybody if process is not lonely]
        pairs = [(lonely, other) for other in others] + [(other, lonely) for other in others]
        return self._block(pairs, 4 * SECOND, "isolated")

    def _one_way(self) -> bool:
        one, other = self._rng.sample(self._world.everybody(), 2)
        return self._block([(one, other)], 4 * SECOND, "one way")

    def _clog(self) -> bool:
        """Short enough for the connections to live on: everything comes at once."""
        one, other = self._rng.sample(self._world.everybody(), 2)
        return self._block([(one, other), (other, one)], SECOND, "clogged")

    # -- Disks, repository, people --------------------------------------------------------------

    def _slow_disk(self) -> bool:
        node = self._rng.choice(self._up_nodes() or [self._world.nodes[0]])
        if not node.is_up or node.slow_us:
            return False
        node.slow_us = int(self._rng.random() * SECOND)
        store = node.store
        store.commit_us += node.slow_us

        def fast_again() -> None:
            store.commit_us = self._world.shape.disk_us
            node.slow_us = 0
            if node.is_up:
                node.store.commit_us = self._world.shape.disk_us

        self._lasts(2 * SECOND, fast_again)
        return True

    def _full_disk(self) -> bool:
        node = self._rng.choice(self._world.nodes)
        if node.is_disk_full or not self.atlas.may_crash(node):
            return False
        # What waits in memory when the disk fills up is lost.  More must not follow unasked.
        has_slack = self._world.shape.memory_share == 0
        slack = node.disk.used_bytes + int(self._rng.random() * 500)
        node.disk.capacity_bytes = slack if has_slack else 0
        node.trace("disk is full")

        def room_again() -> None:
            node.disk.capacity_bytes = self._world.disk_bytes
            node.trace("disk has room")
            if node.is_up:
                node.store.gave_room()

        self._lasts(3 * SECOND, room_again)
        return True

    def _rot(self) -> bool:
        node = self._rng.choice(self._world.nodes)
        parts = self._world.parts
        logs = [*self._world.log_ids, *(log for part in parts for log in part.stored_logs())]
        log = self._rng.choice(logs)
        stored = node.disk.logs.get(log)
        if stored is None or not stored.blocks or not self.atlas.may_rot(node, log):
            return False
        first = self._rng.choice(list(stored.blocks))
        node.trace(f"block {first} of log {log} rots")
        node.disk.rot(log, first)
        for part in parts:
            if part.owns(log):
                part.rots(node, log, first)
        return True

    def _metadata(self) -> bool:
        metadata = self._world.metadata
        if self._rng.random() < 0.5:
            if metadata.is_paused:
                return False
            metadata.pause()
            self._lasts(3 * SECOND, metadata.resume)
        else:
            metadata.slow_us = int(self._rng.random() * SECOND)

            def fast_again() -> None:
                metadata.slow_us = 0

            self._lasts(2 * SECOND, fast_again)
        return True

    def _operator(self) -> bool:
        world = self._world
        log = self._rng.choice(world.log_ids)
        chain = world.projection(log).chain
        if len(chain) > 1 and self._rng.random() < 0.3 and len(self.atlas.whole(log)) > 1:
            world.operator.remove(log, self._rng.choice(chain))
        else:
            world.operator.reseal(log)
        return True
