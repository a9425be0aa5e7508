"""A view's two stages without Spark: whatever comes how often, the results are those of the
documents as they are now."""

import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import BatchOvertaken, CorruptStore
from millrace.spark.pipelines.bucket_state.shard import close_shards
from millrace.spark.pipelines.view.documents import DocumentShard
from millrace.spark.pipelines.view.functions import function_name
from millrace.spark.pipelines.view.groups import GroupShard
from millrace.spark.pipelines.view.mapping import PandasMap, PythonMap, split_failures
from millrace.spark.pipelines.view.order import encode
from millrace.spark.pipelines.view.reduces import BuiltIn, Own, Reduce, built_in
from tests.spark.pipelines import view_functions

FUNCTIONS = Path(view_functions.__file__)
SHARDS = 2
MEMORY = Path("/dev/shm")  # Where a commit costs nothing, if there is such a place.
FOLDERS = str(MEMORY) if MEMORY.is_dir() else None
REDUCES = [*(kind.value for kind in BuiltIn), "own"]

# Sums of these are wrong in the last digit, or altogether, when they are rounded on the way.
TRICKY = [0.1, 0.2, 0.3, 1.0, 1e16, -1e16, 1e300, 2**53 + 1, 2**64 - 1, 3]
amounts = st.one_of(
    st.sampled_from(TRICKY),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False, width=64),
)
documents = st.fixed_dictionaries(
    {"amount": amounts},
    optional={
        "city": st.sampled_from(["york", "bath"]),
    },
)
tagged = st.fixed_dictionaries(
    {"amount": amounts, "city": st.sampled_from(["york", "bath"])},
    optional={"tags": st.lists(st.sampled_from(["a", "b"]), max_size=3)},
)


class Attempt(msgspec.Struct):
    """Of a batch: how many shards it reaches before it ends, and which documents it leaves out
    because they have changed again since."""

    steps: int
    left_out: set[str]


class Batch(msgspec.Struct):
    documents: dict[str, dict[str, Any] | None]  # None: it is gone.
    attempts: list[Attempt]


def batches(documents: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[Batch]]:
    keys = st.sampled_from([f"d{number}" for number in range(6)])
    changed = st.dictionaries(keys, documents | st.none(), min_size=2, max_size=6)
    attempts = st.builds(Attempt, st.integers(0, 2 * SHARDS), st.sets(keys, max_size=2))
    return st.lists(
        st.builds(Batch, changed, st.lists(attempts, max_size=3)), min_size=1, max_size=6
    )


class Engine:
    """A view as the tasks of Spark run it, one after the other, in a folder of its own."""

    def __init__(self, state: Path, map: str, reduce: Reduce) -> None:
        self.state = state
        self.reduce = reduce
        kind = PandasMap if "pandas" in map else PythonMap
        self.map = kind(function_name("map", f"{FUNCTIONS}:{map}", Path()), reduce)
        self.results: dict[bytes, bytes] = {}

    def run(self, number: int, changed: dict[str, Any], steps: int = 2 * SHARDS) -> bool:
        """False: it ended before its end."""
        changes: list[tuple[bytes, bytes, int]] = []
        for at in range(SHARDS):
            if at >= steps:
                return False
            rows = self._rows({k: v for k, v in changed.items() if self._shard(k.encode()) == at})
            answer = DocumentShard.open(self.state, at).take(number, rows)
            changes += zip(*answer.table().to_pydict().values(), strict=True)
        for at in range(SHARDS):
            if at + SHARDS >= steps:
                return False
            mine = [change for change in changes if self._shard(change[0]) == at]
            self._show(GroupShard.open(self.state, at, self.reduce).take(number, mine).results)
        return True

    def restart(self) -> None:
        close_shards(self.state)

    def shown(self) -> dict[bytes, Any]:
        return {key: msgspec.json.decode(value) for key, value in self.results.items()}

    def _rows(self, changed: dict[str, Any]) -> dict[bytes, bytes]:
        live = {k: v for k, v in changed.items() if v is not None}
        values = [msgspec.json.encode(each) for each in live.values()]
        keys = [key.encode() for key in live]
        rows, failures = split_failures(keys, self.map.rows(keys, values))
        assert not failures
        return rows | {key.encode(): b"" for key in changed if key not in live}

    def _show(self, results: list[Any]) -> None:
        """A sink that merges by key."""
        for result in results:
            if result.value is None:
                self.results.pop(result.key, None)
            else:
                self.results[result.key] = result.value

    def _shard(self, key: bytes) -> int:
        return crc32(key) % SHARDS


def recomputed(documents: dict[str, Any], map: Any, reduce: str) -> dict[bytes, Any]:
    """From scratch, in the most obvious way."""
    groups: dict[bytes, tuple[Any, list[Any]]] = {}
    for document in documents.values():
        for key, value in map(document):
            groups.setdefault(msgspec.json.encode(key), (key, []))[1].append(value)
    return {text: REDUCED[reduce](key, values) for text, (key, values) in groups.items()}


def exact(numbers: Iterator[Fraction]) -> int | float | None:
    total = sum(numbers, Fraction(0))
    if total.denominator == 1 and -(2**63) <= total < 2**64:
        return int(total)
    try:
        return float(total)
    except OverflowError:
        return None


REDUCED: dict[str, Any] = {
    "count": lambda key, values: len(values),
    "sum": lambda key, values: exact(Fraction(value) for value in values),
    "min": lambda key, values: min(values),
    "max": lambda key, values: max(values),
    "stats": lambda key, values: {
        "count": len(values),
        "sum": exact(Fraction(value) for value in values),
        "min": min(values),
        "max": max(values),
        "sumsqr": exact(Fraction(value) ** 2 for value in values),
    },
    "own": view_functions.spread,
}


def reduce_of(name: str) -> Reduce:
    if name == "own":
        return Own(function_name("reduce", f"{FUNCTIONS}:spread", Path()))
    return built_in(BuiltIn(name))


def play(engine: Engine, played: list[Batch]) -> dict[str, Any]:
    """The documents that are left.  What a later attempt leaves out comes with the next batch."""
    truth: dict[str, Any] = {}
    late: dict[str, Any] = {}
    for number, batch in enumerate([*played, Batch({}, [])]):
        changed = late | batch.documents
        gone: set[str] = set()
        for attempt in [*batch.attempts, Attempt(2 * SHARDS, set())]:
            given = {key: value for key, value in changed.items() if key not in gone}
            engine.run(number, given, attempt.steps)
            engine.restart()
            gone |= attempt.left_out
        late = {key: value for key, value in changed.items() if key in gone}
        truth |= changed
    return {key: value for key, value in truth.items() if value is not None}


@pytest.mark.parametrize("reduce", REDUCES)
@settings(max_examples=60, deadline=None)
@given(played=batches(documents))
def test_the_results_are_those_of_a_recomputation(reduce: str, played: list[Batch]) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDERS) as folder:
        engine = Engine(Path(folder), "by_city", reduce_of(reduce))
        left = play(engine, played)
        assert engine.shown() == recomputed(left, view_functions.by_city, reduce)


@settings(max_examples=60, deadline=None)
@given(played=batches(tagged))
def test_a_document_may_give_many_rows_and_equal_ones(played: list[Batch]) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDERS) as folder:
        engine = Engine(Path(folder), "by_tag", reduce_of("stats"))
        left = play(engine, played)
        expected = recomputed(left, lambda d: view_functions.by_tag(d, ""), "stats")
        assert engine.shown() == expected


@settings(max_examples=15, deadline=None)
@given(played=batches(documents))
def test_a_pandas_function_gives_what_a_function_of_documents_gives(played: list[Batch]) -> None:
    with tempfile.TemporaryDirectory(dir=FOLDERS) as folder:
        engine = Engine(Path(folder), "by_city_in_pandas", reduce_of("count"))
        left = play(engine, played)
        assert engine.shown() == recomputed(left, view_functions.by_city, "count")


def test_a_batch_before_the_last_changes_nothing(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "by_city", reduce_of("count"))
    engine.run(4, {"d0": {"city": "york", "amount": 1}})
    with pytest.raises(BatchOvertaken, match="batch 3 came to documents-000 after batch 4"):
        engine.run(3, {"d0": None})
    assert engine.shown() == {b'"york"': 1}


def test_rows_that_were_never_there_are_not_taken_back(tmp_path: Path) -> None:
    """State of two views was mixed."""
    shard = GroupShard.open(tmp_path, 0, reduce_of("max"))
    with pytest.raises(CorruptStore, match="delete it and run the view again"):
        shard.take(0, [(encode("york"), encode(1), -1)])


def test_long_values_are_reduced_whole(tmp_path: Path) -> None:
    shard = GroupShard.open(tmp_path, 0, reduce_of("own"))
    first, second = "a" * 300 + "x", "a" * 300 + "y"
    rows = [(encode("k"), encode(value), 1) for value in (second, first)]
    [result] = shard.take(0, rows).results
    assert result.value is not None
    assert msgspec.json.decode(result.value) == [2, second, second]
    [result] = shard.take(1, [(encode("k"), encode(second), -1)]).results
    assert result.value is not None
    assert msgspec.json.decode(result.value) == [1, first, first]
