"""A search index without Spark: what is found, whatever comes how often."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import CorruptStore, StateMismatch, TimedOut, UsageError
from millrace.spark.pipelines.bucket_state.seen import FILE_NAME, Seen
from millrace.spark.pipelines.search import query_search
from millrace.spark.pipelines.search.index import Index, index_file
from millrace.spark.pipelines.search.record import open_record
from millrace.spark.pipelines.search.settings import SearchSettings, Tokenizer
from millrace.spark.pipelines.search.texts import ALL_TEXT, columns_of, texts_of

WORDS = ["mill", "race", "water", "wheel"]


@contextlib.contextmanager
def index(
    folder: Path | None = None,
    columns: tuple[str, ...] = (ALL_TEXT,),
    tokenizer: Tokenizer = Tokenizer.WORDS,
) -> Iterator[Index]:
    file = Path(":memory:") if folder is None else folder / "index.sqlite"
    with contextlib.closing(Index(file, columns, tokenizer.fts5)) as opened:
        yield opened


def found(index: Index, query: str) -> list[bytes]:
    return [hit.key for hit in index.search(query, 10)[1]]


@pytest.mark.parametrize(
    ("tokenizer", "query", "keys"),
    [
        (Tokenizer.WORDS, "wheel", {b"a"}),
        (Tokenizer.WORDS, "WHEEL", {b"a"}),
        (Tokenizer.WORDS, "mühle OR wheel", {b"a", b"c"}),
        (Tokenizer.WORDS, "water NOT wheel", {b"b"}),
        (Tokenizer.WORDS, '"the old water"', {b"a"}),
        (Tokenizer.WORDS, "wa*", {b"a", b"b"}),
        (Tokenizer.WORDS, "wheels", set()),
        (Tokenizer.WORDS, "42", {b"b"}),
        (Tokenizer.STEMS, "wheels", {b"a"}),
        (Tokenizer.PARTS, "hee", {b"a"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_words_are_found(tokenizer: Tokenizer, query: str, keys: set[bytes]) -> None:
    with index(tokenizer=tokenizer) as shard:
        shard.take(
            0,
            {
                b"a": ["the old water wheel"],
                b"b": ["new water\n42"],
                b"c": ["Mühle"],
            },
        )
        assert set(found(shard, query)) == keys


def test_what_fits_best_comes_first_and_is_shown_in_its_place() -> None:
    with index() as shard:
        shard.take(0, {b"long": ["water " + "sand " * 50], b"short": ["water wheel"]})
        batch, hits = shard.search("water", 10)
        assert (batch, [hit.key for hit in hits]) == (0, [b"short", b"long"])
        assert hits[0].snippet == "[water] wheel"
        assert hits[0].score > hits[1].score


@pytest.mark.parametrize("query", ['"open', "a AND", "none: x", "NOT"])
def test_a_query_that_is_none_says_how_to_write_one(query: str) -> None:
    with index() as shard, pytest.raises(UsageError, match="is no query"):
        shard.search(query, 10)


@pytest.mark.parametrize(
    ("value", "fields", "texts"),
    [
        (b'{"a": "x", "b": ["y", {"c": "z"}], "n": 1.5, "t": true}', (), ["x\ny\nz\n1.5"]),
        (b'{"a": "x", "b": {"c": "z"}}', ("b.c", "a"), ["z", "x"]),
        (b'{"a": "x"}', ("b.c",), [""]),
        (b'"plain"', (), ["plain"]),
        (b"no json", (), None),
        (b"\xff", (), None),
    ],
    ids=["all", "fields", "missing", "string", "no JSON", "no text"],
)
def test_texts_of_a_document(
    value: bytes, fields: tuple[str, ...], texts: list[str] | None
) -> None:
    assert texts_of(value, fields) == texts


def test_a_field_can_be_asked_for() -> None:
    columns = tuple(columns_of(["title", "author.name"]))
    with index(columns=columns) as shard:
        shard.take(0, {b"a": ["water", "wheel"], b"b": ["wheel", "water"]})
        assert found(shard, "author_name: wheel") == [b"a"]


changes = st.dictionaries(
    st.sampled_from([b"a", b"b", b"c"]),
    st.none() | st.lists(st.sampled_from(WORDS), max_size=3).map(lambda words: [" ".join(words)]),
)


@settings(max_examples=40, deadline=None)
@given(batches=st.lists(st.tuples(changes, st.booleans()), max_size=6))
def test_it_finds_what_the_documents_have_now(
    batches: list[tuple[dict[bytes, list[str] | None], bool]],
) -> None:
    truth: dict[bytes, str] = {}
    with index() as shard:
        for number, (changed, is_repeated) in enumerate(batches):
            shard.take(number, changed)
            if is_repeated:
                shard.take(number, {b"a": ["another input, which nobody looks at"]})
                shard.take(number - 1, {b"b": None})
            truth |= {key: texts[0] for key, texts in changed.items() if texts is not None}
            for key in [key for key, texts in changed.items() if texts is None]:
                truth.pop(key, None)
        for word in WORDS:
            assert set(found(shard, word)) == {k for k, text in truth.items() if word in text}


def test_another_connection_sees_whole_batches(tmp_path: Path) -> None:
    with index(tmp_path) as writer, index(tmp_path) as reader:
        writer.take(0, {b"a": ["water"]})
        assert found(reader, "water") == [b"a"]
        writer.take(1, {b"a": None})
        assert (found(reader, "water"), reader.last_batch()) == ([], 1)


# -- Questions ------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a search with one shard that has taken a batch."""
    state = tmp_path / "state"
    state.mkdir()
    open_record(SearchSettings(cluster="-", bucket="b", shards=1), state)
    with contextlib.closing(Index(index_file(state, 0), [ALL_TEXT], "unicode61")) as shard:
        shard.take(0, {b"a": ["water"]})
    (state / FILE_NAME).write_bytes(msgspec.json.encode(Seen(0, "-", {})))
    return tmp_path


@contextlib.contextmanager
def held(home: Path, *statements: str) -> Iterator[None]:
    """The index as somebody else leaves it who is at work."""
    with contextlib.closing(
        sqlite3.connect(index_file(home / "state", 0), isolation_level=None)
    ) as other:
        for statement in statements:
            other.execute(statement)
        yield


def test_a_question_waits_for_no_batch_that_is_being_taken(home: Path) -> None:
    with held(home, "BEGIN IMMEDIATE", "DELETE FROM texts", "UPDATE taken SET batch = 1"):
        answer = query_search(home, "water", timeout_ms=1)
    assert (answer.batch, [hit.key for hit in answer.hits]) == (0, [b"a"])


def test_a_question_makes_nothing(home: Path) -> None:
    index_file(home / "state", 0).unlink()
    with pytest.raises(StateMismatch, match="cannot be opened"):
        query_search(home, "water")
    assert not index_file(home / "state", 0).exists()


def test_who_cannot_read_in_time_asked_no_wrong_question(home: Path) -> None:
    alone = ("PRAGMA locking_mode = EXCLUSIVE", "BEGIN IMMEDIATE", "DELETE FROM taken", "COMMIT")
    with held(home, *alone), pytest.raises(TimedOut, match="ask again"):
        query_search(home, "water", timeout_ms=1)


def overwritten(file: Path) -> None:
    file.write_bytes(b"something else" * 1000)


def emptied(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize(("harm", "error"), [(overwritten, CorruptStore), (emptied, StateMismatch)])
def test_a_broken_index_is_not_the_fault_of_the_question(
    home: Path, harm: Callable[[Path], None], error: type[Exception]
) -> None:
    harm(index_file(home / "state", 0))
    with pytest.raises(error, match="index-000"):
        query_search(home, "water")
