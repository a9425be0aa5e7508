"""What a metadata key, value and lease may look like, checked alike by every repository.

The check stands before any effect, so that a refused request is always definitely not done.
"""

from typing import Final

from millrace import errors, limits

TTL_MS_MAX: Final = 24 * 3_600_000  # A longer lease is a mistake: nobody would wait for it.


def check_key(key: str) -> None:
    if not key:
        raise errors.UsageError("a metadata key must not be empty")
    _check_text(key)


def check_prefix(prefix: str) -> None:
    _check_text(prefix)


def check_value(key: str, value: bytes) -> None:
    if len(value) > limits.VALUE_BYTES_MAX:
        raise errors.UsageError(
            f"the value of {key} has {len(value)} bytes; at most {limits.VALUE_BYTES_MAX} are kept"
        )


def check_expected(expected: int) -> None:
    if expected < -1:
        raise errors.UsageError(f"expected version {expected}: give a version, 0 or ANY_VERSION")


def check_ttl(ttl_ms: int) -> None:
    if not 0 < ttl_ms <= TTL_MS_MAX:
        raise errors.UsageError(f"a lease of {ttl_ms} ms: give 1 to {TTL_MS_MAX}")


def _check_text(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise errors.UsageError(f"metadata key {text!r} is not valid Unicode") from error
    if size > limits.KEY_BYTES_MAX:
        raise errors.UsageError(
            f"metadata key {text[:40]}... has {size} bytes; at most {limits.KEY_BYTES_MAX} are kept"
        )
