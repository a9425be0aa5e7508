"""Gathering appends into blocks: who shares one, who waits, and for how long."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from millrace.client.batcher import Batcher
from millrace.client.many import (
    Headers,
    all_settled,
    check_record,
    draft_values,
    header_pairs,
)
from millrace.client.outcomes import BlockAppend, UnknownAppend
from millrace.codec.blocks import place, records
from millrace.codec.drafts import Draft, HeaderPairs
from millrace.core.append import Append, Appended
from millrace.errors import LogSealed, MillraceError, RecordTooLarge, TimedOut, UsageError
from millrace.limits import BATCH_BYTES_WAITING_MAX, BLOCK_BYTES_TARGET, RECORD_BYTES_MAX
from millrace.runtime.hot_run import Waiter
from millrace.types import Ack, Epoch, LogId, Lsn, Token

LONG_MS = 30_000
SHORT_MS = 50
SOON_S = 5.0  # Short, and time for a busy machine.


class Sent:
    """Takes blocks and answers when the test says so."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Draft, Ack, int, Waiter[Appended]]] = []
        self.count = 0

    def __call__(
        self, draft: Draft, ack: Ack, left_ms: int, waiter: Waiter[Appended]
    ) -> BlockAppend:
        self.blocks.append((draft, ack, left_ms, waiter))
        return block_append(draft.count)

    def answer(self) -> None:
        draft, _, _, waiter = self.blocks.pop(0)
        first = Lsn(self.count + 1)
        self.count += draft.count
        waiter.set_result(Appended(first, Lsn(self.count)))


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(bounded())


def add(
    batcher: Batcher, value: bytes = b"x", timeout_ms: int = LONG_MS, headers: HeaderPairs = ()
) -> "asyncio.Task[Appended]":
    deadline_s = time.monotonic() + timeout_ms / 1000
    return asyncio.create_task(batcher.add(value, None, 0, headers, Ack.DISK, deadline_s))


def make_batcher(send: Sent, in_flight_max: int) -> Batcher:
    return Batcher("events", send, compress=False, in_flight_max=in_flight_max)


def values_of(draft: Draft) -> list[bytes]:
    block = place(draft, LogId(1), Epoch(1), Lsn(1), Token(1, 1))
    return [record.value for record in records(block, Lsn(1), Lsn(draft.count + 1))]


async def turns(count: int = 4) -> None:
    """Let everything that is due happen."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("key", "timestamp_us", "headers", "error"),
    [
        (None, 1.5, (), UsageError),
        (None, 2**63, (), UsageError),
        (None, -(2**63) - 1, (), UsageError),
        ("text", None, (), UsageError),
        (None, None, (("name", "text"),), UsageError),
        (None, None, ((7, b"x"),), UsageError),
        (None, None, (("\ud800", b"x"),), UsageError),
        (None, None, (("name", bytes(RECORD_BYTES_MAX)),), RecordTooLarge),
    ],
)
def test_a_record_that_would_spoil_its_block_is_refused(
    key: Any, timestamp_us: Any, headers: Any, error: type[MillraceError]
) -> None:
    with pytest.raises(error):
        check_record(b"value", key, timestamp_us, headers)


@pytest.mark.parametrize(
    "headers",
    [{"trace": b"1", "page": b"2"}, [("trace", b"1"), ("page", b"2")]],
    ids=["mapping", "pairs"],
)
def test_headers_are_a_mapping_or_pairs(headers: Headers) -> None:
    pairs = (("trace", b"1"), ("page", b"2"))
    assert header_pairs(headers) == pairs
    [drafted] = draft_values([b"x"], None, 0, [headers], False)
    block = place(drafted, LogId(1), Epoch(1), Lsn(1), Token(1, 1))
    assert records(block, Lsn(1), Lsn(2))[0].headers == pairs


def test_headers_that_change_while_the_record_waits_do_not_change_it() -> None:
    given = {"trace": b"1"}
    pairs = header_pairs(given)
    given["trace"] = b"2"
    assert pairs == (("trace", b"1"),)


@pytest.mark.parametrize("headers", [7, "trace", {"trace": "text"}, [("trace",)], {7: b"x"}])
def test_headers_of_another_form_are_told_the_right_one(headers: Any) -> None:
    with pytest.raises(UsageError, match=r"\{'trace': b'1'\} or \[\('trace', b'1'\)\]"):
        check_record(b"value", None, None, header_pairs(headers))
    with pytest.raises(UsageError, match=r"\{'trace': b'1'\} or \[\('trace', b'1'\)\]"):
        draft_values([b"x"], None, 0, [headers], False)


def test_one_mapping_for_many_records_is_told_the_right_form() -> None:
    headers: Any = {"trace": b"1"}
    with pytest.raises(UsageError, match="an entry for each value"):
        draft_values([b"x"], None, 0, headers, False)


def test_keys_and_headers_count_when_many_are_cut_into_blocks() -> None:
    half = bytes(BLOCK_BYTES_TARGET // 2)
    assert len(draft_values([b"x"] * 8, [half] * 8, 0, None, False)) >= 4
    assert len(draft_values([b"x"] * 8, None, 0, [(("name", half),)] * 8, False)) >= 4


@pytest.mark.parametrize(
    ("values", "keys", "stamps"),
    [
        ([b"x", 7], None, 0),
        ([b"x", b"y"], None, 1.5),
        ([b"x", None], None, 0),
        ([b"x", b"y"], [b"k"], 0),
        ([b"x", b"y"], None, [1]),
        ([b"x", b"y"], None, [1, 2.5]),
    ],
)
def test_a_bad_record_among_many_is_the_callers_mistake(
    values: Any, keys: Any, stamps: Any
) -> None:
    with pytest.raises(UsageError):
        draft_values(values, keys, stamps, None, False)


def block_append(count: int) -> BlockAppend:
    append = Append(
        LogId(1), count, Token(1, 1), Ack.DISK, lambda first, epoch: pytest.fail("placed")
    )
    return BlockAppend(lambda: append.run(pytest.fail("run")), count)


def unknown() -> UnknownAppend:
    return UnknownAppend("nobody knows", block_append(1), 0, 1)


def test_an_unknown_outcome_among_many_is_not_hidden_by_a_definite_one() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        good, sealed, unsure = (loop.create_future() for _ in range(3))
        good.set_result(Appended(Lsn(1), Lsn(4)))
        sealed.set_exception(LogSealed("sealed"))
        unsure.set_exception(unknown())
        late = TimedOut("no room")
        with pytest.raises(UnknownAppend, match="3 of 4 blocks") as raised:
            await all_settled([good, sealed, unsure, late])
        assert raised.value.appended == [Appended(Lsn(1), Lsn(4))]
        kinds = [type(each) for each in raised.value.failures]
        assert kinds == [LogSealed, UnknownAppend, TimedOut]
        assert len(raised.value.outcomes) == 4

    run(body())


def test_definite_failures_among_many_say_what_was_appended() -> None:
    async def body() -> None:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        future.set_result(Appended(Lsn(1), Lsn(4)))
        with pytest.raises(LogSealed, match="1 of 2 blocks") as raised:
            await all_settled([future, LogSealed("sealed")])
        assert raised.value.appended == [Appended(Lsn(1), Lsn(4))]

    run(body())


def test_room_is_not_given_twice() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = make_batcher(sent, in_flight_max=1)
        value = bytes(BLOCK_BYTES_TARGET)
        filling = [add(batcher, value) for _ in range(BATCH_BYTES_WAITING_MAX // len(value) + 1)]
        await turns()
        waiting = [add(batcher, value) for _ in range(3)]
        await turns()
        sent.answer()
        await turns()
        assert batcher._waiting_bytes < BATCH_BYTES_WAITING_MAX + 2 * len(value)
        while sent.blocks:
            sent.answer()
            await turns()
        positions = [(await task).first for task in (*filling, *waiting)]
        assert positions == list(range(1, len(positions) + 1))

    run(body())


def test_headers_count_into_a_block() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = make_batcher(sent, in_flight_max=8)
        headers = (("trace", bytes(BLOCK_BYTES_TARGET // 2)),)
        tasks = [add(batcher, headers=headers) for _ in range(4)]
        await turns()
        assert [block[0].count for block in sent.blocks] == [2, 2]
        while sent.blocks:
            sent.answer()
        await asyncio.gather(*tasks)

    run(body())


# -- Deadlines ----------------------------------------------------------------------------------


def test_whoever_has_less_time_leaves_the_block_and_the_block_goes_on() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = make_batcher(sent, in_flight_max=1)
        patient, hurried = add(batcher), add(batcher, timeout_ms=SHORT_MS)
        last = add(batcher)
        async with asyncio.timeout(SOON_S):
            with pytest.raises(UnknownAppend, match="resume") as raised:
                await hurried
        assert (raised.value.offset, raised.value.count) == (1, 1)
        assert raised.value.block.count == 3
        assert batcher.in_flight == 1
        assert sent.blocks[0][2] > SHORT_MS
        sent.answer()
        assert ((await patient).first, (await last).first) == (1, 3)

    run(body())


def test_equal_deadlines_end_with_the_block_and_not_before() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = make_batcher(sent, in_flight_max=1)
        tasks = [add(batcher, timeout_ms=SHORT_MS) for _ in range(3)]
        stranger = add(batcher)
        await turns()
        other = make_batcher(sent, in_flight_max=1)
        alone = add(other, timeout_ms=SHORT_MS // 2)
        for task in tasks:
            with pytest.raises(UnknownAppend):
                await task
        # The deadline of `alone` is its block's, which tells it how it ended.
        assert not alone.done()
        sent.answer()
        sent.answer()
        assert (await stranger).first == 4
        assert (await alone).first == 5

    run(body())


def test_what_was_not_sent_in_time_is_taken_out_and_definitely_not_appended() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = make_batcher(sent, in_flight_max=1)
        first = add(batcher, b"first")
        await turns()
        second, hurried = add(batcher, b"second"), add(batcher, b"hurried", timeout_ms=SHORT_MS)
        third = add(batcher, b"third", headers=(("name", b"content"),))
        async with asyncio.timeout(SOON_S):
            with pytest.raises(TimedOut, match="'events': not appended") as raised:
                await hurried
        assert raised.value.is_definite
        sent.answer()
        await turns()
        assert values_of(sent.blocks[0][0]) == [b"second", b"third"]
        sent.answer()
        assert [(await task).first for task in (first, second, third)] == [1, 2, 3]
        assert batcher._waiting_bytes == 0

    run(body())


def test_a_whole_block_that_was_not_sent_in_time_leaves_the_queue() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = make_batcher(sent, in_flight_max=1)
        first = add(batcher)
        await turns()
        [draft] = draft_values([b"x"] * 10, None, 0, None, False)
        place = await batcher.add_draft(draft, Ack.DISK, time.monotonic() + SHORT_MS / 1000)
        async with asyncio.timeout(SOON_S):
            with pytest.raises(TimedOut):
                await place
        sent.answer()
        assert (await first).first == 1
        await batcher.flush()
        assert not sent.blocks

    run(body())


def test_a_draft_with_a_way_of_its_own_shares_its_block_with_nobody() -> None:
    async def body() -> None:
        usual, own = Sent(), Sent()
        batcher = make_batcher(usual, in_flight_max=4)
        first = add(batcher, b"first")
        await turns()
        before = add(batcher, b"before")
        await turns()
        [draft] = draft_values([b"alone"], None, 0, None, False)
        place = await batcher.add_draft(draft, Ack.DISK, time.monotonic() + SOON_S, own)
        after = add(batcher, b"after")
        for task in (first, before):
            await turns()
            usual.answer()
            await task
        await turns()
        assert [values_of(each[0]) for each in own.blocks] == [[b"alone"]]
        own.answer()
        assert (await place).first == 1
        await turns()
        assert [values_of(each[0]) for each in usual.blocks] == [[b"after"]]
        usual.answer()
        await after

    run(body())


def test_the_time_spent_waiting_for_room_counts() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = make_batcher(sent, in_flight_max=1)
        value = bytes(BLOCK_BYTES_TARGET)
        filling = [add(batcher, value) for _ in range(BATCH_BYTES_WAITING_MAX // len(value) + 1)]
        await turns()
        patient, hurried = add(batcher, b"patient"), add(batcher, timeout_ms=SHORT_MS)
        async with asyncio.timeout(SOON_S):
            with pytest.raises(TimedOut, match="not appended"):
                await hurried
        while sent.blocks:
            sent.answer()
            await turns()
        assert (await patient).first == len(filling) + 1
        await asyncio.gather(*filling)

    run(body())


def test_whoever_gives_up_waiting_for_room_is_forgotten() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = make_batcher(sent, in_flight_max=1)
        value = bytes(BLOCK_BYTES_TARGET)
        filling = [add(batcher, value) for _ in range(BATCH_BYTES_WAITING_MAX // len(value) + 1)]
        await turns()
        waiting = add(batcher)
        await turns()
        waiting.cancel()
        await turns()
        assert not batcher._hopefuls
        while sent.blocks:
            sent.answer()
            await turns()
        await asyncio.gather(*filling)

    run(body())


def test_a_writer_who_was_alone_leaves_before_the_turn_ends() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = make_batcher(sent, 4)
        first = add(batcher)
        await turns()
        sent.answer()
        await first
        second = add(batcher)
        await turns(1)  # The task of the append itself.
        assert len(sent.blocks) == 1
        sent.answer()
        await second

    run(body())


def test_writers_who_came_together_are_waited_for_the_next_time() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = make_batcher(sent, 4)
        lone = add(batcher)
        await turns()
        gathering = [add(batcher) for _ in range(3)]
        await turns()
        sent.answer()  # Of the one; the three leave.
        await turns()
        sent.answer()
        await asyncio.gather(lone, *gathering)
        again = [add(batcher) for _ in range(3)]
        await turns()
        assert [draft.count for draft, *_ in sent.blocks] == [3]
        sent.answer()
        await asyncio.gather(*again)

    run(body())


def test_one_timer_serves_all_deadlines() -> None:
    async def body() -> None:
        sent = Sent()
        batcher = make_batcher(sent, in_flight_max=4)
        tasks = [add(batcher)]
        await turns()
        timer = batcher._tick
        assert timer is not None
        for _ in range(100):
            tasks.append(add(batcher))
            await turns()
        assert batcher._tick is timer
        while sent.blocks:
            sent.answer()
            await turns()
        await asyncio.gather(*tasks)
        await batcher.close()
        assert timer.cancelled()

    run(body())


def test_a_block_runs_for_one_at_a_time() -> None:
    async def body() -> None:
        block = block_append(1)
        first, second = (asyncio.create_task(block.begin_turn()) for _ in range(2))
        await turns()
        assert not first.done()  # Its first run is still under way.
        block.end_turn()
        await turns()
        assert first.done()
        assert not second.done()
        block.end_turn()
        await second

    run(body())
