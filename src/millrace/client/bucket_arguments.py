"""What callers give to operations on documents, checked and put as the protocol wants it."""

from typing import Final

from millrace.codec.memcached.binary import COUNTER, EXPIRY, FLAGS_AND_EXPIRY, Durability
from millrace.codec.memcached.opcodes import DurabilityLevel
from millrace.errors import BadKey, UsageError
from millrace.limits import DOCUMENT_KEY_BYTES_MAX

EXPIRY_S_MAX: Final = 2**32 - 1
FLAGS_MAX: Final = 2**32 - 1
COUNTER_MAX: Final = 2**64 - 1
CAS_MAX: Final = 2**64 - 1

_NO_INITIAL: Final = 0xFFFF_FFFF  # In place of the expiry: do not make the counter.
_NO_FLAGS: Final = FLAGS_AND_EXPIRY.pack(0, 0)
_LEVELS: Final = {level.name.lower(): level for level in DurabilityLevel}


def check_key(key: bytes) -> None:
    if not isinstance(key, bytes):
        raise BadKey(f"a key is bytes, not {type(key).__name__}")
    if not 0 < len(key) <= DOCUMENT_KEY_BYTES_MAX:
        raise BadKey(f"a key has 1 to {DOCUMENT_KEY_BYTES_MAX} bytes, not {len(key)}")


def durability_of(word: str, timeout_ms: int) -> Durability:
    level = _LEVELS.get(word)
    if level is None:
        raise UsageError(f"durability={word!r}: give None or one of {', '.join(_LEVELS)}")
    return Durability(level, timeout_ms)


def stored_extras(flags: int, expiry_s: int) -> bytes:
    if not flags and not expiry_s:
        return _NO_FLAGS
    checked(flags, "flags", FLAGS_MAX)
    return FLAGS_AND_EXPIRY.pack(flags, checked(expiry_s, "expiry_s", EXPIRY_S_MAX))


def counter_extras(delta: int, initial: int | None, expiry_s: int) -> bytes:
    checked(delta, "delta", COUNTER_MAX)
    if initial is None:
        return COUNTER.pack(delta, 0, _NO_INITIAL)
    checked(initial, "initial", COUNTER_MAX)
    return COUNTER.pack(delta, initial, checked(expiry_s, "expiry_s", EXPIRY_S_MAX - 1))


def expiry_extras(expiry_s: int) -> bytes:
    return EXPIRY.pack(checked(expiry_s, "expiry_s", EXPIRY_S_MAX))


def checked(number: int, name: str, largest: int) -> int:
    if not isinstance(number, int) or not 0 <= number <= largest:
        raise UsageError(f"{name}={number!r}: give a whole number from 0 to {largest}")
    return number
