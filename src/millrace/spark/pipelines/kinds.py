"""The kinds of pipelines that can be run by name.

Each is a package beside this module that exports its settings, `ViewSettings`, and its function,
`run_view`.  It is imported when it is asked for: commands that only list pipelines, and nodes, do
without PySpark, pandas and what else a pipeline needs.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millrace.errors import Unavailable, UsageError


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    summary: str
    module: str
    settings_name: str
    run_name: str
    is_endless: bool = True  # Whether it goes on until it is stopped.

    @property
    def settings(self) -> type[msgspec.Struct]:
        exported: type[msgspec.Struct] = self._exported(self.settings_name)
        return exported

    @property
    def run(self) -> Callable[[Any, Any], None]:
        exported: Callable[[Any, Any], None] = self._exported(self.run_name)
        return exported

    def _exported(self, name: str) -> Any:
        try:
            return getattr(importlib.import_module(self.module), name)
        except ModuleNotFoundError as error:
            if error.name and self.module.startswith(error.name):
                raise UsageError(f"there is no module {self.module} for the pipeline") from None
            raise Unavailable(
                f"the pipeline {self.name} needs the Python package {error.name}: "
                "`pip install '.[pipelines]'` in a clone of Millrace"
            ) from None
        except AttributeError:
            raise UsageError(f"{self.module} has no {name}, which a pipeline needs") from None


def _kind(name: str, summary: str, module: str = "", *, is_endless: bool) -> Kind:
    place = module or f"millrace.spark.pipelines.{name}"
    settings_name = f"{name.title().replace('_', '')}Settings"
    return Kind(name, summary, place, settings_name, f"run_{name}", is_endless)


KINDS: Final = {
    kind.name: kind
    for kind in (
        _kind("view", "Keep a map/reduce of a bucket up to date.", is_endless=True),
        _kind("search", "Keep a full-text index of a bucket's documents.", is_endless=True),
        _kind("copy", "Copy a bucket to another cluster, one way or both.", is_endless=True),
        _kind("backup", "Save logs and buckets as Parquet files.", is_endless=False),
        _kind("restore", "Bring a backup into a cluster.", is_endless=False),
        _kind("audit", "Check every copy of every block of all logs.", is_endless=False),
    )
}


def kind_named(name: str) -> Kind:
    """One of the kinds, or one's own: `module:name` is `run_name` and `NameSettings` there."""
    if name in KINDS:
        return KINDS[name]
    module, colon, own = name.partition(":")
    if not colon:
        raise UsageError(
            f"there is no kind of pipelines {name!r}: there are {', '.join(KINDS)}, and your own, "
            "written module:name"
        )
    return _kind(own, "", module, is_endless=True)
