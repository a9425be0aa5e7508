"""The columns of a change, without Spark's Java."""

from millrace.core.documents.document import NO_SEQ, Cas, Document, PartitionId, Seq
from millrace.spark.changes.columns import Shape, Taken, default_schema, documents_of
from millrace.spark.changes.options import Format
from millrace.spark.pipelines.copy.offering import COLUMNS

SCHEMA = default_schema(Format.ROWS)


def test_a_row_has_all_that_a_document_is_made_of() -> None:
    document = Document(b"k", b"packed", Seq(5), Cas(6), 7, 8, datatype=3)
    taken = Taken(PartitionId(2), 0, NO_SEQ, documents_of([document], [b"gone"], Seq(9)))
    stored, gone = Shape(SCHEMA, Format.ROWS, "users").rows([taken]).to_pylist()
    names = ("key", "value", "seq", "cas", "flags", "expiry", "datatype")
    assert [stored[name] for name in names] == [b"k", b"packed", 5, 6, 7, 8, 3]
    assert [gone[name] for name in names] == [b"gone", None, 9, 0, 0, 0, 0]


def test_what_came_later_stands_last() -> None:
    """Whoever takes columns by their place finds the older ones where they were."""
    assert SCHEMA.names[-2:] == ["expiry", "datatype"]


def test_a_copy_asks_for_columns_that_there_are() -> None:
    assert set(COLUMNS) <= set(SCHEMA.names)
