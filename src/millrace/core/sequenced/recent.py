"""What the newest appends were answered, so that a client that did not hear it may ask again (L6).

I1  An append that was answered gets the same answer as long as its token is among the newest.
I2  That an append was never answered is said only while no token has been forgotten.
"""

from millrace.core.messages import Message
from millrace.types import NO_TOKEN, Token


class RecentAnswers:
    def __init__(self, tokens_max: int) -> None:
        self._tokens_max = tokens_max
        self._answers: dict[Token, Message] = {}  # Oldest first.
        self.has_forgotten = False

    def remember(self, token: Token, answer: Message) -> Message | None:
        """The answer that is forgotten for it."""
        if token == NO_TOKEN:
            return None
        self._answers[token] = answer
        if len(self._answers) <= self._tokens_max:
            return None
        self.has_forgotten = True
        return self._answers.pop(next(iter(self._answers)))

    def to(self, token: Token) -> Message | None:
        return self._answers.get(token)

    def can_tell(self, token: Token) -> bool:
        """Whether a token without an answer never had one (I2)."""
        return token != NO_TOKEN and not self.has_forgotten
