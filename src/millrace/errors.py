"""What can go wrong, sorted by blame, each saying whether the operation may have happened.

`is_definite` is true when the operation certainly did not take effect.  `code` is stable: it
appears on the wire, in logs, in metrics and in `docs/reference/errors.md`, which is generated
from this file.
"""

from typing import Any, ClassVar


class MillraceError(Exception):
    """Root of every error this package raises on purpose."""

    code: ClassVar[str] = "error"
    is_definite: ClassVar[bool] = True
    outcomes: tuple[Any, ...] = ()  # Of a call for many: the result or error of each, in order.

    @property
    def appended(self) -> list[Any]:
        """The ranges that are in the log although the call as a whole failed."""
        return [each for each in self.outcomes if not isinstance(each, BaseException)]

    @property
    def failures(self) -> "list[MillraceError]":
        """The errors of the blocks that were not acknowledged."""
        return [each for each in self.outcomes if isinstance(each, MillraceError)]


class UsageError(MillraceError):
    """The caller asked for something that cannot be: correct the call."""

    code = "usage"


class UnknownLog(UsageError):
    """No log has this name."""

    code = "unknown_log"


class LogExists(UsageError):
    """A log of this name exists already."""

    code = "log_exists"


class TooFewNodes(UsageError):
    """The replication factor is larger than the number of live storage nodes."""

    code = "too_few_nodes"


class PositionTrimmed(UsageError):
    """The position lies below the log's trim point."""

    code = "position_trimmed"


class PositionBeyondTail(UsageError):
    """The position has not been written yet."""

    code = "position_beyond_tail"


class RecordTooLarge(UsageError):
    """A record is larger than a block may be."""

    code = "record_too_large"


class MessageTooLarge(UsageError):
    """A message does not fit in a frame: ask for less at a time."""

    code = "message_too_large"


class LogSealed(UsageError):
    """The log was sealed for good and takes no more appends."""

    code = "log_sealed"


class UnknownBucket(UsageError):
    """No bucket has this name."""

    code = "unknown_bucket"


class BucketExists(UsageError):
    """A bucket of this name exists already."""

    code = "bucket_exists"


class OperationRuns(UsageError):
    """Another operation of this kind is being carried out for the bucket: wait for its end, or
    stop it."""

    code = "operation_runs"


class BadKey(UsageError):
    """A document's key is bytes, at least one and at most 250."""

    code = "bad_key"


class ValueTooLarge(UsageError):
    """A document's value is larger than its bucket takes."""

    code = "value_too_large"


class DocumentMissing(UsageError):
    """The document that was to be changed does not exist."""

    code = "document_missing"


class DocumentExists(UsageError):
    """A document that was to be added exists already."""

    code = "document_exists"


class CasMismatch(UsageError):
    """The document was changed, or deleted, since its CAS was read: read it again."""

    code = "cas_mismatch"


class NotACounter(UsageError):
    """The document's value is not a decimal number below 2^64."""

    code = "not_a_counter"


class BadConfiguration(UsageError):
    """A configuration file or setting is wrong."""

    code = "bad_configuration"


class BadScenario(UsageError):
    """A scenario file cannot be understood."""

    code = "bad_scenario"


class FunctionFailed(UsageError):
    """A function that was given to a pipeline raised, or gave what cannot be used."""

    code = "function_failed"


class StateMismatch(UsageError):
    """A pipeline's folder was made by another pipeline, or with other settings or functions."""

    code = "state_mismatch"


class BatchOvertaken(UsageError):
    """A task of a batch that is over came late; nothing was changed by it."""

    code = "batch_overtaken"


class WrongDataDirectory(UsageError):
    """The data directory belongs to another cluster, another node or a newer version."""

    code = "wrong_data_directory"


class WrongBackup(UsageError):
    """The folder of a backup does not fit: it is another cluster's, or what it holds was made anew
    since."""

    code = "wrong_backup"


class Unavailable(MillraceError):
    """The environment failed: a node, the network or the metadata repository."""

    code = "unavailable"


class NoNodeReachable(Unavailable):
    """None of the given addresses answered."""

    code = "no_node_reachable"


class WrongPeer(Unavailable):
    """Who answers is not who was meant: another cluster, node or version of the protocol."""

    code = "wrong_peer"


class MetadataUnavailable(Unavailable):
    """The metadata repository does not answer."""

    code = "metadata_unavailable"


class MetadataOutcomeUnknown(MetadataUnavailable):
    """The metadata repository went away during a change, which may have happened: read again."""

    code = "metadata_outcome_unknown"
    is_definite = False


class AddressInUse(Unavailable):
    """Another process listens on the node's port."""

    code = "address_in_use"


class DirectoryInUse(Unavailable):
    """Another process uses the node's data directory."""

    code = "directory_in_use"


class DiskFull(Unavailable):
    """A node has no room left; it refuses writes and goes on serving reads."""

    code = "disk_full"


class TimedOut(Unavailable):
    """The operation had no effect within its time."""

    code = "timed_out"


class TrimPending(TimedOut):
    """The trim point stands, or may stand, but not every node has applied it: the keeper will."""

    code = "trim_pending"
    is_definite = False


class NotConnected(Unavailable):
    """The connection was closed before the request was sent."""

    code = "not_connected"


class TooManyRequests(Unavailable):
    """Too many requests wait for their answers; this one was not sent."""

    code = "too_many_requests"


class ConnectionLost(Unavailable):
    """The connection was lost before the answer came; the request may have been done."""

    code = "connection_lost"
    is_definite = False


class NoAnswer(Unavailable):
    """The answer did not come in time; the request may have been done."""

    code = "no_answer"
    is_definite = False


class TailMoved(UsageError):
    """A conditional append: the log's last record is not where the writer thought."""

    code = "tail_moved"


class AppendFailed(Unavailable):
    """The records were definitely not appended."""

    code = "append_failed"


class StagedTooOld(UsageError):
    """Rows were staged longer ago than they are kept for being published: stage them again."""

    code = "staged_too_old"


class PublicationTakenOver(Unavailable):
    """Another publisher of the application has taken over what was being published here, and
    publishes it once: leave it to that one, or publish again to see what came of it."""

    code = "publication_taken_over"
    is_definite = False


class OutcomeUnknown(Unavailable):
    """The records may or may not have been appended; `Log.resume` with this error settles it
    and never makes a second copy."""

    code = "outcome_unknown"
    is_definite = False


class PartitionUnavailable(Unavailable):
    """Nobody served the document's partition in time: it has no master, its master cannot be
    reached, or takes no changes for now."""

    code = "partition_unavailable"


class BucketNotReady(Unavailable):
    """The bucket was made, but not all of its partitions are served by a master yet."""

    code = "bucket_not_ready"
    is_definite = False


class DurabilityImpossible(Unavailable):
    """There are too few copies of the partition for the durability that was asked for."""

    code = "durability_impossible"


class ChangeUnknown(Unavailable):
    """The document may or may not have been changed: the connection was lost, or the answer did
    not come in time.  Read the document."""

    code = "change_unknown"
    is_definite = False


class DurabilityUnknown(ChangeUnknown):
    """The change was made, but whether it is as safe as was asked for is not known."""

    code = "durability_unknown"


class HistoryChanged(ChangeUnknown):
    """The partition has got another master since the change, which may be lost: read the document
    and change it again if need be."""

    code = "history_changed"


class ProtocolError(MillraceError):
    """A peer broke the protocol; its connection is closed, nobody else is harmed."""

    code = "protocol"


class RecordsLost(MillraceError):
    """Records that a query was to read are gone: lost, or trimmed before it came to them."""

    code = "records_lost"


class Corruption(MillraceError):
    """Stored or received bytes do not match their checksum."""

    code = "corruption"


class CorruptBlock(Corruption):
    """A block is damaged: it is reported and never served."""

    code = "corrupt_block"


class CorruptStore(Corruption):
    """A data file cannot be opened."""

    code = "corrupt_store"


class DamagedBackup(Corruption):
    """A file of a backup is missing, or is not what its manifest says."""

    code = "damaged_backup"


class UnreadableMetadata(Corruption):
    """A metadata key holds a value that this version cannot read."""

    code = "unreadable_metadata"
