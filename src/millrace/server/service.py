"""A node's side of its connections: routes each message to the shell, the repository or itself.

Log traffic goes straight to the shell, without a task.  Metadata requests wait for the repository
and so run as tasks, at most a bounded number for a connection (the transport's request limit).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from millrace.core.messages import (
    BeginLearn,
    ClusterDescribed,
    DescribeCluster,
    DescribeNode,
    Message,
    MetaChanged,
    MetaDelete,
    MetaGet,
    MetaGrant,
    MetaKeepAlive,
    MetaList,
    MetaRevoke,
    MetaSet,
    MetaWatch,
    Next,
    NodeDescribed,
    Refusal,
    Refused,
    Revise,
    Stop,
    Window,
    Write,
)
from millrace.errors import Unavailable
from millrace.meta.service import MetadataService, MetadataSession
from millrace.runtime.closing import CloseReason
from millrace.runtime.session import Session
from millrace.server.local import LOCAL_SESSION, LocalRequests
from millrace.server.shell import NodeShell, Release

MetaRequest = (
    MetaGet | MetaSet | MetaDelete | MetaList | MetaWatch | MetaGrant | MetaKeepAlive | MetaRevoke
)


_LOG_TRAFFIC = frozenset({Write, Next})


class NodeService:
    """The transport's handler and the shell's outbox at once."""

    def __init__(
        self,
        metadata: MetadataService,
        describe_cluster: Callable[[], Awaitable[ClusterDescribed]],
        describe_node: Callable[[], NodeDescribed],
    ) -> None:
        self.shell: NodeShell | None = None  # None: the node is still starting.
        self.local = LocalRequests()
        self._metadata = metadata
        self._describe_cluster = describe_cluster
        self._describe_node = describe_node
        self._sessions: dict[int, Session] = {}
        self._meta_sessions: dict[int, MetadataSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        return len(self._sessions)

    # -- Handler ------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        self._sessions[session.id] = session

    def received(self, session: Session, request_id: int, message: Message) -> None:
        if type(message) in _LOG_TRAFFIC and request_id and self.shell is not None:
            self.shell.handle(session.id, request_id, message)  # The hot path.
            return
        if not request_id and not isinstance(message, Window | Stop):
            detail = f"{type(message).__name__} must be a request"
            session.close(CloseReason.PROTOCOL, detail)
            return
        match message:
            case (
                MetaGet()
                | MetaSet()
                | MetaDelete()
                | MetaList()
                | MetaWatch()
                | MetaGrant()
                | MetaKeepAlive()
                | MetaRevoke()
            ):
                self._spawn(self._answer_metadata(session, request_id, message))
            case Stop() if session.id in self._meta_sessions:
                # Streams are numbered once for a process: this one is a watch or a read.
                self._meta_sessions[session.id].stop(message)
                if self.shell is not None:
                    self.shell.handle(session.id, request_id, message)
            case DescribeCluster():
                self._spawn(self._answer_cluster(session, request_id))
            case _ if self.shell is None:
                if request_id:
                    starting = Refused(Refusal.UNAVAILABLE, detail="the node is starting")
                    session.answer(request_id, starting)
            case DescribeNode():
                session.answer(request_id, self._describe_node())
            case BeginLearn() | Revise():
                detail = "a node says this only to itself"
                session.answer(request_id, Refused(Refusal.BAD_REQUEST, detail=detail))
            case _:
                self.shell.handle(session.id, request_id, message)

    def writable(self, session: Session) -> None:
        if self.shell is not None:
            self.shell.writable(session.id)

    def closed(self, session: Session, reason: str) -> None:
        self._sessions.pop(session.id, None)
        if self.shell is not None:
            self.shell.session_closed(session.id)
        meta = self._meta_sessions.pop(session.id, None)
        if meta is not None:
            self._spawn(meta.close())

    # -- Outbox -------------------------------------------------------------------------------

    def answer(
        self, session: int, request: int, message: Message, release: Release | None = None
    ) -> None:
        target = self._sessions.get(session)
        if target is not None and request:
            target.answer(request, message, release)
            return
        if session == LOCAL_SESSION:
            self.local.answer(request, message)
        if release is not None:
            release()

    def push(self, session: int, message: Message, release: Release | None = None) -> None:
        target = self._sessions.get(session)
        if target is not None:
            target.tell(message, release)
        elif release is not None:
            release()

    def is_writable(self, session: int) -> bool:
        target = self._sessions.get(session)
        return target is None or target.is_writable

    def after_others(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    # -- Tasks --------------------------------------------------------------------------------

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_metadata(
        self, session: Session, request_id: int, message: MetaRequest
    ) -> None:
        meta = self._meta_sessions.get(session.id)
        if meta is None:

            async def push(changed: MetaChanged) -> None:
                session.tell(changed)

            meta = self._meta_sessions[session.id] = self._metadata.connect(push)
        session.answer(request_id, await meta.answer(message))

    async def _answer_cluster(self, session: Session, request_id: int) -> None:
        described: Message
        try:
            described = await self._describe_cluster()
        except Unavailable as error:
            described = Refused(Refusal.UNAVAILABLE, detail=str(error))
        session.answer(request_id, described)
