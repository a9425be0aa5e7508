"""Nodes much slower than the others are found, listed for a probation, and measured again."""

import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.reading.slow_nodes import SlowNodeMode, SlowNodes, SlowNodeSettings
from millrace.types import Lsn, NodeId

NODES = tuple(NodeId(node) for node in range(1, 7))
ONE, TWO, THREE, *_ = NODES
COPIES = 3
NORMAL_MS = 100
MINUTE_MS = 60_000
WINDOW = 512
EXACTLY: Callable[[int], int] = lambda count: 0  # noqa: E731  Probations are not lengthened.


class Reader:
    """A stream that reads window after window, and rewinds when another node is listed.  A node
    finishes a window `pace(node, now_ms)` milliseconds after it slid; the stream waits for all that
    are not listed."""

    def __init__(
        self,
        pace: Callable[[NodeId, int], int],
        copies: int = COPIES,
        settings: SlowNodeSettings | None = None,
        draw: Callable[[int], int] = EXACTLY,
    ) -> None:
        self.detector = SlowNodes(copies, draw, settings)
        self.pace = pace
        self.now_ms = 0
        self.down: frozenset[NodeId] = frozenset()
        self.listed: frozenset[NodeId] = frozenset()
        self.changes: list[tuple[int, frozenset[NodeId]]] = []
        self.windows = 0
        self._last = 0
        self._finishes: list[tuple[int, NodeId]] = []

    def run(self, end_ms: int) -> None:
        if not self._finishes:
            self._slide()
        while self.now_ms < end_ms:
            self._step(end_ms)

    def set_down(self, *nodes: NodeId) -> None:
        self.down = frozenset(nodes)
        self.detector.down_changed(nodes, self.now_ms)
        self._look()

    def _step(self, end_ms: int) -> None:
        """To the next thing that happens: a node finishes, the timer fires, or time is up."""
        check_ms = self.detector.next_check_ms(self.now_ms)
        timer_ms = end_ms if check_ms is None else self.now_ms + check_ms
        node_ms, node = min(self._finishes, default=(end_ms, ONE))
        self.now_ms = min(timer_ms, node_ms, end_ms)
        if self._finishes and self.now_ms == node_ms:
            self._finishes.remove((node_ms, node))
            self.detector.sender_passed(node, Lsn(self._last + 1), self.now_ms)
        self._look()
        if not {each for _, each in self._finishes} - self.listed - self.down:
            self._slide()

    def _look(self) -> None:
        listed = self.detector.slow(self.now_ms)
        if listed == self.listed:
            return
        self.listed = listed
        self.changes.append((self.now_ms, listed))
        self.detector.rewound()
        self._finishes.clear()
        self._slide()

    def _slide(self) -> None:
        self.windows += 1
        self._last += WINDOW
        self.detector.window_slid(Lsn(self._last), self.now_ms, NODES)
        waiting = {each for _, each in self._finishes}
        self._finishes += [
            (self.now_ms + self.pace(node, self.now_ms), node)
            for node in NODES
            if node not in waiting and node not in self.down
        ]


def slow_by(factor: int, *slow: NodeId, until_ms: int = 2**62) -> Callable[[NodeId, int], int]:
    """All nodes take NORMAL_MS, these take `factor` times as long, until they are well."""

    def pace(node: NodeId, now_ms: int) -> int:
        return NORMAL_MS * (factor if node in slow and now_ms < until_ms else 1)

    return pace


def lengths_ms(changes: Iterable[tuple[int, frozenset[NodeId]]], node: NodeId) -> list[int]:
    """How long the node was listed, each time."""
    lengths, since = [], None
    for now_ms, listed in changes:
        if node in listed and since is None:
            since = now_ms
        elif node not in listed and since is not None:
            lengths.append(now_ms - since)
            since = None
    return lengths


def measured(
    detector: SlowNodes,
    window: int,
    slid_ms: int,
    *late: NodeId,
    senders: tuple[NodeId, ...] = NODES,
) -> int:
    """Slide to a window that all but `late` pass in the normal time; the time then."""
    last, now_ms = Lsn(window * WINDOW), slid_ms + NORMAL_MS
    detector.window_slid(last, slid_ms, senders)
    for node in senders:
        if node not in late:
            detector.sender_passed(node, Lsn(last + 1), now_ms)
    return now_ms


# -- Finding ----------------------------------------------------------------------------------


def test_a_node_twenty_times_slower_is_found_in_its_first_window() -> None:
    reader = Reader(slow_by(20, TWO))
    reader.run(30_000)
    assert reader.changes == [(11 * NORMAL_MS + 10, frozenset({TWO}))]


def test_the_stream_is_then_as_fast_as_the_others() -> None:
    reader = Reader(slow_by(20, TWO))
    reader.run(30_000)
    assert reader.windows > 0.9 * 30_000 / NORMAL_MS


@pytest.mark.parametrize("factor", [1, 2, 5, 10])
def test_a_node_up_to_ten_times_slower_is_borne_with(factor: int) -> None:
    reader = Reader(slow_by(factor, TWO))
    reader.run(MINUTE_MS)
    assert reader.changes == []


def test_two_nodes_are_found_together() -> None:
    reader = Reader(slow_by(20, TWO, THREE))
    reader.run(30_000)
    assert [listed for _, listed in reader.changes] == [{TWO, THREE}]


def slow_one_after_the_other(node: NodeId, now_ms: int) -> int:
    is_slow = node == TWO or (node == THREE and now_ms > 20_000)
    return NORMAL_MS * (100 if is_slow else 1)


def test_a_node_that_becomes_slow_is_found_beside_one_that_is() -> None:
    reader = Reader(slow_one_after_the_other)
    reader.run(40_000)
    assert [listed for _, listed in reader.changes] == [{TWO}, {TWO, THREE}]


@given(st.integers(0, 2**32))
def test_noise_finds_nobody(seed: int) -> None:
    """Every window of every node takes from half to three times as long as it should."""
    chance = random.Random(seed)
    reader = Reader(lambda node, now_ms: chance.randint(NORMAL_MS // 2, 3 * NORMAL_MS))
    reader.run(20_000)
    assert reader.changes == []


def test_uneven_others_make_the_verdict_more_careful() -> None:
    """The others take 100 to 500 ms: m = 300, d = 141.4, threshold = 300 + 707.1 + 3000."""
    reader = Reader(lambda node, now_ms: 5_000 if node == NodeId(6) else 100 * node)
    reader.run(20_000)
    assert reader.changes == [(4_008 + 10, frozenset({NodeId(6)}))]


def test_nobody_is_slow_in_less_than_a_rewind_is_worth() -> None:
    reader = Reader(lambda node, now_ms: 99 if node == TWO else 1)
    reader.run(10_000)
    assert reader.changes == []


def test_a_window_that_is_long_open_for_want_of_records_is_no_nodes_fault() -> None:
    """The reader has caught up: all wait for five minutes, two of them a moment longer."""

    def pace(node: NodeId, now_ms: int) -> int:
        return NORMAL_MS if now_ms < MINUTE_MS else 5 * MINUTE_MS + 50 * (node in (ONE, TWO))

    reader = Reader(pace)
    reader.run(20 * MINUTE_MS)
    assert reader.changes == []


# -- Who may be listed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("copies", "slow", "down", "is_found"),
    [
        pytest.param(3, (ONE, TWO), (), True, id="as many as may be"),
        pytest.param(3, (ONE, TWO, THREE), (), False, id="one too many"),
        pytest.param(3, (ONE,), (TWO,), True, id="one down"),
        pytest.param(3, (ONE, THREE), (TWO,), False, id="two with one down"),
        pytest.param(3, (ONE,), (TWO, THREE), False, id="as many down as may be"),
        pytest.param(2, (ONE,), (), True, id="two copies"),
        pytest.param(1, (ONE,), (), False, id="single copies"),
        pytest.param(1, (ONE,), (TWO,), False, id="more down than copies"),
    ],
)
def test_slow_and_down_nodes_never_hold_a_whole_copyset(
    copies: int, slow: tuple[NodeId, ...], down: tuple[NodeId, ...], is_found: bool
) -> None:
    reader = Reader(slow_by(20, *slow), copies)
    reader.set_down(*down)
    reader.run(30_000)
    assert [listed for _, listed in reader.changes] == ([set(slow)] if is_found else [])


def test_when_one_more_goes_down_the_slow_one_with_the_shortest_time_left_returns() -> None:
    reader = Reader(slow_one_after_the_other)
    reader.run(40_000)
    assert reader.listed == {TWO, THREE}
    reader.set_down(ONE)
    assert reader.listed == {THREE}
    reader.set_down(ONE, NodeId(4))
    assert reader.listed == frozenset()


def test_when_blocks_have_fewer_copies_a_slow_one_returns() -> None:
    reader = Reader(slow_by(20, TWO, THREE))
    reader.run(10_000)
    reader.detector.copies_changed(2, reader.now_ms)
    assert len(reader.detector.slow(reader.now_ms)) == 1


def test_a_slow_node_that_goes_down_is_down_and_not_slow() -> None:
    reader = Reader(slow_by(20, TWO))
    reader.run(10_000)
    reader.set_down(TWO)
    assert reader.listed == frozenset()


def test_a_node_that_was_down_is_not_blamed_for_its_absence() -> None:
    """It returns in the middle of a window: it is measured from the next one on."""
    detector = SlowNodes(COPIES, EXACTLY)
    detector.down_changed({ONE}, 0)
    measured(detector, 1, 0, ONE)
    detector.down_changed((), MINUTE_MS)
    assert detector.slow(MINUTE_MS) == frozenset()
    assert detector.next_check_ms(MINUTE_MS) is None


def test_a_node_that_joins_is_not_blamed_for_the_windows_before() -> None:
    """Else its average would be high, and let the late one take its time."""
    detector = SlowNodes(COPIES, EXACTLY)
    measured(detector, 1, 0, senders=NODES[1:])
    measured(detector, 2, 10_000)
    now_ms = measured(detector, 3, 20_000, TWO)
    assert detector.next_check_ms(now_ms) == 10 * NORMAL_MS + 10


def test_a_node_that_has_nothing_to_send_in_a_window_is_not_waited_for() -> None:
    detector = SlowNodes(COPIES, EXACTLY)
    detector.window_slid(Lsn(WINDOW), 0, NODES)
    detector.sender_passed(ONE, Lsn(10 * WINDOW), NORMAL_MS)
    now_ms = measured(detector, 2, 1_000, ONE)
    assert detector.next_check_ms(now_ms) is None


def test_a_node_that_waits_for_the_reader_is_not_waited_for() -> None:
    """The reader holds all that it lets the node send, because of the one that is late."""
    detector = SlowNodes(COPIES, EXACTLY)
    now_ms = measured(detector, 1, 0, ONE, TWO, THREE)
    assert detector.next_check_ms(now_ms) is None, "more are late than may be slow"
    detector.sender_waits(THREE, now_ms)
    assert detector.next_check_ms(now_ms) is not None


def test_a_rewind_begins_the_measuring_anew() -> None:
    detector = SlowNodes(COPIES, EXACTLY)
    now_ms = measured(detector, 1, 0, ONE)
    assert detector.next_check_ms(now_ms) is not None
    detector.rewound()
    assert detector.next_check_ms(now_ms) is None
    detector.window_slid(Lsn(WINDOW), now_ms, NODES)
    assert detector.slow(now_ms + MINUTE_MS) == frozenset()


def test_a_node_that_is_not_read_from_any_more_is_forgotten() -> None:
    reader = Reader(slow_by(20, TWO))
    reader.run(10_000)
    reader.detector.window_slid(Lsn(10**6), reader.now_ms, set(NODES) - {TWO})
    assert reader.detector.slow(reader.now_ms) == frozenset()


# -- Probation --------------------------------------------------------------------------------


def test_it_returns_after_a_probation_and_stays_if_it_is_well() -> None:
    reader = Reader(slow_by(20, TWO, until_ms=30_000))
    reader.run(10 * MINUTE_MS)
    assert [listed for _, listed in reader.changes] == [{TWO}, set()]
    assert lengths_ms(reader.changes, TWO) == pytest.approx([MINUTE_MS], abs=60)


def test_if_it_is_still_slow_it_is_listed_for_twice_as_long_up_to_a_bound() -> None:
    """So slow, it stays above the margin that doubles as well."""
    settings = SlowNodeSettings(outlier_ms_min=6_000, outlier_ms_max=60_000)
    reader = Reader(slow_by(3_000, TWO), settings=settings)
    reader.run(15 * MINUTE_MS)
    seconds = [round(length / 1_000) for length in lengths_ms(reader.changes, TWO)]
    assert seconds[:6] == [6, 12, 24, 48, 60, 60]


def test_good_behaviour_shortens_the_next_probation() -> None:
    """After two probations the next would be of four minutes; eight good minutes take off two."""
    ill = {TWO}
    reader = Reader(lambda node, now_ms: NORMAL_MS * (1_000 if node in ill else 1))
    reader.run(150_000)
    ill.clear()
    reader.run(reader.now_ms + MINUTE_MS)
    (_, _, _, (returned_ms, _)) = reader.changes
    reader.run(returned_ms + 8 * MINUTE_MS)
    ill.add(TWO)
    reader.run(reader.now_ms + 3 * MINUTE_MS)
    minutes = [length / MINUTE_MS for length in lengths_ms(reader.changes, TWO)]
    assert minutes == pytest.approx([1, 2, 2], rel=0.02)


def test_each_verdict_makes_the_next_need_more_and_time_heals() -> None:
    """20 times slower is above the first margin and below the doubled one."""
    settings = SlowNodeSettings(margin_decrease_per_s=0.005)
    reader = Reader(slow_by(20, TWO), settings=settings)
    reader.run(150_000)
    assert [listed for _, listed in reader.changes] == [{TWO}, set()]
    reader.run(4 * MINUTE_MS)
    assert reader.listed == {TWO}


def test_the_timer_tells_when_a_probation_is_over() -> None:
    detector = SlowNodes(COPIES, EXACTLY)
    measured(detector, 1, 0, TWO)
    assert detector.slow(5_000) == {TWO}
    assert detector.next_check_ms(5_000) == MINUTE_MS + 50


def test_what_it_was_before_its_probation_is_not_held_against_it() -> None:
    """Neither the window that is still open, nor its average, which would be ten times as high and
    let another take its time."""
    detector = SlowNodes(COPIES, EXACTLY, SlowNodeSettings(margin_decrease_per_s=0))
    measured(detector, 1, 0, TWO)
    detector.sender_passed(TWO, Lsn(WINDOW + 1), 10 * NORMAL_MS)
    measured(detector, 2, 2_000, TWO)
    assert detector.slow(5_000) == {TWO}
    returned_ms = 5_000 + MINUTE_MS
    assert detector.slow(returned_ms) == frozenset()
    now_ms = measured(detector, 3, returned_ms, ONE)
    assert detector.next_check_ms(now_ms) == 20 * NORMAL_MS + 10


def test_readers_that_judged_together_return_at_different_times() -> None:
    ends = set()
    for draw in (lambda count: 0, lambda count: count // 2, lambda count: count - 1):
        reader = Reader(slow_by(20, TWO, until_ms=30_000), draw=draw)
        reader.run(3 * MINUTE_MS)
        ends.add(lengths_ms(reader.changes, TWO)[0])
    assert len(ends) == 3
    assert all(MINUTE_MS <= end <= 1.1 * MINUTE_MS + 60 for end in ends)


# -- Modes ------------------------------------------------------------------------------------


def test_observing_it_lists_nobody_and_says_whom_it_would_have_listed() -> None:
    reader = Reader(slow_by(20, TWO), settings=SlowNodeSettings(mode=SlowNodeMode.OBSERVE))
    reader.run(10_000)
    assert reader.changes == []
    told = reader.detector.explain()
    assert told["mode"] == "observe"
    assert told["slow"] == {TWO: {"waited_ms": 1_110, "others_ms": 100.0, "until_ms": 61_110}}


def test_when_off_it_neither_judges_nor_asks_for_time() -> None:
    reader = Reader(slow_by(20, TWO), settings=SlowNodeSettings(mode=SlowNodeMode.OFF))
    reader.run(10_000)
    assert reader.detector.explain()["slow"] == {}
    assert reader.detector.next_check_ms(reader.now_ms) is None


# -- Properties -------------------------------------------------------------------------------


@given(
    st.integers(1, 4),
    st.integers(0, 2**32),
    st.lists(st.sets(st.sampled_from(NODES), max_size=4), max_size=5),
)
def test_whatever_happens_slow_and_down_are_fewer_than_the_copies(
    copies: int, seed: int, downs: list[set[NodeId]]
) -> None:
    chance = random.Random(seed)
    reader = Reader(lambda node, now_ms: chance.choice((50, 100, 200, 20_000)), copies)
    for number, down in enumerate(downs):
        reader.set_down(*down)
        reader.run((number + 1) * 30_000)
        assert not reader.listed & down
        assert len(reader.listed) <= max(0, copies - 1 - len(down))
