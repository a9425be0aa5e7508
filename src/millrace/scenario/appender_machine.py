"""Machine `appender`: one block of a sequenced log on its way to its copysets."""

from collections.abc import Callable
from typing import assert_never

from millrace.core.sequenced import effects as e
from millrace.core.sequenced.appender import Appender, Stage
from millrace.core.sequenced.settings import SequencerSettings
from millrace.scenario import words as w
from millrace.scenario.machine import Command, Machine, Setting
from millrace.scenario.text import Words
from millrace.types import NodeId

Event = Callable[[Words], list[e.AppenderEffect]]


class AppenderMachine(Machine):
    name = "appender"

    def __init__(self) -> None:
        self._copies = 3
        self._settings = SequencerSettings()
        self._made: Appender | None = None
        self._timer: int | None = None  # The newest one.

    def settings(self) -> list[Setting]:
        return [
            Setting("copies N", self._set_copies),
            Setting("leaders N sync N", self._set_leaders),
        ]

    def commands(self) -> list[Command]:
        events: list[tuple[str, Event]] = [
            ("begin NODE,...|none", self._begin),
            ("stored NODE [wave N]", self._stored),
            ("refused NODE [wave N]", lambda words: self._missed(words, may_be_stored=False)),
            ("silent NODE [wave N]", lambda words: self._missed(words, may_be_stored=True)),
            ("timer", self._fire),
        ]
        commands = [Command(usage, self._shown(event)) for usage, event in events]
        return [*commands, Command("explain", self._explain)]

    def _set_copies(self, words: Words) -> None:
        self._copies = words.number("a number of copies")

    def _set_leaders(self, words: Words) -> None:
        leaders = words.number("a number of leaders")
        if not words.option("sync"):
            words.fail("expected `sync` and a number of sync leaders")
        sync_leaders = words.number("a number of sync leaders")
        self._settings = SequencerSettings(leaders=leaders, sync_leaders=sync_leaders)

    @property
    def _appender(self) -> Appender:
        if self._made is None:
            copies = self._copies
            settings = self._settings.of_appender(copies)
            self._made = Appender(settings, lambda nodes: len(nodes) >= copies)
        return self._made

    # -- Events -------------------------------------------------------------------------------

    def _begin(self, words: Words) -> list[e.AppenderEffect]:
        if self._appender.stage is not Stage.PAUSED:
            words.fail(f"no copyset is needed in stage {self._appender.stage.value}")
        if words.option("none"):
            return self._appender.begin(None)
        return self._appender.begin(words.parse("a copyset such as SN1,SN2", w.parse_nodes))

    def _stored(self, words: Words) -> list[e.AppenderEffect]:
        return self._appender.stored(*self._take_answer(words))

    def _missed(self, words: Words, may_be_stored: bool) -> list[e.AppenderEffect]:
        return self._appender.missed(*self._take_answer(words), may_be_stored)

    def _take_answer(self, words: Words) -> tuple[NodeId, int]:
        """Who answers which wave: the newest, if it is not said."""
        node = words.parse("a node such as SN1", w.parse_node)
        wave = words.number("a wave") if words.option("wave") else self._appender.wave
        if not 1 <= wave <= self._appender.wave:
            words.fail(f"there is no wave {wave}")
        return node, wave

    def _fire(self, words: Words) -> list[e.AppenderEffect]:
        if self._timer is None:
            words.fail("no timer is set")
        return self._appender.timer_fired(self._timer)

    def _explain(self, words: Words) -> list[str]:
        appender = self._appender
        waits_for = w.show_nodes(appender.waits_for) or "nobody"
        return [f"stage {appender.stage.value} wave {appender.wave} waits for {waits_for}"]

    def _shown(self, event: Event) -> Callable[[Words], list[str]]:
        return lambda words: [self._show(effect) for effect in event(words)]

    def _show(self, effect: e.AppenderEffect) -> str:
        match effect:
            case e.SendWave(wave, copyset):
                return f"store wave {wave} on {w.show_nodes(copyset)}"
            case e.Reply():
                return "appended"
            case e.Retire():
                return "retire"
            case e.DropCopies(nodes, wave):
                return f"delete wave {wave} on {w.show_nodes(nodes)}"
            case e.StartTimer(number, ms):
                self._timer = number
                return f"timer {ms} ms"
            case e.NeedCopyset(than):
                return f"need copyset other than {w.show_nodes(than) or 'none'}"
            case e.Complete(is_short):
                return "complete without a leader" if is_short else "complete"
            case e.GiveUp():
                return "give up"
            case _:
                assert_never(effect)
