"""Answers leave in the order of their requests, though some are known later."""

import random

from hypothesis import given
from hypothesis import strategies as st

from millrace.server.documents.ordered_answers import (
    HELD_BYTES_MAX,
    PLACES_MAX,
    OrderedAnswers,
    Place,
)

KNOWN, LATER = True, False


def test_what_is_known_is_ready_at_once() -> None:
    answers = OrderedAnswers()
    answers.add(b"a")
    answers.add(b"b")
    assert answers.ready_bytes == 2
    assert answers.take() == b"ab"
    assert answers.take() == b""


def test_what_stands_behind_an_open_place_waits_for_it() -> None:
    answers = OrderedAnswers()
    place = answers.reserve(0)
    answers.add(b"b")
    assert answers.take() == b""
    answers.settle(place, b"a")
    assert answers.take() == b"ab"
    assert not answers.has_open_places


@given(st.lists(st.booleans(), max_size=30), st.randoms())
def test_any_order_of_settling_gives_the_order_of_asking(
    kinds: list[bool], chance: random.Random
) -> None:
    answers = OrderedAnswers()
    places: list[tuple[Place, bytes]] = []
    expected = b""
    for at, kind in enumerate(kinds):
        answer = b"%d," % at
        expected += answer
        if kind is KNOWN:
            answers.add(answer)
        else:
            places.append((answers.reserve(at), answer))
    chance.shuffle(places)
    written = answers.take()
    for place, answer in places:
        answers.settle(place, answer)
        written += answers.take()
        assert expected.startswith(written)
    assert written == expected
    assert not answers.is_full and not answers.has_open_places


def test_many_open_places_are_enough() -> None:
    answers = OrderedAnswers()
    places = [answers.reserve(0) for _ in range(PLACES_MAX)]
    assert answers.is_full
    answers.settle(places[0], b"")
    assert not answers.is_full


def test_large_requests_under_way_are_enough() -> None:
    answers = OrderedAnswers()
    place = answers.reserve(HELD_BYTES_MAX)
    assert answers.is_full
    answers.settle(place, b"")
    assert not answers.is_full


def test_large_answers_held_back_are_enough() -> None:
    answers = OrderedAnswers()
    place = answers.reserve(0)
    answers.add(bytes(HELD_BYTES_MAX))
    assert answers.is_full
    answers.settle(place, b"")
    answers.take()
    assert not answers.is_full
