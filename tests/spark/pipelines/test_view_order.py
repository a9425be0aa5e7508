"""JSON values as bytes that sort as the values do."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.spark.pipelines.view.order import END, decode, encode

IN_ORDER: list[Any] = [
    None,
    False,
    True,
    -1e300,
    -(2**63),
    -1.5,
    -1,
    -5e-324,
    0,
    5e-324,
    0.1,
    1,
    2**53,
    2**53 + 1,
    2**53 + 2,
    2**63 - 1,
    2**63,
    2**64 - 1,
    1e300,
    "",
    "\0",
    "\1",
    "a",
    "a\0",
    "ab",
    "é",
    [],
    [None],
    [1],
    [1, 1],
    [2],
    ["a"],
    [[]],
    {},
    {"a": 1},
    {"a": 1, "b": 0},
    {"a": 2},
    {"b": 0},
]

numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_values_sort_by_kind_and_then_by_size() -> None:
    encoded = [encode(value) for value in IN_ORDER]
    assert encoded == sorted(set(encoded))


@given(first=numbers, second=numbers)
def test_numbers_sort_by_size_however_they_are_written(first: float, second: float) -> None:
    assert (encode(first) < encode(second)) == (first < second)
    assert (encode(first) == encode(second)) == (first == second)


@given(first=st.text(), second=st.text())
def test_strings_sort_by_code_point(first: str, second: str) -> None:
    assert (encode(first) < encode(second)) == (first < second)


@given(value=values, behind=values)
def test_a_value_comes_back_and_no_other_begins_with_it(value: Any, behind: Any) -> None:
    assert decode(encode(value)) == value
    assert value == behind or not encode(behind).startswith(encode(value))


@given(value=values, behind=values)
def test_the_end_sorts_behind_all_that_begins_with_a_value(value: Any, behind: Any) -> None:
    assert encode(value) + encode(behind) < encode(value) + END


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 2**64, b"bytes", {1: 2}, {"a": object()}, "\ud800"],
    ids=["nan", "infinity", "large", "bytes", "names", "objects", "half a sign"],
)
def test_what_is_no_json_value_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        encode(value)
