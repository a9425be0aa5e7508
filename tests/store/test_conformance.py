"""The LMDB store keeps the contract, with the newest blocks in memory and without."""

from collections.abc import Callable

import pytest

from tests.conformance.store_suite import OpenRig, StoreSuite
from tests.store.rig import LmdbRig


class TestLmdbStore(StoreSuite):
    pass


class TestLmdbStoreWithoutTailBuffer(StoreSuite):
    """Every committed block or run is evicted at once, so reads merge memory and disk."""

    @pytest.fixture
    def open_rig(self, open_rig: Callable[..., LmdbRig]) -> OpenRig:
        return lambda room_bytes: open_rig(room_bytes, tail_bytes=0, runs_held_max=1)
