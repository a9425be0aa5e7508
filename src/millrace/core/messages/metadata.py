"""The metadata repository over the wire."""

from millrace.core.messages.root import Message


class MetaGet(Message, frozen=True):
    key: str


class MetaEntry(Message, frozen=True):
    """`version` 0 means that the key is absent; versions of a key only grow while it exists."""

    key: str
    value: bytes
    version: int
    lease: int = 0


class MetaSet(Message, frozen=True):
    """Compare-and-set: `expected` 0 creates, -1 sets whatever is there.  Answers MetaEntry, or
    Refused(CONFLICT) when another version stands there."""

    key: str
    value: bytes
    expected: int
    lease: int = 0


class MetaDelete(Message, frozen=True):
    key: str
    expected: int


class MetaUnknown(Message, frozen=True):
    """Answers a change that may or may not have happened, which Refused must never do."""

    detail: str = ""


class MetaList(Message, frozen=True):
    """With `revision`: the next page, behind the key `after`, of a listing of that revision."""

    prefix: str
    revision: int = 0
    after: str = ""


class MetaListing(Message, frozen=True):
    """`revision` is the repository's; watching from it misses nothing.  `is_partial` says that
    the listing goes on behind its last key."""

    entries: tuple[MetaEntry, ...]
    revision: int
    is_partial: bool = False


class MetaWatch(Message, frozen=True):
    """Push every change under `prefix` after `revision` on `stream`, until Stop(stream)."""

    stream: int
    prefix: str
    revision: int


class MetaWatching(Message, frozen=True):
    stream: int


class MetaChanged(Message, frozen=True):
    """Pushed; an entry with version 0 was deleted.  `lost` says that changes may be missing:
    list again."""

    stream: int
    entries: tuple[MetaEntry, ...]
    revision: int
    lost: bool = False


class MetaGrant(Message, frozen=True):
    ttl_ms: int


class MetaLease(Message, frozen=True):
    lease: int
    ttl_ms: int


class MetaKeepAlive(Message, frozen=True):
    lease: int


class MetaRevoke(Message, frozen=True):
    lease: int


class MetaDone(Message, frozen=True):
    pass
