"""The Python of the Spark guides works as printed, block after block, in one program for each."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.local import LocalCluster
from tests.docs.printed import is_as_printed, lines
from tests.support.spark import QUICK_JAVA, user_env

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
CLUSTER = "127.0.0.1:7701"
BORDER = "-- block {} --"
TIMEOUT_S = 400


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster.create(tmp_path / "cluster", 3) as cluster:
        cluster.start()
        yield cluster


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize(("page", "blocks_min"), [("spark.md", 8), ("spark-changes.md", 2)])
def test_the_python_blocks_print_what_the_page_says(
    page: str, blocks_min: int, cluster: LocalCluster, tmp_path: Path
) -> None:
    blocks = BLOCK.findall((DOCS / page).read_text())
    assert len(blocks) >= blocks_min
    program = tmp_path / "guide.py"
    program.write_text(
        "\n".join(
            f"print({BORDER.format(n)!r})\n{code}" for n, (code, _) in enumerate(blocks)
        ).replace(CLUSTER, ",".join(cluster.addresses))
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=user_env(JDK_JAVA_OPTIONS=QUICK_JAVA),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    printed = re.split(BORDER.format(r"\d+") + "\n", done.stdout)[1:]
    for (code, expected), found in zip(blocks, printed, strict=True):
        assert len(lines(found)) == len(lines(expected)), f"{code}\nprinted\n{found}"
        for pattern, line in zip(lines(expected), lines(found), strict=True):
            assert is_as_printed(pattern, line), f"{code}\nprinted {line!r}, not {pattern!r}"
