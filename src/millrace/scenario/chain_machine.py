"""Machine `chain`: clients against a whole chain log, step by step, as in seed 002's figures."""

from typing import Any

from millrace.codec import blocks
from millrace.core import procedure as p
from millrace.core.follow import copy_elsewhere
from millrace.core.keeper import teach
from millrace.core.messages import Found, Message, Read
from millrace.core.projection import Projection
from millrace.core.read_stream import NeedCopy
from millrace.core.reconfigure import create, reconfigure
from millrace.core.repair import repair
from millrace.core.trim import trim
from millrace.scenario import speech
from millrace.scenario import words as w
from millrace.scenario.chain_client import Client
from millrace.scenario.cluster import Cluster, Health
from millrace.scenario.machine import Command, Machine, Setting
from millrace.scenario.procedure_words import (
    CHANGE_USAGE,
    take_append,
    take_change,
    take_repair,
)
from millrace.scenario.text import Words
from millrace.types import Ack, Lsn, NodeId, Token

_CREATOR = Token(1, 1)


class ChainMachine(Machine):
    name = "chain"

    def __init__(self) -> None:
        self._cluster = Cluster()
        self._clients: dict[str, Client] = {}
        self._storage_nodes, self._sequencers = 3, 1
        self._spares = 0
        self._ack = Ack.DISK
        self._shown_state = ""

    def settings(self) -> list[Setting]:
        return [
            Setting("nodes N [spares N]", self._set_nodes),
            Setting("sequencers N", self._set_sequencers),
            Setting("ack disk|memory", self._set_ack),
        ]

    def commands(self) -> list[Command]:
        actions = [
            ("client NAME ACTION", self._act),
            ("fail NODE", self._set_health(Health.FAILED)),
            ("hang NODE", self._set_health(Health.HANGS)),
            ("mute NODE", self._set_health(Health.MUTE)),
            ("heal NODE", self._set_health(Health.WELL)),
            ("crash NODE", self._crash),
            ("restart NODE", self._restart),
            ("wipe NODE", self._wipe),
            ("flush NODE", self._flush),
            ("damage NODE LSN", self._damage),
            ("metadata fail|heal", self._metadata),
            ("state", self._state),
            ("contents", self._contents),
        ]
        return [Command(usage, run) for usage, run in actions]

    def perform(self, words: Words) -> list[str]:
        if self._cluster.projection is None:
            self._create_log()
        output = super().perform(words)
        state = self._cluster.state()
        if state != self._shown_state and state not in output:
            output.append(state)
        self._shown_state = state
        return output

    # -- Set-up -------------------------------------------------------------------------------

    def _set_nodes(self, words: Words) -> None:
        self._storage_nodes = words.number("a number of nodes")
        if words.option("spares"):
            self._spares = words.number("a number of nodes outside the chain")

    def _set_sequencers(self, words: Words) -> None:
        self._sequencers = words.number("a number of sequencers")

    def _set_ack(self, words: Words) -> None:
        self._ack = words.parse("disk or memory", Ack)

    def _create_log(self) -> None:
        for number in range(1, self._storage_nodes + self._spares + 1):
            self._cluster.add(NodeId(number))
        for number in range(self._sequencers):
            self._cluster.add(NodeId(w.FIRST_SEQUENCER + number))
        chain = tuple(NodeId(number) for number in range(1, self._storage_nodes + 1))
        creator = Client(self._cluster, "creator", 0)
        creator.begin(create(w.LOG, chain, len(chain), _CREATOR))
        creator.run()
        self._cluster.exchanges.clear()
        self._shown_state = self._cluster.state()

    # -- Clients ------------------------------------------------------------------------------

    def _act(self, words: Words) -> list[str]:
        name = words.take("a client's name")
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = Client(self._cluster, name, len(self._clients) + 1)
        is_begun_only = words.option("begin")
        action = words.take("an action")
        if action in ("step", "run", "fails", "deadline"):
            self._go_on(words, client, action)
        elif action == "refresh":
            client.refresh()
        elif action == "send":
            node = words.parse("a node such as SN1", w.parse_node)
            self._cluster.ask(name, node, speech.take_message(words))
        else:
            if client.is_busy:
                words.fail(f"client {name} is busy: step or run it first")
            client.begin(self._start(words, client, action))
            if not is_begun_only:
                client.run()
        shown = list(self._cluster.exchanges)
        self._cluster.exchanges.clear()
        return shown

    def _start(self, words: Words, client: Client, action: str) -> p.Procedure[Any]:
        projection = client.projection
        assert projection is not None
        match action:
            case "append":
                client.append = take_append(words, client.next_token(), self._ack)
                return client.append.run(projection)
            case "resume":
                if client.append is None:
                    words.fail("this client has appended nothing yet")
                return client.append.run(projection)
            case "read":
                return _read(projection, Lsn(words.number("a position")))
            case "copy":
                lsn = Lsn(words.number("a position"))
                return _copy(projection, lsn)
            case "repair":
                lsn, policy = take_repair(words)
                return repair(projection, lsn, policy, blocks.junk)
            case "trim":
                return trim(projection, Lsn(words.number("a position")))
            case "teach":
                return teach(projection, words.parse("a node such as SN4", w.parse_node))
            case "reconfigure":
                return reconfigure(take_change(words), client.next_token(), blocks.junk)
            case _:
                return words.fail(f"expected one of: {'; '.join(CLIENT_ACTIONS)}, found {action!r}")

    def _go_on(self, words: Words, client: Client, action: str) -> None:
        if not client.is_busy:
            words.fail(f"client {client.name} is doing nothing")
        match action:
            case "step":
                for _ in range(words.number("a number of steps") if words else 1):
                    if client.is_busy:
                        client.step()
            case "run":
                client.run()
            case "deadline":
                client.deadline()
            case _:
                client.fail()
                self._cluster.say(f"{client.name} failed")

    # -- Nodes --------------------------------------------------------------------------------

    def _set_health(self, health: Health) -> Any:
        def change(words: Words) -> list[str]:
            self._cluster.nodes[self._take_node(words)].health = health
            return []

        return change

    def _take_node(self, words: Words) -> NodeId:
        node = words.parse("a node such as SN1", w.parse_node)
        if node not in self._cluster.nodes:
            words.fail(f"there is no {w.show_node(node)}")
        return node

    def _crash(self, words: Words) -> list[str]:
        self._cluster.nodes[self._take_node(words)].crash()
        return []

    def _restart(self, words: Words) -> list[str]:
        node = self._cluster.nodes[self._take_node(words)]
        node.crash()
        node.health = Health.WELL
        return []

    def _wipe(self, words: Words) -> list[str]:
        node = self._cluster.nodes[self._take_node(words)]
        node.wipe()
        node.health = Health.WELL
        return []

    def _flush(self, words: Words) -> list[str]:
        self._cluster.nodes[self._take_node(words)].store.flush()
        return []

    def _damage(self, words: Words) -> list[str]:
        node = self._take_node(words)
        self._cluster.nodes[node].store.damage(w.LOG, Lsn(words.number("a position")))
        return []

    def _metadata(self, words: Words) -> list[str]:
        match words.take("fail or heal"):
            case "fail":
                self._cluster.is_metadata_up = False
            case "heal":
                self._cluster.is_metadata_up = True
            case word:
                words.fail(f"expected fail or heal, found {word!r}")
        return []

    def _state(self, words: Words) -> list[str]:
        return [self._cluster.state()]

    def _contents(self, words: Words) -> list[str]:
        return self._cluster.contents()


CLIENT_ACTIONS = (
    "[begin] append VALUE[|VALUE...] [token CLIENT.REQUEST] [ack memory]",
    "[begin] resume",
    "[begin] read LSN",
    "[begin] copy LSN",
    "[begin] repair LSN [wait MS|never]",
    "[begin] trim END",
    "[begin] teach NODE",
    f"[begin] reconfigure {CHANGE_USAGE}",
    "send NODE MESSAGE",
    "refresh",
    "step [N]",
    "run",
    "deadline",
    "fails",
)


def _read(projection: Projection, lsn: Lsn) -> p.Procedure[Message | p.Failure]:
    """One round trip: the tail is asked (seed 002, read)."""
    answer = yield from p.ask(projection.tail, Read(projection.log, projection.epoch, lsn))
    return answer


def _copy(projection: Projection, lsn: Lsn) -> p.Procedure[object]:
    """What a reader does whose tail holds a damaged block."""
    block = yield from copy_elsewhere(projection, NeedCopy(lsn, projection.tail))
    return None if block is None else Found(block)
