"""Held-back appends of a sequencer go on when nodes that they wait for are back.

The question is a seal for the sequencer's own epoch, as its recovery asks it: whoever answers can
be reached, serves the log and writes to its disk, and whoever was sealed for a later epoch says so.

I1  Nobody is asked while no append is held back, nor after the sequencer has ended.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from millrace.core.messages import SealEpochs
from millrace.core.procedure import Answer
from millrace.core.sequenced.absences import PAUSE_MS
from millrace.core.sequenced.sequencer import LogSequencer
from millrace.server.needs import Surroundings
from millrace.types import NodeId

ASK_TIMEOUT_MS: Final = 1_000

Heard = Callable[[LogSequencer, NodeId, Answer], None]


class Waking:
    def __init__(
        self,
        around: Surroundings,
        sequencer: LogSequencer,
        prepare: Callable[[], None],
        heard: Heard,
    ) -> None:
        """`prepare` is called before each look: statuses may have changed."""
        self._around = around
        self._sequencer = sequencer
        self._prepare = prepare
        self._heard = heard
        self._is_looking = False

    def look(self) -> None:
        """Appends may be held back from now on."""
        if not self._is_looking and self._sequencer.is_held_back:
            self._is_looking = True
            self._around.later(PAUSE_MS, self._ask)

    def _ask(self) -> None:
        """Keeps I1."""
        self._is_looking = False
        sequencer = self._sequencer
        if not sequencer.is_held_back:
            return
        self._prepare()
        question = SealEpochs(sequencer.log, sequencer.epoch)
        for node in sequencer.missing(self._around.now_ms()):
            self._around.ask(node, question, ASK_TIMEOUT_MS, partial(self._heard, sequencer, node))
        self.look()
