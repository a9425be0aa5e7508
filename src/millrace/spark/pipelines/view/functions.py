"""The user's own functions: found by name, and when they raise, told where.

`module:function` is imported, `path/to/file.py:function` is read from the file.  Workers find them
as the driver did: files by their absolute path, modules also below the folder the driver ran in.
"""

import functools
import hashlib
import importlib
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from millrace.errors import UsageError


class FunctionName(msgspec.Struct, frozen=True):
    """`option` is what it was given as, for messages."""

    option: str
    place: str  # A module, or an absolute path.
    name: str
    folder: str  # Where else modules are looked for.

    def load(self) -> Callable[..., Any]:
        """Raises UsageError."""
        return _load(self)

    def digest(self) -> str:
        """Of its text: another one is another function."""
        return hashlib.sha256(inspect.getsource(self.load()).encode()).hexdigest()


def function_name(option: str, text: str, folder: Path) -> FunctionName:
    """Raises UsageError if it is none."""
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise UsageError(
            f"{option} = {text!r} names no function: write module:function or file.py:function"
        )
    if place.endswith(".py"):
        place = str((folder / place).resolve())
    return FunctionName(option, place, name, str(folder))


def place_of(error: BaseException, function: Callable[..., Any]) -> str:
    """`KeyError: 'x' (shop.py, line 12: return doc["x"])`: where in the user's code."""
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(inspect.unwrap(function), "__code__", None)
    own = [frame for frame in frames if file is not None and frame.filename == file.co_filename]
    if not own:
        return text
    linecache.checkcache(own[-1].filename)
    return f"{text} ({Path(own[-1].filename).name}, line {own[-1].lineno}: {own[-1].line})"


@functools.lru_cache(maxsize=64)
def _load(wanted: FunctionName) -> Callable[..., Any]:
    try:
        module = _module(wanted)
    except Exception as error:  # Whatever the user's module does when it is imported.
        raise UsageError(
            f"{wanted.option}: {wanted.place} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, wanted.name, None)
    if not callable(found):
        raise UsageError(f"{wanted.option}: {wanted.place} has no function {wanted.name}")
    return found  # type: ignore[no-any-return]


def _module(wanted: FunctionName) -> ModuleType:
    if not wanted.place.endswith(".py"):
        if wanted.folder not in sys.path:
            sys.path.append(wanted.folder)
        return importlib.import_module(wanted.place)
    name = f"millrace_user_{hashlib.sha256(wanted.place.encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, wanted.place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # As an import does: pickled objects name their module.
    spec.loader.exec_module(module)
    return module
