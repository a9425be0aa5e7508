"""Trying again, with longer and longer pauses."""

from collections.abc import Callable
from typing import Final

from millrace.core.append import AppendOutcome, NotAppendedReason
from millrace.core.procedure import DeadlinePassed, Pause, Procedure
from millrace.limits import APPEND_ATTEMPTS_MAX

PAUSE_MS: Final = 10
PAUSE_MS_MAX: Final = 640
CLAIM_PAUSE_MS_MAX: Final = 500


def append_by_attempts(
    attempt: Callable[[], Procedure[AppendOutcome | None]],
    give_up: Callable[[NotAppendedReason, str], AppendOutcome],
    nobody: str,
    attempts_max: int | None = None,
) -> Procedure[AppendOutcome]:
    """Until an attempt has an outcome; `give_up` tells it when there is none, in time or at all."""
    pause_ms = 0
    try:
        for _ in range(attempts_max or APPEND_ATTEMPTS_MAX):
            if pause_ms:
                yield Pause(pause_ms)
            outcome = yield from attempt()
            if outcome is not None:
                return outcome
            pause_ms = min(2 * pause_ms or PAUSE_MS, PAUSE_MS_MAX)
    except DeadlinePassed:
        return give_up(NotAppendedReason.DEADLINE, "the time for the append is up")
    return give_up(NotAppendedReason.UNAVAILABLE, nobody)


def back_off(attempt: int) -> Procedure[None]:
    """Before the attempt of this number to write a record that others write too; the first is 0."""
    if attempt:
        yield Pause(min(PAUSE_MS << attempt, CLAIM_PAUSE_MS_MAX))
