"""The session and the Python of the guide to documents work as printed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.client.sync import connect
from millrace.local import LocalCluster
from tests.docs.printed import is_as_printed, lines, printed_session, typed

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "documents.md"
BLOCK = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
CLUSTER = "127.0.0.1:7701"
DOCUMENTS = "127.0.0.1:7901"
TIMEOUT_S = 120


@pytest.fixture
def env() -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE")}
    return kept | {"PATH": programs + os.pathsep + kept["PATH"], "NO_COLOR": "1"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster.create(tmp_path / "cluster", 3) as cluster:
        cluster.start()
        yield cluster


def check(title: str, printed: list[str], expected: list[str]) -> None:
    assert len(printed) == len(expected), f"{title}\nprinted\n{printed}"
    for pattern, line in zip(expected, printed, strict=True):
        assert is_as_printed(pattern, line), f"{title}\nprinted {line!r}, not {pattern!r}"


def test_the_session_works_as_printed(tmp_path: Path, env: dict[str, str]) -> None:
    expected = printed_session(PAGE)
    assert len(expected) >= 8
    try:
        for step, found in zip(expected, typed(expected, tmp_path, env, TIMEOUT_S), strict=True):
            check(step.command, found.lines, step.lines)
    finally:
        if (tmp_path / ".millrace" / "dev").exists():  # It did not come to its end.
            command = ["millrace", "dev", "down", "--wipe", "--yes"]
            subprocess.run(command, cwd=tmp_path, env=env, timeout=TIMEOUT_S, check=True)


def test_the_python_blocks_print_what_the_page_says(
    cluster: LocalCluster, tmp_path: Path, env: dict[str, str]
) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == PAGE.read_text().count("```python") >= 5
    addresses = {CLUSTER: ",".join(cluster.addresses), DOCUMENTS: cluster.nodes[0].documents}
    for code, expected in blocks:
        for printed, real in addresses.items():
            code = code.replace(printed, real)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{code}\n{done.stderr}"
        check(code, lines(done.stdout), lines(expected))


def test_what_the_guide_says_of_limits(cluster: LocalCluster) -> None:
    from millrace.client.bucket_creating import VALUE_BYTES_MAX
    from millrace.core.documents.failover_log import FAILOVER_ENTRIES_MAX
    from millrace.core.documents.map import PARTITIONS_MAX, REPLICAS_MAX

    page = PAGE.read_text()
    with connect(cluster.addresses) as client:
        attributes = client.create_bucket("limits", partitions=1).attributes
    assert f"value | {attributes.value_bytes_max >> 20} MiB" in page
    assert f"up to {VALUE_BYTES_MAX >> 20} MiB" in page
    assert f"1 to {PARTITIONS_MAX}, 0 to {REPLICAS_MAX} replicas" in page
    assert f"failover log | {FAILOVER_ENTRIES_MAX} entries" in page
    assert f"`--purge-after`, {attributes.purge_after_s // 86_400} days" in page
