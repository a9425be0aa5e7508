"""A node's side of its connections: routes each message to the shell, the repository or itself.

Log traffic goes straight to the shell, without a task.  Metadata requests wait for the repository
and so run as tasks, at most a bounded number for a connection (the transport's request limit).

  I1  A node that is starting answers nothing about logs, and appends to none: until it has settled
      it may not know that it lost blocks, and would vote on them as if it never had them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from millrace.core.messages import (
    Activate,
    ActivateCommitter,
    AddStream,
    AppendBlock,
    AskTail,
    BeginLearn,
    CarryOut,
    ChangeNodeset,
    ClusterDescribed,
    Delete,
    DescribeBuckets,
    DescribeCluster,
    DescribeCommits,
    DescribeNode,
    Drop,
    EmptyBucket,
    GiveUpStream,
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
    MoveReplica,
    Next,
    NodeDescribed,
    Refusal,
    Refused,
    Release,
    Report,
    Revise,
    SealCommits,
    SealLog,
    SetPartitions,
    SetStreamOpen,
    Stop,
    Store,
    TrimCommits,
    Window,
    Write,
)
from millrace.errors import Unavailable
from millrace.meta.service import MetadataService, MetadataSession
from millrace.runtime.closing import CloseReason
from millrace.runtime.session import Session
from millrace.server.committing import Committing
from millrace.server.hosted_committer import CommitterRequest
from millrace.server.local import LOCAL_SESSION, LocalRequests, detached
from millrace.server.partitions.node_documents import DocumentsRequest, NodeDocuments
from millrace.server.sequencing import SequencerRequest, Sequencing
from millrace.server.shell import NodeShell
from millrace.server.shell import Release as ReleaseBlocks

MetaRequest = (
    MetaGet | MetaSet | MetaDelete | MetaList | MetaWatch | MetaGrant | MetaKeepAlive | MetaRevoke
)


_LOG_TRAFFIC = frozenset({Write, Next, Store})
_ONE_WAY = (Window, Stop, Release, Delete)


class NodeService:
    """The transport's handler and the shell's outbox at once."""

    def __init__(
        self,
        metadata: MetadataService,
        describe_cluster: Callable[[], Awaitable[ClusterDescribed]],
        describe_node: Callable[[], NodeDescribed],
    ) -> None:
        self.shell: NodeShell | None = None  # None: the node is still starting.
        self.sequencing: Sequencing | None = None
        self.committing: Committing | None = None
        self.documents: NodeDocuments | None = None
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
        if (
            type(message) is AppendBlock
            and request_id
            and self.sequencing is not None
            and self.shell is not None  # Keeps I1.
        ):
            self.sequencing.handle((session.id, request_id), message)
            return
        if not request_id and not isinstance(message, _ONE_WAY):
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
            case Activate() | AskTail() | AppendBlock() | SealLog() | ChangeNodeset():
                self._sequence(session, request_id, message)
            case (
                Report()
                | ActivateCommitter()
                | DescribeCommits()
                | AddStream()
                | SetStreamOpen()
                | GiveUpStream()
                | MoveReplica()
                | TrimCommits()
                | SealCommits()
            ):
                self._commit(session, request_id, message)
            case DescribeBuckets() | SetPartitions() | CarryOut() | EmptyBucket():
                self.ask_documents(session.id, request_id, message)
            case Drop(log) if self.sequencing is not None:
                self.sequencing.drop(log)
                if self.committing is not None:
                    self.committing.drop(log)
                self.shell.handle(session.id, request_id, message)
            case BeginLearn() | Revise():
                detail = "a node says this only to itself"
                session.answer(request_id, Refused(Refusal.BAD_REQUEST, detail=detail))
            case _:
                self.shell.handle(session.id, request_id, message)

    def _sequence(self, session: Session, request_id: int, message: SequencerRequest) -> None:
        if self.sequencing is not None:
            self.sequencing.handle((session.id, request_id), message)
        else:
            starting = Refused(Refusal.NOT_READY, detail="the node does not sequence logs yet")
            session.answer(request_id, starting)

    def _commit(self, session: Session, request_id: int, message: CommitterRequest) -> None:
        if self.committing is not None:
            self.committing.handle((session.id, request_id), message)
        else:
            starting = Refused(Refusal.NOT_READY, detail="the node does not commit logs yet")
            session.answer(request_id, starting)

    def ask_documents(self, session: int, request_id: int, message: DocumentsRequest) -> None:
        if self.documents is not None:
            self.documents.handle(message, lambda answer: self.answer(session, request_id, answer))
        else:
            absent = Refused(Refusal.NOT_READY, detail="the node has no documents")
            self.answer(session, request_id, absent)

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
        self, session: int, request: int, message: Message, release: ReleaseBlocks | None = None
    ) -> None:
        target = self._sessions.get(session)
        if target is not None and request:
            target.answer(request, message, release)
            return
        if session == LOCAL_SESSION:
            self.local.answer(request, message if release is None else detached(message))
        if release is not None:
            release()

    def push(self, session: int, message: Message, release: ReleaseBlocks | None = None) -> None:
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
