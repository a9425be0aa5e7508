"""Logs by name, as they are now: a process of Spark lives long, and so does what it has opened."""

from millrace.client.cluster import Client
from millrace.client.log import Log
from millrace.errors import UnknownLog
from millrace.types import LogId


async def open_log(client: Client, name: str, number: LogId | None = None) -> Log:
    """Raises UnknownLog, also if the log of this name is not the one with this number.  Who writes
    and serves it is looked up anew."""
    known = await client.find_log(name)
    if known is not None:
        client.forget(known)
    log = await client.log(name)
    if number not in (None, log.info.id):
        raise UnknownLog(f"log {name!r} was deleted and made anew meanwhile: try again")
    return log
