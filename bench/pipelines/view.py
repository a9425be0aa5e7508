"""Whether a view keeps up with a bucket that changes all the time.

Documents are written at a steady rate, a fifth above the target, while the view runs; most are
changes of documents that the view has, so rows are taken back as well as added.

1. `offered` is what was acknowledged to the writer, over the time it wrote.
2. `in the view` is the same number of changes, over the time from the first write until an answer
   as of now after the last one: a view that falls behind is slower by what it has yet to do.
3. A round whose answer does not count every document is a failure, not a fast round.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench.measure import Sample, cpu_seconds
from bench.peer import PeerFailure
from bench.pipelines.profile import PipelinesProfile
from bench.pipelines.results import KEPT, OFFERED, VIEW, VIEW_CHANGES_PER_S, Measured
from bench.progress import progress
from bench.spark.stage import Stage
from millrace.client.sync_bucket import SyncBucket
from millrace.spark.pipelines.context import Context
from millrace.spark.pipelines.view import ViewSettings, query_view, run_view

BUCKET: Final = "orders"
PARTITIONS: Final = 64
DOCUMENTS: Final = 100_000
COUNTRIES: Final = 200
CHANGES_AT_ONCE: Final = 1_000
OFFERED_PER_S: Final = VIEW_CHANGES_PER_S * 6 // 5
WRITE_TIMEOUT_MS: Final = 60_000
ANSWER_TIMEOUT_MS: Final = 300_000
STOP_SECONDS_MAX: Final = 120.0
TEXT: Final = "x" * 180  # So that a document has about as many bytes as the other rows' documents.


def by_country(document: dict[str, str]) -> list[tuple[str, int]]:
    """The view's map function."""
    return [(document["country"], 1)]


def measure_view(stage: Stage, profile: PipelinesProfile, into: list[Measured]) -> None:
    progress(f"a view of {DOCUMENTS:,} documents, {OFFERED_PER_S:,} changes/s offered")
    bucket = stage.client.create_bucket(BUCKET, partitions=PARTITIONS, replicas=0)
    offered, kept = Measured(VIEW, OFFERED), Measured(VIEW, KEPT)
    into += [offered, kept]
    _write(bucket, range(DOCUMENTS), 0)
    home = stage.new_path("view")
    with _running(stage, home):
        _check(home, DOCUMENTS)
        before = cpu_seconds(stage.process_ids)
        started = time.perf_counter()
        changes = _offer(bucket, profile.view_seconds)
        written = time.perf_counter() - started
        _check(home, DOCUMENTS)
        seen = time.perf_counter() - started
        after = cpu_seconds(stage.process_ids)
    spent = None if before is None or after is None else after - before
    size_bytes = changes * len(_document(0, 0))
    offered.samples.append(Sample(changes, size_bytes, written, None, None))
    kept.samples.append(Sample(changes, size_bytes, seen, spent, None))
    progress(f"  {OFFERED:20}{changes / written:12,.0f}/s, {KEPT} {changes / seen:,.0f}/s")


def _offer(bucket: SyncBucket, seconds: float) -> int:
    """Changes at the rate that is offered, as long as that; how many were acknowledged."""
    started = time.perf_counter()
    changes = 0
    while (elapsed := time.perf_counter() - started) < seconds:
        ahead_s = changes / OFFERED_PER_S - elapsed
        if ahead_s > 0:
            time.sleep(ahead_s)
        first = changes % DOCUMENTS
        _write(bucket, range(first, first + CHANGES_AT_ONCE), 1 + changes // DOCUMENTS)
        changes += CHANGES_AT_ONCE
    return changes


def _write(bucket: SyncBucket, numbers: range, version: int) -> None:
    documents = {b"order-%06d" % number: _document(number, version) for number in numbers}
    bucket.set_many(documents, timeout_ms=WRITE_TIMEOUT_MS)


def _document(number: int, version: int) -> bytes:
    country = f"country-{(number + 7 * version) % COUNTRIES:03d}"
    return msgspec.json.encode({"country": country, "number": number, "text": TEXT})


def _check(home: Path, documents: int) -> None:
    """Keeps 3."""
    rows = query_view(home, as_of_now=True, timeout_ms=ANSWER_TIMEOUT_MS).rows
    counted = sum(row.value for row in rows)
    if counted != documents:
        raise PeerFailure(f"the view counts {counted} documents instead of {documents}")


@contextmanager
def _running(stage: Stage, home: Path) -> Iterator[None]:
    context = Context.at(home, stage.spark)
    context.state.mkdir(exist_ok=True)  # So that it can be asked from now on.
    settings = ViewSettings(
        cluster=",".join(stage.cluster.addresses),
        bucket=BUCKET,
        map=f"{Path(__file__)}:{by_country.__name__}",
        reduce="count",
    )
    raised: list[BaseException] = []

    def work() -> None:
        try:
            run_view(settings, context)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="view", daemon=True)
    thread.start()
    try:
        yield
    finally:
        context.stop()
        thread.join(STOP_SECONDS_MAX)
    if raised:
        raise PeerFailure(f"the view ended: {raised[0]}")
