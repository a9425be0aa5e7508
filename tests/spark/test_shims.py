"""Shims are complete or absent, and shared by all who need them."""

import threading
from pathlib import Path

from millrace.spark.shims import shim


def shown(home: Path) -> list[str]:
    """What others see in the cache: drafts are hidden."""
    cache = home / ".cache" / "millrace"
    return [entry.name for entry in cache.iterdir() if not entry.name.startswith(".")]


def test_a_shim_is_not_seen_before_it_is_complete(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def build(folder: Path) -> None:
        (folder / "proof").write_text("")
        seen.append(shown(tmp_path))
        (folder / "last").write_text("")

    made = shim({"HOME": str(tmp_path)}, "kind", "origin", "proof", build)
    assert seen == [[]]
    assert shown(tmp_path) == [made.name]
    assert {entry.name for entry in made.iterdir()} == {"proof", "last"}


def test_two_that_finish_at_once_share_the_first(tmp_path: Path) -> None:
    both_are_done = threading.Barrier(2, timeout=30)
    made: list[Path] = []

    def build(folder: Path) -> None:
        (folder / "proof").write_text("")
        both_are_done.wait()

    def make() -> None:
        made.append(shim({"HOME": str(tmp_path)}, "kind", "origin", "proof", build))

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0] == made[1]
    assert list(made[0].parent.iterdir()) == [made[0]], "a draft was left"
