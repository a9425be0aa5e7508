"""What can be asked of a view and of a search index, and what a map may do to a document."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.errors import StateMismatch, UsageError
from millrace.spark.pipelines.search.settings import SearchSettings
from millrace.spark.pipelines.view.documents import Failure
from millrace.spark.pipelines.view.functions import function_name
from millrace.spark.pipelines.view.mapping import PandasMap, PythonMap
from millrace.spark.pipelines.view.record import FILE_NAME, open_record
from millrace.spark.pipelines.view.reduces import BuiltIn, built_in
from millrace.spark.pipelines.view.selecting import with_document
from millrace.spark.pipelines.view.settings import Language, ResultKind, ViewSettings
from tests.spark.pipelines import view_functions

FUNCTIONS = view_functions.__file__
GOOD: dict[str, Any] = {"cluster": "a:1", "bucket": "orders", "map": f"{FUNCTIONS}:by_city"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"map": "no function"}, "map = 'no function' names no function"),
        ({"reduce": "average"}, "reduce = 'average' names no function"),
        ({"shards": 0}, "shards = 0: choose 1 to"),
        ({"changes_per_batch": 0}, "changes_per_batch = 0"),
        ({"interval_ms": -1}, "interval_ms = -1"),
        ({"target": "x"}, "target without result"),
        ({"result": ResultKind.LOG}, "result = log needs a target"),
        ({"result": ResultKind.BUCKET, "target": "orders"}, "choose another bucket"),
        ({"columns": "a INT"}, "language = sql needs columns"),
        ({"language": Language.SQL, "map": "SELECT 1"}, "language = sql needs columns"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_view_that_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ViewSettings(**{**GOOD, **given})


@pytest.mark.parametrize("fields", [("a b",), ("rank",), ("a.b", "a_b"), ("",)])
def test_fields_that_cannot_be_searched_are_refused(fields: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="cannot be searched"):
        SearchSettings(cluster="a:1", bucket="b", fields=fields)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing.py:f", "missing.py cannot be imported: FileNotFoundError"),
        ("no_such_module:f", "no_such_module cannot be imported"),
        (f"{FUNCTIONS}:nothing", "has no function nothing"),
    ],
)
def test_a_function_that_is_not_there_is_named(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        function_name("map", name, tmp_path).load()


@pytest.mark.parametrize("change", [{"shards": 4}, {"reduce": "sum"}, {"bucket": "others"}])
def test_the_state_of_one_view_is_not_given_to_another(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    made = open_record(ViewSettings(**GOOD), tmp_path)
    assert open_record(ViewSettings(**GOOD), tmp_path) == made
    with pytest.raises(StateMismatch, match=f"{next(iter(change))} = .* was made with"):
        open_record(ViewSettings(**{**GOOD, **change}), tmp_path)


def test_a_map_function_that_was_changed_makes_another_view(tmp_path: Path) -> None:
    made = open_record(ViewSettings(**GOOD), tmp_path)
    older = msgspec.structs.replace(made, functions={"map": "digest of the text it had before"})
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode(older))
    with pytest.raises(StateMismatch, match="the map or reduce function is another"):
        open_record(ViewSettings(**GOOD), tmp_path)


@pytest.mark.parametrize(
    ("reduce", "value", "said"),
    [
        ("count", b"{no json", "it is no JSON"),
        ("count", b'{"city": "york"}', "KeyError: 'amount' (view_functions.py, line "),
        ("sum", b'{"city": "york", "amount": "x"}', "sum takes numbers, and 'x' is none"),
        ("count", b'{"city": "%s", "amount": 1}' % (b"x" * 300), "a view key has at most 250"),
        ("max", b'{"city": "york", "amount": "%s"}' % (b"x" * 300), "values of up to 250 bytes"),
    ],
    ids=["no JSON", "raises", "no number", "long key", "long value"],
)
@pytest.mark.parametrize("kind", [PythonMap, PandasMap])
def test_a_document_that_the_map_cannot_take_is_a_failure_of_that_one(
    kind: Any, reduce: str, value: bytes, said: str
) -> None:
    function = "by_city" if kind is PythonMap else "by_city_row_by_row"
    name = function_name("map", f"{FUNCTIONS}:{function}", Path())
    good = b'{"city": "york", "amount": 2}'
    mapped = kind(name, built_in(BuiltIn(reduce))).rows([b"a", b"b", b"c"], [good, value, good])
    assert [type(each) for each in mapped] == [bytes, Failure, bytes]
    assert mapped[1].document == b"b"
    assert said.split(":")[0] in mapped[1].reason


@pytest.mark.parametrize(
    ("select", "given"),
    [
        ("SELECT a AS key FROM documents", "SELECT  _document, a AS key FROM documents"),
        ("\n select distinct b", "\n select distinct  _document, b"),
    ],
)
def test_a_select_is_given_the_document(select: str, given: str) -> None:
    assert with_document(select) == given


def test_what_is_no_select_is_refused() -> None:
    with pytest.raises(UsageError, match="is no select"):
        with_document("WITH x AS (SELECT 1) SELECT * FROM x")
