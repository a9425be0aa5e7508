from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.store.rig import LmdbRig


@pytest.fixture
def open_rig(tmp_path: Path) -> Iterator[Callable[..., LmdbRig]]:
    rigs: list[LmdbRig] = []

    def open_one(map_bytes: int, **options: int) -> LmdbRig:
        rig = LmdbRig(tmp_path / f"node{len(rigs)}", map_bytes, **options)
        rigs.append(rig)
        return rig

    yield open_one
    for rig in rigs:
        rig.store.close()
