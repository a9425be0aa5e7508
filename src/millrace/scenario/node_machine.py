"""Machines `chain-node`, `sequencer` and `send-streams`: one node's core, effect by effect.

The effects are printed, and performed on a store in memory, so that the node can be restarted.
Nothing settles by itself: `settled N` says that what stood before settle N is safe.
"""

from typing import assert_never

from millrace.core import effects as e
from millrace.core.log_state import Fence
from millrace.core.messages import Refusal, Standing
from millrace.core.node import NodeCore
from millrace.errors import BadScenario
from millrace.scenario import speech
from millrace.scenario import words as w
from millrace.scenario.machine import Command, Machine, Setting
from millrace.scenario.memory_store import MemoryStore
from millrace.scenario.text import Words
from millrace.types import NO_TOKEN, Ack, Epoch, Lsn, Placement

SESSION = 1
_CHAIN_WORDS = (
    "write",
    "fill",
    "read",
    "trim",
    "seal",
    "admit",
    "index",
    "fetch",
    "find-time",
    "find-size",
    "weigh",
    "describe",
    "drop",
    "learn",
    "begin-learn",
    "revise",
)
_STREAM_WORDS = ("start", "window", "stop")
_SEQUENCER_WORDS = ("bootstrap", "next", "peek")


class NodeMachine(Machine):
    words: tuple[str, ...] = _CHAIN_WORDS

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._store.set_fence(w.LOG, Fence(Epoch(1), NO_TOKEN, Standing.MEMBER))
        self._store.flush()
        self._core = NodeCore(self._store.state)
        self._settles: dict[int, e.Settle] = {}
        self._sending: dict[int, e.SendBlocks] = {}

    def settings(self) -> list[Setting]:
        return [
            Setting("fence epoch E [member|blank|dirty]", self._set_fence),
            Setting("holds BLOCK...", self._set_blocks),
            Setting("trimmed LSN", self._set_trim),
        ]

    def commands(self) -> list[Command]:
        requests = [Command(speech.BY_WORD[word].usage, self._request(word)) for word in self.words]
        return [
            *requests,
            Command("settled N", self._settled),
            Command("store-failed N REASON", self._store_failed),
            Command("refuse-writes REASON|none", self._refuse_writes),
            Command("restart", self._restart),
            Command("state", self._state),
        ]

    # -- Set-up -------------------------------------------------------------------------------

    def _set_fence(self, words: Words) -> None:
        if not words.option("epoch"):
            words.fail("expected epoch E")
        epoch = Epoch(words.number("an epoch"))
        standing = Standing.MEMBER
        if words:
            standing = words.parse("member, blank or dirty", Standing)
        self._store.set_fence(w.LOG, Fence(epoch, NO_TOKEN, standing))
        self._store.flush()

    def _set_blocks(self, words: Words) -> None:
        while words:
            block = words.parse("a block such as 5=x", w.parse_block)
            self._store.put(block, Placement(()), Ack.DISK)
        self._store.flush()

    def _set_trim(self, words: Words) -> None:
        self._store.trim(w.LOG, Lsn(words.number("a position")))
        self._store.flush()

    # -- Commands -----------------------------------------------------------------------------

    def _request(self, word: str) -> "_Request":
        return _Request(self, word)

    def ask(self, words: Words) -> list[str]:
        message = speech.take_message(words)
        return self._perform(self._core.handle((SESSION, 1), message))

    def _settled(self, words: Words) -> list[str]:
        settle = self._take_settle(words)
        self._store.barrier(settle.ack, lambda failed: None)
        self._store.run()
        return self._perform(self._core.settled(settle))

    def _store_failed(self, words: Words) -> list[str]:
        settle = self._take_settle(words)
        reason = words.parse("a reason such as disk_full", Refusal)
        self._store.fail_next(reason)
        self._store.barrier(settle.ack, lambda failed: None)
        self._store.run()
        return self._perform(self._core.store_failed(settle, reason, ""))

    def _take_settle(self, words: Words) -> e.Settle:
        number = words.number("the number of a settle")
        settle = self._settles.pop(number, None)
        if settle is None:
            words.fail(f"no settle {number} waits; waiting: {sorted(self._settles)}")
        return settle

    def _refuse_writes(self, words: Words) -> list[str]:
        word = words.peek()
        if words.option("none"):
            self._core.refuse_writes = None
        else:
            self._core.refuse_writes = words.parse("a reason or none", Refusal)
        return [f"refuses writes: {word}"]

    def _restart(self, words: Words) -> list[str]:
        self._store.crash()
        self._core = NodeCore(self._store.state)
        self._settles.clear()
        self._sending.clear()
        return self._state(words)

    def _state(self, words: Words) -> list[str]:
        chain = self._core.chain(w.LOG)
        taken = chain.taken
        return [
            f"epoch {chain.fence.epoch} {chain.fence.standing.value} trim {taken.trim_end} "
            f"solid {taken.contiguous_end} readable {chain.readable_end} end {taken.end}"
        ]

    # -- Effects ------------------------------------------------------------------------------

    def _perform(self, effects: list[e.NodeEffect]) -> list[str]:
        return [self._perform_one(effect) for effect in effects]

    def _perform_one(self, effect: e.NodeEffect) -> str:
        match effect:
            case e.StoreBlock(block, placement, ack):
                self._store.put(block, placement, ack)
                return f"store {w.show_block(block)} ack {ack.value}"
            case e.Settle():
                self._settles[effect.number] = effect
                return (
                    f"settle {effect.number} {effect.ack.value} then {speech.show(effect.message)}"
                )
            case e.SetFence(log, fence):
                self._store.set_fence(log, fence)
                return (
                    f"fence epoch {fence.epoch} proposer {w.show_token(fence.proposer)} "
                    f"{fence.standing.value}"
                )
            case e.TrimLog(log, end):
                self._store.trim(log, end)
                return f"trim {end}"
            case e.RemoveBlocks(log, firsts):
                self._store.remove(log, firsts)
                return f"remove {','.join(map(str, firsts))}"
            case e.DropLog(log):
                self._store.drop(log)
                return "drop"
            case e.SendBlocks():
                self._sending[effect.stream] = effect
                selection = effect.selection
                return (
                    f"send stream {effect.stream} version {effect.version} "
                    f"{w.show_range(effect.first, effect.end)}"
                    + ("" if selection is None else f" select {w.show_selection(selection)}")
                )
            case (
                e.Scatter()
                | e.SetMarks()
                | e.DeleteCopies()
                | e.AmendCopies()
                | e.AnswerCopies()
                | e.AnswerSequenced()
                | e.AnswerToken()
                | e.AnswerRuns()
                | e.ShipBlocks()
                | e.RunPurge()
            ):
                raise BadScenario(f"{type(effect).__name__} is for sequenced logs")
            case (
                e.CommitRuns()
                | e.Uncommit()
                | e.TruncateLog()
                | e.TrimCommitted()
                | e.AnswerPage()
                | e.AnswerStreamToken()
                | e.ShipCommitted()
                | e.AskReplicate()
                | e.StreamTroubled()
                | e.AskCommitter()
                | e.ReportSoon()
                | e.SetStreamTimer()
                | e.RunSync()
            ):
                raise BadScenario(f"{type(effect).__name__} is for commit logs")
            case _:
                return _show_speaking(effect)


def _show_speaking(
    effect: e.Reply
    | e.Push
    | e.AnswerWritten
    | e.AnswerBlock
    | e.AnswerIndex
    | e.AnswerFetch
    | e.AnswerFind
    | e.AnswerWeigh
    | e.AnswerDescribe
    | e.AnswerInspection
    | e.RunLearn,
) -> str:
    """Effects that only speak: the shell takes what they need from the store."""
    match effect:
        case e.Reply(_, message):
            return f"reply {speech.show(message)}"
        case e.Push(_, message):
            return f"push {speech.show(message)}"
        case e.AnswerWritten():
            return f"reply written-already {w.show_range(effect.first, effect.end)}"
        case e.AnswerBlock():
            return f"reply with the block at {effect.lsn}"
        case e.AnswerIndex():
            marks = f"trim {effect.trim_end} readable {effect.readable_end}"
            return f"reply with the index of {w.show_range(effect.first, effect.end)} {marks}"
        case e.AnswerFetch():
            return f"reply with the blocks of {w.show_range(effect.first, effect.end)}"
        case e.AnswerInspection():
            return f"reply with the copies of {w.show_range(effect.first, effect.end)}"
        case e.AnswerFind():
            wanted = (
                f"time {effect.timestamp_us}"
                if effect.timestamp_us is not None
                else f"size {effect.bytes_kept}"
            )
            return f"reply with the position of {wanted}"
        case e.AnswerWeigh():
            weighed = w.show_range(effect.first, effect.end)
            return f"reply with the weights of {weighed} in {effect.pieces} pieces"
        case e.AnswerDescribe():
            return f"reply with a description epoch {effect.epoch} readable {effect.readable_end}"
        case e.RunLearn():
            sources = w.show_nodes((effect.source, *effect.others))
            return f"run learn epoch {effect.epoch} from {sources}"
        case _:
            assert_never(effect)


class _Request:
    """A message word used as a command: the word belongs to the message, so read it again."""

    def __init__(self, machine: NodeMachine, word: str) -> None:
        self._machine = machine
        self._word = word

    def __call__(self, words: Words) -> list[str]:
        again = Words(words.place, words.text)
        while words:
            words.take("the rest")
        return self._machine.ask(again)


class ChainNodeMachine(NodeMachine):
    name = "chain-node"


class SequencerMachine(NodeMachine):
    name = "sequencer"
    words = _SEQUENCER_WORDS

    def settings(self) -> list[Setting]:
        return []

    def commands(self) -> list[Command]:
        own = {"restart", *_SEQUENCER_WORDS}
        return [command for command in super().commands() if command.word in own]

    def _restart(self, words: Words) -> list[str]:
        super()._restart(words)
        return ["a new sequencer, which remembers nothing"]


class SendStreamsMachine(NodeMachine):
    name = "send-streams"
    words = (*_CHAIN_WORDS, *_STREAM_WORDS)

    def commands(self) -> list[Command]:
        return [
            *super().commands(),
            Command("sent STREAM next LSN bytes N", self._sent),
            Command("damaged STREAM", self._damaged),
            Command("close", self._close),
        ]

    def _sent(self, words: Words) -> list[str]:
        order = self._take_order(words)
        if not words.option("next"):
            words.fail("expected next LSN")
        next_lsn = Lsn(words.number("a position"))
        if not words.option("bytes"):
            words.fail("expected bytes N")
        return self._perform(self._core.sent(order, next_lsn, words.number("bytes")))

    def _damaged(self, words: Words) -> list[str]:
        return self._perform(self._core.broke(self._take_order(words), ""))

    def _close(self, words: Words) -> list[str]:
        self._core.session_closed(SESSION)
        return ["closed"]

    def _take_order(self, words: Words) -> e.SendBlocks:
        number = words.number("the number of a stream")
        order = self._sending.pop(number, None)
        if order is None:
            words.fail(f"nothing is being sent on stream {number}")
        return order
