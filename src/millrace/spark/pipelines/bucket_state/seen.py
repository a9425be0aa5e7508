"""How much of a bucket a pipeline has seen, and waiting until that is all there was.

After each batch, when its results are where they belong, `seen.json` says how far it came.  Spark's
offset of the batch says only how far it was to come: tasks read on to the end of a snapshot, and
leave receipts of where that was (`spark/changes`).  A question *as of now* asks the masters how far
they are and waits until what was seen covers that.

  I1  What was seen under one failover id says nothing of another: after a failover the masters are
      asked again.  They are further then, so the answer still has all that it must have.
  I2  Only where a snapshot ends was everything seen: in the middle of one, documents that changed
      again meanwhile may have been left out.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from millrace.client.cluster import Client
from millrace.core.documents.change_query import MasterState, Receipt, settle
from millrace.core.documents.document import PartitionId
from millrace.errors import Corruption, MillraceError, StateMismatch, TimedOut, Unavailable
from millrace.spark import workers
from millrace.spark.changes.offsets import (
    ChangesOffset,
    PlaceDocument,
    document_of,
    parse,
    place_of,
)
from millrace.spark.changes.ring import Ring
from millrace.spark.pipelines.bucket_state.masters import Standings, standings
from millrace.spark.pipelines.whole_files import write_whole
from millrace.types import Lsn

FILE_NAME: Final = "seen.json"
POLL_S: Final = 0.05
MASTERS_TIMEOUT_MS: Final = 5_000
_OFFSET_LINE: Final = 2  # Of Spark's files: version, metadata, then one offset for each source.


class Seen(msgspec.Struct, frozen=True):
    batch: int
    cluster: str  # Addresses.
    offset: dict[str, Any]

    @property
    def place(self) -> ChangesOffset:
        return parse(self.offset)


class _Call(msgspec.Struct, frozen=True):
    """How patiently the ring is read: as the source itself does."""

    cluster: str
    retries: int = 3
    retry_interval_ms: int = 200


def note_seen(state: Path, checkpoint: Path, cluster: str, batch: int) -> None:
    """To be called when the batch is over.  Raises Unavailable, Corruption."""
    offset = _offset_of(checkpoint / "offsets" / str(batch))

    async def receipts(client: Client) -> list[Receipt]:
        kept, _ = await Ring(client, offset.ring.log).receipts(Lsn(offset.ring.next))
        return [each.receipt for each in kept]

    reached = reached_by(offset, workers.call(_Call(cluster), receipts))
    write_whole(state / FILE_NAME, msgspec.json.encode(Seen(batch, cluster, reached.document())))


def reached_by(offset: ChangesOffset, receipts: Sequence[Receipt]) -> ChangesOffset:
    """Where the batch that was to end at the offset came to.  A place in doubt has no end of a
    snapshot, so that nobody takes it for whole: the next batch reads on from it."""
    places: dict[str, PlaceDocument] = {}
    for number, document in offset.partitions.items():
        places[number] = replace(document, last=None) if document.doubtful else document
        if document.before is not None:
            mine = [each for each in receipts if each.partition == int(number)]
            settled = settle(place_of(document.before), place_of(document), mine)
            place = document_of(settled.place)
            places[number] = replace(place, last=None) if settled.is_doubtful else place
    return replace(offset, partitions=places)


def _offset_of(file: Path) -> ChangesOffset:
    lines = file.read_text().splitlines()
    try:
        return parse(msgspec.json.decode(lines[_OFFSET_LINE], type=dict[str, Any]))
    except (IndexError, msgspec.DecodeError) as error:
        raise Corruption(
            f"{file} is no offset of Spark's as this version knows it: {error}"
        ) from error


def read_seen(state: Path) -> Seen | None:
    """None: no batch has ended yet."""
    try:
        return msgspec.json.decode((state / FILE_NAME).read_bytes(), type=Seen)
    except FileNotFoundError:
        return None


def lag_of(cluster: str, bucket: str, state: Path) -> int | None:
    """How many changes are yet to be seen, about; None: that is not known."""
    try:
        masters = standings(cluster, bucket, MASTERS_TIMEOUT_MS)
    except Unavailable:
        return None
    seen = read_seen(state)
    places = {} if seen is None else seen.place.partitions
    return sum(max(0, each.high - _seq(places, at)) for at, each in masters.items())


def uncovered(places: Mapping[str, PlaceDocument], masters: Standings) -> list[PartitionId]:
    """The partitions of which something may not have been seen."""
    return [at for at, each in masters.items() if not _covers(places.get(str(at)), each)]


def wait_until_now(state: Path, *, cluster: str | None = None, timeout_ms: int = 60_000) -> int:
    """Until all that was acknowledged before the call was seen; the batch that did.
    Raises TimedOut, Unavailable, StateMismatch."""
    deadline_s = time.monotonic() + timeout_ms / 1000
    asked: Standings | None = None
    problem: MillraceError | None = None
    while True:
        seen = read_seen(state)
        try:
            if seen is None:
                raise StateMismatch(f"{state.parent} has seen nothing yet: run the pipeline")
            if asked is None or _has_moved(seen.place.partitions, asked):  # Keeps I1.
                asked = None
                asked = _ask(cluster or seen.cluster, seen.place.bucket.name, deadline_s)
            behind = uncovered(seen.place.partitions, asked)
            if not behind:
                return seen.batch
            problem = _behind(state, seen, behind, timeout_ms)
        except (StateMismatch, Unavailable) as error:  # A first batch, or a master, may come.
            problem = error
        if time.monotonic() > deadline_s:
            raise problem
        time.sleep(POLL_S)


def _ask(cluster: str, bucket: str, deadline_s: float) -> Standings:
    left_ms = int((deadline_s - time.monotonic()) * 1000)
    return standings(cluster, bucket, max(1, min(MASTERS_TIMEOUT_MS, left_ms)))


def _has_moved(places: Mapping[str, PlaceDocument], masters: Standings) -> bool:
    """A partition was read under another failover id than the master's that was asked."""
    return any(
        _id(places.get(str(at))) not in (None, each.log.newest) for at, each in masters.items()
    )


def _covers(place: PlaceDocument | None, master: MasterState) -> bool:
    if not master.high:
        return True  # There never was anything.
    if place is None or _id(place) != master.log.newest or place.seq < master.high:
        return False
    return place.last is not None and place.last <= place.seq  # Keeps I2.


def _id(place: PlaceDocument | None) -> int | None:
    return int(place.log[0][0], 16) if place is not None and place.log else None


def _seq(places: Mapping[str, PlaceDocument], partition: PartitionId) -> int:
    place = places.get(str(partition))
    return 0 if place is None else place.seq


def _behind(state: Path, seen: Seen, behind: list[PartitionId], timeout_ms: int) -> TimedOut:
    shown = ", ".join(map(str, behind[:5])) + ("..." if len(behind) > 5 else "")
    return TimedOut(
        f"the pipeline in {state.parent} has not seen all of now within {timeout_ms} ms: it is "
        f"behind in partitions {shown} after batch {seen.batch}; see that it runs, or wait longer"
    )
