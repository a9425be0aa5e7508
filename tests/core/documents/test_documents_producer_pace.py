"""A producer and the pace of its consumer: barriers, flow control, views, keep-alives."""

import pytest

from millrace.core.documents.change_stream import VIEW_MS_MAX
from millrace.core.documents.message_sizes import message_bytes
from millrace.core.documents.messages import (
    Answered,
    Barrier,
    BufferAck,
    Control,
    Noop,
    StreamStatus,
)
from tests.core.documents.produced import P1, P2, PLENTY, pump, request, streaming, told
from tests.core.documents.stream_rig import P0, master, opened, put

# -- Barriers -------------------------------------------------------------------------------------


def test_a_cookie_comes_back_at_once_when_there_is_nothing_to_stream() -> None:
    producer = streaming(master())
    pump(producer)
    assert producer.handle(Barrier("now"), 0) == Answered(StreamStatus.OK)
    assert producer.wants_to_pump
    assert pump(producer) == ["barrier now"]


def test_a_cookie_waits_for_what_was_there_when_it_came() -> None:
    node = master(0, 1)
    put(node, "a")
    put(node, "b")
    producer = streaming(node)
    assert pump(producer, bytes_max=1) == ["p0 (0, 2]", "a@1"]
    producer.handle(Barrier("then"), 0)
    put(node, "c")
    put(node, "d", number=P1)
    pushed = pump(producer)
    assert pushed.index("c@3") < pushed.index("barrier then")
    assert pushed.index("d@1") < pushed.index("barrier then")


def test_a_cookie_does_not_wait_for_a_partition_that_is_skipped() -> None:
    node = master(0, 1, 2)
    put(node, "a", number=P1)
    put(node, "b", number=P1)
    producer = streaming(node)
    assert pump(producer, bytes_max=1) == ["p1 (0, 2]", "a@1"]
    producer.handle(Barrier("during 1"), 0)
    assert pump(producer, bytes_max=1) == ["b@2"]
    put(node, "c", number=P0)
    assert pump(producer, bytes_max=29) == ["all 1", "p0 (0, 1]", "c@1"]
    put(node, "d", number=P2)
    assert pump(producer) == ["barrier during 1", "p2 (0, 1]", "d@1", "all 2"]


def test_a_cookie_comes_back_under_constant_load() -> None:
    node = master()
    put(node, "a")
    producer = streaming(node)
    pump(producer, bytes_max=1)
    put(node, "b")
    producer.handle(Barrier("now"), 0)
    heard: list[str] = []
    for _ in range(10):
        put(node, "a")
        heard += pump(producer, bytes_max=60)
    assert heard.count("barrier now") == 1


def test_a_cookie_that_is_on_its_way_is_refused() -> None:
    node = master()
    put(node, "a")
    producer = streaming(node)
    producer.handle(Barrier("same"), 0)
    assert producer.handle(Barrier("same"), 0) == Answered(StreamStatus.EXISTS)


# -- Flow control, views and keep-alives ----------------------------------------------------------


def test_a_producer_stops_when_its_consumer_does_not_acknowledge() -> None:
    node = master()
    for number in range(50):
        put(node, f"key {number}", "x" * 100)
    producer = opened(node)
    producer.handle(Control("connection_buffer_size", "1000"), 0)
    producer.handle(request(), 0)
    pushes = producer.pump(0, PLENTY)
    size_bytes = sum(map(message_bytes, pushes))
    assert 1000 <= size_bytes < 1400
    assert not producer.wants_to_pump
    assert producer.pump(0, PLENTY) == []
    producer.handle(BufferAck(size_bytes), 0)
    assert producer.wants_to_pump
    assert producer.pump(0, PLENTY) != []


def test_all_arrives_however_small_the_buffer() -> None:
    node = master()
    for number in range(50):
        put(node, f"{number:02}")
    producer = opened(node)
    producer.handle(Control("connection_buffer_size", "1"), 0)
    producer.handle(request(), 0)
    heard: list[str] = []
    while producer.wants_to_pump:
        pushes = producer.pump(0, PLENTY)
        heard += told(pushes)
        producer.handle(BufferAck(sum(map(message_bytes, pushes))), 0)
    wanted = [f"{number:02}@{number + 1}" for number in range(50)]
    assert heard == ["p0 (0, 50]", *wanted, "all 1"]


def test_a_consumer_that_acknowledges_nothing_holds_no_view() -> None:
    node = master()
    for key in "abc":
        put(node, key)
    producer = opened(node)
    producer.handle(Control("connection_buffer_size", "1"), 0)
    producer.handle(request(), 0)
    pump(producer)
    assert node.views == 1
    assert producer.next_timer_ms == VIEW_MS_MAX
    pump(producer, now_ms=VIEW_MS_MAX)
    assert node.views == 0


def test_a_view_that_is_taken_anew_extends_the_snapshot() -> None:
    node = master()
    for key in "abc":
        put(node, key)
    producer = streaming(node)
    assert pump(producer, bytes_max=1) == ["p0 (0, 3]", "a@1"]
    put(node, "b")
    pushed = pump(producer, now_ms=VIEW_MS_MAX)
    assert pushed == ["p0 (0, 4]", "c@3", "b@4", "all 1"]


def test_a_view_that_is_taken_anew_says_nothing_if_nothing_changed() -> None:
    node = master()
    for key in "abc":
        put(node, key)
    producer = streaming(node)
    pump(producer, bytes_max=1)
    assert pump(producer, now_ms=VIEW_MS_MAX) == ["b@2", "c@3", "all 1"]


def test_a_view_that_pins_much_is_taken_anew_after_a_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millrace.core.documents.change_stream.VIEW_BYTES_MAX", 100)
    node = master()
    for key in "abc":
        put(node, key)
    producer = streaming(node)
    pump(producer, bytes_max=1)
    put(node, "d")
    assert pump(producer, bytes_max=1) == ["b@2"]
    node.flush()
    assert pump(producer, bytes_max=50) == ["p0 (0, 4]", "c@3"]


def test_keep_alives_come_by_the_clock_and_silence_ends_it() -> None:
    producer = opened(master())
    producer.handle(Control("set_noop_interval", "2"), 0)
    producer.handle(Control("enable_noop", "true"), 0)
    assert producer.next_timer_ms == 2_000
    assert producer.pump(1_999, PLENTY) == []
    assert producer.pump(2_000, PLENTY) == [Noop()]
    assert producer.next_timer_ms == 4_000
    producer.heard(2_100)
    producer.pump(4_000, PLENTY)
    assert not producer.is_lost
    producer.pump(6_100, PLENTY)
    assert producer.is_lost


def test_an_idle_producer_waits_for_nothing() -> None:
    producer = streaming(master())
    pump(producer)
    assert (producer.wants_to_pump, producer.next_timer_ms) == (False, None)
