"""What a restore remembers in its folder, so that it can be killed and begun again.

I1  A log or bucket that the restore made, or found empty, is noted before anything is written to
    it: what is in one that is noted came from here, and what is in any other did not.
"""

import secrets
from pathlib import Path
from typing import Final

import msgspec

from millrace.errors import UsageError
from millrace.spark.pipelines.whole_files import write_whole

FILE: Final = "restore.json"


class RestoreState(msgspec.Struct):
    """`asked` is what this restore was begun for: another one needs another home."""

    id: str  # In the names of its publications.
    asked: dict[str, str]
    logs: dict[str, int] = {}  # Ids in the target, by name.
    buckets: dict[str, int] = {}


class StateFile:
    def __init__(self, folder: Path, asked: dict[str, str]) -> None:
        self._path = folder / FILE
        if self._path.exists():
            self.state = msgspec.json.decode(self._path.read_bytes(), type=RestoreState)
        else:
            self.state = RestoreState(secrets.token_hex(8), asked)
            self._write()
        if self.state.asked != asked:
            raise UsageError(
                f"{folder} belongs to a restore of {self.state.asked}: give this one another home"
            )

    def note_log(self, name: str, number: int) -> None:
        self.state.logs[name] = number
        self._write()

    def note_bucket(self, name: str, number: int) -> None:
        self.state.buckets[name] = number
        self._write()

    def _write(self) -> None:
        write_whole(self._path, msgspec.json.encode(self.state))
