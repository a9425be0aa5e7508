"""Documents whose time is over are found without looking at the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.documents.document import Cas, ChangeKind, Document, Seq
from millrace.core.documents.memory import DocumentMemory


def expired(memory: DocumentMemory) -> list[bytes]:
    return memory.expired(memory.expiring(), 10)


def document(
    key: bytes, seq: int, expiry_s: int, kind: ChangeKind = ChangeKind.MUTATION
) -> Document:
    return Document(key, b"", Seq(seq), Cas(seq), 0, expiry_s, kind)


@pytest.mark.parametrize(
    ("expiry_s", "is_expired"),
    [(0, False), (9, True), (10, True), (11, False)],
    ids=["never", "before", "now", "later"],
)
def test_it_is_over_from_its_second_on(expiry_s: int, is_expired: bool) -> None:
    memory = DocumentMemory()
    memory.put(document(b"key", 1, expiry_s))
    assert expired(memory) == ([b"key"] if is_expired else [])


def test_those_that_were_loaded_are_found() -> None:
    memory = DocumentMemory()
    memory.load([document(b"key", 1, 5)])
    assert expired(memory) == [b"key"]


def test_those_that_lost_their_value_are_found() -> None:
    memory = DocumentMemory()
    memory.load([Document(b"key", b"value", Seq(1), Cas(1), 0, 5)])
    assert memory.evict(1) == len(b"value")
    assert expired(memory) == [b"key"]


def test_only_those_that_were_asked_about_are_looked_at() -> None:
    memory = DocumentMemory()
    for seq in range(1, 8):
        memory.put(document(b"%d" % seq, seq, 5))
    assert memory.expired(memory.expiring()[:3], 10) == [b"1", b"2", b"3"]


def test_those_that_do_not_expire_are_not_looked_at() -> None:
    memory = DocumentMemory()
    memory.put(document(b"never", 1, 0))
    memory.put(document(b"once", 2, 5))
    assert memory.expiring() == [b"once"]
    memory.put(document(b"once", 3, 0))
    assert expired(memory) == memory.expiring() == []


def test_one_that_is_not_carried_out_is_found_again() -> None:
    memory = DocumentMemory()
    memory.put(document(b"key", 1, 5))
    assert expired(memory) == expired(memory) == [b"key"]


changes = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c"]),
        st.sampled_from(["put", "delete", "forget", "clear", "look"]),
        st.integers(0, 20),
    ),
    max_size=40,
)


@given(changes)
def test_it_finds_what_a_look_at_all_would(steps: list[tuple[bytes, str, int]]) -> None:
    memory = DocumentMemory()
    for seq, (key, step, expiry_s) in enumerate(steps, 1):
        match step:
            case "put":
                memory.put(document(key, seq, expiry_s))
            case "delete":
                memory.put(document(key, seq, 1, ChangeKind.DELETION))
            case "forget":
                memory.forget(key)
            case "clear":
                memory.clear()
            case "look":
                assert set(expired(memory)) == expired_of_all(memory)
    assert set(expired(memory)) == expired_of_all(memory)


def expired_of_all(memory: DocumentMemory) -> set[bytes]:
    return {each.key for each in memory.table.values() if 0 < each.expiry_s <= 10 and not each.kind}
