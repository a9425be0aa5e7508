"""What the demo and its Spark process say to each other: a JSON document a line."""

import msgspec


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class Follow(_Message, frozen=True):
    """Start the query."""

    cluster: str
    log: str


class Finish(_Message, frozen=True):
    """Answer the counts: what Spark has read is all there is."""


class Following(_Message, frozen=True):
    """The query runs."""


class Batch(_Message, frozen=True):
    """A micro-batch is done and its counts stand."""

    planned_s: float  # Both in seconds since 1970.
    done_s: float
    rows: int
    end: int  # The first position that was not read.


class Counted(_Message, frozen=True):
    """The result of the query: second since 1970, key, records."""

    counts: list[tuple[int, str, int]]


class Failed(_Message, frozen=True):
    message: str


ToSpark = Follow | Finish
FromSpark = Following | Batch | Counted | Failed
