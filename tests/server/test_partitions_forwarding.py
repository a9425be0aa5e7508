"""Commands that are passed on are carried out in the order of the calls, whatever goes wrong."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.operations import (
    NOT_MY_PARTITION,
    TEMPORARY_FAILURE,
    Command,
    OperationStatus,
    Outcome,
    Verb,
)
from millrace.core.messages import Message
from millrace.core.messages.documents import CarriedOut, CarryOut
from millrace.errors import NotConnected
from millrace.server.partitions import forwarding
from millrace.server.partitions.front import BucketFront
from millrace.types import NodeId
from tests.support.partition_nodes import BUCKET, CAFE, NAME, NUMBER, ONE, THREE, TWO, Node, World

RECORD = BucketRecord(BUCKET, NAME, BucketAttributes(1, 1), (Seat(1, CAFE, ONE, (TWO,)),))
OK = Outcome(OperationStatus.OK)
AWAY = NotConnected("away")
TURNS = 20  # Of the loop: whatever can happen has happened.


class Master:
    """The other node.  By value: what is answered, OK unless said otherwise, and when a command
    gets there, and when its answer gets back, at once unless there is a gate."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.carried_out: list[bytes] = []
        self.answers: defaultdict[bytes, list[Outcome | Exception]] = defaultdict(list)
        self.going: dict[bytes, asyncio.Event] = {}
        self.coming: dict[bytes, asyncio.Event] = {}
        self.reading = asyncio.Event()  # Cleared: the map is not read before it is set.
        self.reading.set()
        self.reloads = 0
        node = Node(World(), TWO)
        self.front = BucketFront(
            RECORD, node.store, node.around, self.ask, lambda _: "", self._reload
        )

    async def ask(self, node: NodeId, message: Message, timeout_ms: int) -> Message:
        assert isinstance(message, CarryOut)
        value = message.command.value
        self.asked.append(value)
        await _passed(self.going.get(value))
        answer = self.answers[value].pop(0) if self.answers[value] else OK
        if isinstance(answer, Exception):
            raise answer
        if answer == OK:
            self.carried_out.append(value)
        await _passed(self.coming.get(value))
        return CarriedOut(answer)

    async def _reload(self) -> None:
        self.reloads += 1
        await self.reading.wait()

    def forward(self, value: bytes) -> "asyncio.Task[Outcome]":
        return asyncio.create_task(self.front.forward(NUMBER, Command(Verb.SET, b"k", value)))

    async def prove(self) -> None:
        assert await self.forward(b"first") == OK
        self.asked.clear()
        self.carried_out.clear()


async def _passed(gate: asyncio.Event | None) -> None:
    if gate is not None:
        await gate.wait()
    await asyncio.sleep(0)


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


Scenario = Callable[[Master], Awaitable[None]]


def play(scenario: Scenario) -> Master:
    async def played() -> Master:
        master = Master()
        await master.prove()
        await scenario(master)
        return master

    return asyncio.run(asyncio.wait_for(played(), 10))


def test_a_command_does_not_pass_one_that_waits_for_the_map() -> None:
    """The older set won, and both were said to be stored."""

    async def scenario(master: Master) -> None:
        master.answers[b"1"] = [NOT_MY_PARTITION]
        master.reading.clear()
        first = master.forward(b"1")
        await _turns()
        second = master.forward(b"2")
        await _turns()
        master.reading.set()
        assert [await first, await second] == [OK, OK]

    assert play(scenario).carried_out == [b"1", b"2"]


def test_what_was_refused_is_not_sent_again_after_a_later_one_was_carried_out() -> None:
    async def scenario(master: Master) -> None:
        master.answers[b"1"] = [NOT_MY_PARTITION]
        first, second = master.forward(b"1"), master.forward(b"2")
        assert [await first, await second] == [TEMPORARY_FAILURE, OK]

    assert play(scenario).carried_out == [b"2"]


def test_nor_while_a_later_one_may_have_been(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "LATER_S", 0.01)

    async def scenario(master: Master) -> None:
        master.answers[b"1"] = [NOT_MY_PARTITION]
        master.coming[b"2"] = asyncio.Event()
        first, second = master.forward(b"1"), master.forward(b"2")
        assert await first == TEMPORARY_FAILURE
        master.coming[b"2"].set()
        assert await second == OK

    assert play(scenario).carried_out == [b"2"]


def test_all_that_were_refused_are_sent_again_in_order() -> None:
    async def scenario(master: Master) -> None:
        values = [b"%d" % at for at in range(10)]
        for value in values:
            master.answers[value] = [NOT_MY_PARTITION]
        master.coming[b"9"] = asyncio.Event()
        calls = [master.forward(value) for value in values]
        await _turns()
        calls.append(master.forward(b"last"))
        await _turns()
        assert master.carried_out == [], "the answer to one of them is still on its way"
        master.coming[b"9"].set()
        assert {await call for call in calls} == {OK}
        assert master.carried_out == [*values, b"last"]

    assert play(scenario).reloads == 1


def test_what_is_refused_twice_holds_up_nobody() -> None:
    async def scenario(master: Master) -> None:
        master.answers[b"1"] = [NOT_MY_PARTITION] * 2
        master.reading.clear()
        calls = [master.forward(b"1")]
        await _turns()
        calls += [master.forward(b"2"), master.forward(b"3")]
        master.reading.set()
        assert {await call for call in calls} == {TEMPORARY_FAILURE}
        assert await master.forward(b"4") == OK

    assert play(scenario).carried_out == [b"4"]


def test_what_the_old_master_refuses_goes_to_the_new_one() -> None:
    """The map was read meanwhile; the new master has not been heard of yet."""

    async def scenario(master: Master) -> None:
        master.answers[b"0"] = [AWAY]
        await master.forward(b"0")
        master.answers[b"1"] = [NOT_MY_PARTITION]
        master.coming[b"1"] = asyncio.Event()
        calls = [master.forward(b"1"), master.forward(b"2")]
        await _turns()
        master.front.record = replace(RECORD, seats=(Seat(2, CAFE, THREE),))
        master.coming[b"1"].set()
        assert {await call for call in calls} == {OK}

    assert play(scenario).carried_out == [b"1", b"2"]


def test_a_command_does_not_pass_one_that_looks_for_the_node() -> None:
    """The first one after a failure looks the address up; the next one took the old one."""

    async def scenario(master: Master) -> None:
        master.answers[b"0"] = [AWAY]
        assert await master.forward(b"0") == TEMPORARY_FAILURE
        master.going[b"1"] = asyncio.Event()
        calls = [master.forward(b"1"), master.forward(b"2"), master.forward(b"3")]
        await _turns()
        assert master.asked == [b"0", b"1"]
        master.going[b"1"].set()
        assert {await call for call in calls} == {OK}

    assert play(scenario).carried_out == [b"1", b"2", b"3"]


def test_commands_do_not_wait_one_by_one_for_a_node_that_is_away() -> None:
    async def scenario(master: Master) -> None:
        master.answers[b"0"] = [AWAY]
        await master.forward(b"0")
        master.answers[b"1"] = [AWAY]
        calls = [master.forward(b"1"), master.forward(b"2"), master.forward(b"3")]
        assert {await call for call in calls} == {TEMPORARY_FAILURE}

    assert play(scenario).asked == [b"0", b"1"]


def test_while_all_goes_well_no_command_waits_for_another() -> None:
    async def scenario(master: Master) -> None:
        values = [b"%d" % at for at in range(100)]
        gate = asyncio.Event()
        master.going = dict.fromkeys(values, gate)
        calls = [master.forward(value) for value in values]
        await asyncio.sleep(0)
        assert master.asked == values
        gate.set()
        assert {await call for call in calls} == {OK}

    play(scenario)


def test_so_many_may_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "WAITING_MAX", 2)

    async def scenario(master: Master) -> None:
        master.answers[b"1"] = [NOT_MY_PARTITION]
        master.reading.clear()
        first = master.forward(b"1")
        await _turns()
        behind = [master.forward(b"2"), master.forward(b"3")]
        assert await master.forward(b"4") == TEMPORARY_FAILURE
        master.reading.set()
        assert {await call for call in (first, *behind)} == {OK}

    assert play(scenario).carried_out == [b"1", b"2", b"3"]


def test_who_has_given_up_is_passed_over() -> None:
    async def scenario(master: Master) -> None:
        master.answers[b"1"] = [NOT_MY_PARTITION]
        master.reading.clear()
        first = master.forward(b"1")
        await _turns()
        second, third = master.forward(b"2"), master.forward(b"3")
        await _turns()
        for gone in (first, second):
            gone.cancel()
        master.reading.set()
        assert await third == OK

    assert play(scenario).carried_out == [b"3"]


def test_a_defect_is_told_to_who_called_and_ends_there() -> None:
    async def scenario(master: Master) -> None:
        master.answers[b"1"] = [RuntimeError("a defect")]
        with pytest.raises(RuntimeError):
            await master.forward(b"1")
        assert await master.forward(b"2") == OK

    play(scenario)
