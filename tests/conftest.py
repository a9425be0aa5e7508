"""How Hypothesis draws its examples, and where the tests' Spark runs.

`make test` draws the same ones on every machine and gives each the time it needs, so that a red run
means a change of ours, and can be repeated.  `make explore` draws new ones: what it finds is kept
as an example of its test.

With `--spark standalone` the session of the tests is one of Spark's own cluster: a master and two
workers, processes of their own.

Nodes are forked from a process that has loaded their code (`tests/support/nursery.py`).
"""

import pytest
from hypothesis import settings

from millrace.local import LocalCluster
from tests.support.nursery import Nursery

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("exploring", derandomize=False, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--spark", choices=("local", "standalone"), default="local")


def pytest_configure() -> None:
    LocalCluster.launch = staticmethod(Nursery().launch)
