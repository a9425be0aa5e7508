"""What a reader of a sequenced log asks of whoever drives it.

Most is as for chain logs (`core/read_effects.py`).  A driver performs the effects in order; after
Finish or Fail there are no more.
"""

import msgspec

from millrace.core.read_effects import (
    Deliver,
    DeliverGap,
    Fail,
    FailReason,
    Finish,
    SetTimer,
    StartSender,
    TellSender,
)
from millrace.types import Epoch

__all__ = [
    "Deliver",
    "DeliverGap",
    "Fail",
    "FailReason",
    "Finish",
    "HealthChanged",
    "NeedEpochs",
    "SequencedReadEffect",
    "SetTimer",
    "StartSender",
    "TellSender",
]


class NeedEpochs(msgspec.Struct, frozen=True):
    """Where do the blocks of this epoch and of the later ones lie?"""

    epoch: Epoch


class HealthChanged(msgspec.Struct, frozen=True):
    """Whether enough nodes serve the reader for it to find every block, or its loss."""

    is_healthy: bool


SequencedReadEffect = (
    StartSender
    | TellSender
    | Deliver
    | DeliverGap
    | NeedEpochs
    | SetTimer
    | HealthChanged
    | Finish
    | Fail
)
