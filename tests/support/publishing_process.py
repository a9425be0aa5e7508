"""A process that publishes versions in several logs, one after the other; made to be killed.

Each row says its version and its process, so that rows of two attempts can be told apart.
"""

import asyncio
import os
import sys

import pyarrow as pa
import uvloop

from millrace.client import Client, connect

ROWS = 20


async def publish_for_ever(addresses: str, app: str, logs: list[str]) -> None:
    client = await connect(addresses)
    last = await client.publications.last(app)
    version = 0 if last is None else last + 1
    print("publishing", flush=True)
    while True:
        await publish(client, app, logs, version)
        version += 1


async def publish(client: Client, app: str, logs: list[str], version: int) -> None:
    rows = [f"{version} {os.getpid()} {number}".encode() for number in range(ROWS)]
    stages = (client.publications.stage(log, pa.table({"value": rows})) for log in logs)
    await client.publications.publish(app, version, await asyncio.gather(*stages))


if __name__ == "__main__":
    addresses, app, *logs = sys.argv[1:]
    uvloop.run(publish_for_ever(addresses, app, logs))
