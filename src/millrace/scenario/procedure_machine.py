"""Machines for procedures: `append`, `repair`, `reconfigure`, `learn`, `keeper`.

What the procedure orders is printed; what the world answers is an event.  Requests that were
ordered together are answered one by one, and handed in when the last one is there.
"""

from typing import Any

from millrace.codec import blocks
from millrace.core import procedure as p
from millrace.core.append import Append
from millrace.core.keeper import find_incomplete, plan, teach
from millrace.core.learn import learn
from millrace.core.projection import Projection
from millrace.core.reconfigure import create, reconfigure
from millrace.core.repair import repair
from millrace.core.trim import trim
from millrace.scenario import speech
from millrace.scenario import words as w
from millrace.scenario.machine import Command, Machine, Setting
from millrace.scenario.procedure_words import (
    CHANGE_USAGE,
    asks_of,
    show_effect,
    show_result,
    take_append,
    take_change,
    take_repair,
    take_view,
)
from millrace.scenario.shapes import FAILS_USAGE
from millrace.scenario.text import Words
from millrace.types import Epoch, Lsn, NodeId, Token

PROPOSER = Token(9, 1)
DEFAULT_PROJECTION = Projection(
    w.LOG,
    Epoch(1),
    (NodeId(1), NodeId(2), NodeId(3)),
    NodeId(w.FIRST_SEQUENCER),
    3,
)


class ProcedureMachine(Machine):
    def __init__(self) -> None:
        self._projection = DEFAULT_PROJECTION
        self._running: p.Procedure[Any] | None = None
        self._effect: p.Effect | None = None
        self._asks: list[p.Ask] = []
        self._answers: dict[int, p.Answer] = {}

    def settings(self) -> list[Setting]:
        return [Setting(f"projection {w.PROJECTION_USAGE}", self._set_projection)]

    def starts(self) -> list[Command]:
        raise NotImplementedError

    def commands(self) -> list[Command]:
        return [
            *self.starts(),
            Command("answer NODE MESSAGE|fails KIND", self._answer),
            Command("paused", self._paused),
            Command(f"projection [version V] {w.PROJECTION_USAGE}", self._projected),
            Command("no-projection", self._no_projection),
            Command("replaced", self._replaced),
            Command("conflict", self._conflict),
            Command("nodes NODE,... [live NODE,...]", self._nodes),
            Command(FAILS_USAGE, self._fails),
            Command("deadline", self._deadline),
        ]

    def _set_projection(self, words: Words) -> None:
        self._projection = w.take_projection(words)

    # -- Running ------------------------------------------------------------------------------

    def start(self, running: p.Procedure[Any]) -> list[str]:
        self._running = running
        return self._resume(lambda: next(running))

    def _feed(self, answer: Any) -> list[str]:
        running = self._running
        assert running is not None
        return self._resume(lambda: running.send(answer))

    def _resume(self, resume: Any) -> list[str]:
        """Run to the next effect that needs an answer from the file."""
        shown: list[str] = []
        try:
            self._effect = resume()
            while isinstance(self._effect, p.Note):
                shown += show_effect(self._effect)
                assert self._running is not None
                self._effect = self._running.send(None)
        except StopIteration as stop:
            self._running = self._effect = None
            return [*shown, f"returns {show_result(stop.value)}"]
        except p.DeadlinePassed:
            self._running = self._effect = None
            return [*shown, "stops: the deadline passed"]
        assert self._effect is not None
        self._asks = asks_of(self._effect)
        self._answers.clear()
        return shown + show_effect(self._effect)

    def _expect(self, words: Words, *kinds: type[p.Effect]) -> None:
        if not isinstance(self._effect, kinds):
            waits = "nothing runs" if self._effect is None else show_effect(self._effect)[0]
            words.fail(f"this does not answer what was ordered: {waits}")

    # -- Answers ------------------------------------------------------------------------------

    def _answer(self, words: Words) -> list[str]:
        self._expect(words, p.Ask, p.AskAll)
        node = words.parse("a node such as SN1", w.parse_node)
        answer = speech.take_answer(words)
        for at, ask in enumerate(self._asks):
            if ask.node == node and at not in self._answers:
                self._answers[at] = answer
                break
        else:
            words.fail(f"{w.show_node(node)} was asked nothing that is still open")
        if len(self._answers) < len(self._asks):
            return []
        answers = [self._answers[at] for at in range(len(self._asks))]
        return self._feed(answers if isinstance(self._effect, p.AskAll) else answers[0])

    def _paused(self, words: Words) -> list[str]:
        self._expect(words, p.Pause)
        return self._feed(None)

    def _projected(self, words: Words) -> list[str]:
        self._expect(words, p.ReadProjection, p.Refresh, p.Reconfigure)
        version = words.number("a version") if words.option("version") else 1
        projection = w.take_projection(words)
        is_read = isinstance(self._effect, p.ReadProjection)
        return self._feed((projection, version) if is_read else projection)

    def _no_projection(self, words: Words) -> list[str]:
        self._expect(words, p.ReadProjection)
        return self._feed((None, 0))

    def _replaced(self, words: Words) -> list[str]:
        self._expect(words, p.ReplaceProjection)
        return self._feed(True)

    def _conflict(self, words: Words) -> list[str]:
        self._expect(words, p.ReplaceProjection)
        return self._feed(False)

    def _nodes(self, words: Words) -> list[str]:
        self._expect(words, p.ListNodes)
        return self._feed(take_view(words))

    def _fails(self, words: Words) -> list[str]:
        if self._effect is None or isinstance(self._effect, p.Pause | p.AskAll):
            words.fail("nothing was ordered that can fail as a whole")
        kind = words.parse(FAILS_USAGE, p.FailureKind)
        return self._feed(p.Failure(kind))

    def _deadline(self, words: Words) -> list[str]:
        running = self._running
        if running is None:
            words.fail("nothing runs")
        return self._resume(lambda: running.throw(p.DeadlinePassed()))


class AppendMachine(ProcedureMachine):
    name = "append"

    def __init__(self) -> None:
        super().__init__()
        self._append: Append | None = None

    def starts(self) -> list[Command]:
        return [
            Command("append VALUE[|VALUE...] [token CLIENT.REQUEST] [ack memory]", self._begin),
            Command("resume", self._resume_append),
        ]

    def _begin(self, words: Words) -> list[str]:
        self._append = take_append(words)
        return self.start(self._append.run(self._projection))

    def _resume_append(self, words: Words) -> list[str]:
        if self._append is None:
            words.fail("nothing was appended yet")
        return self.start(self._append.run(self._projection))


class RepairMachine(ProcedureMachine):
    name = "repair"

    def starts(self) -> list[Command]:
        return [
            Command("repair LSN [wait MS|never]", self._repair),
            Command("trim END", self._trim),
        ]

    def _repair(self, words: Words) -> list[str]:
        lsn, policy = take_repair(words)
        return self.start(repair(self._projection, lsn, policy, blocks.junk))

    def _trim(self, words: Words) -> list[str]:
        return self.start(trim(self._projection, Lsn(words.number("a position"))))


class ReconfigureMachine(ProcedureMachine):
    name = "reconfigure"

    def starts(self) -> list[Command]:
        return [
            Command(f"reconfigure {CHANGE_USAGE}", self._reconfigure),
            Command("create SN1->SN2 replication R", self._create),
        ]

    def _reconfigure(self, words: Words) -> list[str]:
        return self.start(reconfigure(take_change(words), PROPOSER, blocks.junk))

    def _create(self, words: Words) -> list[str]:
        chain = words.parse("a chain such as SN1->SN2", w.parse_chain)
        replication = len(chain)
        if words.option("replication"):
            replication = words.number("a number of replicas")
        return self.start(create(w.LOG, chain, replication, PROPOSER))


class LearnMachine(ProcedureMachine):
    name = "learn"

    def starts(self) -> list[Command]:
        return [Command("learn NODE from NODE epoch E [others NODE,...]", self._learn)]

    def _learn(self, words: Words) -> list[str]:
        me = words.parse("a node such as SN1", w.parse_node)
        if not words.option("from"):
            words.fail("expected from NODE")
        source = words.parse("a node such as SN3", w.parse_node)
        if not words.option("epoch"):
            words.fail("expected epoch E")
        epoch = Epoch(words.number("an epoch"))
        others = words.parse("nodes", w.parse_nodes) if words.option("others") else ()
        return self.start(learn(w.LOG, epoch, source, me, others))


class KeeperMachine(ProcedureMachine):
    name = "keeper"

    def starts(self) -> list[Command]:
        return [
            Command("plan NODE,... [live NODE,...] [unusable NODE,...]", self._plan),
            Command("find-incomplete", self._find_incomplete),
            Command("teach NODE", self._teach),
        ]

    def _plan(self, words: Words) -> list[str]:
        view = take_view(words)
        unusable = words.parse("nodes", w.parse_nodes) if words.option("unusable") else ()
        steps = plan([self._projection], view, unusable)
        return [show_result(step) for step in steps] or ["leave it"]

    def _find_incomplete(self, words: Words) -> list[str]:
        return self.start(find_incomplete(self._projection))

    def _teach(self, words: Words) -> list[str]:
        learner = words.parse("a node such as SN4", w.parse_node)
        return self.start(teach(self._projection, learner))
