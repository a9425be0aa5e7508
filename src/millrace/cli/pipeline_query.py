"""`millrace pipeline query`: asks a view for its results, a search for what it finds."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from millrace.cli.output import Output
from millrace.cli.pipeline_run import folder_of
from millrace.cli.session import TIMEOUT_MS, FormatOption, session_of
from millrace.errors import StateMismatch, TimedOut, Unavailable, UsageError
from millrace.spark.pipelines import control
from millrace.spark.pipelines.folder import Definition, Folder

LIMIT: Final = 20
AS_OF_NOW_MS: Final = 60_000  # A view may be behind by a batch or two.
RESTING_MS: Final = 2_000  # One that does not run has seen all, or will not.


def register(app: typer.Typer) -> None:
    app.command()(query)


def query(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a view or a search.")],
    question: Annotated[
        str | None,
        typer.Argument(
            metavar="QUESTION",
            help="A view's key, as JSON or plain text; of a search, what is to be found.",
        ),
    ] = None,
    first: Annotated[str | None, typer.Option("--first", help="Of a view: from this key.")] = None,
    last: Annotated[str | None, typer.Option("--last", help="Of a view: to this key.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many rows.")] = LIMIT,
    as_of_now: Annotated[
        bool,
        typer.Option(
            "--as-of-now", help="Wait until it has every change that was acknowledged before."
        ),
    ] = False,
    home: Annotated[Path | None, typer.Option("--home", help="Its folder.")] = None,
    format: FormatOption = None,
) -> None:
    """Ask a view for a key or a range of keys, or a search for documents.

    The pipeline's folder is read here, so this is for the machine that has it.  Without a QUESTION
    a view shows its first rows.
    """
    session = session_of(context)
    folder = folder_of(name, home)
    definition = folder.definition()
    assert definition is not None
    ask = _ASKING.get(definition.kind)
    if ask is None:
        raise UsageError(f"{name} is a {definition.kind}: only a view or a search can be asked")
    is_default = session.timeout_ms == TIMEOUT_MS
    timeout_ms = AS_OF_NOW_MS if is_default else session.timeout_ms
    resting = _resting(folder) if as_of_now else None
    if resting is not None:
        timeout_ms = min(timeout_ms, RESTING_MS)
    options = {"limit": limit, "as_of_now": as_of_now, "timeout_ms": timeout_ms}
    try:
        ask(folder, definition, question, (first, last), options, session.output(format))
    except (StateMismatch, TimedOut):
        if resting is None:
            raise
        raise Unavailable(
            f"{name} has not seen all of now, and is {resting}: "
            f"`millrace pipeline run {definition.kind} {name}` goes on"
        ) from None


def _resting(folder: Folder) -> str | None:
    """How the pipeline is, if it is not running."""
    found = control.status(folder)
    if found.state is control.State.RUNNING:
        return None
    why = f" ({found.end.error})" if found.end is not None and found.end.error else ""
    return f"{found.state.value}{why}"


def _ask_view(
    folder: Folder,
    definition: Definition,
    question: str | None,
    bounds: tuple[str | None, str | None],
    options: dict[str, Any],
    output: Output,
) -> None:
    from millrace.spark.pipelines.view import query_view

    named = zip(("key", "first", "last"), (question, *bounds), strict=True)
    keys = {name: _key(text) for name, text in named if text is not None}
    answer = query_view(folder.home, **keys, **options)
    if output.is_json:
        output.json(answer)
        return
    output.table(
        ("key", "value"),
        [(_shown(row.key), _shown(row.value)) for row in answer.rows],
    )


def _ask_search(
    folder: Folder,
    definition: Definition,
    question: str | None,
    bounds: tuple[str | None, str | None],
    options: dict[str, Any],
    output: Output,
) -> None:
    from millrace.cli.records import show_text, text_or_base64
    from millrace.spark.pipelines.search import query_search

    if any(bound is not None for bound in bounds):
        raise UsageError(f"{definition.name} is a search, which has no --first and --last")
    answer = query_search(folder.home, question or "", **options)
    if output.is_json:
        hits = [
            {**text_or_base64("key", hit.key), "score": hit.score, "snippet": hit.snippet}
            for hit in answer.hits
        ]
        output.json({"batch": answer.batch, "hits": hits})
        return
    output.table(
        ("key", "score", "text"),
        [(show_text(hit.key), f"{hit.score:.3f}", hit.snippet) for hit in answer.hits],
    )


_ASKING: Final[dict[str, Callable[..., None]]] = {"view": _ask_view, "search": _ask_search}


def _key(text: str) -> Any:
    """JSON, or the text itself: few people like to write quotes within quotes."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
