"""The command `millrace`: one file per noun; data on stdout, messages on stderr."""

from millrace.cli.main import main

__all__ = ["main"]
