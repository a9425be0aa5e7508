"""How a commit log is shown: its row in `log ls`, its page in `log info`."""

from typing import Any, Final

from millrace.cli.output import Cell, Output, Tone
from millrace.cli.redundancy import Presence, state_of_log
from millrace.client.describe_commits import CommitDescription
from millrace.core.commit.record import CommitRecord, StreamRecord

Row = list[Any]
NOTHING: Final = "nothing"


def where(record: CommitRecord) -> str:
    streams = "1 stream" if len(record.streams) == 1 else f"{len(record.streams)} streams"
    return f"{streams} of {record.copies} copies, on nodes {', '.join(map(str, record.nodes))}"


def show_commit_log(
    output: Output, description: CommitDescription, attributes: list[tuple[str, Any]]
) -> None:
    record, said = description.record, description.explanation
    committer = f"node {record.committer}, term {record.term}" if record.committer else "none yet"
    if "trouble" in said:
        committer += f": {said['trouble']}"
    facts: list[tuple[str, Any]] = [
        ("state", state_of_log(record, Presence(description.live))),
        ("records", max(0, record.high_watermark + 1 - record.trim_end)),
        *([("lost", lost)] if (lost := sum(each.lost for each in record.streams)) else []),
        ("begins at", record.trim_end),
        ("next position", record.high_watermark + 1),
        ("version", record.version),
        ("committer", committer),
        *attributes,
    ]
    output.table(("log", description.info.name), facts)
    output.line("")
    show_streams(output, description)


def show_streams(output: Output, description: CommitDescription) -> None:
    said = description.explanation.get("streams", {})
    rows = [
        _row(each, said.get(str(each.stream), {}), description.firsts.get(each.stream))
        for each in description.record.streams
    ]
    headings = (
        "stream",
        "state",
        "replicas",
        "generation",
        "first",
        "last",
        "last in the log",
        "waits for",
    )
    output.table(headings, rows)


def _row(stream: StreamRecord, said: dict[str, Any], first: int | None) -> Row:
    """`first` and what is last are positions of the stream."""
    silent = [f"node {node} {why}" for node, why in said.get("silent", {}).items()]
    trouble = said.get("trouble", "")
    lost = f"nothing: {stream.lost} committed records are lost" if stream.lost else ""
    waits = "; ".join(each for each in (*silent, trouble) if each) or lost
    state = Cell("open", Tone.GOOD) if stream.is_open else Cell("sealed", Tone.FAINT)
    if said.get("is_reforming"):
        state = Cell("reforming", Tone.WARNING)
    return [
        stream.stream,
        state,
        "→".join(map(str, stream.replicas)),
        stream.generation,
        _first(stream, first),
        stream.local_end - 1 or NOTHING,
        stream.last or NOTHING,
        Cell(waits, Tone.WARNING) if waits else "",
    ]


def _first(stream: StreamRecord, first: int | None) -> str | int:
    if first is None:
        return "–"
    return first if first < stream.local_end else NOTHING
