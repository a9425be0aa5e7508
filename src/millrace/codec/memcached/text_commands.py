"""One line of memcached's text protocol as a command, or as memcached's own refusal of it.

The wording of errors, which of them `noreply` keeps back, and how many words a command may have
are memcached's, because clients compare them.

  I1  Any line gives a command or a Rejected; no exception.
  I2  A Store as a line gives has no value yet: `value_size` bytes follow (`text.py`).
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

import msgspec

from millrace.limits import DOCUMENT_KEY_BYTES_MAX

ERROR: Final = b"ERROR\r\n"
BAD_LINE: Final = b"CLIENT_ERROR bad command line format\r\n"
BAD_DELETE: Final = (
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"  # Two spaces.
)
BAD_EXPIRY: Final = b"CLIENT_ERROR invalid exptime argument\r\n"
BAD_DELTA: Final = b"CLIENT_ERROR invalid numeric delta argument\r\n"

_NUMBER_DIGITS_MAX: Final = 20
_FLAGS_MAX: Final = 2**32 - 1
_EXPIRY_MIN: Final = -(2**31)
_EXPIRY_MAX: Final = 2**32 - 1
_VALUE_SIZE_MAX: Final = 2**31 - 3  # What memcached takes for a number of bytes.
_NUMBER_MAX: Final = 2**64 - 1
_NOREPLY: Final = b"noreply"


class StoreVerb(Enum):
    SET = b"set"
    ADD = b"add"
    REPLACE = b"replace"
    APPEND = b"append"
    PREPEND = b"prepend"
    CAS = b"cas"


class Get(msgspec.Struct, frozen=True, gc=False):
    """get, gets; with an expiry gat, gats."""

    keys: tuple[bytes, ...]
    has_cas: bool = False
    expiry: int | None = None


class Store(msgspec.Struct, gc=False):
    """`expiry` is as the client said it: 0, seconds from now, a date, or negative."""

    verb: StoreVerb
    key: bytes
    flags: int
    expiry: int
    value_size: int
    cas: int = 0
    is_quiet: bool = False
    value: bytes = b""


class Delete(msgspec.Struct, frozen=True, gc=False):
    key: bytes
    is_quiet: bool = False


class Count(msgspec.Struct, frozen=True, gc=False):
    """incr, decr."""

    key: bytes
    delta: int
    is_decrement: bool
    is_quiet: bool = False


class Touch(msgspec.Struct, frozen=True, gc=False):
    key: bytes
    expiry: int
    is_quiet: bool = False


class FlushAll(msgspec.Struct, frozen=True, gc=False):
    delay_s: int = 0
    is_quiet: bool = False


class Verbosity(msgspec.Struct, frozen=True, gc=False):
    is_quiet: bool = False


class Stats(msgspec.Struct, frozen=True, gc=False):
    group: bytes = b""


class Version(msgspec.Struct, frozen=True, gc=False):
    pass


class Quit(msgspec.Struct, frozen=True, gc=False):
    pass


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """`answer` goes back as it is, unless the command asked for none; fatal: then close."""

    answer: bytes
    is_fatal: bool = False
    is_quiet: bool = False


Command = (
    Get | Store | Delete | Count | Touch | FlushAll | Verbosity | Stats | Version | Quit | Rejected
)


def parse_line(line: bytes) -> Command:
    """`line` is without its end."""
    words = line.split(b" ")
    if b"" in words:
        words = [word for word in words if word]
    parse = _PARSERS.get(words[0]) if words else None
    return Rejected(ERROR) if parse is None else parse(words)


def _natural(word: bytes, largest: int) -> int | None:
    """bytes.isdigit knows ASCII alone; int() would also take underscores and blanks."""
    if not word.isdigit() or len(word) > _NUMBER_DIGITS_MAX:
        return None
    number = int(word)
    return number if number <= largest else None


def _expiry(word: bytes) -> int | None:
    if word.startswith(b"-"):
        number = _natural(word[1:], -_EXPIRY_MIN)
        return None if number is None else -number
    return _natural(word, _EXPIRY_MAX)


def _parse_get(words: Sequence[bytes]) -> Command:
    return _keys(tuple(words[1:]), words[0] == b"gets", None)


def _parse_get_and_touch(words: Sequence[bytes]) -> Command:
    if len(words) < 3:
        return Rejected(ERROR)
    expiry = _expiry(words[1])
    if expiry is None:
        return Rejected(BAD_EXPIRY)
    return _keys(tuple(words[2:]), words[0] == b"gats", expiry)


def _keys(keys: tuple[bytes, ...], has_cas: bool, expiry: int | None) -> Command:
    if not keys:
        return Rejected(ERROR)
    if max(map(len, keys)) > DOCUMENT_KEY_BYTES_MAX:
        return Rejected(BAD_LINE)
    return Get(keys, has_cas, expiry)


def _parse_store(words: Sequence[bytes]) -> Command:
    verb = _STORE_VERBS[words[0]]
    count = 6 if verb is StoreVerb.CAS else 5
    if len(words) != count and len(words) != count + 1:
        return Rejected(ERROR)
    is_quiet = words[-1] == _NOREPLY
    key = words[1]
    flags, expiry = _natural(words[2], _FLAGS_MAX), _expiry(words[3])
    size = _natural(words[4], _VALUE_SIZE_MAX)
    cas = _natural(words[5], _NUMBER_MAX) if verb is StoreVerb.CAS else 0
    if flags is None or expiry is None or size is None or cas is None:
        return Rejected(BAD_LINE, is_quiet=is_quiet)
    if len(key) > DOCUMENT_KEY_BYTES_MAX:
        return Rejected(BAD_LINE, is_quiet=is_quiet)
    return Store(verb, key, flags, expiry, size, cas, is_quiet)


def _parse_delete(words: Sequence[bytes]) -> Command:
    """`delete key 0` is from the days when deletions could wait."""
    if not 2 <= len(words) <= 4:
        return Rejected(ERROR)
    is_quiet = len(words) > 2 and words[-1] == _NOREPLY
    if tuple(words[2:]) not in ((), (b"0",), (_NOREPLY,), (b"0", _NOREPLY)):
        return Rejected(BAD_DELETE, is_quiet=is_quiet)
    if len(words[1]) > DOCUMENT_KEY_BYTES_MAX:
        return Rejected(BAD_LINE, is_quiet=is_quiet)
    return Delete(words[1], is_quiet)


def _parse_count(words: Sequence[bytes]) -> Command:
    if len(words) != 3 and len(words) != 4:
        return Rejected(ERROR)
    is_quiet = words[-1] == _NOREPLY
    if len(words[1]) > DOCUMENT_KEY_BYTES_MAX:
        return Rejected(BAD_LINE, is_quiet=is_quiet)
    delta = _natural(words[2], _NUMBER_MAX)
    if delta is None:
        return Rejected(BAD_DELTA, is_quiet=is_quiet)
    return Count(words[1], delta, words[0] == b"decr", is_quiet)


def _parse_touch(words: Sequence[bytes]) -> Command:
    if len(words) != 3 and len(words) != 4:
        return Rejected(ERROR)
    is_quiet = words[-1] == _NOREPLY
    if len(words[1]) > DOCUMENT_KEY_BYTES_MAX:
        return Rejected(BAD_LINE, is_quiet=is_quiet)
    expiry = _expiry(words[2])
    if expiry is None:
        return Rejected(BAD_EXPIRY, is_quiet=is_quiet)
    return Touch(words[1], expiry, is_quiet)


def _parse_flush_all(words: Sequence[bytes]) -> Command:
    if len(words) > 3:
        return Rejected(ERROR)
    is_quiet = words[-1] == _NOREPLY
    said = words[1 : len(words) - is_quiet]
    if not said:
        return FlushAll(0, is_quiet)
    delay_s = _expiry(said[0])
    if delay_s is None or len(said) > 1:
        return Rejected(BAD_LINE, is_quiet=is_quiet)
    return FlushAll(delay_s, is_quiet)


def _parse_verbosity(words: Sequence[bytes]) -> Command:
    is_quiet = words[-1] == _NOREPLY
    if len(words) < 2:
        return Rejected(ERROR)
    if _natural(words[1], _FLAGS_MAX) is None:
        return Rejected(BAD_LINE, is_quiet=is_quiet)
    return Verbosity(is_quiet)


def _parse_stats(words: Sequence[bytes]) -> Command:
    return Stats(b" ".join(words[1:]))


def _parse_version(words: Sequence[bytes]) -> Command:
    return Version() if len(words) == 1 else Rejected(ERROR)


def _parse_quit(words: Sequence[bytes]) -> Command:
    return Quit() if len(words) == 1 else Rejected(ERROR)


_STORE_VERBS: Final = {verb.value: verb for verb in StoreVerb}
_PARSERS: Final[dict[bytes, Callable[[Sequence[bytes]], Command]]] = {
    b"get": _parse_get,
    b"gets": _parse_get,
    b"gat": _parse_get_and_touch,
    b"gats": _parse_get_and_touch,
    **dict.fromkeys(_STORE_VERBS, _parse_store),
    b"delete": _parse_delete,
    b"incr": _parse_count,
    b"decr": _parse_count,
    b"touch": _parse_touch,
    b"flush_all": _parse_flush_all,
    b"verbosity": _parse_verbosity,
    b"stats": _parse_stats,
    b"version": _parse_version,
    b"quit": _parse_quit,
}
