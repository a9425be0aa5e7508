"""Functions that views in tests are given."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

Row = tuple[Any, Any]


def by_city(document: dict[str, Any]) -> Iterator[Row]:
    """One row; documents without a city have none."""
    if "city" in document:
        yield document["city"], document["amount"]


def by_tag(document: dict[str, Any], key: str) -> Iterator[Row]:
    """As many rows as tags, some of them equal."""
    for tag in document.get("tags", ()):
        yield [tag, document["city"]], document["amount"]


def by_city_in_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    """A column that no document of the frame has is not there."""
    frame = frame.reindex(columns=["city", "amount"])
    chosen = frame[frame["city"].notna()]
    return pd.DataFrame({"key": chosen["city"], "value": chosen["amount"]}, index=chosen.index)


def spread(key: Any, values: list[Any]) -> list[Any]:
    """An own reduce that needs all values."""
    return [len(values), max(values), sorted(values)[len(values) // 2]]


def by_city_row_by_row(frame: pd.DataFrame) -> pd.DataFrame:
    """A function of a frame that raises as `by_city` does."""
    rows = [
        (name, document["city"], document["amount"])
        for name, document in frame.iterrows()
        if not (isinstance(document["amount"], float) and document["amount"] != document["amount"])
        or _missing("amount")
    ]
    return pd.DataFrame(rows, columns=["name", "key", "value"]).set_index("name")


def _missing(name: str) -> bool:
    raise KeyError(name)
