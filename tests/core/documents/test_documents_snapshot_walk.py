"""Streaming from memory, from disk, and across the hand-over while writing: nothing is omitted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.documents.change_stream import view_of
from millrace.core.documents.document import Document, Seq
from millrace.core.documents.snapshot_walk import View
from tests.core.documents.stream_rig import P0, Node, delete, master, put

ACTS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("abcdef")),
    st.tuples(st.just("delete"), st.sampled_from("abcdef")),
    st.tuples(st.just("flush"), st.just("")),
    st.tuples(st.just("read"), st.sampled_from(["1", "300", "100000"])),
)


def act(node: Node, what: str, key: str) -> None:
    if what == "put":
        put(node, key, f"{key} at {node.partitions[P0].high + 1}")
    elif what == "delete":
        delete(node, key)
    elif what == "flush":
        node.flush()


def state_of(node: Node) -> dict[bytes, Seq]:
    held = node.newest(P0, [b"%c" % letter for letter in b"abcdef"])
    return {document.key: document.seq for document in held}


def newest_of(documents: list[Document]) -> dict[bytes, Seq]:
    return {document.key: document.seq for document in documents}


def rest_of(view: View, after: Seq, bytes_max: int = 300) -> list[Document]:
    read: list[Document] = []
    while documents := view.read(after, bytes_max):
        read += documents
        after = documents[-1].seq
    return read


@settings(max_examples=300)
@given(st.lists(ACTS, max_size=25), st.integers(0, 12), st.lists(ACTS, max_size=25))
def test_a_view_shows_all_that_was_there_whatever_happens_after(
    before: list[tuple[str, str]], start: int, after: list[tuple[str, str]]
) -> None:
    node = master()
    for what, key in before:
        act(node, what, key)
    partition = node.partitions[P0]
    at = Seq(min(start, partition.high))
    wanted = {key: seq for key, seq in state_of(node).items() if seq > at}
    view = node.open_view(P0, at)
    read: list[Document] = []
    for what, key in after:
        if what == "read":
            read += view.read(read[-1].seq if read else at, int(key))
        else:
            act(node, what, key)
    read += rest_of(view, read[-1].seq if read else at)
    seqs = [document.seq for document in read]
    assert seqs == sorted(set(seqs))
    assert all(at < seq <= view.last for seq in seqs)
    assert newest_of(read) == wanted
    assert all(document.value is not None for document in read)


@given(st.lists(ACTS, max_size=25), st.integers(0, 25))
def test_a_flush_between_the_root_and_the_disk_hides_nothing(
    acts: list[tuple[str, str]], when: int
) -> None:
    """The writer's thread commits whenever it likes, also between the two steps of a view."""
    node = master()
    flush = None
    for at, (what, key) in enumerate(acts):
        if flush is None or what != "flush":
            act(node, what, key)
        if at == when:
            flush = node.partitions[P0].take_flush()
    wanted = state_of(node)

    def commit_and_open() -> object:
        if flush is not None:
            node.write(flush)
        return node.disk_view(P0)

    view = view_of(node.partitions[P0], Seq(0), commit_and_open)  # type: ignore[arg-type]
    assert newest_of(rest_of(view, Seq(0))) == wanted


def test_what_is_all_in_the_queue_needs_no_disk() -> None:
    node = master()
    put(node, "a")
    node.flush()
    put(node, "b")
    assert not node.open_view(P0, Seq(1)).is_from_disk
    assert node.open_view(P0, Seq(0)).is_from_disk


def test_a_document_larger_than_what_may_be_read_comes_alone() -> None:
    node = master()
    put(node, "a", "x" * 1000)
    put(node, "b")
    view = node.open_view(P0, Seq(0))
    assert [document.key for document in view.read(Seq(0), 10)] == [b"a"]
    assert [document.key for document in view.read(Seq(1), 10)] == [b"b"]
    assert view.read(Seq(2), 10) == []
