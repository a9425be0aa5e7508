"""Offset documents."""

import json

import pytest

from millrace.errors import UsageError
from millrace.spark.offsets import LogOffset, Offset, check_cluster, parse, remade
from millrace.types import LogId, Lsn

HERE = Offset(
    "5f0c", {"orders": LogOffset(LogId(9), Lsn(44)), "clicks": LogOffset(LogId(7), Lsn(8))}
)


def test_the_same_place_has_the_same_text() -> None:
    text = json.dumps(HERE.document())
    assert text == (
        '{"cluster": "5f0c", "logs": {"clicks": {"id": 7, "next": 8}, '
        '"orders": {"id": 9, "next": 44}}}'
    )
    assert parse(json.loads(text)) == HERE
    assert json.dumps(parse(json.loads(text)).document()) == text


@pytest.mark.parametrize(
    "document",
    [{}, {"topic": {"0": 5}}, {"cluster": 1, "logs": {}}, {"cluster": "a", "logs": {"x": 3}}],
)
def test_a_document_of_another_source_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="checkpointLocation of its own"):
        parse(document)


def test_a_document_of_another_cluster_or_log_is_refused() -> None:
    check_cluster(HERE, "5f0c")
    with pytest.raises(UsageError, match="belongs to the cluster 5f0c"):
        check_cluster(HERE, "other")
    assert remade("clicks", HERE.logs["clicks"], LogId(7)) == ""
    assert "deleted and made again" in remade("clicks", HERE.logs["clicks"], LogId(12))


def test_a_log_that_joins_says_where_it_is_read_from() -> None:
    joined = Offset("5f0c", {"late": LogOffset(LogId(3), Lsn(9), Lsn(5))})
    assert joined.document()["logs"] == {"late": {"id": 3, "next": 9, "first": 5}}
    assert parse(joined.document()) == joined
