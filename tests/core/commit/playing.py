"""Running a procedure with answers that a test gives."""

from collections.abc import Callable
from typing import Any

from millrace.core.procedure import Answer, Ask, AskAll, Note, Procedure


def played(procedure: Procedure[Any], answer_to: Callable[[Ask], Answer]) -> Any:
    """What comes of it."""
    answer: object = None
    while True:
        try:
            effect = procedure.send(answer)
        except StopIteration as stop:
            return stop.value
        match effect:
            case AskAll(asks):
                answer = [answer_to(each) for each in asks]
            case Ask():
                answer = answer_to(effect)
            case _:
                assert isinstance(effect, Note), effect
                answer = None
