"""Said once at the beginning and the end of a connection, and to keep it alive."""

from millrace.core.messages.root import Message
from millrace.types import NodeId


class Hello(Message, frozen=True):
    """First message of both sides.  `auth` is the place for access control, unused so far."""

    version: int
    cluster: str = ""  # name/id; the name or nothing from whoever does not know more yet.
    node: NodeId = NodeId(0)  # 0: not a node.
    location: str = ""
    session: int = 0
    software: str = ""
    auth: bytes = b""


class Ping(Message, frozen=True):
    pass


class Pong(Message, frozen=True):
    pass


class Goodbye(Message, frozen=True):
    """The connection is about to be closed, and why."""

    code: str
    detail: str = ""
