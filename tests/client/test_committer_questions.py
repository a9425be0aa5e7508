"""What a committer is asked, and what is asked again when it does not answer."""

import asyncio
from typing import Any

import pytest

from millrace.client import committer_questions
from millrace.client.committer_questions import CommitterQuestions
from millrace.core.messages import AddStream, CommitsChanged, Message, SetStreamOpen
from millrace.errors import NoAnswer, NotConnected
from millrace.types import Epoch, LogId, Lsn, StreamId

LOG = LogId(1)


class Committer:
    """The client, the log and its record at once; it does what it is asked, and says so late."""

    name = "events"
    id = LOG
    committer = 1

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error
        self.asked: list[Message] = []

    def check_open(self) -> None:
        pass

    async def refresh(self) -> "Committer":
        return self

    async def ask_node(self, node: int, request: Message, timeout_ms: int) -> Message:
        self.asked.append(request)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return CommitsChanged(Epoch(1), Lsn(0))


async def ask(committer: Committer, request: Message) -> None:
    around: Any = committer
    await CommitterQuestions(around, around, around).ask(request, CommitsChanged, 5_000)


@pytest.fixture(autouse=True)
def nobody_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def awake(self: CommitterQuestions) -> None:
        pass

    monkeypatch.setattr(committer_questions.CommitterQuestions, "wake", awake)


def test_a_stream_that_was_perhaps_added_is_not_added_again() -> None:
    committer = Committer(NoAnswer("it is slow"))
    with pytest.raises(NoAnswer, match="may have been done"):
        asyncio.run(ask(committer, AddStream(LOG)))
    assert len(committer.asked) == 1


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (AddStream(LOG), NotConnected("nobody is there")),
        (SetStreamOpen(LOG, StreamId(1), True), NoAnswer("it is slow")),
    ],
    ids=["certainly not done", "may be done twice"],
)
def test_what_does_no_harm_is_asked_again(request_: Message, error: Exception) -> None:
    committer = Committer(error)
    asyncio.run(ask(committer, request_))
    assert committer.asked == [request_, request_]
