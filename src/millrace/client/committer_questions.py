"""What is asked of a log's committer, whoever that is by now."""

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from millrace.client.asking import ask_until
from millrace.client.commit_records import CommitRecords
from millrace.core.commit.append import wake_committer
from millrace.core.messages import AddStream, Message, MoveReplica, Redirected, Refusal, Refused
from millrace.core.procedure import DeadlinePassed
from millrace.errors import NoAnswer, Unavailable, UsageError
from millrace.types import LogInfo, NodeId

if TYPE_CHECKING:
    from millrace.client.cluster import Client

ASK_TIMEOUT_MS: Final = 3_000
PAUSE_S: Final = 0.05
ONCE: Final = (AddStream, MoveReplica)  # Asked again they would be done twice, or be refused.

M = TypeVar("M", bound=Message)


class CommitterQuestions:
    def __init__(self, client: "Client", info: LogInfo, records: CommitRecords) -> None:
        self._client = client
        self._info = info
        self._records = records
        self._trouble = "nobody has answered yet"

    async def ask(self, request: Message, kind: type[M], timeout_ms: int) -> M:
        """Raises UsageError if the committer says that it cannot be."""

        def complaint() -> str:
            name, why = self._info.name, self._trouble
            return f"log {name!r}: no committer has answered within {timeout_ms} ms: {why}"

        ask_once = partial(self._ask_once, request)
        return await ask_until(ask_once, kind, timeout_ms, PAUSE_S, complaint)

    async def _ask_once(self, request: Message) -> Message | None:
        """None: ask again."""
        self._client.check_open()
        record = await self._records.refresh()
        node: NodeId = record.committer
        for _ in range(2):
            if not node:
                break
            try:
                answer = await self._client.ask_node(node, request, ASK_TIMEOUT_MS)
            except Unavailable as error:
                if isinstance(request, ONCE) and not error.is_definite:
                    name = self._info.name
                    raise NoAnswer(
                        f"log {name!r}: it may have been done, `millrace stream ls {name}` shows "
                        f"it: {error}"
                    ) from error
                self._trouble = str(error)
                break
            if isinstance(answer, Refused):
                if answer.reason is Refusal.BAD_REQUEST:
                    raise UsageError(f"log {self._info.name!r}: {answer.detail}")
                self._trouble = answer.detail
                break
            if not isinstance(answer, Redirected):
                return answer
            node = answer.node
        await self.wake()
        return None

    async def wake(self) -> None:
        """Somebody shall be the committer."""
        streams = self._client.streams
        procedure = wake_committer(self._info.id, self._records.record, streams)
        try:
            await self._client.runner.run(procedure, ASK_TIMEOUT_MS)
        except DeadlinePassed:
            return
