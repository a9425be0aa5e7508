"""The write queue: documents in the order of seqs, snapshots that cost nothing and hold still."""

import gc
import itertools
import random
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.documents.document import NO_SEQ, SEQ_MAX, Document, Seq
from millrace.core.documents.write_queue import QueueSnapshot, WriteQueue
from tests.core.documents.partition_samples import mutation, seqs


def queue_of(*given_seqs: int) -> WriteQueue:
    queue = WriteQueue()
    for seq in given_seqs:
        queue.put(mutation(b"key", seq))
    return queue


@pytest.mark.parametrize(
    "put",
    [
        pytest.param([], id="none"),
        pytest.param([1], id="one"),
        pytest.param([1, 2, 3], id="ascending"),
        pytest.param([33, 2, 70, 1], id="in_any_order_over_several_leaves"),
        pytest.param([2**40, 2**40 + 5], id="close_together_and_far_from_0"),
        pytest.param([1, 2**40, SEQ_MAX], id="as_far_apart_as_can_be"),
        pytest.param([1_000, 999, 31, 32], id="below_what_is_there"),
    ],
)
def test_a_snapshot_is_walked_in_the_order_of_seqs(put: list[int]) -> None:
    snapshot = queue_of(*put).snapshot()
    assert seqs(snapshot) == sorted(put)
    assert snapshot.last == max(put, default=0)
    assert len(snapshot) == len(put)


@pytest.mark.parametrize(
    ("after", "met"),
    [
        pytest.param(0, [3, 31, 32, 64, 5_000], id="from_the_beginning"),
        pytest.param(3, [31, 32, 64, 5_000], id="the_one_named_is_left_out"),
        pytest.param(31, [32, 64, 5_000], id="at_the_end_of_a_leaf"),
        pytest.param(33, [64, 5_000], id="where_nothing_stands"),
        pytest.param(70, [5_000], id="in_a_gap"),
        pytest.param(5_000, [], id="at_the_last"),
        pytest.param(10**9, [], id="beyond_all"),
    ],
)
def test_a_walk_begins_anywhere(after: int, met: list[int]) -> None:
    assert seqs(queue_of(3, 31, 32, 64, 5_000).snapshot().after(Seq(after))) == met


def test_an_update_takes_the_older_seq_away() -> None:
    queue = queue_of(1, 2, 3)
    queue.put(mutation(b"key", 4), replaced=Seq(2))
    assert seqs(queue.snapshot()) == [1, 3, 4]


def test_removing_what_is_not_there_does_nothing() -> None:
    queue = queue_of(1, 3)
    for seq in (2, 40, 10**6):
        queue.remove(Seq(seq))
    assert seqs(queue.snapshot()) == [1, 3]


def test_a_seq_that_is_put_again_stands_once() -> None:
    queue = queue_of(1)
    longer = mutation(b"another key", 1, b"a longer value")
    queue.put(longer)
    assert (queue.count, queue.size_bytes) == (1, longer.size)
    assert queue.get(Seq(1)) is longer


def test_an_emptied_queue_takes_any_seq() -> None:
    queue = queue_of(1, 2**50)
    queue.remove(Seq(1))
    queue.remove(Seq(2**50))
    assert (queue.count, queue.size_bytes) == (0, 0)
    queue.put(mutation(b"key", 77))
    assert seqs(queue.snapshot()) == [77]


def test_the_tree_is_as_high_as_the_distance_of_its_seqs_needs() -> None:
    """However large they are: a partition that lives long has a queue as low as a young one."""
    queue = queue_of(1, 10**12)
    assert queue.snapshot().level > 6
    queue.remove(Seq(1))
    assert queue.snapshot().level == 0


def test_a_flushed_snapshot_leaves_what_was_written_since() -> None:
    queue = queue_of(1, 2, 3, 100)
    snapshot = queue.snapshot()
    queue.put(mutation(b"key", 101), replaced=Seq(2))
    again = mutation(b"key", 3, b"another document of the same seq")
    queue.put(again)
    queue.discard(snapshot)
    assert list(queue.snapshot()) == [again, mutation(b"key", 101)]


@pytest.mark.parametrize(
    ("flushed", "since"),
    [
        pytest.param([5], [10_000], id="the_queue_has_grown_higher"),
        pytest.param([5, 10_000], [10_001], id="it_is_as_high"),
        pytest.param([5, 10_000], [], id="nothing_came"),
        pytest.param([], [5], id="nothing_was_there"),
    ],
)
def test_flushing_empties_a_queue_of_any_height(flushed: list[int], since: list[int]) -> None:
    queue = queue_of(*flushed)
    snapshot = queue.snapshot()
    for seq in since:
        queue.put(mutation(b"key", seq))
    queue.discard(snapshot)
    assert seqs(queue.snapshot()) == since


def test_flushing_reaches_into_a_queue_that_became_lower() -> None:
    queue = queue_of(5, 6, 10_000)
    snapshot = queue.snapshot()
    queue.remove(Seq(10_000))
    queue.put(mutation(b"key", 7))
    queue.discard(snapshot)
    assert seqs(queue.snapshot()) == [7]


def test_a_cleared_queue_leaves_its_snapshots_alone() -> None:
    queue = queue_of(1, 2)
    snapshot = queue.snapshot()
    queue.clear()
    assert (queue.count, queue.size_bytes, seqs(queue.snapshot())) == (0, 0, [])
    assert seqs(snapshot) == [1, 2]


# -- Against a plain dictionary ---------------------------------------------------------------

NEAR = st.integers(1, 80)
FAR = st.builds(lambda high, low: high * 1_000 + low, st.integers(0, 2_000), st.integers(1, 3))
ANY_SEQ = st.one_of(NEAR, FAR, st.integers(2**40, 2**40 + 40))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), ANY_SEQ, st.none() | ANY_SEQ),
        st.tuples(st.just("remove"), ANY_SEQ, st.none()),
        st.tuples(st.just("snapshot"), st.none(), st.none()),
        st.tuples(st.just("discard"), st.integers(0, 5), st.none()),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_it_is_a_dictionary_whose_snapshots_never_change(
    steps: list[tuple[str, int | None, int | None]],
) -> None:
    queue, model = WriteQueue(), dict[int, Document]()
    taken: list[tuple[QueueSnapshot, dict[int, Document]]] = []
    for step, at, replaced in steps:
        match step, at:
            case "put", int(seq):
                document = mutation(b"key", seq)
                queue.put(document, Seq(replaced or 0))
                model.pop(replaced or 0, None)
                model[seq] = document
            case "remove", int(seq):
                queue.remove(Seq(seq))
                model.pop(seq, None)
            case "snapshot", _:
                taken.append((queue.snapshot(), dict(model)))
            case "discard", int(which) if which < len(taken):
                snapshot, then = taken[which]
                queue.discard(snapshot)
                model = {seq: held for seq, held in model.items() if then.get(seq) is not held}
        assert queue.count == len(model)
        assert queue.size_bytes == sum(document.size for document in model.values())
    for snapshot, then in [*taken, (queue.snapshot(), model)]:
        walked = list(snapshot)
        assert seqs(walked) == sorted(then)
        assert all(then[document.seq] is document for document in walked)
        assert snapshot.last == max(then, default=NO_SEQ)


# -- What it costs ------------------------------------------------------------------------------


@contextmanager
def without_the_collector() -> Iterator[None]:
    """So that what is freed is freed because nobody holds it, not because it was looked for."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_document_is_let_go_of_with_the_last_snapshot_that_shows_it() -> None:
    with without_the_collector():
        queue, document = WriteQueue(), mutation(b"key", 40)
        alone = sys.getrefcount(document)
        queue.put(document)
        first, second = queue.snapshot(), queue.snapshot()
        queue.remove(Seq(40))
        assert sys.getrefcount(document) > alone
        del first
        assert sys.getrefcount(document) > alone
        del second
        assert sys.getrefcount(document) == alone


def test_a_flushed_document_is_let_go_of_at_once() -> None:
    with without_the_collector():
        documents = [mutation(b"key", seq) for seq in range(1, 3_000)]
        alone = [sys.getrefcount(document) for document in documents]
        queue = WriteQueue()
        for at in range(len(documents)):
            queue.put(documents[at])
        flushed = queue.snapshot()
        queue.put(mutation(b"since", 3_000))
        queue.discard(flushed)
        del flushed
        assert [sys.getrefcount(document) for document in documents] == alone


def test_memory_comes_back_when_the_last_holder_lets_go() -> None:
    documents = [mutation(b"key", seq) for seq in range(1, 20_001)]
    with without_the_collector():
        tracemalloc.start()
        try:
            queue = WriteQueue()
            for document in documents:
                queue.put(document)
            held = tracemalloc.get_traced_memory()[0]
            snapshot = queue.snapshot()
            queue.clear()
            assert tracemalloc.get_traced_memory()[0] > 0.95 * held
            del snapshot
            assert tracemalloc.get_traced_memory()[0] < 0.05 * held
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("count", [10, 100_000])
def test_a_snapshot_costs_the_same_whatever_the_queue_holds(count: int) -> None:
    queue = queue_of(*range(1, count + 1))
    tracemalloc.start()
    try:
        snapshot = queue.snapshot()
        assert tracemalloc.get_traced_memory()[0] < 1_000
    finally:
        tracemalloc.stop()
    assert snapshot.count == count


def test_ten_snapshots_under_writes_cost_less_than_a_twentieth_of_one() -> None:
    count, writes = 200_000, 100
    chance, fresh = random.Random(6), itertools.count(count + 1)
    tracemalloc.start()
    try:
        queue = queue_of(*range(1, count + 1))
        held = []
        one = tracemalloc.get_traced_memory()[0]
        for _ in range(10):
            held.append(queue.snapshot())
            for _ in range(writes):
                older = Seq(chance.randrange(1, count))
                queue.put(mutation(b"key", next(fresh)), replaced=older)
        ten = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert ten < 1.05 * one
