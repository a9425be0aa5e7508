"""The numbers of the binary protocol: opcodes, statuses, features, and the shapes of requests.

They are memcached's and, for streams and waits, those of Couchbase's servers, so that clients
which nobody here wrote are understood (U10).  Extensions take numbers that neither uses:
opcodes 0xe0 to 0xef, statuses from 0xe0 on, features from 0x8000 on.

  I1  A number, once given, is never given to anything else: peers of other versions speak it.
  I2  Every opcode stands in `docs/documents-protocol.md`.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final


class Magic(IntEnum):
    """The first byte of a frame: who speaks, and whether framing extras follow the header."""

    REQUEST = 0x80
    RESPONSE = 0x81
    FRAMED_REQUEST = 0x08
    FRAMED_RESPONSE = 0x18


class Opcode(IntEnum):
    GET = 0x00
    SET = 0x01
    ADD = 0x02
    REPLACE = 0x03
    DELETE = 0x04
    INCREMENT = 0x05
    DECREMENT = 0x06
    QUIT = 0x07
    FLUSH = 0x08
    GETQ = 0x09
    NOOP = 0x0A
    VERSION = 0x0B
    GETK = 0x0C
    GETKQ = 0x0D
    APPEND = 0x0E
    PREPEND = 0x0F
    STAT = 0x10
    SETQ = 0x11
    ADDQ = 0x12
    REPLACEQ = 0x13
    DELETEQ = 0x14
    INCREMENTQ = 0x15
    DECREMENTQ = 0x16
    QUITQ = 0x17
    FLUSHQ = 0x18
    APPENDQ = 0x19
    PREPENDQ = 0x1A
    VERBOSITY = 0x1B
    TOUCH = 0x1C
    GAT = 0x1D
    GATQ = 0x1E
    HELLO = 0x1F
    SASL_LIST = 0x20
    SASL_AUTH = 0x21
    SASL_STEP = 0x22
    GATK = 0x23
    GATKQ = 0x24

    GET_ALL_PARTITION_SEQS = 0x48  # GET_ALL_VB_SEQNOS.
    SELECT_BUCKET = 0x89
    OBSERVE_SEQ = 0x91  # OBSERVE_SEQNO.
    GET_FAILOVER_LOG = 0x96
    SET_WITH_META = 0xA2
    DELETE_WITH_META = 0xA8
    GET_CLUSTER_CONFIG = 0xB5
    SEQ_PERSISTENCE = 0xB7  # SEQNO_PERSISTENCE.

    DCP_OPEN = 0x50
    DCP_ADD_STREAM = 0x51
    DCP_CLOSE_STREAM = 0x52
    DCP_STREAM_REQUEST = 0x53
    DCP_GET_FAILOVER_LOG = 0x54
    DCP_STREAM_END = 0x55
    DCP_SNAPSHOT_MARKER = 0x56
    DCP_MUTATION = 0x57
    DCP_DELETION = 0x58
    DCP_EXPIRATION = 0x59
    DCP_FLUSH = 0x5A
    DCP_NOOP = 0x5C
    DCP_BUFFER_ACK = 0x5D
    DCP_CONTROL = 0x5E
    DCP_SEQ_ADVANCED = 0x64

    # Extensions.
    MULTI_GET = 0xE0
    MULTI_SET = 0xE1
    CHANGES = 0xE2
    BARRIER = 0xE3
    BARRIER_REACHED = 0xE4
    ALL_PARTITIONS = 0xE5
    SEQ_ACK = 0xE6
    FETCH = 0xE7
    REPAIR = 0xE8
    WRITE_REVISIONS = 0xE9
    READ_REVISIONS = 0xEA


class Status(IntEnum):
    SUCCESS = 0x00
    NOT_FOUND = 0x01
    KEY_EXISTS = 0x02
    TOO_LARGE = 0x03
    INVALID_ARGUMENTS = 0x04
    NOT_STORED = 0x05
    DELTA_BADVAL = 0x06
    NOT_MY_PARTITION = 0x07  # NOT_MY_VBUCKET.
    NO_BUCKET = 0x08
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    RANGE = 0x22
    ROLLBACK = 0x23
    NO_ACCESS = 0x24
    UNKNOWN_FRAME_INFO = 0x80
    UNKNOWN_COMMAND = 0x81
    NO_MEMORY = 0x82
    NOT_SUPPORTED = 0x83
    INTERNAL_ERROR = 0x84
    BUSY = 0x85
    TEMPORARY_FAILURE = 0x86
    DURABILITY_INVALID_LEVEL = 0xA0
    DURABILITY_IMPOSSIBLE = 0xA1
    SYNC_WRITE_IN_PROGRESS = 0xA2
    SYNC_WRITE_AMBIGUOUS = 0xA3
    WRONG_FAILOVER_ID = 0xE0  # Extension.


# The bodies of error responses, word for word as memcached has them where it does.
STATUS_TEXT: Final[dict[int, bytes]] = {
    Status.SUCCESS: b"",
    Status.NOT_FOUND: b"Not found",
    Status.KEY_EXISTS: b"Data exists for key.",
    Status.TOO_LARGE: b"Too large.",
    Status.INVALID_ARGUMENTS: b"Invalid arguments",
    Status.NOT_STORED: b"Not stored.",
    Status.DELTA_BADVAL: b"Non-numeric server-side value for incr or decr",
    Status.NOT_MY_PARTITION: b"I'm not responsible for this vbucket",
    Status.NO_BUCKET: b"Not connected to a bucket",
    Status.AUTH_ERROR: b"Auth failure.",
    Status.AUTH_CONTINUE: b"Continue",
    Status.RANGE: b"Out of range",
    Status.ROLLBACK: b"Rollback",
    Status.NO_ACCESS: b"No access",
    Status.UNKNOWN_FRAME_INFO: b"Unknown frame info",
    Status.UNKNOWN_COMMAND: b"Unknown command",
    Status.NO_MEMORY: b"Out of memory",
    Status.NOT_SUPPORTED: b"Not supported",
    Status.INTERNAL_ERROR: b"Internal error",
    Status.BUSY: b"Too busy",
    Status.TEMPORARY_FAILURE: b"Temporary failure",
    Status.DURABILITY_INVALID_LEVEL: b"Invalid durability level",
    Status.DURABILITY_IMPOSSIBLE: b"Durability impossible",
    Status.SYNC_WRITE_IN_PROGRESS: b"Synchronous write in progress",
    Status.SYNC_WRITE_AMBIGUOUS: b"Synchronous write ambiguous",
    Status.WRONG_FAILOVER_ID: b"Wrong failover id",
}


class Feature(IntEnum):
    """What a client may say in HELLO that it knows.  Others are not granted."""

    MUTATION_SEQ = 0x04  # Answers to mutations carry failover id and seq.
    SELECT_BUCKET = 0x08
    FRAMED_REQUEST = 0x10
    SYNC_REPLICATION = 0x11  # Durability requirements in the framing extras.
    MAP_AWARE = 0x8001  # Extension: it knows the partition map, and wants NOT_MY_PARTITION.


class DurabilityLevel(IntEnum):
    MAJORITY = 1
    MAJORITY_AND_PERSIST_ON_MASTER = 2
    PERSIST_TO_MAJORITY = 3


# A quiet request, and the one that it is otherwise: misses of gets, or successes of the others,
# are not answered.
LOUD: Final[dict[int, Opcode]] = {
    Opcode.GETQ: Opcode.GET,
    Opcode.GETKQ: Opcode.GETK,
    Opcode.SETQ: Opcode.SET,
    Opcode.ADDQ: Opcode.ADD,
    Opcode.REPLACEQ: Opcode.REPLACE,
    Opcode.DELETEQ: Opcode.DELETE,
    Opcode.INCREMENTQ: Opcode.INCREMENT,
    Opcode.DECREMENTQ: Opcode.DECREMENT,
    Opcode.QUITQ: Opcode.QUIT,
    Opcode.FLUSHQ: Opcode.FLUSH,
    Opcode.APPENDQ: Opcode.APPEND,
    Opcode.PREPENDQ: Opcode.PREPEND,
    Opcode.GATQ: Opcode.GAT,
    Opcode.GATKQ: Opcode.GATK,
}


def shape_of(opcode: int, extras_size: int, has_key: bool, has_value: bool) -> int:
    """Which parts a request has, as one number."""
    return opcode << 10 | extras_size << 2 | has_key << 1 | has_value


def _shapes(
    opcodes: Iterable[Opcode],
    extras_sizes: Iterable[int],
    keys: Iterable[bool],
    values: Iterable[bool],
) -> set[int]:
    return {
        shape_of(opcode, extras_size, has_key, has_value)
        for opcode in opcodes
        for extras_size in extras_sizes
        for has_key in keys
        for has_value in values
    }


def _with_quiet(*opcodes: Opcode) -> list[Opcode]:
    return [*opcodes, *(quiet for quiet, loud in _QUIET if loud in opcodes)]


_QUIET: Final = [(Opcode(quiet), loud) for quiet, loud in LOUD.items()]
_NEVER: Final = (False,)
_ALWAYS: Final = (True,)
_MAYBE: Final = (False, True)

# As memcached checks them before it looks at anything else.
SHAPES: Final[frozenset[int]] = frozenset(
    _shapes(_with_quiet(Opcode.GET, Opcode.GETK), (0,), _ALWAYS, _NEVER)
    | _shapes(_with_quiet(Opcode.SET, Opcode.ADD, Opcode.REPLACE), (8,), _ALWAYS, _MAYBE)
    | _shapes(_with_quiet(Opcode.DELETE), (0,), _ALWAYS, _NEVER)
    | _shapes(_with_quiet(Opcode.INCREMENT, Opcode.DECREMENT), (20,), _ALWAYS, _NEVER)
    | _shapes(_with_quiet(Opcode.APPEND, Opcode.PREPEND), (0,), _ALWAYS, _MAYBE)
    | _shapes(_with_quiet(Opcode.GAT, Opcode.GATK), (4,), _ALWAYS, _NEVER)
    | _shapes((Opcode.TOUCH,), (4,), _ALWAYS, _NEVER)
    | _shapes((Opcode.SET_WITH_META,), (24,), _ALWAYS, _MAYBE)
    | _shapes((Opcode.DELETE_WITH_META,), (24,), _ALWAYS, _NEVER)
    | _shapes(_with_quiet(Opcode.FLUSH), (0, 4), _NEVER, _NEVER)
    | _shapes(_with_quiet(Opcode.QUIT), (0,), _NEVER, _NEVER)
    | _shapes((Opcode.NOOP, Opcode.VERSION, Opcode.SASL_LIST), (0,), _NEVER, _NEVER)
    | _shapes((Opcode.VERBOSITY,), (4,), _NEVER, _NEVER)
    | _shapes((Opcode.STAT,), (0,), _MAYBE, _MAYBE)
    | _shapes((Opcode.SASL_AUTH, Opcode.SASL_STEP), (0,), _ALWAYS, _MAYBE)
    | _shapes((Opcode.HELLO,), (0,), _MAYBE, _MAYBE)
    | _shapes((Opcode.SELECT_BUCKET,), (0,), _ALWAYS, _NEVER)
    | _shapes((Opcode.MULTI_GET, Opcode.MULTI_SET), (0,), _NEVER, _ALWAYS)
    | _shapes((Opcode.WRITE_REVISIONS, Opcode.READ_REVISIONS), (0,), _NEVER, _ALWAYS)
)
SHAPED: Final[frozenset[int]] = frozenset(shape >> 10 for shape in SHAPES)
