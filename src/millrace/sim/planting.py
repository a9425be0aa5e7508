"""Planting bugs, each of which some checker must catch.

A simulator that finds nothing may be a good sign or a blind one.  Each canary breaks one thing in a
core, a bug that somebody could make; `tests/sim/test_canaries.py` proves that the checkers see it.
A canary that cannot be caught means that a checker is missing.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Canary = Callable[[], AbstractContextManager[None]]
Patch = Callable[[Any, str, Any], None]  # Whose, which name, by what.


class Nursery(dict[str, Canary]):
    """Canaries by name."""

    def plant(self, plant: Callable[[Patch], None]) -> None:
        """Register a canary under its function's name; `plant` is given a function that patches,
        and its docstring says what is wrong."""

        @contextmanager
        def planted() -> Iterator[None]:
            before: list[tuple[Any, str, Any]] = []

            def patch(owner: Any, name: str, value: Any) -> None:
                before.append((owner, name, owner.__dict__[name]))
                setattr(owner, name, value)

            try:
                plant(patch)
                yield
            finally:
                for owner, name, value in reversed(before):
                    setattr(owner, name, value)

        planted.__doc__ = plant.__doc__
        self[plant.__name__] = planted
