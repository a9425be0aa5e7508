"""memcached's text protocol: lines and data blocks in, answers out.

A line ends with LF, a CR before it belongs to the end.  A command that stores is followed by its
value, of the size it said, and CR LF.

  I1  Any bytes whatever give commands, a Rejected, or nothing yet; no exception.
  I2  After a fatal Rejected, or a Quit, nothing is decoded any more.
  I3  A decoder holds at most one line (LINE_BYTES_MAX; KEYS_LINE_BYTES_MAX of a get, which may
      name many keys) or one value.  A larger value is refused at once and read past.
  I4  A value that does not end where it should costs itself alone: what follows is read as the
      next line, as memcached does.
"""

from typing import Final

from millrace.codec.memcached.text_commands import Command, Quit, Rejected, Store, parse_line
from millrace.limits import DOCUMENT_FRAME_BYTES_MAX, DOCUMENT_SKIP_BYTES_MAX, MIB

LINE_BYTES_MAX: Final = 2048
KEYS_LINE_BYTES_MAX: Final = 1 * MIB

STORED: Final = b"STORED\r\n"
NOT_STORED: Final = b"NOT_STORED\r\n"
EXISTS: Final = b"EXISTS\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
DELETED: Final = b"DELETED\r\n"
TOUCHED: Final = b"TOUCHED\r\n"
OK: Final = b"OK\r\n"
END: Final = b"END\r\n"
RESET: Final = b"RESET\r\n"
BAD_DATA: Final = b"CLIENT_ERROR bad data chunk\r\n"
LINE_TOO_LONG: Final = b"CLIENT_ERROR line too long\r\n"
NOT_A_NUMBER: Final = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
TOO_LARGE: Final = b"SERVER_ERROR object too large for cache\r\n"
NO_MEMORY: Final = b"SERVER_ERROR out of memory storing object\r\n"
TEMPORARY_FAILURE: Final = b"SERVER_ERROR temporary failure\r\n"

_KEYS_VERBS: Final = (b"get ", b"gets ", b"gat ", b"gats ")
_LINE_END: Final = b"\r\n"
_CARRIAGE_RETURN: Final = 0x0D


class TextDecoder:
    """What a client sends on one connection."""

    __slots__ = ("_held", "_skip_bytes", "_store", "_value_bytes_max", "is_over")

    def __init__(self, value_bytes_max: int = DOCUMENT_FRAME_BYTES_MAX) -> None:
        self.is_over = False
        self._value_bytes_max = value_bytes_max
        self._held = bytearray()
        self._skip_bytes = 0
        self._store: Store | None = None  # Its value is awaited.

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> list[Command]:
        """What is whole now, in order."""
        if self.is_over:
            return []
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(data))
            self._skip_bytes -= skipped
            data = data[skipped:]
        if self._held:
            self._held += data
            if not self._is_worth_reading(data):
                return []
            data = bytes(self._held)
            self._held = bytearray()
        return self._read(data)

    def _is_worth_reading(self, data: bytes) -> bool:
        """Whether what is held is whole now that `data` came: it is not copied for nothing."""
        if self._store is not None:
            return len(self._held) >= self._store.value_size + 2
        return b"\n" in data or self._is_too_long(self._held, 0, len(self._held))

    def _read(self, data: bytes) -> list[Command]:
        commands: list[Command] = []
        at, end = 0, len(data)
        while at < end and not self.is_over:
            if self._store is not None:
                value_end = at + self._store.value_size
                if value_end + 2 > end:
                    break
                commands.append(self._take_value(data, at, value_end))
                at = value_end + 2
                continue
            line_end = data.find(b"\n", at)
            if self._is_too_long(data, at, end if line_end < 0 else line_end):
                self.is_over = True
                commands.append(Rejected(LINE_TOO_LONG, is_fatal=True))
            elif line_end < 0:
                break
            else:
                command = self._take_line(data, at, line_end)
                if command is not None:
                    commands.append(command)
                at = line_end + 1 + self._skip_bytes
                self._skip_bytes = max(0, at - end)
        if at < end and not self.is_over:
            self._held += data[at:] if at else data
        return commands

    def _take_line(self, data: bytes, at: int, line_end: int) -> Command | None:
        """None: a value has to follow."""
        if line_end > at and data[line_end - 1] == _CARRIAGE_RETURN:
            line_end -= 1
        command = parse_line(data[at:line_end])
        if type(command) is Store:
            if command.value_size <= self._value_bytes_max:
                self._store = command
                return None
            self._skip_bytes = command.value_size + 2
            is_fatal = self.is_over = self._skip_bytes > DOCUMENT_SKIP_BYTES_MAX
            return Rejected(TOO_LARGE, is_fatal, command.is_quiet)
        if type(command) is Quit:
            self.is_over = True
        return command

    def _take_value(self, data: bytes, at: int, value_end: int) -> Command:
        store = self._store
        assert store is not None
        self._store = None
        if data[value_end : value_end + 2] != _LINE_END:
            return Rejected(BAD_DATA, is_quiet=store.is_quiet)
        store.value = data[at:value_end]
        return store

    @staticmethod
    def _is_too_long(data: bytes | bytearray, at: int, end: int) -> bool:
        if end - at <= LINE_BYTES_MAX:
            return False
        return end - at > KEYS_LINE_BYTES_MAX or not data.startswith(_KEYS_VERBS, at)


def encode_value(key: bytes, flags: int, value: bytes, cas: int | None = None) -> bytes:
    """One of the documents of an answer to get; the answer ends with END."""
    if cas is None:
        return b"VALUE %b %d %d\r\n%b\r\n" % (key, flags, len(value), value)
    return b"VALUE %b %d %d %d\r\n%b\r\n" % (key, flags, len(value), cas, value)


def encode_number(number: int) -> bytes:
    return b"%d\r\n" % number


def encode_stat(name: str, value: str) -> bytes:
    return f"STAT {name} {value}\r\n".encode()


def encode_version(version: str) -> bytes:
    return f"VERSION {version}\r\n".encode()
