"""Barrier cookies: each once, in order, and only after every partition was streamed since (U5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.documents.barriers import COOKIES_MAX, Barriers
from millrace.core.documents.document import PartitionId
from millrace.core.documents.messages import COOKIE_BYTES_MAX, StreamStatus


class Round:
    """A connection that streams partitions for ever, and knows what was streamed since when."""

    def __init__(self, partitions: int) -> None:
        self.barriers = Barriers()
        self.partitions = partitions
        self.cycles = self.at = 0
        self.is_streaming = False
        self.missing: dict[str, set[int]] = {}  # Of each cookie: what is to be streamed yet.
        self.returned: list[str] = []

    def add(self, cookie: str) -> None:
        marked = self.at if self.is_streaming else self.at - 1
        assert self.barriers.add(cookie, self.cycles, marked) is StreamStatus.OK
        self.missing[cookie] = set(range(self.partitions))

    def begin(self) -> None:
        self.is_streaming = True
        self.begun_with = set(self.missing)  # What came later is not in this snapshot.

    def finish(self) -> None:
        self.is_streaming = False
        for cookie in self.begun_with & self.missing.keys():
            self.missing[cookie].discard(self.at)
        self.at += 1
        if self.at == self.partitions:
            self.cycles, self.at = self.cycles + 1, 0
        self.take(self.barriers.reached(self.cycles, PartitionId(self.at)))

    def take(self, cookies: list[str]) -> None:
        for cookie in cookies:
            assert not self.missing.pop(cookie), "a partition was not streamed since"
            self.returned.append(cookie)


@given(st.integers(1, 5), st.lists(st.integers(0, 3), max_size=40))
def test_every_cookie_comes_back_once_when_all_was_streamed_since(
    partitions: int, steps: list[int]
) -> None:
    """Under constant load: there is always something to stream."""
    round = Round(partitions)
    given: list[str] = []
    for step in steps:
        if step == 0:
            given.append(f"cookie {len(given)}")
            round.add(given[-1])
        elif round.is_streaming:
            round.finish()
        else:
            round.begin()
    for _ in range(2 * partitions + 2):
        if not round.is_streaming:
            round.begin()
        round.finish()
    assert round.returned == given


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("is_streaming", [True, False], ids=["during", "between"])
def test_a_cookie_of_the_last_partition_comes_back(partitions: int, is_streaming: bool) -> None:
    """With the seed's comparison it never would: the next partition is never greater."""
    round = Round(partitions)
    for _ in range(partitions - 1):
        round.begin()
        round.finish()
    if is_streaming:
        round.begin()
    round.add("last")
    if is_streaming:
        round.finish()
    for _ in range(partitions):
        assert round.returned == []
        round.begin()
        round.finish()
    assert round.returned == ["last"]


def test_all_come_back_when_nothing_is_left() -> None:
    barriers = Barriers()
    barriers.add("one", 0, 4)
    barriers.add("two", 7, -1)
    assert barriers.return_all() == ["one", "two"]
    assert len(barriers) == 0


@pytest.mark.parametrize(
    ("cookie", "status"),
    [
        ("there", StreamStatus.EXISTS),
        ("", StreamStatus.INVALID),
        ("é" * (COOKIE_BYTES_MAX // 2 + 1), StreamStatus.INVALID),
        ("x" * COOKIE_BYTES_MAX, StreamStatus.OK),
    ],
    ids=["duplicate", "empty", "too long", "as long as it may be"],
)
def test_cookies_are_looked_at(cookie: str, status: StreamStatus) -> None:
    barriers = Barriers()
    barriers.add("there", 0, 0)
    assert barriers.add(cookie, 0, 0) is status


def test_a_cookie_may_be_used_again_when_it_is_back() -> None:
    barriers = Barriers()
    barriers.add("again", 0, 0)
    barriers.return_all()
    assert barriers.add("again", 0, 0) is StreamStatus.OK


def test_there_is_a_bound() -> None:
    barriers = Barriers()
    for number in range(COOKIES_MAX):
        barriers.add(str(number), 0, 0)
    assert barriers.add("one more", 0, 0) is StreamStatus.BUSY
