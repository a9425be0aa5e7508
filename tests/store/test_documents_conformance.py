"""LMDB keeps the contract of document stores."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.document_store_rig import OpenDocumentRig
from tests.conformance.document_store_suite import DocumentStoreSuite
from tests.store.documents_rig import LmdbDocumentRig


class TestLmdbDocuments(DocumentStoreSuite):
    @pytest.fixture
    def open_rig(self, tmp_path: Path) -> Iterator[OpenDocumentRig]:
        rigs: list[LmdbDocumentRig] = []

        def open_one(room_bytes: int) -> LmdbDocumentRig:
            rigs.append(LmdbDocumentRig(tmp_path / f"documents{len(rigs)}", room_bytes))
            return rigs[-1]

        yield open_one
        for rig in rigs:
            rig.store.close()
