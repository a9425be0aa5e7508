"""What no log can be asked for is refused before anything is sent, in the words of the mistake."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millrace.client import Log
from millrace.errors import UsageError
from millrace.local import LocalCluster
from tests.support.clusters import connected, run
from tests.support.load import read_all

PATHS = ["chain", "sequenced", "commit"]

REFUSED: dict[str, tuple[Callable[[Any], Awaitable[object]], str]] = {
    "get 0": (lambda log: log.get(0), "no record is at 0: positions begin at 1"),
    "get '0'": (lambda log: log.get("0"), "no record is at 0"),
    "get -1": (lambda log: log.get(-1), "-1 is not a position"),
    "text as many": (lambda log: log.append_many("abc"), "values are many, .* not str"),
    "bytes as many": (lambda log: log.append_many(b"abc"), "values are many, .* not bytes"),
    "a number as many": (lambda log: log.append_many(3), "values are many, .* not int"),
    "many texts": (lambda log: log.append_many([b"a", "b"]), "values are bytes, and one is str"),
    "texts as keys": (
        lambda log: log.append_many([b"a"], keys=["k"]),
        "keys are bytes, and one is str",
    ),
    "no time": (lambda log: log.append(b"a", timeout_ms=0), "timeout_ms=0"),
    "no time for many": (lambda log: log.append_many([b"a"], timeout_ms=0), "timeout_ms=0"),
    "no time for a table": (lambda log: log.append_table(None, timeout_ms=-1), "timeout_ms=-1"),
    "no time to resume": (lambda log: log.resume(None, timeout_ms=0), "timeout_ms=0"),
}


@pytest.mark.parametrize("write_path", PATHS)
def test_mistakes_append_nothing(three_nodes: LocalCluster, write_path: str) -> None:
    async def body() -> None:
        async with connected(three_nodes) as client:
            log = await client.create_log(f"refusing-{write_path}", write_path=write_path)
            for call, words in REFUSED.values():
                with pytest.raises(UsageError, match=words):
                    await call(log)
            assert await log.peek() == before_all(log)

    run(body())


def before_all(log: Log) -> int:
    """What `peek` says of an empty log: a sequenced one has an epoch already."""
    return 1 << 32 if log.is_sequenced else 0


@pytest.mark.parametrize("write_path", PATHS)
def test_many_are_any_iterable(three_nodes: LocalCluster, write_path: str) -> None:
    async def body() -> None:
        async with connected(three_nodes) as client:
            log = await client.create_log(f"iterated-{write_path}", write_path=write_path)
            letters = {b"a": 1, b"b": 2}
            await log.append_many((letter for letter in letters), keys=letters.keys())
            others: list[Any] = [bytearray(b"c"), memoryview(b"d")]
            await log.append_many(others)
            assert list((await read_all(log)).values.values()) == [b"a", b"b", b"c", b"d"]

    run(body())
