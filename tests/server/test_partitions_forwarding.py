"""Commands that are passed on are carried out in the order of the calls, whatever goes wrong."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from millrace.core.documents.document import PartitionId
from millrace.core.documents.map import BucketAttributes, BucketRecord, Seat
from millrace.core.documents.operations import (
    AMBIGUOUS,
    INVALID,
    NOT_MY_PARTITION,
    TEMPORARY_FAILURE,
    Command,
    DurabilityLevel,
    OperationStatus,
    Outcome,
    Verb,
)
from millrace.core.documents.waits import WAIT_MS_DEFAULT
from millrace.core.messages import Message
from millrace.core.messages.documents import CarriedOut, CarryOut
from millrace.errors import ConnectionLost, MillraceError, NoAnswer, NotConnected
from millrace.server.partitions import forwarding
from millrace.server.partitions.forwarding import QUESTION, Forwarding
from millrace.server.partitions.front import FORWARD_MS, BucketFront
from millrace.types import NodeId
from tests.support.partition_nodes import BUCKET, CAFE, NAME, NUMBER, ONE, THREE, TWO, Node, World

RECORD = BucketRecord(BUCKET, NAME, BucketAttributes(1, 1), (Seat(1, CAFE, ONE, (TWO,)),))
OK = Outcome(OperationStatus.OK)
AWAY = NotConnected("away")
LATE = NoAnswer("late")
LOST = ConnectionLost("lost")
DURABLE = DurabilityLevel.MAJORITY
TURNS = 20  # Of the loop: whatever can happen has happened.


class Master:
    """The other node.  By value: what is answered, OK unless said otherwise, and when a command
    gets there, and when its answer gets back, at once unless there is a gate."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.times_ms: list[int] = []
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
        self.times_ms.append(timeout_ms)
        await _passed(self.going.get(value))
        usual = OK if message.command.key else INVALID
        answer = self.answers[value].pop(0) if self.answers[value] else usual
        if isinstance(answer, Exception):
            raise answer
        if answer == OK:
            self.carried_out.append(value)
        await _passed(self.coming.get(value))
        return CarriedOut(answer)

    async def _reload(self) -> None:
        self.reloads += 1
        await self.reading.wait()

    def forward(
        self, value: bytes, level: DurabilityLevel = DurabilityLevel.NONE, timeout_ms: int = 0
    ) -> "asyncio.Task[Outcome]":
        command = Command(Verb.SET, b"k", value, level=level, timeout_ms=timeout_ms)
        return asyncio.create_task(self.front.forward(NUMBER, command))

    async def prove(self) -> None:
        assert await self.forward(b"first") == OK
        self.asked.clear()
        self.times_ms.clear()
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


@pytest.mark.parametrize(
    ("error", "outcome"), [(AWAY, TEMPORARY_FAILURE), (LOST, AMBIGUOUS)], ids=["away", "lost"]
)
def test_a_command_does_not_pass_one_that_looks_for_the_node(
    error: MillraceError, outcome: Outcome
) -> None:
    """The first one after a failure looks the address up; the next one took the old one."""

    async def scenario(master: Master) -> None:
        master.answers[b"0"] = [error]
        assert await master.forward(b"0") == outcome
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


def test_nobody_passes_what_was_to_be_sent_when_the_node_went_away() -> None:
    """It was there when they were begun, and gone when they had their turn."""
    sent: list[bytes] = []
    gate = asyncio.Event()
    proven = iter([False, False, True])  # When the first comes, when it is sent, and answered.

    async def send(number: PartitionId, command: Command) -> Outcome:
        sent.append(command.value)
        if command.value == b"2":
            await gate.wait()
        return OK

    async def played() -> None:
        commands = Forwarding(send, lambda _: next(proven, False), None)
        calls = [
            asyncio.create_task(commands.forward(NUMBER, Command(Verb.SET, b"k", value)))
            for value in (b"1", b"2", b"3")
        ]
        await _turns()
        assert sent == [b"1", b"2"]
        gate.set()
        assert {await call for call in calls} == {OK}

    asyncio.run(asyncio.wait_for(played(), 10))
    assert sent == [b"1", b"2", b"3"]


# -- Writes that wait for durability ----------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "timeout_ms", "wait_ms"),
    [
        (DurabilityLevel.NONE, 0, 0),
        (DURABLE, 0, WAIT_MS_DEFAULT),
        (DURABLE, 60_000, 60_000),
        (DURABLE, 5, 5),
    ],
    ids=["not durable", "as usual", "long", "short"],
)
def test_a_master_says_itself_that_its_wait_was_in_vain(
    level: DurabilityLevel, timeout_ms: int, wait_ms: int
) -> None:
    """Whoever passed the command on had less patience than the master."""

    async def scenario(master: Master) -> None:
        await master.forward(b"1", level, timeout_ms)

    assert play(scenario).times_ms == [wait_ms + FORWARD_MS]


def test_a_master_whose_answer_is_late_is_no_worse_than_before() -> None:
    """What came behind one late answer waited for all that were under way."""

    async def scenario(master: Master) -> None:
        master.coming[b"1"] = asyncio.Event()
        first = master.forward(b"1", DURABLE)
        master.answers[b"2"] = [LATE]
        assert await master.forward(b"2", DURABLE) == AMBIGUOUS
        third = master.forward(b"3")
        await _turns()
        assert third.done() and not first.done()
        master.coming[b"1"].set()
        assert {await first, await third} == {OK}

    assert play(scenario).carried_out == [b"1", b"3"]


def test_what_is_under_way_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "LATER_S", 0.01)

    async def scenario(master: Master) -> None:
        master.coming[b"1"] = asyncio.Event()
        first = master.forward(b"1", DURABLE)
        master.answers[b"2"] = [AWAY]
        assert await master.forward(b"2") == TEMPORARY_FAILURE
        assert await master.forward(b"3") == OK
        assert not first.done()
        master.coming[b"1"].set()
        assert await first == OK

    play(scenario)


def test_nobody_waits_until_the_first_one_after_a_failure_is_durable() -> None:
    """It went alone, and a replica was away."""

    async def scenario(master: Master) -> None:
        master.answers[b"0"] = [AWAY]
        await master.forward(b"0")
        master.coming[b"1"] = asyncio.Event()
        first, second = master.forward(b"1", DURABLE), master.forward(b"2")
        assert await second == OK
        assert not first.done()
        master.coming[b"1"].set()
        assert await first == OK

    assert play(scenario).carried_out == [b"1", b"2"]


@pytest.mark.parametrize("has_failed", [False, True], ids=["at once", "after a failure"])
def test_nor_until_one_that_was_refused_is(has_failed: bool) -> None:
    async def scenario(master: Master) -> None:
        if has_failed:
            master.answers[b"0"] = [AWAY]
            await master.forward(b"0")
        master.answers[b"1"] = [NOT_MY_PARTITION]
        master.reading.clear()
        first = master.forward(b"1", DURABLE)
        await _turns()
        master.coming[b"1"] = asyncio.Event()
        second = master.forward(b"2")
        master.reading.set()
        assert await second == OK
        assert not first.done()
        master.coming[b"1"].set()
        assert await first == OK

    assert play(scenario).carried_out == [b"1", b"2"]


@pytest.mark.parametrize(
    ("refusals", "outcome", "carried_out"),
    [(1, OK, [b"1", b"2"]), (2, TEMPORARY_FAILURE, [])],
    ids=["once", "twice"],
)
def test_the_question_before_it_is_refused_in_its_stead(
    refusals: int, outcome: Outcome, carried_out: list[bytes]
) -> None:
    async def scenario(master: Master) -> None:
        master.answers[b"0"] = [AWAY]
        await master.forward(b"0")
        master.answers[QUESTION.value] = [NOT_MY_PARTITION] * refusals
        calls = [master.forward(b"1", DURABLE), master.forward(b"2")]
        assert {await call for call in calls} == {outcome}

    master = play(scenario)
    assert master.carried_out == carried_out
    assert master.reloads == 1
