"""The reference pages, generated from what they describe: commands, settings, metrics, errors,
options.

`python -m millrace.cli.reference` writes them to `docs/reference`; `--check` fails when a page
there is not what would be written.
"""

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from millrace import config, errors
from millrace.cli.app import app
from millrace.server import metrics
from millrace.spark import defaults, options
from millrace.spark.buckets import options as bucket_options
from millrace.spark.changes import options as change_options
from millrace.spark.option_texts import Option
from millrace.spark.sink import options as sink_options

FOLDER: Final = Path("docs/reference")
BLAMES: Final = {
    errors.UsageError: "the caller",
    errors.Unavailable: "the environment",
    errors.ProtocolError: "a peer",
    errors.Corruption: "stored or received bytes",
    errors.RecordsLost: "what became of the log",
}
HIDDEN_OPTIONS: Final = ("--help", "--install-completion", "--show-completion")


def pages() -> dict[str, str]:
    return {
        "cli.md": document_commands(),
        "configuration.md": config.document(),
        "metrics.md": metrics.document(),
        "errors.md": document_errors(),
        "spark-options.md": document_spark(),
    }


# -- Commands ---------------------------------------------------------------------------------


def document_commands() -> str:
    root: Any = typer.main.get_command(app)
    lines = [
        "# Command line",
        "",
        "<!-- Generated from src/millrace/cli by `make docs`; do not edit. -->",
        "",
        "Data goes to stdout, messages to stderr. Global options may stand anywhere on the line.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | done; healthy |",
        "| 1 | it failed, and stderr says why; not healthy |",
        "| 2 | what was given is wrong: the command line, its input or a configuration |",
        "| 130 | Ctrl-C |",
        "",
        "With `--format json` a command prints one JSON object or array. Fields are only ever",
        "added. Bytes that are not UTF-8 are in a field whose name ends in `_base64`. Positions",
        "are numbers; of a sequenced log their text, `e7n42`, stands beside them in `position`",
        "(of one) or `positions` (of a range).",
        "",
        "## Global options",
        "",
        *_parameters(root),
    ]
    for noun in root.commands.values():
        lines += _commands(f"millrace {noun.name}", noun, level="##")
    return "\n".join(lines) + "\n"


def _commands(path: str, command: Any, level: str) -> list[str]:
    """A command, or a group with all that is in it."""
    if not hasattr(command, "commands"):
        return _command(path, command, level)
    lines = ["", f"{level} `{path}`", "", command.help]
    for inner in command.commands.values():
        lines += _commands(f"{path} {inner.name}", inner, level=f"{level}#")
    return lines


def _command(path: str, command: Any, level: str) -> list[str]:
    known = _known(command)
    arguments = [_argument_name(p) for p in known if p.param_type_name == "argument"]
    usage = " ".join([path, *arguments, "[OPTIONS]"])
    lines = ["", f"{level} `{path}`", "", inspect.cleandoc(command.help), "", f"    {usage}"]
    rows = _parameters(command)
    return [*lines, "", *rows] if rows else lines


def _parameters(command: Any) -> list[str]:
    rows = [row for parameter in _known(command) for row in _parameter(parameter)]
    return ["| option | default | meaning |", "|---|---|---|", *rows] if rows else []


def _known(command: Any) -> list[Any]:
    """Its parameters, also of a command that finds them only when it is asked."""
    return list(command.get_params(typer.Context(command)))


def _parameter(parameter: Any) -> Iterator[str]:
    if any(option in HIDDEN_OPTIONS for option in parameter.opts):
        return
    is_argument = parameter.param_type_name == "argument"
    name = _argument_name(parameter) if is_argument else _option_name(parameter)
    meaning = parameter.help or ""
    if parameter.envvar:
        meaning += f" Environment: `{parameter.envvar}`."
    yield f"| `{_escape(name)}` | {_default(parameter)} | {_escape(meaning)} |"


def _argument_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option_name(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    shown = ", ".join(sorted(names, key=lambda name: (name.startswith("--"), name)))
    return f"{shown} {parameter.metavar}" if parameter.metavar else shown


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return f"`{parameter.show_default}`"
    value = getattr(parameter.default, "value", parameter.default)
    if value in (None, "", False, []):
        return "–"
    return "yes" if value is True else f"`{value}`"


# -- Errors -----------------------------------------------------------------------------------


def document_errors() -> str:
    lines = [
        "# Errors",
        "",
        "<!-- Generated from src/millrace/errors.py by `make docs`; do not edit. -->",
        "",
        "Every error is a `millrace.errors.MillraceError`. Its `code` is stable: it appears on the",
        "wire, in logs and in metrics. *Took effect?* says whether the operation may have",
        "happened all the same (`is_definite` is true when it certainly did not).",
    ]
    for root, blame in BLAMES.items():
        lines += ["", f"## To blame: {blame}", ""]
        lines += ["| code | class | took effect? | meaning |", "|---|---|---|---|"]
        lines += [_error_row(kind) for kind in _kinds(root)]
    return "\n".join(lines) + "\n"


def _kinds(root: type[errors.MillraceError]) -> Iterator[type[errors.MillraceError]]:
    """In the order of the file; only what is defined there."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, root):
            yield kind


def _error_row(kind: type[errors.MillraceError]) -> str:
    effect = "no" if kind.is_definite else "perhaps"
    meaning = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
    return f"| `{kind.code}` | `{kind.__name__}` | {effect} | {_escape(meaning)} |"


# -- Spark ------------------------------------------------------------------------------------


def document_spark() -> str:
    lines = [
        "# Spark options",
        "",
        "<!-- Generated from src/millrace/spark by `make docs`; do not edit. -->",
        "",
        '## Options of `format("millrace")`, reading',
        "",
        "Upper and lower case are the same. An option that is not listed here is refused.",
        "",
        "| option | default | meaning |",
        "|---|---|---|",
        *(_spark_option(known) for known in options.KNOWN),
        "",
        '## Options of `format("millrace")`, writing',
        "",
        "| option | default | meaning |",
        "|---|---|---|",
        *(_spark_option(known) for known in sink_options.KNOWN),
        "",
        '## Options of `format("millrace-changes")`',
        "",
        "| option | default | meaning |",
        "|---|---|---|",
        *(_spark_option(known) for known in change_options.KNOWN),
        "",
        '## Options of `format("millrace-bucket")`',
        "",
        "| option | default | meaning |",
        "|---|---|---|",
        *(_spark_option(known) for known in bucket_options.KNOWN),
        "",
        "## Settings that `millrace.spark.session()` adds",
        "",
        "Each is added only if nothing else decides it: an argument of `session`, a session that",
        "runs already, `spark-defaults.conf`, `PYSPARK_SUBMIT_ARGS`, or what the last column says.",
        "",
        "| setting | value | why | not with |",
        "|---|---|---|---|",
        *(_spark_setting(setting) for setting in defaults.SETTINGS),
    ]
    return "\n".join(lines) + "\n"


def _spark_option(known: Option) -> str:
    meaning = known.meaning
    if known.aliases:
        meaning += f"; also called {', '.join(f'`{alias}`' for alias in known.aliases)}"
    if known.only:
        meaning += f"; only for `spark.{known.only}`"
    return f"| `{known.name}` | {_escape(known.default) or '–'} | {_escape(meaning)} |"


def _spark_setting(setting: defaults.Setting) -> str:
    value = "the cores" if setting.value == defaults.CORES else f"`{setting.value}`"
    others = [f"`{name}`" for name in (*setting.unless_environment, *setting.unless_set)]
    if setting.is_for_local_masters:
        others.insert(0, "a master that is not local")
    rest = f"{_escape(setting.reason)} | {', '.join(others) or '–'}"
    return f"| `{setting.name}` | {value} | {rest} |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def stale(folder: Path) -> list[str]:
    """The pages that are not what would be written."""
    found = []
    for name, text in pages().items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            found.append(str(path))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m millrace.cli.reference")
    parser.add_argument("--check", action="store_true", help="only say which pages are stale")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    if arguments.check:
        for path in (found := stale(arguments.folder)):
            print(f"{path} is stale: run `make docs`", file=sys.stderr)
        return 1 if found else 0
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (arguments.folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
