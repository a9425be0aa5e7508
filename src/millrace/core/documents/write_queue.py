"""What a partition holds that is not on disk yet, in the order of seqs (R-C).

A radix tree over seqs with 32 slots a node, whose nodes are shared with snapshots.  Every node
carries the mark of the time it was made in.  A snapshot is the root, and the queue's mark moves on:
nodes of an older mark may be seen by somebody and are copied before they are changed, nodes of the
present one are changed in place.  So a run of writes between two snapshots copies each
node it touches once, and a snapshot costs nothing but what it keeps from being freed.

Nobody counts references here: the interpreter does, and frees what the last holder lets go of at
once.  A tree is at most 13 levels deep, so neither walking nor freeing one recurses far.

  I1  What a snapshot can see is never changed, so it may be walked in another thread.
  I2  No node is empty, and the root has more than one slot taken unless it is a leaf: the tree is
      as high as the distance of its seqs needs, not as their size does.
  I3  The way to a node of the present mark has that mark.
  I4  `count` and `size_bytes` are those of the documents in the tree.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from millrace.core.documents.document import DOCUMENT_BYTES, NO_SEQ, Document, Seq

BITS: Final = 5
SLOTS: Final = 1 << BITS
SLOT_MASK: Final = SLOTS - 1
NO_LEAF: Final = -1
EMPTY_SLOTS: Final[tuple[None, ...]] = (None,) * SLOTS


class Node:
    """Of a leaf the slots hold documents, of others nodes; `taken` says how many of them do.

    `size_bytes` is kept for leaves alone: a change need not go up to the root then."""

    __slots__ = ("__weakref__", "mark", "size_bytes", "slots", "taken")

    def __init__(self, mark: int) -> None:
        self.mark = mark
        self.slots: list[Any] = list(EMPTY_SLOTS)
        self.taken = 0
        self.size_bytes = 0

    def copy(self, mark: int) -> "Node":
        copied = Node.__new__(Node)
        copied.mark = mark
        copied.slots = self.slots.copy()
        copied.taken = self.taken
        copied.size_bytes = self.size_bytes
        return copied


NOWHERE: Final = Node(-1)


class QueueSnapshot:
    """The queue as it was once.  Holding it keeps what it shows in memory."""

    __slots__ = ("__weakref__", "_root", "count", "level", "number", "size_bytes")

    def __init__(
        self, root: Node | None, level: int, number: int, count: int, size_bytes: int
    ) -> None:
        self._root = root
        self.level = level  # 0: the root is a leaf.
        self.number = number  # Of the root among the nodes of its level.
        self.count = count
        self.size_bytes = size_bytes

    @property
    def last(self) -> Seq:
        """The largest seq; 0 if it is empty."""
        node = self._root
        if node is None:
            return NO_SEQ
        for _ in range(self.level):
            node = next(filter(None, reversed(node.slots)))
        document: Document = next(filter(None, reversed(node.slots)))
        return document.seq

    def after(self, seq: Seq) -> Iterator[Document]:
        """Those above `seq`, in order.  Nodes that are behind are let go of by the walk."""
        if self._root is None:
            return iter(())
        leaves = _leaves(self._root, self.level, self.number, (seq + 1) >> BITS)
        first = next(leaves, None)
        if first is None:
            return iter(())
        begun = [document for document in filter(None, first.slots) if document.seq > seq]
        return chain(begun, chain.from_iterable(filter(None, leaf.slots) for leaf in leaves))

    def __iter__(self) -> Iterator[Document]:
        return self.after(NO_SEQ)

    def __len__(self) -> int:
        return self.count

    def node_at(self, level: int, number: int) -> Node | None:
        """What it has where a tree of that level and number has its root, as a node of that level.

        Ancestors that this tree does not need are made up."""
        node = self._root
        if node is None:
            return None
        if level < self.level:
            return _descend(node, self.level, self.number, level, number)
        if self.number >> (BITS * (level - self.level)) != number:
            return None
        for above in range(level - self.level):
            parent = Node(node.mark)
            parent.slots[(self.number >> (BITS * above)) & SLOT_MASK] = node
            parent.taken = 1
            node = parent
        return node


class WriteQueue:
    __slots__ = (
        "_leaf",
        "_leaf_number",
        "_level",
        "_mark",
        "_number",
        "_root",
        "count",
        "size_bytes",
    )

    def __init__(self) -> None:
        self._mark = 0
        self._leaf = NOWHERE
        self._leaf_number = NO_LEAF
        self.clear()

    def clear(self) -> None:
        self._root: Node | None = None
        self._level = 0
        self._number = 0
        self._let_go_of_leaf()
        self.count = 0
        self.size_bytes = 0

    def snapshot(self) -> QueueSnapshot:
        self._mark += 1
        self._let_go_of_leaf()
        return QueueSnapshot(self._root, self._level, self._number, self.count, self.size_bytes)

    def get(self, seq: Seq) -> Document | None:
        leaf = self._leaf_of(seq)
        return None if leaf is None else leaf.slots[seq & SLOT_MASK]

    def put(self, document: Document, replaced: Seq = NO_SEQ) -> None:
        """Takes the place of whatever is at its seq; what was at `replaced` goes."""
        if replaced:
            self.remove(replaced)
        seq = document.seq
        number = seq >> BITS
        if number == self._leaf_number:
            leaf = self._leaf
        else:
            leaf = self._leaf = self._own_path(seq)[-1]
            self._leaf_number = number
        value = document.value
        size_bytes = DOCUMENT_BYTES + len(document.key) + (len(value) if value else 0)
        slots = leaf.slots
        slot = seq & SLOT_MASK
        before = slots[slot]
        slots[slot] = document
        if before is None:
            leaf.taken += 1
            self.count += 1
        else:
            size_bytes -= before.size
        leaf.size_bytes += size_bytes
        self.size_bytes += size_bytes

    def remove(self, seq: Seq) -> None:
        leaf = self._leaf_of(seq)
        slot = seq & SLOT_MASK
        document = None if leaf is None else leaf.slots[slot]
        if leaf is None or document is None:
            return
        if leaf.mark != self._mark:  # Else all above it may be changed in place too (I3).
            leaf = self._own_path(seq)[-1]
        size_bytes = document.size
        leaf.slots[slot] = None
        leaf.taken -= 1
        leaf.size_bytes -= size_bytes
        self.count -= 1
        self.size_bytes -= size_bytes
        if not leaf.taken:
            self._prune(self._own_path(seq), seq)

    def discard(self, snapshot: QueueSnapshot) -> None:
        """Removes what is still as the snapshot has it.  Whole nodes go at once where nothing
        was written since."""
        if self._root is None:
            return
        theirs = snapshot.node_at(self._level, self._number)
        if theirs is None:
            return
        self._let_go_of_leaf()
        self._root = self._subtract(self._root, theirs, self._level)
        self._lower()

    # -- Inside --------------------------------------------------------------------------------

    def _let_go_of_leaf(self) -> None:
        """The leaf written last is remembered as long as it may be changed in place, no longer:
        it would keep documents alive that were removed."""
        self._leaf = NOWHERE
        self._leaf_number = NO_LEAF

    def _leaf_of(self, seq: Seq) -> Node | None:
        node = self._root
        shift = self._level * BITS
        if node is None or seq >> (shift + BITS) != self._number:
            return None
        while shift and node is not None:
            node = node.slots[(seq >> shift) & SLOT_MASK]
            shift -= BITS
        return node

    def _own_path(self, seq: Seq) -> list[Node]:
        """The nodes from the root to the leaf of this seq, made or copied where need be."""
        mark = self._mark
        node = self._own_root(seq)
        path = [node]
        for shift in range(self._level * BITS, 0, -BITS):
            slot = (seq >> shift) & SLOT_MASK
            child = node.slots[slot]
            if child is None:
                child = node.slots[slot] = Node(mark)
                node.taken += 1
            elif child.mark != mark:
                child = node.slots[slot] = child.copy(mark)
            node = child
            path.append(node)
        return path

    def _own_root(self, seq: Seq) -> Node:
        """The root, high enough that it covers this seq."""
        root = self._root
        if root is None:
            root = self._root = Node(self._mark)
            self._level = 0
            self._number = seq >> BITS
            return root
        while seq >> ((self._level + 1) * BITS) != self._number:
            parent = Node(self._mark)
            parent.slots[self._number & SLOT_MASK] = root
            parent.taken = 1
            root = self._root = parent
            self._level += 1
            self._number >>= BITS
        if root.mark != self._mark:
            root = self._root = root.copy(self._mark)
        return root

    def _prune(self, path: list[Node], seq: Seq) -> None:
        """Keeps I2: the leaf is empty, and so may be those above it."""
        self._let_go_of_leaf()
        shift = BITS
        for node in reversed(path[:-1]):
            node.slots[(seq >> shift) & SLOT_MASK] = None
            node.taken -= 1
            if node.taken:
                break
            shift += BITS
        else:
            self._root = None
        self._lower()

    def _lower(self) -> None:
        """Keeps I2: a root with one child gives way to it."""
        while self._level and self._root is not None and self._root.taken == 1:
            slots = self._root.slots
            slot = next(at for at in range(SLOTS) if slots[at] is not None)
            self._root = slots[slot]
            self._level -= 1
            self._number = self._number << BITS | slot

    def _subtract(self, mine: Node, theirs: Node, level: int) -> Node | None:
        """What is left of `mine` without what both have; None if nothing is."""
        if mine is theirs:
            self._forget(mine, level)
            return None
        for slot, their in enumerate(theirs.slots):
            my = mine.slots[slot]
            if their is None or my is None:
                continue
            if not level:
                if my is not their:
                    continue
                mine = self._owned(mine)
                mine.size_bytes -= my.size
                self.count -= 1
                self.size_bytes -= my.size
                left = None
            else:
                left = self._subtract(my, their, level - 1)
                if left is my:
                    continue
                mine = self._owned(mine)
            mine.slots[slot] = left
            if left is None:
                mine.taken -= 1
        return mine if mine.taken else None

    def _owned(self, node: Node) -> Node:
        return node if node.mark == self._mark else node.copy(self._mark)

    def _forget(self, node: Node, level: int) -> None:
        if level:
            for child in filter(None, node.slots):
                self._forget(child, level - 1)
        else:
            self.count -= node.taken
            self.size_bytes -= node.size_bytes


def _leaves(node: Node, level: int, number: int, first: int) -> Iterator[Node]:
    """The leaves below, in order, from the one numbered `first` on."""
    if not level:
        if number >= first:
            yield node
        return
    level -= 1
    for slot, child in enumerate(node.slots):
        child_number = number << BITS | slot
        if child is not None and child_number >= first >> (level * BITS):
            yield from _leaves(child, level, child_number, first)


def _descend(
    root: Node, level: int, number: int, wanted_level: int, wanted_number: int
) -> Node | None:
    """The node of that level and number below this root."""
    if wanted_number >> (BITS * (level - wanted_level)) != number:
        return None
    node: Node | None = root
    for above in range(level - wanted_level - 1, -1, -1):
        if node is None:
            return None
        node = node.slots[(wanted_number >> (BITS * above)) & SLOT_MASK]
    return node
