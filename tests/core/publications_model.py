"""Publishers that die, hang and compete, logs whose appends arrive late or never, staged rows that
are trimmed, somebody who gives up what is open, readers that come and go: played by chance, one
step of one of them at a time.

The procedures are the real ones (`core/publishing.py`).  Here are a repository that compares and
sets, logs, and the truth: what each reader has handed out of every position.
"""

import random
from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from millrace.core import publications as rules
from millrace.core import publishing
from millrace.core.publications import ManifestPlace, PublicationRecord, Target
from millrace.core.publishing import (
    AppendBlocks,
    Done,
    Held,
    Look,
    Looked,
    Prepare,
    Prepared,
    ReadRecord,
    ReplaceRecord,
    Settled,
)
from millrace.types import FIRST_LSN, LogId, Lsn

VERSIONS = 4
STEPS_MAX = 4_000
ROWS = 3
COUNTED = (
    "crashes", "take_overs", "late", "notes_of_readers", "lost", "given_up", "begun_again"
)  # fmt: skip


class Content(msgspec.Struct, frozen=True):
    """What somebody staged for a version: another attempt stages anew."""

    version: int
    attempt: int


class PublishedBlock(msgspec.Struct, frozen=True):
    app: str
    content: Content
    mark: int
    first: Lsn
    is_hollow: bool  # Its rows were gone when it was sent.


class Log:
    def __init__(self, id: LogId) -> None:
        self.id = id
        self.blocks: list[PublishedBlock] = []
        self.end = FIRST_LSN

    def take(self, sent: "OnItsWay") -> Lsn:
        first = self.end
        self.blocks.append(PublishedBlock(sent.app, sent.content, sent.mark, first, sent.is_hollow))
        self.end = Lsn(first + ROWS)
        return first


class OnItsWay(msgspec.Struct):
    """An append: it may arrive long after its publisher has stopped waiting, or never."""

    log: Log
    app: str
    content: Content
    mark: int
    is_hollow: bool
    where: Lsn | None = None


class Publisher:
    """One process that publishes one version; it may never take its next step."""

    def __init__(self, world: "World", version: int) -> None:
        self._world = world
        self.app = world.app_of(version)
        self.version = version
        self.content = Content(version, world.next_attempt())
        self.work = publishing.publish(self.app, version, world.marks, 0)
        self.effect = self.work.send(None)
        self.outcome: Any = None
        self._appends: list[OnItsWay] | None = None
        self.relies_on: set[Content] = {self.content}  # Rows that are not gone, as far as it knows.

    def step(self) -> None:
        """Perform what it asked for, if that can be done now."""
        match self.effect:
            case AppendBlocks(record):
                if self._appends is None:
                    self._appends = self._world.send(record)
                    return
                waits = [each for each in self._appends if each.where is None]
                if waits and self._world.chance.random() < 0.8:
                    return  # Otherwise its time is up.
                found = {each.mark: each.where for each in self._appends if each.where}
                self._appends = None
                self._go_on(found)
            case effect:
                self._go_on(self._world.perform(self, effect))

    def _go_on(self, answer: Any) -> None:
        try:
            self.effect = self.work.send(answer)
        except StopIteration as finished:
            self.outcome = finished.value
            self._world.finished(self)


class Trimmer:
    """Gives up what is open in one log; it need not be right that nobody goes on with it."""

    def __init__(self, world: "World", record: PublicationRecord) -> None:
        self._world = world
        self._app = record.app
        self.is_done = False
        log = world.chance.choice(record.open_targets).log
        self._work = publishing.give_up(world.read(record.app), log)
        self._effect: Any = self._work.send(None)

    def step(self) -> None:
        try:
            match self._effect:
                case Look(record):
                    answer: Any = Looked(self._world.found(record), ())
                case ReplaceRecord(record, expected):
                    answer = self._world.replace(self._app, record, expected)
                    self._world.counts["given_up"] += answer > 0
            self._effect = self._work.send(answer)
        except StopIteration:
            self.is_done = True


class Reader:
    """Follows one log from somewhere on."""

    def __init__(self, world: "World", log: Log, at: int) -> None:
        self._world = world
        self.log = log
        self.at = at  # Of the log's blocks.
        self.handed_out: dict[Lsn, Content | None] = {}  # None: a hole.
        self._known: dict[str, PublicationRecord] = {}
        self._work: Generator[Any, Any, Settled] | None = None
        self._effect: Any = None

    def step(self) -> None:
        if self.at >= len(self.log.blocks):
            return
        block = self.log.blocks[self.at]
        try:
            if self._work is None:
                known = self._known.get(block.app)
                version = block.content.version
                self._work = publishing.settle(known, self.log.id, version, block.mark, block.first)
                self._effect = self._work.send(None)
            else:
                self._effect = self._work.send(self._world.answer(block.app, self._effect))
        except StopIteration as finished:
            self._work = None
            self._hand_out(block, finished.value)

    def _hand_out(self, block: PublishedBlock, settled: Settled) -> None:
        if settled.record is not None:
            self._known[block.app] = settled.record
        self.handed_out[block.first] = block.content if settled.is_valid else None
        self.at += 1


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.marks = self._drawn_marks()
        self.logs = [Log(LogId(number)) for number in range(1, self.chance.choice((2, 3, 4)))]
        self.is_once = self.chance.random() < 0.3
        self.records: dict[str, tuple[PublicationRecord, int]] = {}
        self.manifests: list[Content] = []
        self.on_their_way: list[OnItsWay] = []
        self.publishers: list[Publisher] = []
        self.trimmers: list[Trimmer] = []
        self.rows_gone: set[tuple[Content, LogId]] = set()
        self.manifests_gone: set[Content] = set()
        self.begun_again: set[int] = set()  # Their rows may be of two attempts.
        self.skipped: set[int] = set()  # The application did not wait for them.
        self.readers = [Reader(self, log, 0) for log in self.logs]
        self.reported: set[int] = set()
        self.counts = dict.fromkeys(COUNTED, 0)
        self._attempts = 0
        self._repository_version = 0
        self._version = 0
        self._late_share = self.chance.choice((0.02, 0.1, 0.4))
        self._crash_share = self.chance.choice((0.0, 0.02, 0.08))
        self._trim_share = self.chance.choice((0.0, 0.1, 0.25))
        self._skip_share = 0.0 if self.is_once else self.chance.choice((0.0, 0.1))

    def _drawn_marks(self) -> Iterator[int]:
        while True:
            yield self.chance.getrandbits(63)

    def next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts

    def app_of(self, version: int) -> str:
        return f"once-{version}" if self.is_once else "query"

    # -- What publishers and readers ask for ----------------------------------------------------

    def answer(self, app: str, effect: Any) -> Any:
        """Of a reader."""
        if isinstance(effect, ReplaceRecord):
            self.counts["notes_of_readers"] += 1
            return self.replace(app, effect.record, effect.expected)
        return self.read(app)

    def perform(self, publisher: Publisher, effect: Any) -> Any:
        match effect:
            case ReadRecord():
                return self.read(publisher.app)
            case ReplaceRecord(record, expected):
                return self.replace(publisher.app, record, expected)
            case Prepare():
                self.manifests.append(publisher.content)
                place = ManifestPlace("manifests", Lsn(len(self.manifests)))
                targets = tuple(
                    Target(log.id, f"log-{log.id}", ROWS, next(self.marks), log.end)
                    for log in self.logs
                )
                return Prepared(targets, place)
            case Look(record):
                self.counts["take_overs"] += 1
                publisher.relies_on.add(self._content(record))
                found = self.found(record)
                return Looked(found, self.gone(record, found))

    def read(self, app: str) -> Held:
        return Held(*self.records.get(app, (None, 0)))

    def replace(self, app: str, record: PublicationRecord, expected: int) -> int:
        if self.records.get(app, (None, 0))[1] != expected:
            return 0
        self._repository_version += 1
        if expected and self._is_begun_again(self.records[app][0], record):
            self.counts["begun_again"] += 1
            self.begun_again.add(record.version)
        self.records[app] = record, self._repository_version
        return self._repository_version

    def _is_begun_again(self, old: PublicationRecord, new: PublicationRecord) -> bool:
        return (old.app, old.version) == (new.app, new.version) and old.manifest != new.manifest

    def found(self, record: PublicationRecord) -> dict[int, Lsn]:
        """Blocks whose rows are there."""
        blocks = [(log.id, block) for log in self.logs for block in log.blocks]
        marks = {each.mark for each in record.open_targets}
        return {
            block.mark: block.first
            for log, block in blocks
            if block.mark in marks and (block.content, log) not in self.rows_gone
        }

    def gone(self, record: PublicationRecord, found: dict[int, Lsn]) -> set[LogId]:
        content = self._content(record)
        missing = {each.log for each in record.open_targets if each.mark not in found}
        if content in self.manifests_gone:
            return missing
        return {log for log in missing if (content, log) in self.rows_gone}

    def _content(self, record: PublicationRecord) -> Content:
        assert record.manifest is not None
        return self.manifests[record.manifest.lsn - 1]

    def send(self, record: PublicationRecord) -> list[OnItsWay]:
        content = self._content(record)
        sent = []
        for each in record.open_targets:
            is_hollow = (content, each.log) in self.rows_gone
            log = self.logs[each.log - 1]
            sent.append(OnItsWay(log, record.app, content, each.mark, is_hollow))
        self.on_their_way += sent
        return sent

    def finished(self, publisher: Publisher) -> None:
        self.publishers.remove(publisher)
        if isinstance(publisher.outcome, Done):
            # A version that the application skipped may never have been begun.
            is_this = publisher.outcome.record.version == publisher.version
            if is_this or publisher.version not in self.skipped:
                self.reported.add(publisher.version)
            self._version = max(self._version, publisher.version + 1)
            if self.is_once:
                self._forget(publisher.app)

    def _forget(self, app: str) -> None:
        record, _ = self.records.get(app, (None, 0))
        if record is not None and rules.is_removable(record):
            del self.records[app]

    # -- What happens ---------------------------------------------------------------------------

    def happen(self) -> None:
        drawn = self.chance.random()
        if drawn < self._crash_share and self.publishers:
            self.counts["crashes"] += 1
            self.publishers.remove(self.chance.choice(self.publishers))
        elif drawn > 1 - self._trim_share:
            self._trim()
        elif drawn < 0.3:
            self._arrive()
        elif drawn < 0.65:
            self.chance.choice(self.readers).step()
        elif drawn < 0.66:
            log = self.chance.choice(self.logs)
            self.readers.append(Reader(self, log, self.chance.randint(0, len(log.blocks))))
        elif self.publishers and self.chance.random() < 0.9:
            self.chance.choice(self.publishers).step()
        elif self._version < VERSIONS - 1 and self.chance.random() < self._skip_share:
            self.skipped.add(self._version)
            self._version += 1
        elif self._version < VERSIONS and self._may_begin():
            self.publishers.append(Publisher(self, self._version))

    def _trim(self) -> None:
        """Somebody looks after what is open, or rows are lost that nobody goes on with."""
        self.trimmers = [each for each in self.trimmers if not each.is_done]
        opened = [record for record, _ in self.records.values() if record.open_targets]
        drawn = self.chance.random()
        if drawn < 0.5 and self.trimmers:
            self.chance.choice(self.trimmers).step()
        elif drawn < 0.7 and opened:
            self.trimmers.append(Trimmer(self, self.chance.choice(opened)))
        elif drawn > 0.7 and self.manifests:
            in_use = {content for each in self.publishers for content in each.relies_on}
            choice = [self._content(each) for each in opened] or self.manifests
            content = self.chance.choice(choice)
            if content not in in_use:
                self._lose(content)

    def _lose(self, content: Content) -> None:
        self.counts["lost"] += 1
        chosen = self.chance.choice(("rows", "manifest", "all"))
        if chosen != "manifest":
            logs = self.logs if chosen == "all" else [self.chance.choice(self.logs)]
            self.rows_gone |= {(content, log.id) for log in logs}
        if chosen != "rows":
            self.manifests_gone.add(content)

    def _may_begin(self) -> bool:
        """A one-time application has one publisher at a time, or its record could be made again."""
        app = self.app_of(self._version)
        return not self.is_once or all(each.app != app for each in self.publishers)

    def _arrive(self) -> None:
        if self.on_their_way and self.chance.random() > self._late_share:
            append = self.on_their_way.pop(self.chance.randrange(len(self.on_their_way)))
            append.where = append.log.take(append)
            is_awaited = any(append in (each._appends or ()) for each in self.publishers)
            self.counts["late"] += not is_awaited

    def settle_down(self) -> None:
        """Nobody dies any more; all that was sent arrives; what was begun is finished."""
        self._crash_share = self._late_share = self._trim_share = self._skip_share = 0.0
        for _ in range(STEPS_MAX):
            if self._version >= VERSIONS and not self.publishers and not self.on_their_way:
                break
            self.happen()
        self.readers += [Reader(self, log, 0) for log in self.logs]
        while any(reader.at < len(reader.log.blocks) for reader in self.readers):
            for reader in self.readers:
                reader.step()


def play(seed: int) -> list[str]:
    """What is wrong; nothing if all is well."""
    return complaints(played(seed))


def played(seed: int) -> World:
    world = World(seed)
    for _ in range(world.chance.choice((100, 400, 1_000))):
        world.happen()
    world.settle_down()
    return world


def complaints(world: World) -> list[str]:
    found: list[str] = []
    if not world.reported | world.skipped >= set(range(VERSIONS)):
        found.append(f"versions {sorted(world.reported)} were published, of {VERSIONS}")
    finals = world.readers[-len(world.logs) :]  # They came last, and read all.
    truths = {reader.log.id: reader.handed_out for reader in finals}
    for reader in world.readers:
        truth = truths[reader.log.id]
        for first, content in reader.handed_out.items():
            if truth[first] != content:
                found.append(f"log {reader.log.id} at {first}: {content}, later {truth[first]}")
    contents = [[one for one in truth.values() if one is not None] for truth in truths.values()]
    for log, seen in zip(truths, contents, strict=True):
        versions = [one.version for one in seen]
        may_miss = world.skipped - world.reported
        if sorted(set(versions)) != versions or not set(versions) >= world.reported:
            found.append(f"log {log} has versions {versions}, not {sorted(world.reported)}")
        if not set(versions) | may_miss >= set(range(VERSIONS)):
            found.append(f"log {log} has versions {versions}")
    whole = [
        [one for one in seen if one.version not in world.begun_again | world.skipped]
        for seen in contents
    ]
    if any(seen != whole[0] for seen in whole):
        found.append("a version has other rows in one log than in another")
    for log in world.logs:
        truth = truths[log.id]
        hollow = [block for block in log.blocks if block.is_hollow and truth[block.first]]
        if hollow:
            found.append(f"log {log.id}: {hollow} publish rows that were gone")
    return found
