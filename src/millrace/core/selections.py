"""Selections as the protocol sees them: which make sense, and what cut blocks cost a reader."""

from millrace.limits import CUT_CREDIT_BYTES_MIN, SELECTION_KEYS_BYTES_MAX, SELECTION_KEYS_MAX
from millrace.types import RECORD_COLUMNS, Block, Selection

_TIME_MAX_US = 2**63  # Timestamps are signed 64-bit numbers.


def complaint(selection: Selection) -> str:
    """What is wrong with it and what to do; empty if nothing."""
    unknown = [name for name in selection.columns if name not in RECORD_COLUMNS]
    if unknown:
        always = " (lsn always comes: do not name it)" if "lsn" in unknown else ""
        return f"no column {', '.join(unknown)}; there are {', '.join(RECORD_COLUMNS)}{always}"
    if len(set(selection.columns)) < len(selection.columns):
        return f"a column is selected twice: {', '.join(selection.columns)}"
    for time_us in (selection.time_first_us, selection.time_end_us):
        if time_us is not None and not -_TIME_MAX_US <= time_us < _TIME_MAX_US:
            return f"{time_us} is no time in microseconds since 1970"
    keys = selection.keys or ()
    if len(keys) > SELECTION_KEYS_MAX:
        return f"{len(keys)} keys are selected, at most {SELECTION_KEYS_MAX} may be: read by parts"
    size = sum(map(len, keys))
    if size > SELECTION_KEYS_BYTES_MAX:
        return f"the selected keys have {size} bytes, at most {SELECTION_KEYS_BYTES_MAX} may be"
    return ""


def credit_bytes(block: Block) -> int:
    """What a block takes of a reader's window.  Sender and reader must count alike.  A cut block
    may be a bare header, and many of those would fill a reader's memory with objects (G13)."""
    return max(block.size, CUT_CREDIT_BYTES_MIN) if block.is_cut else block.size
