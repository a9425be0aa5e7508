"""The command `millrace`: one file per noun; data on stdout, messages on stderr.

Commands import what they need when they run, so that `--help` and `node run` start at once.
"""

from millrace.cli.main import main

__all__ = ["main"]
