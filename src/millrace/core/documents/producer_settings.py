"""What a consumer may set of its connection (Control), by the protocol's names."""

from typing import Final

import msgspec

from millrace.core.documents.document import PartitionState

BUFFER_BYTES_MAX: Final = 1 << 30
NOOP_INTERVAL_S_MAX: Final = 3_600
KEY_PREFIX_BYTES_MAX: Final = 250
BOOLEANS: Final = {"true": True, "false": False}


class ProducerSettings(msgspec.Struct, frozen=True):
    buffer_bytes: int = 0  # 0: there is no flow control.
    has_noop: bool = False
    noop_interval_ms: int = 120_000
    is_batched: bool = False  # Changes go many in a frame.
    key_prefix: bytes = b""  # Of streams that are requested from then on, like `states`.
    states: frozenset[PartitionState] = frozenset({PartitionState.ACTIVE, PartitionState.REPLICA})

    def changed(self, key: str, value: str) -> "ProducerSettings":
        """Raises ValueError with a text for people."""
        replace = msgspec.structs.replace
        match key:
            case "connection_buffer_size":
                return replace(self, buffer_bytes=_number(key, value, BUFFER_BYTES_MAX))
            case "enable_noop":
                return replace(self, has_noop=_boolean(key, value))
            case "set_noop_interval":
                interval_ms = _milliseconds(key, value)
                return replace(self, noop_interval_ms=interval_ms)
            case "changes_in_batches":
                return replace(self, is_batched=_boolean(key, value))
            case "key_prefix":
                if len(value.encode()) > KEY_PREFIX_BYTES_MAX:
                    raise ValueError(f"{key} has more than {KEY_PREFIX_BYTES_MAX} bytes")
                return replace(self, key_prefix=value.encode())
            case "states":
                return replace(self, states=_states(value))
        raise ValueError(f"there is no setting {key!r}")


def _number(key: str, value: str, most: int) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > len(str(most)):
        raise ValueError(f"{key} is a number from 0 to {most}, not {value!r}")
    number = int(value)
    if number > most:
        raise ValueError(f"{key} is a number from 0 to {most}, not {value!r}")
    return number


def _milliseconds(key: str, value: str) -> int:
    """Seconds, perhaps with a fraction: nodes of one cluster want less than one."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= NOOP_INTERVAL_S_MAX:
        raise ValueError(f"{key} is a number of seconds up to {NOOP_INTERVAL_S_MAX}, not {value!r}")
    return round(seconds * 1000)


def _boolean(key: str, value: str) -> bool:
    if value not in BOOLEANS:
        raise ValueError(f"{key} is true or false, not {value!r}")
    return BOOLEANS[value]


def _states(value: str) -> frozenset[PartitionState]:
    try:
        return frozenset(PartitionState(name.strip()) for name in value.split(","))
    except ValueError:
        names = ", ".join(state.value for state in PartitionState)
        raise ValueError(f"states are some of {names}, not {value!r}") from None
