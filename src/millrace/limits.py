"""Every bound in one place, each with its reason.

A limit that a user may want to change is a setting in `config.py` whose default is taken from
here; the rest are part of the protocol or protect a process from its peers.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Blocks and frames.
RECORD_BYTES_MAX: Final = 16 * MIB  # A record must fit in a block.
BLOCK_RECORDS_MAX: Final = 65_536  # Keeps decoding a block within a few milliseconds.
PUBLISHED_RECORDS_MAX: Final = 2**30  # A block that publishes holds none: an epoch has 2**32.
BLOCK_BYTES_TARGET: Final = 1024 * KIB  # The batcher closes a block here: best MB/s measured.
BLOCK_BYTES_MAX: Final = 32 * MIB  # One record of the largest size plus its columns.
FRAME_META_BYTES_MAX: Final = 36 * MIB  # A document that is passed on; a page of an index.
FRAME_PAYLOAD_BYTES_MAX: Final = 40 * MIB  # One block of the largest size and room to spare.

# Connections.
SEND_BUFFER_BYTES_HIGH: Final = 8 * MIB  # Above this a sender is told to wait.
SEND_BUFFER_BYTES_MAX: Final = 128 * MIB  # Above this the peer is hopeless: disconnect.
REQUESTS_IN_FLIGHT_MAX: Final = 4_096  # Per connection, both directions.
CONNECTIONS_MAX: Final = 4_096  # Per node.

# Appending.
APPENDS_IN_FLIGHT_MAX: Final = 16  # Blocks of one log in flight from one client.
BATCH_BYTES_WAITING_MAX: Final = 64 * MIB  # Records waiting in a client before append() waits.
APPEND_ATTEMPTS_MAX: Final = 16  # Positions tried or chains changed before an append gives up.

# Sequencer.
RECENT_RANGES_MAX: Final = 4_096  # Issued ranges remembered for hole filling.

# A chain node.
SPARSE_EXTENTS_MAX: Final = 65_536  # Blocks held above the first hole of a log.
TAIL_BUFFER_BYTES: Final = 64 * MIB  # Newest blocks kept in memory per node.
UNSYNCED_BYTES_MAX: Final = 256 * MIB  # Waiting for fsync; beyond it writes are refused as busy.

# Store.
STORE_MAP_BYTES: Final = 1024 * 1024 * MIB  # Address space, not disk: the file grows as needed.
STORE_RESERVE_BYTES_MAX: Final = 16 * MIB  # Kept free so that a full store can fence and trim.
SCANS_OUTSTANDING_MAX: Final = 64  # Each pins the pages it read; beyond it scans copy.
COMMIT_WAIT_MS: Final = 50  # How long memory-acknowledged blocks may wait for company.
COMMIT_WAIT_BYTES: Final = 2 * MIB  # This much company is enough.
COMMIT_BYTES_MAX: Final = 32 * MIB  # About what one commit takes: it holds the bytes once more.
COMMIT_BYTES_CALM: Final = 4 * MIB  # As much when nobody waits: its pages are still in the caches.
COMMIT_BACKLOG_SHARE: Final = 8  # Commits grow to this part of a backlog, so that it shrinks.
RECLAIM_BLOCKS_MAX: Final = 256  # Deleted per transaction: a trim never holds up commits for long.
RECLAIM_TIME_MS: Final = 20
RUNS_HELD_MAX: Final = 1_024  # Newest runs of a stream kept in memory: what tail readers ask for.

# Reading.
READ_WINDOW_BYTES: Final = 16 * MIB  # What a reader lets nodes send ahead of what it took.
READ_BATCH_BYTES: Final = 4 * MIB  # What a node sends a stream before it serves the next one.
READ_BUFFER_BLOCKS_MAX: Final = 16_384
STREAMS_PER_SESSION_MAX: Final = 1_024
SCAN_BLOCKS_MAX: Final = 2_048  # Blocks of one batch: the smallest cost more time than bytes.
SHIP_ENTRIES_MAX: Final = 8_192  # Index entries looked at before the next stream is served.

# Sequenced logs.
NODESET_SIZE_MAX: Final = 127
COPYSET_SIZE_MAX: Final = 16  # As many nodes as a block may have copies and extras.
TOKEN_PAGES_MAX: Final = 16  # Of the index, looked through for one append.
TOKEN_JUNK_MAX: Final = 4_096  # Holes and bridges told with the answer: a few for each epoch.
STICKY_BYTES: Final = 32 * MIB  # One copyset for so much ...
STICKY_MS: Final = 600_000  # ... or for so long.

# Selecting.
SELECT_BATCH_BYTES: Final = 1 * MIB  # What a node looks through before it serves the next stream.
SELECTION_KEYS_MAX: Final = 1_024
SELECTION_KEYS_BYTES_MAX: Final = 64 * KIB  # A node keeps them as long as the stream.
CUT_CREDIT_BYTES_MIN: Final = 1 * KIB  # What the objects around a bare header weigh.

# Weighing.
WEIGH_PIECES_MAX: Final = 256
WEIGH_ENTRIES_MAX: Final = 64  # Index entries looked at in each piece.
RUNS_PAGE: Final = 256  # Epochs looked at for one answer.

# Reconfiguration and repair.
RECONFIGURE_ATTEMPTS_MAX: Final = 32
INDEX_PAGE_EXTENTS: Final = 8_192

# Metadata.
KEY_BYTES_MAX: Final = 480  # LMDB's key limit less our prefix.
VALUE_BYTES_MAX: Final = 1 * MIB
WATCH_EVENTS_MAX: Final = 65_536  # A slower watcher is cut off and must list again.
LOG_NAME_CHARS_MAX: Final = 200

# Documents.
DOCUMENT_KEY_BYTES_MAX: Final = 250  # memcached's.
DOCUMENT_FRAME_BYTES_MAX: Final = 32 * MIB  # The largest value, or a batch, and room to spare.
DOCUMENT_SKIP_BYTES_MAX: Final = 256 * MIB  # Read past after "too large"; beyond it: disconnect.
DOCUMENT_BATCH_MAX: Final = 65_536  # Documents or keys in one columnar body.
