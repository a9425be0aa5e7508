"""Small blocks of every flavour, and tools to damage blocks on purpose.

`python tests/codec/block_samples.py` writes the golden files anew; do so only together with a new
version of the format.
"""

import struct
from collections.abc import Callable
from pathlib import Path

import google_crc32c

from millrace.codec import blocks
from millrace.codec.published import StagedRange, StagedRows, draft_published
from millrace.types import Block, EntryKind, Epoch, LogId, Lsn, Record, Token

GOLDEN = Path(__file__).parent.parent / "golden" / "blocks"
LOG, EPOCH, FIRST, TOKEN = LogId(7), Epoch(3), Lsn(41), Token(11, 12)
NOON_US = 1_700_000_000_000_000

HEADERS = ((("trace", b"\x01\x02"), ("trace", b"")), (), (("größe", b"9"),))


def placed(draft: blocks.Draft) -> Block:
    return blocks.place(draft, LOG, EPOCH, FIRST, TOKEN)


def plain() -> Block:
    return placed(blocks.draft([b"one", b"", b"three"], timestamps_us=[NOON_US, -5, NOON_US + 1]))


def single() -> Block:
    return placed(blocks.draft([b"alone"], timestamps_us=NOON_US))


def keys() -> Block:
    return placed(blocks.draft([b"a", b"b", b"c"], keys=[b"k1", None, b""], timestamps_us=NOON_US))


def headers() -> Block:
    return placed(blocks.draft([b"a", b"b", b"c"], headers=HEADERS, timestamps_us=NOON_US))


def everything() -> Block:
    return placed(
        blocks.draft(
            [b"a", b"bb", b"ccc"],
            keys=[None, b"key", b"k"],
            headers=HEADERS,
            timestamps_us=[NOON_US, NOON_US + 1, NOON_US + 2],
        )
    )


def compressed() -> Block:
    values = [b"the wheel turns %d times" % number for number in range(40)]
    return placed(blocks.draft(values, keys=[b"wheel"] * 40, timestamps_us=NOON_US))


def hole() -> Block:
    return blocks.junk(LOG, FIRST, 1_000_000, EntryKind.HOLE)


def loss() -> Block:
    return blocks.junk(LOG, FIRST, 1, EntryKind.LOSS)


def published() -> Block:
    ranges = (StagedRange(Lsn(101), 70_000), StagedRange(Lsn(7), 1), StagedRange(Lsn(90_000), 12))
    rows = StagedRows(LogId(8), ranges, 5_000_000, NOON_US, NOON_US + 9, True, NOON_US // 1000)
    return placed(draft_published("orders", 3, 2**62, rows))


SAMPLES: dict[str, Callable[[], Block]] = {
    sample.__name__: sample
    for sample in (plain, single, keys, headers, everything, compressed, hole, loss)
}


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.block").read_bytes()


def resealed(data: bytes) -> bytes:
    """The same bytes with both checksums made right: what a malicious or broken writer sends."""
    damaged = bytearray(data)
    struct.pack_into("<I", damaged, 80, google_crc32c.value(bytes(damaged[88:])))
    struct.pack_into("<I", damaged, 84, google_crc32c.value(bytes(damaged[:84])))
    return bytes(damaged)


def with_field(data: bytes, kind: str, offset: int, value: int) -> bytes:
    """`data` with one number replaced and both checksums made right."""
    damaged = bytearray(data)
    struct.pack_into(f"<{kind}", damaged, offset, value)
    return resealed(bytes(damaged))


def record(lsn: int, value: bytes, key: bytes | None = None, timestamp: int = NOON_US) -> Record:
    return Record(Lsn(lsn), value, key, timestamp)


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, sample in {**SAMPLES, "published": published}.items():
        (GOLDEN / f"{name}.block").write_bytes(sample().data)
