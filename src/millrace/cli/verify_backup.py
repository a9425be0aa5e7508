"""`millrace verify-backup`: whether the folder of a backup still holds what was saved."""

from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.output import Tone
from millrace.cli.session import FormatOption, session_of


def verify_backup(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="That of the backup.")],
    format: FormatOption = None,
) -> None:
    """Read every file of a backup and compare it with its checksum.

    Also each run must follow the one before.  Needs no cluster.  Exit code 1 if anything is
    missing or damaged.
    """
    from millrace.spark.pipelines.backup.checking import check_folder

    output = session_of(context).output(format)
    chain = check_folder(folder)
    if output.is_json:
        output.json({"folder": str(folder), "runs": chain.runs})
        return
    for manifest in chain.runs:
        logs, buckets = len(manifest.logs), len(manifest.buckets)
        told = f"{manifest.rows} rows of {logs} logs and {buckets} buckets"
        output.line(f"ok: run {manifest.run} of cluster {manifest.cluster}: {told}", Tone.GOOD)


def register(app: typer.Typer) -> None:
    app.command("verify-backup")(verify_backup)
