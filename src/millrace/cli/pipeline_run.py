"""`millrace pipeline run KIND NAME`, and `millrace audit`, `backup` and `restore` as short forms.

Each kind's command has the options of its settings.  They are made when the command is used, so
that listing commands loads no pipeline.
"""

import hashlib
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

from millrace.cli.main import DONE
from millrace.cli.output import Format
from millrace.cli.pipeline_options import CLUSTER, settings_of, settle
from millrace.cli.session import FormatOption, Session, session_of
from millrace.errors import UsageError
from millrace.spark.pipelines import control
from millrace.spark.pipelines.folder import Definition, Folder
from millrace.spark.pipelines.kinds import KINDS, Kind, kind_named

SHORT_FORMS: Final = ("audit", "backup", "restore")
DIGEST_CHARS: Final = 8

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="What it is called from now on.")]
NameOption = Annotated[
    str,
    typer.Option(
        "--name", show_default="made from the options", help="What it is called in `pipeline ls`."
    ),
]
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        show_default="in ~/.local/share/millrace/pipelines",
        help="The folder for its state, progress and logs.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        show_default="local[*]",
        help="Where Spark runs: spark://host:port for a standalone cluster.",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark. Repeat for more."),
]
DetachOption = Annotated[bool, typer.Option("--detach", help="Leave it running in the background.")]
OWN_PARAMETERS: Final = {
    "home": (HomeOption, None),
    "master": (MasterOption, None),
    "conf": (ConfOption, None),
    "detach": (DetachOption, False),
    "format": (FormatOption, None),
}


class KindCommand(TyperCommand):
    """The command that runs a kind.  Its options are found when somebody asks for them."""

    def __init__(self, kind: Kind, name: str, *, is_short: bool, help: str = "") -> None:
        more = "\n\nRun again with this NAME it goes on where it was." if kind.is_endless else ""
        super().__init__(name=name, help=f"{help or kind.summary}{more}", params=[])
        self._kind = kind
        self._kind_name = name
        self._is_short = is_short

    def get_params(self, ctx: Any) -> Any:
        if not self.params:
            single = typer.Typer(add_completion=False)
            function = _function(self._kind, self._kind_name, is_short=self._is_short)
            single.command(self._kind_name)(function)
            made = typer.main.get_command(single)
            self.params, self.callback = made.params, made.callback
        return super().get_params(ctx)


class RunGroup(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, kind in KINDS.items():
            self.commands[name] = KindCommand(kind, name, is_short=False)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        sys.path.insert(0, os.getcwd())  # Where one's own modules are, as for `python -m`.
        kind = kind_named(cmd_name)
        help = inspect.getdoc(kind.run) or ""
        return KindCommand(kind, cmd_name, is_short=False, help=help)


class RootGroup(TyperGroup):
    """The application, with the short forms."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in SHORT_FORMS:
            self.commands[name] = KindCommand(KINDS[name], name, is_short=True)


app = typer.Typer(
    name="run",
    cls=RunGroup,
    help="Run a pipeline of some kind: one below, or your own, written module:name.",
    no_args_is_help=True,
)


@app.callback()
def kinds() -> None:
    """The kinds are the commands."""


def _function(kind: Kind, kind_name: str, *, is_short: bool) -> Any:
    """What Typer makes the command from: its signature is all that it looks at."""
    settings = [each for each in settings_of(kind.settings) if each.field != CLUSTER]
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [
        inspect.Parameter(each, keyword, default=default, annotation=annotation)
        for each, (annotation, default) in OWN_PARAMETERS.items()
    ]
    first: dict[str, Any] = (
        {"annotation": NameOption, "default": ""} if is_short else {"annotation": NameArgument}
    )
    parameters = [
        inspect.Parameter("context", keyword, annotation=typer.Context),
        inspect.Parameter("name", keyword, **first),
        *(each.parameter() for each in settings),
        *own,
    ]

    def run(context: typer.Context, name: str, **given: Any) -> None:
        own = {each: given.pop(each) for each in OWN_PARAMETERS}
        typed = {field: value for field, value in given.items() if value is not None}
        raise typer.Exit(run_kind(session_of(context), kind_name, name, typed, **own))

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def run_kind(
    session: Session,
    kind_name: str,
    name: str,
    given: dict[str, Any],
    *,
    home: Path | None,
    master: str | None,
    conf: list[str] | None,
    detach: bool,
    format: Format | None,
) -> int:
    """The exit code."""
    from millrace.cli.pipeline_show import conclude, start_and_attend

    kind = kind_named(kind_name)
    name = name or _short_name(session, kind, given)
    folder = control.folder_for(name, home)
    known = folder.definition()
    wanted = Definition(
        kind=kind_name,
        name=name,
        settings=_settings(session, kind, given, known),
        master=master or (known.master if known else None),
        spark=_pairs(conf) if conf is not None else (known.spark if known else {}),
    )
    output = session.output(format)
    if not detach:
        return start_and_attend(folder, wanted, output)
    process = control.start(folder, wanted, is_leashed=False)
    if process.poll() is not None:
        return conclude(folder, process.returncode, output)
    process.returncode = DONE  # It outlives this process, which does not wait for it.
    if output.is_json:
        output.json(control.status(folder))
    else:
        output.say(f"{name} runs; `millrace pipeline status {name}` shows how far it is")
    return DONE


def _settings(
    session: Session, kind: Kind, given: Mapping[str, Any], known: Definition | None
) -> dict[str, Any]:
    before = dict(known.settings) if known else {}
    fields = {each.name for each in msgspec.structs.fields(kind.settings)}
    given = dict(given)
    if CLUSTER in fields and (session.cluster or CLUSTER not in before):
        given[CLUSTER] = ",".join(session.addresses())
    return settle(kind.settings, given, before)


def _short_name(session: Session, kind: Kind, given: Mapping[str, Any]) -> str:
    """The same for the same options, so that what was interrupted goes on."""
    asked = msgspec.json.encode(_settings(session, kind, given, None), order="sorted")
    return f"{kind.name}-{hashlib.sha256(asked).hexdigest()[:DIGEST_CHARS]}"


def _pairs(conf: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in conf]
    for name, equals, _ in pairs:
        if not equals or not name.startswith("spark."):
            raise UsageError(f"--conf {name}: give a setting of Spark as spark.name=value")
    return {name: value for name, _, value in pairs}


def folder_of(name: str, home: Path | None) -> Folder:
    """Of a pipeline that was run, by its name or its folder."""
    if home is None:
        return control.folder_named(name)
    folder = Folder(home.resolve())
    if folder.definition() is None:
        raise UsageError(f"{home} is not the folder of a pipeline")
    return folder
