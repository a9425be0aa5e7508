"""Names of statistics say which partition and whose stream they are about."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.documents.document import FailoverId, PartitionId
from millrace.core.documents.partition import Partition
from millrace.server.documents.stat_names import (
    StatName,
    parse_stat_name,
    partition_stats,
    stream_stats,
)

words = st.text(st.characters(blacklist_characters=":"), min_size=1)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        pytest.param(
            "sent:5:replica:3", StatName("sent", PartitionId(5), "replica", "3"), id="of a stream"
        ),
        pytest.param(
            "sent:5:indexer:[::1]:9",
            StatName("sent", PartitionId(5), "indexer", "[::1]:9"),
            id="colons in who it is",
        ),
        pytest.param("high_seq:5", StatName("high_seq", PartitionId(5)), id="of a partition"),
        pytest.param("cmd_get", None, id="of the node"),
        pytest.param("sent:x:replica:3", None, id="no partition"),
        pytest.param("sent:5:replica", None, id="nobody"),
    ],
)
def test_a_name_is_split_from_the_left(name: str, parsed: StatName | None) -> None:
    assert parse_stat_name(name) == parsed
    assert parsed is None or str(parsed) == name


@given(words, st.integers(0, 1023), words, st.text())
def test_what_is_named_can_be_read(stat: str, number: int, what: str, who: str) -> None:
    ((name, value),) = stream_stats(f"{what}:{who}", PartitionId(number), {stat: 7})
    assert parse_stat_name(name) == StatName(stat, PartitionId(number), what, who)
    assert value == "7"


def test_a_partition_tells_where_it_stands() -> None:
    partition = Partition(PartitionId(3))
    partition.promote(1, FailoverId(0xCAFE), is_takeover=False)
    partition.store(b"k", b"v", 0, 0, 1)
    told = dict(partition_stats(partition))
    assert (told["state:3"], told["high_seq:3"], told["items:3"]) == ("active", "1", "1")
    assert told["failover_id:3"] == "000000000000cafe"
