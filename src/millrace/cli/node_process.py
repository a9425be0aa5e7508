"""`millrace node run`: the node process, with nothing loaded that it does not need."""

from pathlib import Path

from millrace import config


def run_node(file: str, level: str = "info") -> None:
    from millrace.server.run import run

    run(config.load(Path(file)), level)
