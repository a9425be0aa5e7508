"""Machine `documents`: servers that hold one partition, its master, and replicas that follow, roll
back and repair (seed 001)."""

from collections.abc import Callable
from typing import Final

from millrace.core.documents.document import PartitionState
from millrace.core.documents.partition import NotWhole, Partition, UndoPending, UsedId
from millrace.scenario import document_words as dw
from millrace.scenario.document_server import DocumentServer
from millrace.scenario.document_words import FIRST_PARTITION as PARTITION
from millrace.scenario.machine import Command, Machine, Setting
from millrace.scenario.replica_line import ReplicaLine
from millrace.scenario.text import Words

NOW_US: Final = 1_000_000
NOW_MS: Final = 0  # Nothing here happens by the clock.
REFUSALS: Final = {UndoPending: "undo_pending", NotWhole: "not_whole", UsedId: "used_id"}


class DocumentsMachine(Machine):
    name = "documents"

    def __init__(self) -> None:
        self._servers: dict[str, DocumentServer] = {}
        self._lines: dict[str, ReplicaLine] = {}  # By the follower's name.
        self._term = 1

    def settings(self) -> list[Setting]:
        return [Setting("servers NAME,...", self._set_servers)]

    def commands(self) -> list[Command]:
        actions: list[tuple[str, Callable[[Words], list[str]]]] = [
            ("promote SERVER ID [takeover]", self._promote),
            ("become SERVER STATE", self._become),
            ("set SERVER KEY[=VALUE]...", self._store),
            ("delete SERVER KEY...", self._delete),
            ("flush SERVER", self._flush),
            ("connect SERVER MASTER", self._connect),
            ("step SERVER [N]", self._step),
            ("proceed SERVER", self._proceed),
            ("deliver SERVER [N]", self._deliver),
            ("cut SERVER", self._cut),
            ("crash SERVER", self._crash),
            ("restart SERVER", self._restart),
            ("quietly EVENT", self._quietly),
            ("state [SERVER...]", self._state),
            ("contents SERVER", self._contents),
            ("explain SERVER", lambda words: [self._take_line(words).explain()]),
        ]
        return [Command(usage, run) for usage, run in actions]

    def _set_servers(self, words: Words) -> None:
        for name in words.take("names such as A,B,C").split(","):
            self._servers[name] = DocumentServer(name, [PARTITION])
            self._servers[name].partitions[PARTITION].set_state(PartitionState.REPLICA, self._term)

    # -- Taking words -------------------------------------------------------------------------

    def _take_server(self, words: Words, is_up: bool = True) -> DocumentServer:
        name = words.take("a server such as A")
        server = self._servers.get(name)
        if server is None:
            words.fail(f"there is no {name}; known: {', '.join(self._servers) or 'none'}")
        if server.is_up is not is_up:
            words.fail(f"{name} is gone" if is_up else f"{name} is there: crash it first")
        return server

    def _take_master(self, words: Words) -> tuple[DocumentServer, Partition]:
        server = self._take_server(words)
        held = server.partitions[PARTITION]
        if held.state is not PartitionState.ACTIVE:
            words.fail(f"{server.name} is {held.state.value}, and takes no changes")
        return server, held

    def _take_line(self, words: Words) -> ReplicaLine:
        server = self._take_server(words)
        line = self._lines.get(server.name)
        if line is None:
            words.fail(f"{server.name} follows nobody: connect it first")
        return line

    # -- Masters ------------------------------------------------------------------------------

    def _promote(self, words: Words) -> list[str]:
        """State and id in one order (R-P)."""
        server = self._take_server(words)
        id = words.parse("an id such as cafebabe", dw.parse_id)
        is_takeover = words.option("takeover")
        try:
            server.partitions[PARTITION].promote(self._term + 1, id, is_takeover)
        except (UndoPending, NotWhole, UsedId) as error:
            return [f"{server.name} refuses {REFUSALS[type(error)]}"]
        self._term += 1
        self._close_line(server.name)
        return [server.show_state(PARTITION)]

    def _become(self, words: Words) -> list[str]:
        """What the keeper makes of it, promotion excepted."""
        server = self._take_server(words)
        state = words.parse("replica, pending or dead", PartitionState)
        if state is PartitionState.ACTIVE:
            words.fail("a server becomes the master with `promote`")
        self._close_line(server.name)
        server.partitions[PARTITION].set_state(state, self._term)
        return []

    def _store(self, words: Words) -> list[str]:
        server, held = self._take_master(words)
        stored = [held.store(key, value, 0, 0, NOW_US) for key, value in dw.take_new(words)]
        return [f"{server.name} stores {dw.show_changes(stored)}"]

    def _delete(self, words: Words) -> list[str]:
        server, held = self._take_master(words)
        buried = [held.delete(key, NOW_US) for key in dw.take_keys(words)]
        return [f"{server.name} stores {dw.show_changes(filter(None, buried))}"]

    # -- Replicas -----------------------------------------------------------------------------

    def _connect(self, words: Words) -> list[str]:
        """It asks for the failover log, and compares."""
        server, leader = self._take_server(words), self._take_server(words)
        if server.partitions[PARTITION].state is PartitionState.ACTIVE:
            words.fail(f"{server.name} is a master, and follows nobody")
        self._close_line(server.name)
        self._lines[server.name] = line = ReplicaLine(server, leader, NOW_MS)
        return line.step()

    def _step(self, words: Words) -> list[str]:
        line = self._take_line(words)
        count = words.number("a number of steps") if words else 1
        shown: list[str] = []
        for _ in range(count):
            if not line.has_wishes:
                words.fail("nothing is left to do")
            shown += line.step()
        return shown

    def _proceed(self, words: Words) -> list[str]:
        line = self._take_line(words)
        shown: list[str] = []
        while line.has_wishes:
            shown += line.step()
        return shown

    def _deliver(self, words: Words) -> list[str]:
        line = self._take_line(words)
        if not line.is_streaming:
            words.fail("no stream is open: let it proceed")
        return line.deliver(words.number("a number of changes") if words else None)

    def _cut(self, words: Words) -> list[str]:
        self._close_line(self._take_line(words).follower.name)
        return []

    def _close_line(self, follower: str) -> None:
        line = self._lines.pop(follower, None)
        if line is not None:
            line.close()

    # -- Disks and power ----------------------------------------------------------------------

    def _flush(self, words: Words) -> list[str]:
        return [self._take_server(words).flush(PARTITION)]

    def _crash(self, words: Words) -> list[str]:
        server = self._take_server(words)
        server.crash()
        self._close_line(server.name)
        lost = [name for name, line in self._lines.items() if line.leader is server]
        for name in lost:
            self._close_line(name)
        return [f"{name} loses {server.name}" for name in lost]

    def _restart(self, words: Words) -> list[str]:
        server = self._take_server(words, is_up=False)
        server.restart(self._term)
        return [server.show_state(PARTITION)]

    # -- For people ---------------------------------------------------------------------------

    def _quietly(self, words: Words) -> list[str]:
        self.perform(words)
        return []

    def _state(self, words: Words) -> list[str]:
        if not words:
            return [server.show_state(PARTITION) for server in self._servers.values()]
        shown = []
        while words:
            name = words.take("a server such as A")
            if name not in self._servers:
                words.fail(f"there is no {name}; known: {', '.join(self._servers)}")
            shown.append(self._servers[name].show_state(PARTITION))
        return shown

    def _contents(self, words: Words) -> list[str]:
        server = self._take_server(words)
        held = server.partitions[PARTITION].table.values()
        by_seq = sorted(held, key=lambda document: document.seq)
        return [f"{server.name} {dw.show_changes(by_seq)}"]
