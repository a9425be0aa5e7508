"""Runs scenario files: text in which a person wrote events and the effects they must cause.

The grammar is in `docs/scenarios.md`.  The machines are the real cores; nothing here decides.
"""

from millrace.scenario.run import MACHINES, Result, run_file, run_paths, run_text

__all__ = ["MACHINES", "Result", "run_file", "run_paths", "run_text"]
