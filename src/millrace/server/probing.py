"""Whether nodes that somebody could not reach are really away."""

from collections.abc import Callable
from functools import partial
from typing import Final

from millrace.core.messages import Message
from millrace.core.procedure import Answer
from millrace.server.needs import Surroundings
from millrace.types import NodeId

PROBE_TIMEOUT_MS: Final = 500


def probe(
    around: Surroundings,
    nodes: tuple[NodeId, ...],
    question: Message,
    answers: tuple[type[Message], ...],
    done: Callable[[tuple[NodeId, ...]], None],
) -> None:
    """`done` hears who did not answer with one of `answers`."""
    if not nodes:
        done(())
        return
    away: list[NodeId] = []
    left = len(nodes)

    def probed(node: NodeId, answer: Answer) -> None:
        nonlocal left
        left -= 1
        if not isinstance(answer, answers):
            away.append(node)
        if not left:
            done(tuple(away))

    for node in nodes:
        around.ask(node, question, PROBE_TIMEOUT_MS, partial(probed, node))
