"""How old a log's records may become, as moments: what retention goes by."""

import time

from millrace.types import LogAttributes


def oldest_us(attributes: LogAttributes) -> int | None:
    """What is older may be forgotten; None: nothing for its age."""
    return _ago_us(attributes.retention_ms)


def kept_us(attributes: LogAttributes) -> int | None:
    """What is younger is kept whatever the size of the log; None: nothing for its age."""
    return _ago_us(attributes.kept_ms_min)


def _ago_us(age_ms: int | None) -> int | None:
    return None if age_ms is None else int(time.time() * 1e6) - age_ms * 1000
