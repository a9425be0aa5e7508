"""How documents, seqs, snapshots and failover logs are written in scenario files."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from millrace.core.documents.document import (
    NO_CAS,
    ChangeKind,
    Document,
    FailoverId,
    PartitionId,
    Seq,
)
from millrace.core.documents.failover_log import FailoverLog, parse_failover_log
from millrace.scenario.text import Words

DEFAULT_VALUE: Final = "v"
NONE: Final = "none"
FIRST_PARTITION: Final = PartitionId(0)

_CHANGE = re.compile(r"([^@=!]+)@(\d+)(?:=(.*)|!(deleted|expired))?")
_SNAPSHOT = re.compile(r"\((\d+),(\d+)\]")
_KINDS: Final = {"deleted": ChangeKind.DELETION, "expired": ChangeKind.EXPIRATION}
_SHOWN_KINDS: Final = {kind: word for word, kind in _KINDS.items()}


def parse_id(word: str) -> FailoverId:
    """Hexadecimal, as in `cafebabe`; never 0."""
    number = int(word, 16)
    if not 0 < number < 2**64:
        raise ValueError(word)
    return FailoverId(number)


def show_id(id: FailoverId) -> str:
    return f"{id:x}"


def parse_log(word: str) -> FailoverLog:
    """`deadbeef@5,cafebabe@0`, newest first; `none` has no entries."""
    if word == NONE:
        return FailoverLog()
    pairs = [entry.split("@") for entry in word.split(",")]
    return parse_failover_log([(parse_id(id), int(seq)) for id, seq in pairs])


def show_log(log: FailoverLog) -> str:
    return ",".join(f"{show_id(entry.id)}@{entry.seq}" for entry in log.entries) or NONE


def parse_snapshot(word: str) -> tuple[Seq, Seq]:
    """`(5,8]`: after 5, up to 8."""
    match = _SNAPSHOT.fullmatch(word)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(word)
    return Seq(int(match[1])), Seq(int(match[2]))


def show_snapshot(first: Seq, last: Seq) -> str:
    return f"({first},{last}]"


def parse_change(word: str) -> Document:
    """`k1@3`, `k1@3=x`, `k1@3!deleted`: as a master has made it."""
    match = _CHANGE.fullmatch(word)
    if match is None:
        raise ValueError(word)
    key, seq = match[1].encode(), Seq(int(match[2]))
    if match[4]:
        return Document(key, b"", seq, NO_CAS, kind=_KINDS[match[4]])
    return Document(key, (match[3] or DEFAULT_VALUE).encode(), seq, NO_CAS)


def show_change(document: Document) -> str:
    shown = f"{document.key.decode()}@{document.seq}"
    if document.is_deleted:
        return f"{shown}!{_SHOWN_KINDS[document.kind]}"
    return f"{shown}={(document.value or b'').decode()}"


def show_changes(documents: Iterable[Document]) -> str:
    return " ".join(map(show_change, documents)) or NONE


def show_keys(keys: Iterable[bytes]) -> str:
    return " ".join(key.decode() for key in keys) or NONE


def show_seqs(seqs: Sequence[int]) -> str:
    """`1..5,8`, of seqs that rise."""
    runs: list[list[int]] = []
    for seq in seqs:
        if runs and seq == runs[-1][1] + 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
    shown = (f"{first}..{last}" if first < last else f"{first}" for first, last in runs)
    return ",".join(shown) or NONE


def take_new(words: Words) -> list[tuple[bytes, bytes]]:
    """`KEY[=VALUE]...`, up to the end of the line or the word `partition`."""
    found: list[tuple[bytes, bytes]] = []
    while not found or (words and words.peek() != "partition"):
        key, _, value = words.take("KEY[=VALUE]").partition("=")
        found.append((key.encode(), (value or DEFAULT_VALUE).encode()))
    return found


def take_keys(words: Words) -> list[bytes]:
    return [key for key, _ in take_new(words)]


def take_partition(words: Words) -> PartitionId:
    """`[partition N]`."""
    has_one = words.option("partition")
    return PartitionId(words.number("a partition")) if has_one else FIRST_PARTITION
