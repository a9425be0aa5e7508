"""What can be set of a reader of sequenced logs (R9).

Times and sizes are LogDevice's defaults where it has them, but for three: nodes that are much
slower than others are found by default, the window is given in bytes as well as in positions, and
a node that does not answer START is given up after seconds, since it is then listed as down (R5).
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from millrace.core.reading.slow_nodes import SlowNodeSettings
from millrace.limits import READ_BATCH_BYTES, READ_WINDOW_BYTES
from millrace.types import CopysetOrder, LocalScd

ALWAYS_WAIT = -1  # As a limit of strikes: nobody is ever not waited for.


class SequencedReadSettings(msgspec.Struct, frozen=True):
    is_single_copy: Annotated[
        bool, Meta(description="One node sends each block; false: always all-send-all.")
    ] = True
    copyset_order: Annotated[
        CopysetOrder, Meta(description="In which order the nodes of a copyset are to send.")
    ] = CopysetOrder.SHUFFLED
    local_scd: Annotated[
        LocalScd, Meta(description="Whether nodes near the reader send before others.")
    ] = LocalScd.OFF
    window_lsns: Annotated[
        int, Meta(ge=1, description="How many positions nodes may send ahead of the reader.")
    ] = 1 << 20
    window_bytes: Annotated[
        int, Meta(ge=1, description="How many bytes nodes may send ahead, all together.")
    ] = READ_WINDOW_BYTES
    sender_bytes_min: Annotated[
        int, Meta(ge=1, description="What each node may send ahead, however many there are.")
    ] = 2 * READ_BATCH_BYTES
    flow_control_threshold: Annotated[
        float, Meta(gt=0, lt=1, description="The window slides when this part of it is read.")
    ] = 0.7
    scd_timeout_ms: Annotated[
        int, Meta(ge=1, description="No progress for so long: silent nodes are listed as down.")
    ] = 300_000
    all_send_all_timeout_ms: Annotated[
        int, Meta(ge=1, description="No progress for so long: all nodes are to send all.")
    ] = 600_000
    grace_period_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="An f-majority has nothing: how long others are waited for; 0: not at all.",
        ),
    ] = 100
    grace_strikes_max: Annotated[
        int,
        Meta(
            ge=ALWAYS_WAIT,
            description="A node silent in more grace periods than this is not waited for any "
            "more; -1: always.",
        ),
    ] = 2
    has_second_chance: Annotated[
        bool, Meta(description="All nodes are asked once more before a loss is told.")
    ] = True
    reconnect_ms_min: Annotated[
        int, Meta(ge=1, description="First pause before a lost node is asked again; it doubles.")
    ] = 10
    reconnect_ms_max: Annotated[int, Meta(ge=1, description="The longest such pause.")] = 30_000
    started_timeout_ms: Annotated[
        int, Meta(ge=1, description="A node that has not answered START is down after this.")
    ] = 3_000
    rewind_ms_min: Annotated[
        int, Meta(ge=1, description="Shortest pause before a rewind; it doubles with each one.")
    ] = 1
    rewind_ms_max: Annotated[int, Meta(ge=1, description="The longest such pause.")] = 10_000
    rewind_decrease_ms_per_s: Annotated[
        int, Meta(ge=0, description="By how much that pause falls in each second.")
    ] = 100
    stalled_grace_ms: Annotated[
        int, Meta(ge=0, description="Too few nodes serve the reader: told after this.")
    ] = 30_000
    epochs_retry_ms_min: Annotated[
        int,
        Meta(ge=1, description="First pause before the epochs are asked for again; it doubles."),
    ] = 1_000
    epochs_retry_ms_max: Annotated[int, Meta(ge=1, description="The longest such pause.")] = 30_000
    slow_nodes: Annotated[
        SlowNodeSettings, Meta(description="How nodes much slower than others are found.")
    ] = SlowNodeSettings()
