"""Where words go: data to stdout, everything said about it to stderr.

I1  Without a terminal there is no colour, no progress bar and no line cut to a width.
I2  JSON is one object or array, its fields in the order in which they are documented.
"""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress

PIPE_COLUMNS = 10_000  # Wider than any row: whoever reads a pipe wants whole lines.


class Format(Enum):
    TABLE = "table"
    JSON = "json"


class Tone(Enum):
    """How a cell or a line looks on a terminal; the word itself always says the same."""

    PLAIN = ""
    GOOD = "green"
    WARNING = "yellow"
    BAD = "bold red"
    FAINT = "dim"


class Cell(msgspec.Struct, frozen=True):
    text: str
    tone: Tone = Tone.PLAIN


class Output:
    def __init__(self, format: Format = Format.TABLE, *, color: bool = True) -> None:
        self.format = format
        self._has_color = color

    @property
    def is_json(self) -> bool:
        return self.format is Format.JSON

    # -- Data ---------------------------------------------------------------------------------

    def json(self, value: Any) -> None:
        document = msgspec.json.format(msgspec.json.encode(plain(value)), indent=2)
        self.write(document + b"\n")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str | int | Cell]]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for heading in headings:
            table.add_column(heading, no_wrap=True)
        for row in rows:
            cells = [cell if isinstance(cell, Cell) else Cell(str(cell)) for cell in row]
            table.add_row(*(Text(cell.text, style=cell.tone.value) for cell in cells))
        console = self._console(sys.stdout)
        if sys.stdout.isatty():
            console.print(table)
            return
        with console.capture() as captured:
            console.print(table)
        for line in captured.get().splitlines():
            print(line.rstrip())

    def line(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        self._styled(sys.stdout, text, tone)

    def write(self, data: bytes) -> None:
        """All of it: without a buffer (PYTHONUNBUFFERED) a pipe takes a part at a time."""
        left = memoryview(data)
        while left:
            left = left[sys.stdout.buffer.write(left) :]

    def flush(self) -> None:
        sys.stdout.buffer.flush()

    # -- Messages -----------------------------------------------------------------------------

    def say(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        self._styled(sys.stderr, text, tone)

    @contextmanager
    def progress(
        self, what: str, total: int | None = None, *, is_wanted: bool = True
    ) -> Iterator["Step"]:
        """A bar on stderr while work goes on, if anybody looks at it."""
        if not is_wanted or not sys.stderr.isatty():
            yield Step(None)
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), Elapsed())
        with Progress(*columns, console=self._console(sys.stderr), transient=True) as progress:
            progress.add_task(what, total=total)
            yield Step(progress)

    def live(self, text: Callable[[], str]) -> "Live | None":
        """A line on stderr that is kept up to date, if anybody looks at it."""
        if not sys.stderr.isatty():
            return None
        from rich.live import Live
        from rich.text import Text

        def line() -> Text:
            return Text(text(), no_wrap=True, overflow="ellipsis")

        return Live(console=self._console(sys.stderr), get_renderable=line)

    def _styled(self, file: Any, text: str, tone: Tone) -> None:
        if tone is Tone.PLAIN or not (self._has_color and file.isatty()):
            print(text, file=file)
            return
        from rich.text import Text

        self._console(file).print(Text(text, style=tone.value), soft_wrap=True)

    def _console(self, file: Any) -> "Console":
        from rich.console import Console

        width = None if file.isatty() else PIPE_COLUMNS
        return Console(file=file, width=width, no_color=not self._has_color, highlight=False)


class Step:
    """How far the work is."""

    def __init__(self, progress: "Progress | None") -> None:
        self._progress = progress

    def advance(self, count: int) -> None:
        if self._progress is not None:
            self._progress.advance(self._progress.task_ids[0], count)


def plain(value: Any) -> Any:
    """Every struct as an object with its fields' names, also those that travel as arrays."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _answer(question: str) -> str:
    """A line from the terminal.  Commands run on a loop whose handler of Ctrl-C only makes a note:
    whoever waits here would have to press it twice."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is lost; without a terminal `--yes` is the only way to agree."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nothing was changed: add --yes to go ahead")
    if _answer(question).strip().lower() not in ("y", "yes"):
        import typer

        print("nothing was changed", file=sys.stderr)
        raise typer.Abort
