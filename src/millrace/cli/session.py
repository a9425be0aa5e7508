"""What every command shares: which cluster, how long to wait, how to print.

The cluster is the one named by `--cluster`, by `MILLRACE_CLUSTER`, or the local one that
`millrace dev up` made in this folder, in that order.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import typer

from millrace.cli.output import Format, Output
from millrace.cli.quantities import parse_duration_ms, parse_size_bytes, show_duration
from millrace.errors import TimedOut, UsageError

if TYPE_CHECKING:
    from millrace.client import Client

T = TypeVar("T")

TIMEOUT_MS: Final = 10_000
DEV_FOLDER: Final = Path(".millrace/dev")
DEV_VARIABLE: Final = "MILLRACE_DEV"
CLUSTER_VARIABLE: Final = "MILLRACE_CLUSTER"

FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="How to print the answer: table or json.", show_default="table"),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class Session(msgspec.Struct):
    """The global options, as given."""

    cluster: str = ""
    timeout_ms: int = TIMEOUT_MS
    format: Format = Format.TABLE
    color: bool = True

    def output(self, format: Format | None = None) -> Output:
        return Output(format or self.format, color=self.color)

    def addresses(self) -> list[str]:
        if self.cluster:
            return self.cluster.split(",")
        if (dev_folder() / "cluster.json").exists():
            from millrace.local import LocalCluster

            return LocalCluster.open(dev_folder()).addresses
        raise UsageError(
            "which cluster?  Give --cluster host:port, set MILLRACE_CLUSTER, or start a local "
            "one here with `millrace dev up`"
        )

    @asynccontextmanager
    async def connected(self) -> "AsyncIterator[Client]":
        from millrace.client import connect

        client = await connect(self.addresses(), timeout_ms=self.timeout_ms)
        try:
            yield client
        finally:
            await client.close()

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """For questions, which may be given up at any moment."""
        try:
            async with asyncio.timeout(self.timeout_ms / 1000):
                return await work
        except TimeoutError:
            raise TimedOut(
                f"no answer within {show_duration(self.timeout_ms)}; `millrace cluster status` "
                "shows what is wrong, --timeout waits longer"
            ) from None


def session_of(context: typer.Context) -> Session:
    session = context.find_object(Session)
    assert session is not None
    return session


def run_async(work: Coroutine[Any, Any, T]) -> T:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def dev_folder() -> Path:
    """Where the local cluster lives; absolute, because nodes outlive this process."""
    return Path(os.environ.get(DEV_VARIABLE) or DEV_FOLDER).absolute()


def duration_ms(text: str) -> int:
    return _checked(parse_duration_ms, text)


def size_bytes(text: str) -> int:
    return _checked(parse_size_bytes, text)


def position(text: str) -> str:
    """As it was written: what it stands for depends on the log."""
    from millrace.client.positions import parse

    _checked(parse, text)
    return text


def to_bytes(text: str) -> bytes:
    """An argument as it was typed, also when it is not UTF-8."""
    return text.encode(errors="surrogateescape")


def _checked(parse: Callable[[str], T], text: str) -> T:
    """A wrong option is a wrong command line."""
    try:
        return parse(text)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error
