"""Connections between simulated processes.

What runs over them are real frames: every message is encoded when sent and decoded, with its
blocks verified, when it arrives.  Within one direction of one connection frames arrive in order
and once, as TCP promises; connections overtake each other freely.  A loss is a connection that
breaks, with all that was under way on it.  A blocked link holds frames, as retransmission would,
and lets them go when it opens; if it stays blocked for long, each end gives the connection up by
itself.

  I1  Nothing arrives at an end that was closed, nor at another life of its process.
  I2  What a connection holds is bounded by its senders, who ask `is_writable`; a checker looks.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from millrace.codec.frames import (
    FRAME_HEADER_BYTES,
    decode,
    encode,
    parse_frame_header,
)
from millrace.core.messages import Message
from millrace.sim.schedule import MS, SECOND
from millrace.sim.violation import Violation

if TYPE_CHECKING:
    from millrace.sim.process import Process
    from millrace.sim.stage import Stage

DEAD_PEER_US = 1_500 * MS  # Silence after which an end gives up.
CONNECT_US = 1 * SECOND
SWEEP_US = 250 * MS
WAITING_BLOCKS_MAX = 256  # Beyond what a sender keeps to: requests and answers under way.


class Connection:
    """`ends[0]` dialled.  Every list is indexed by the end that sends."""

    __slots__ = (
        "arrival_us",
        "bytes_waiting",
        "ends",
        "held",
        "is_open",
        "is_stalled",
        "lives",
        "number",
        "silent_since_us",
    )

    def __init__(self, number: int, ends: "tuple[Process, Process]") -> None:
        self.number = number
        self.ends = ends
        self.lives = (ends[0].life, ends[1].life)
        self.is_open = [True, True]
        self.arrival_us = [0, 0]
        self.held: list[list[bytes]] = [[], []]
        self.bytes_waiting = [0, 0]
        self.is_stalled = [False, False]
        self.silent_since_us = [-1, -1]  # Since when the end's frames cannot get through.

    def end_of(self, process: "Process") -> int:
        return 0 if self.ends[0] is process else 1

    def pair(self, end: int) -> tuple[int, int]:
        """Who sends to whom, by their numbers."""
        return self.ends[end].number, self.ends[1 - end].number

    def peer_of(self, process: "Process") -> "Process":
        return self.ends[1 - self.end_of(process)]


class Network:
    def __init__(self, world: "Stage", seed: int | str, delay_us: int) -> None:
        self._world = world
        self._schedule = world.schedule
        self._rng = Random(f"{seed}/network")
        self._delay_us = delay_us
        self._connections: dict[int, Connection] = {}
        self._made = 0
        self._blocked: dict[tuple[int, int], int] = {}
        self.long_delay_share = 0.0
        self.slow_us: dict[int, int] = {}  # How much longer messages of a process take.
        self.bytes_waiting_max = world.shape.send_buffer_bytes + WAITING_BLOCKS_MAX * (
            world.block_bytes_max
        )
        self._schedule.after(SWEEP_US, self._sweep)

    # -- Connecting -----------------------------------------------------------------------------

    def dial(
        self, dialler: "Process", target: "Process", done: Callable[[Connection | None], None]
    ) -> None:
        """`done` gets None when the target cannot be reached."""
        is_blocked = self.is_blocked(dialler, target)
        is_silent = not target.is_up and target.is_silent
        delay_us = CONNECT_US if is_blocked or is_silent else 2 * self._delay()
        dialler.later(delay_us, self._dialled, dialler, target, done, is_blocked)

    def _dialled(
        self,
        dialler: "Process",
        target: "Process",
        done: Callable[[Connection | None], None],
        was_blocked: bool,
    ) -> None:
        if was_blocked or not target.is_up:
            done(None)
            return
        done(self._connect(dialler, target))

    def _connect(self, dialler: "Process", target: "Process") -> Connection:
        self._made += 1
        connection = Connection(self._made, (dialler, target))
        self._connections[self._made] = connection
        return connection

    def connections(self) -> list[Connection]:
        return list(self._connections.values())

    # -- Sending --------------------------------------------------------------------------------

    def send(
        self,
        connection: Connection,
        sender: "Process",
        message: Message,
        request: int,
        is_answer: bool,
    ) -> None:
        end = connection.end_of(sender)
        if connection.is_open[end]:
            self._send(connection, end, b"".join(encode(message, request, is_answer)))

    def send_frame(self, connection: Connection, sender: "Process", frame: bytes) -> None:
        end = connection.end_of(sender)
        if connection.is_open[end]:
            self._send(connection, end, frame)

    def _send(self, connection: Connection, end: int, frame: bytes) -> None:
        waiting = connection.bytes_waiting[end] + len(frame)
        connection.bytes_waiting[end] = waiting
        if waiting > self.bytes_waiting_max:
            raise Violation("G13", f"{waiting} bytes wait for {connection.ends[1 - end].name}")
        if connection.held[end] or (self._blocked and connection.pair(end) in self._blocked):
            connection.held[end].append(frame)
        else:
            self._fly(connection, end, frame)

    def _fly(self, connection: Connection, end: int, frame: bytes) -> None:
        now_us = self._schedule.now_us
        arrival_us = now_us + self._delay()
        if self.slow_us:
            arrival_us += self.slow_us.get(connection.ends[end].number, 0)
        if arrival_us < connection.arrival_us[end]:
            arrival_us = connection.arrival_us[end]
        connection.arrival_us[end] = arrival_us
        self._schedule.after(arrival_us - now_us, self._arrive, connection, end, frame)

    def _arrive(self, connection: Connection, end: int, frame: bytes) -> None:
        connection.bytes_waiting[end] -= len(frame)
        if connection.is_stalled[end]:
            self._unstall(connection, end)
        if connection.is_open[1 - end]:
            target = connection.ends[1 - end]
            target.wake(connection.lives[1 - end], self._deliver, connection, end, frame)

    def _unstall(self, connection: Connection, end: int) -> None:
        sender = connection.ends[end]
        if self.is_writable(connection, sender):
            connection.is_stalled[end] = False
            if connection.is_open[end]:
                sender.wake(connection.lives[end], sender.writable, connection)

    def _deliver(self, connection: Connection, end: int, frame: bytes) -> None:
        if not connection.is_open[1 - end]:
            return
        view = memoryview(frame)
        header = parse_frame_header(view)
        message = decode(header, view[FRAME_HEADER_BYTES:])
        sender, target = connection.ends[end], connection.ends[1 - end]
        request = header.request_id
        self._world.trace.add(
            self._schedule.now_us,
            target.name,
            f"{type(message).__name__} #{connection.number}.{request} {len(frame)}B "
            f"from {sender.name}",
        )
        target.received(connection, request, header.is_answer, message)

    def is_writable(self, connection: Connection, sender: "Process") -> bool:
        end = connection.end_of(sender)
        is_writable = connection.bytes_waiting[end] <= self._world.shape.send_buffer_bytes
        if not is_writable:
            connection.is_stalled[end] = True
        return is_writable

    def _delay(self) -> int:
        rng = self._rng
        delay_us = 1 + int(rng.random() * 2 * self._delay_us)
        if self.long_delay_share and rng.random() < self.long_delay_share:
            self._world.count("network.long_delay")
            delay_us += int(rng.random() * 4 * SECOND)
        return delay_us

    # -- Ending ---------------------------------------------------------------------------------

    def close(self, connection: Connection, closer: "Process", *, is_silent: bool = False) -> None:
        """One end goes; the other hears of it in turn, or not at all."""
        end = connection.end_of(closer)
        if not connection.is_open[end]:
            return
        connection.is_open[end] = False
        connection.silent_since_us[end] = self._schedule.now_us
        peer = connection.ends[1 - end]
        is_blocked = (closer.number, peer.number) in self._blocked
        if not is_silent and not is_blocked:
            now_us = self._schedule.now_us
            arrival_us = max(now_us + self._delay(), connection.arrival_us[end])
            self._schedule.after(arrival_us - now_us, self._hear_end, connection, 1 - end)

    def reset(self, connection: Connection) -> None:
        """The connection breaks: what is under way is lost, each end hears of it in its turn."""
        for end in (0, 1):
            if connection.is_open[end]:
                self._schedule.after(self._delay(), self._hear_end, connection, end)
        connection.is_open = [False, False]
        connection.held = [[], []]

    def _hear_end(self, connection: Connection, end: int) -> None:
        connection.is_open[end] = False
        if not any(connection.is_open):
            self._connections.pop(connection.number, None)
        process = connection.ends[end]
        process.wake(connection.lives[end], process.closed, connection)

    # -- Blocking -------------------------------------------------------------------------------

    def block(self, source: "Process", target: "Process") -> None:
        pair = (source.number, target.number)
        self._blocked[pair] = self._blocked.get(pair, 0) + 1

    def unblock(self, source: "Process", target: "Process") -> None:
        pair = (source.number, target.number)
        self._blocked[pair] -= 1
        if not self._blocked[pair]:
            del self._blocked[pair]
            self._release(pair)

    def is_blocked(self, one: "Process", other: "Process") -> bool:
        """Either way."""
        pair = (one.number, other.number)
        return pair in self._blocked or (pair[1], pair[0]) in self._blocked

    def _release(self, pair: tuple[int, int]) -> None:
        for connection in list(self._connections.values()):
            for end in (0, 1):
                source, target = connection.ends[end], connection.ends[1 - end]
                if (source.number, target.number) == pair:
                    held, connection.held[end] = connection.held[end], []
                    for frame in held:
                        self._fly(connection, end, frame)

    def _sweep(self) -> None:
        """What keep-alive does: an end that hears nothing for long gives the connection up."""
        now_us = self._schedule.now_us
        for connection in list(self._connections.values()):
            for end in (0, 1):
                self._look(connection, end, now_us)
            if not any(connection.is_open):
                self._connections.pop(connection.number, None)
        self._schedule.after(SWEEP_US, self._sweep)

    def _look(self, connection: Connection, end: int, now_us: int) -> None:
        """Is the peer of `end` silent, and for how long?"""
        peer = connection.ends[1 - end]
        pair = (peer.number, connection.ends[end].number)
        is_alive = peer.is_up and peer.life == connection.lives[1 - end] and not peer.is_paused
        is_heard = is_alive and connection.is_open[1 - end] and pair not in self._blocked
        if is_heard:
            connection.silent_since_us[1 - end] = -1
        elif connection.silent_since_us[1 - end] < 0:
            connection.silent_since_us[1 - end] = now_us
        elif (
            connection.is_open[end]
            and now_us - connection.silent_since_us[1 - end] >= DEAD_PEER_US
            and not connection.ends[end].is_paused
        ):
            self._world.count("network.dead_peer")
            self._hear_end(connection, end)
