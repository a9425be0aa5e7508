"""What a Python worker of Spark keeps: one connection for each cluster, and quick tasks.

Spark runs this code in several kinds of processes: planners and stream sources on the driver, tasks
on executors.  Most are reused, so a connection is made once and kept.  A fork forgets the parent's.
"""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Protocol, TypeVar

from millrace.client import sync
from millrace.client.cluster import Client, connect
from millrace.errors import MillraceError, Unavailable, UnknownLog

T = TypeVar("T")

CONNECT_TIMEOUT_MS: Final = 10_000  # Nodes look for their metadata repository half as long.
QUESTION_TIMEOUT_MS: Final = 8_000  # So that there is time to ask again.
DRIVER_PATIENCE_S: Final = 25  # However many retries are asked for: a person waits for the message.
_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"


class Patience(Protocol):
    """What options of every kind say: whom to call, and how often."""

    @property
    def cluster(self) -> str: ...

    @property
    def retries(self) -> int: ...

    @property
    def retry_interval_ms(self) -> int: ...


_clients: dict[str, Client] = {}
os.register_at_fork(after_in_child=_clients.clear)


def run(work: Coroutine[Any, Any, T]) -> T:
    """On the process's own loop, in a thread, so that blocks arrive while Spark works."""
    return sync.run(work)


def client(cluster: str, cluster_id: str | None = None) -> Client:
    """The process's connection to a cluster; a new one if another cluster has taken its addresses
    meanwhile."""
    known = _clients.get(cluster)
    if known is not None and cluster_id not in (None, known.id):
        _renew(cluster)
    elif known is None:
        _clients[cluster] = run(connect(cluster, timeout_ms=CONNECT_TIMEOUT_MS))
    return _clients[cluster]


def call(options: Patience, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """A call of the driver, tried again when the cluster does not answer: Spark would give up the
    whole query."""
    deadline = time.monotonic() + DRIVER_PATIENCE_S
    left = options.retries
    while True:
        try:
            return run(work(client(options.cluster)))
        except (Unavailable, UnknownLog) as failure:
            # A log that was deleted and made again is known by its old number once.
            left = min(left, 1) - 1 if isinstance(failure, UnknownLog) else left - 1
            if left < 0 or time.monotonic() > deadline:
                raise
            with contextlib.suppress(Unavailable):
                _renew(options.cluster)
            time.sleep(options.retry_interval_ms / 1000)


def _renew(cluster: str) -> None:
    """The cluster may have moved, or be another, behind its addresses.  Until a new connection
    stands the old one is kept: it may still be good."""
    new = run(connect(cluster, timeout_ms=CONNECT_TIMEOUT_MS))
    old, _clients[cluster] = _clients.get(cluster), new
    if old is not None:
        with contextlib.suppress(MillraceError):
            run(old.close())


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """An error that tells its reader what to do is shown without the frames it came through.  The
    worker ends with it, so nobody else's traceback is hidden."""
    try:
        yield
    except MillraceError:
        if _is_worker():
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


_is_frozen = False


def freeze() -> None:
    """Spark collects garbage after each task, which walks all that was ever imported; what is
    frozen is not walked."""
    global _is_frozen
    if not _is_frozen and _is_worker():
        gc.freeze()
        _is_frozen = True


def _is_worker() -> bool:
    return os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER"
