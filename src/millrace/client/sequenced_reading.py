"""Drives the read stream of a sequenced log (`core/reading/`): starts and tells nodes, looks up
where epochs lie, keeps its timer."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, assert_never

from millrace.client.path import ReadingOptions
from millrace.client.senders import Chores, Senders
from millrace.client.status_watch import StatusWatch
from millrace.core.epochs import EpochRange
from millrace.core.messages import Message
from millrace.core.procedure import Failure, FailureKind
from millrace.core.reading.effects import (
    Deliver,
    DeliverGap,
    Fail,
    Finish,
    HealthChanged,
    NeedEpochs,
    SequencedReadEffect,
    SetTimer,
    StartSender,
    TellSender,
)
from millrace.core.reading.settings import SequencedReadSettings
from millrace.core.reading.stream import SequencedReadStream
from millrace.core.statuses import Statuses
from millrace.errors import MetadataUnavailable, MillraceError, UnknownLog, UsageError
from millrace.meta.directory import ClusterDirectory
from millrace.runtime.links import Links
from millrace.types import AuthoritativeStatus, Epoch, Gap, LogId, LogInfo, Lsn, NodeId, Selection


def settings_of(info: LogInfo, settings: ReadingOptions | None) -> SequencedReadSettings:
    """Those that were given, or what the log's attributes say."""
    if isinstance(settings, SequencedReadSettings):
        return settings
    attributes = info.attributes
    if settings is not None:
        kind = attributes.write_path.value
        raise UsageError(f"log {info.name!r} is a {kind} log: give it SequencedReadSettings")
    return SequencedReadSettings(
        is_single_copy=attributes.is_single_copy,
        copyset_order=attributes.copyset_order,
        local_scd=attributes.local_scd,
    )


class WhatIsKnown(Protocol):
    """Which nodes a log's epochs lie on."""

    @property
    def ranges(self) -> tuple[EpochRange, ...]: ...

    @property
    def newest(self) -> Epoch: ...

    @property
    def clean(self) -> Epoch:
        """Up to this one all have ended."""

    @property
    def locations(self) -> Mapping[NodeId, str]: ...

    @property
    def statuses(self) -> Mapping[NodeId, AuthoritativeStatus]: ...


class Whereabouts(Protocol):
    async def known(self, epoch: Epoch) -> WhatIsKnown:
        """Of epochs from this one on.  Raises UnknownLog, MetadataUnavailable."""


class SequencedReading:
    def __init__(
        self,
        log: LogId,
        first: Lsn,
        end: Lsn,
        links: Links,
        directory: ClusterDirectory,
        history: Whereabouts,
        settings: SequencedReadSettings | None,
        name: str,
        selection: Selection | None,
        seed: int = 0,
        location: str = "",
        watch: StatusWatch | None = None,
        is_dense: bool = False,
    ) -> None:
        self._name = name
        self._watch = watch or StatusWatch(directory)
        self._history = history
        self._senders = Senders(links, directory, self._arrived, self._lost)
        self._chores = Chores(self._timer_fired, self._failed)
        self._loop = asyncio.get_running_loop()
        self.stream = SequencedReadStream(
            log,
            self._senders.number,
            first,
            end,
            settings,
            selection,
            seed,
            location,
            is_dense=is_dense,
        )
        self._is_healthy = True
        self._deliver: Callable[[Deliver | Gap], None]
        self._finish: Callable[[BaseException | None], None]

    def open(
        self,
        deliver: Callable[[Deliver | Gap], None],
        finish: Callable[[BaseException | None], None],
    ) -> None:
        """Begin.  `finish` hears that nothing more comes, and what is to blame if not the end."""
        self._deliver = deliver
        self._finish = finish
        self._watch.listen(self._statuses_changed)
        self._perform(self.stream.open(self._now_ms()))

    @property
    def next_lsn(self) -> Lsn:
        return self.stream.next_lsn

    @property
    def is_served(self) -> bool:
        return self._is_healthy

    @property
    def bytes_received(self) -> int:
        return self.stream.receiver.received.bytes

    @property
    def bytes_delivered(self) -> int:
        return self.stream.delivery.bytes_delivered

    def explain(self) -> dict[str, object]:
        return self.stream.explain()

    def took(self, size_bytes: int) -> None:
        self._perform(self.stream.took(size_bytes, self._now_ms()))

    def stop(self) -> None:
        self._watch.forget(self._statuses_changed)
        self._perform(self.stream.stop())
        self._chores.cancel()

    async def close(self) -> None:
        self.stop()
        self._senders.close()
        await self._chores.close()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _perform(self, effects: list[SequencedReadEffect]) -> None:
        for effect in effects:
            match effect:
                case Deliver():
                    self._deliver(effect)
                case TellSender(node, message):
                    self._senders.tell(node, message)
                case DeliverGap(gap):
                    self._deliver(gap)
                case SetTimer(ms):
                    self._chores.set_timer(ms)
                case StartSender(node, start):
                    is_wanted = partial(self.stream.is_current, node, start.version)
                    self._chores.spawn(self._senders.start(node, start, is_wanted))
                case NeedEpochs(epoch):
                    self._chores.spawn(self._look_up(epoch))
                case HealthChanged(is_healthy):
                    self._is_healthy = is_healthy
                case Finish():
                    self._end(None)
                case Fail():
                    self._end(UnknownLog(f"log {self._name} was deleted"))
                case _:
                    assert_never(effect)

    def _end(self, error: MillraceError | None) -> None:
        self._watch.forget(self._statuses_changed)
        self._chores.cancel_timer()
        self._senders.close()
        self._finish(error)

    def _failed(self, error: BaseException) -> None:
        self._finish(error)

    def _arrived(self, node: NodeId, message: Message | Failure) -> None:
        self._perform(self.stream.arrived(node, message, self._now_ms()))

    def _lost(self, node: NodeId) -> None:
        self._perform(self.stream.lost(node, self._now_ms()))

    def _statuses_changed(self, statuses: Statuses) -> None:
        self._perform(self.stream.statuses_changed(statuses, self._now_ms()))

    def _timer_fired(self) -> None:
        self._perform(self.stream.timer_fired(self._now_ms()))

    async def _look_up(self, epoch: Epoch) -> None:
        """The stream asks again when there is no answer, or none that helps."""
        try:
            known = await self._history.known(epoch)
        except (MetadataUnavailable, UnknownLog) as error:
            is_gone = isinstance(error, UnknownLog)
            kind = FailureKind.UNKNOWN_LOG if is_gone else FailureKind.METADATA
            failed = self.stream.epochs_failed(Failure(kind, str(error)), self._now_ms())
            self._perform(failed)
            return
        self._perform(
            self.stream.epochs_known(
                known.ranges,
                known.newest,
                known.locations,
                known.statuses,
                self._now_ms(),
                known.clean,
            )
        )
