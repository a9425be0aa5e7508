"""From documents to rows: the user's map function, and what becomes of a document it cannot take.

    def map(document): yield document["country"], document["total"]
    def map(document, key): ...                     # with the document's key
    def map(frame): ...                             # pandas: see `PandasMap`

A document that is not JSON, a function that raises, a key or value that is none: each is a Failure
of that one document, which stops the view or is set aside, as the user asked.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
import pandas as pd

from millrace.spark.pipelines.view.documents import NO_ROWS, Failure, pack_rows
from millrace.spark.pipelines.view.functions import FunctionName, place_of
from millrace.spark.pipelines.view.groups import VIEW_KEY_BYTES_MAX
from millrace.spark.pipelines.view.order import encode
from millrace.spark.pipelines.view.reduces import Reduce

Mapped = bytes | Failure  # The rows of a document, packed, or why there are none.


class Map(Protocol):
    def rows(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[Mapped]:
        """Of each document, in order."""
        ...


class PythonMap:
    """A function of one document, called for each."""

    def __init__(self, name: FunctionName, reduce: Reduce) -> None:
        self._function = name.load()
        self._has_key = _parameters(self._function) > 1
        self._reduce = reduce

    def rows(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[Mapped]:
        function, decode, has_key = self._function, msgspec.json.decode, self._has_key
        encode_value = self._reduce.encode
        mapped: list[Mapped] = []
        for key, value in zip(keys, values, strict=True):
            try:
                document = decode(value)
                emitted = function(document, text_of(key)) if has_key else function(document)
                rows: list[bytes] = []
                for view_key, view_value in emitted or ():
                    rows.append(encode_view_key(view_key))
                    rows.append(encode_value(view_value))
                mapped.append(pack_rows(rows))
            except Exception as error:  # Whatever the user's function does.
                mapped.append(_failure(key, error, function))
        return mapped


class PandasMap:
    """A function of a frame: a row for each document, a column for each name in them, indexed by
    the documents' keys.  It gives a frame with the columns `key` and `value` whose index says
    which document each row is of."""

    def __init__(self, name: FunctionName, reduce: Reduce) -> None:
        self._function = name.load()
        self._reduce = reduce

    def rows(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[Mapped]:
        mapped: list[Mapped] = [NO_ROWS] * len(keys)
        documents: dict[int, Any] = {}
        for at, value in enumerate(values):
            try:
                documents[at] = msgspec.convert(msgspec.json.decode(value), dict[str, Any])
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                mapped[at] = Failure(keys[at], f"it is no JSON object: {error}")
        try:
            self._map(keys, documents, mapped)
        except Exception as error:  # Whatever the user's function does: whose fault is it?
            self._map_apart(keys, documents, mapped, error)
        return mapped

    def _map(self, keys: Sequence[bytes], documents: dict[int, Any], mapped: list[Mapped]) -> None:
        """Names are made unique by their place: one document may be there twice."""
        if not documents:
            return
        places = {text_of(keys[at]): at for at in documents}
        frame = pd.DataFrame.from_records(list(documents.values()), index=list(places))
        given = self._function(frame)
        rows: dict[int, list[bytes]] = {}
        for name, view_key, value in zip(given.index, given["key"], given["value"], strict=True):
            if name not in places:
                raise ValueError(f"its frame has a row of {name!r}, which is no document's key")
            encoded = (encode_view_key(_plain(view_key)), self._reduce.encode(_plain(value)))
            rows.setdefault(places[name], []).extend(encoded)
        for at, each in rows.items():
            mapped[at] = pack_rows(each)

    def _map_apart(
        self,
        keys: Sequence[bytes],
        documents: dict[int, Any],
        mapped: list[Mapped],
        error: Exception,
    ) -> None:
        """Halve the documents until those that it fails for stand alone."""
        if len(documents) == 1:
            (at,) = documents
            mapped[at] = _failure(keys[at], error, self._function)
            return
        places = list(documents)
        for half in (places[: len(places) // 2], places[len(places) // 2 :]):
            part = {at: documents[at] for at in half}
            try:
                self._map(keys, part, mapped)
            except Exception as failure:  # As above.
                self._map_apart(keys, part, mapped, failure)


def encode_view_key(key: Any) -> bytes:
    """Raises ValueError or TypeError."""
    encoded = encode(key)
    if len(encoded) > VIEW_KEY_BYTES_MAX or len(msgspec.json.encode(key)) > VIEW_KEY_BYTES_MAX:
        raise ValueError(f"a view key has at most {VIEW_KEY_BYTES_MAX} bytes: {key!r}")
    return encoded


def text_of(key: bytes) -> str:
    """A document's key for people and functions; bytes that are no UTF-8 are written \\xff."""
    return key.decode(errors="backslashreplace")


def split_failures(
    keys: Iterable[bytes], mapped: Iterable[Mapped]
) -> tuple[dict[bytes, bytes], tuple[Failure, ...]]:
    """The rows of each document, and which failed: those have no rows."""
    documents: dict[bytes, bytes] = {}
    failures: list[Failure] = []
    for key, each in zip(keys, mapped, strict=True):
        if isinstance(each, Failure):
            failures.append(each)
            each = NO_ROWS
        documents[key] = each
    return documents, tuple(failures)


def _failure(key: bytes, error: Exception, function: Callable[..., Any]) -> Failure:
    if isinstance(error, msgspec.DecodeError):
        return Failure(key, f"it is no JSON: {error}")
    return Failure(key, place_of(error, function))


def _parameters(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    return sum(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters
    )


def _plain(value: Any) -> Any:
    """pandas says NaN where a document has nothing."""
    return None if isinstance(value, float) and value != value else value
