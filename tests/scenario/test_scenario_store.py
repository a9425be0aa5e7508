"""The scenarios' store keeps the contract that the LMDB store keeps."""

import pytest

from millrace.scenario.memory_store import MemoryStore
from millrace.store.contract import StoreFailed
from millrace.types import Ack, Block
from tests.conformance.store_suite import OpenRig, StoreRig, StoreSuite


class MemoryRig:
    def __init__(self, room_bytes: int) -> None:
        self.store = MemoryStore(room_bytes)

    def settle(self, ack: Ack = Ack.DISK) -> StoreFailed | None:
        answers: list[StoreFailed | None] = []
        self.store.barrier(ack, answers.append)
        self.store.run()
        return answers[0]

    def crash(self) -> None:
        self.store.crash()

    def reopen(self) -> None:
        self.store.close()
        self.store.crash()

    def damage(self, block: Block) -> None:
        self.store.damage(block.log, block.first)


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def open_rig(self) -> OpenRig:
        def open_one(room_bytes: int) -> StoreRig:
            return MemoryRig(room_bytes)

        return open_one
