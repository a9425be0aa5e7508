"""Worlds of documents: convergence and durability under everything that can happen to them."""

from functools import cache

import msgspec
import pytest

from millrace.sim.documents.shape import DocumentsShape, DocumentsTrouble, draw
from millrace.sim.documents.world import DocumentsWorld
from millrace.sim.run import REQUIRED_OF_DOCUMENTS, Summary, run_many
from millrace.sim.schedule import SECOND
from millrace.sim.seeds import LogKind

SEEDS_FIRST, SEEDS_COUNT = 20_000, 1_000
SECONDS_MAX = 1_800  # Processors that are slow or shared must not fail it.
CALM_SEEDS = ("1", "2", "3", "4", "5")


@cache
def summary() -> Summary:
    return run_many(SEEDS_FIRST, SEEDS_COUNT, jobs=2, kind=LogKind.DOCUMENTS)


@pytest.mark.timeout(SECONDS_MAX)
def test_all_guarantees_of_documents_hold() -> None:
    failures = summary().failures
    assert not failures, "\n".join(f"{one.replay}  # {one.violation}" for one in failures)


@pytest.mark.timeout(SECONDS_MAX)
def test_everything_happened_to_documents() -> None:
    assert summary().never_happened(REQUIRED_OF_DOCUMENTS) == []


# -- Worlds that are made for one question ------------------------------------------------------


def calm_shape(seed: str) -> DocumentsShape:
    return msgspec.structs.replace(
        draw(seed), troubles=(), followers=2, chaos_us=2 * SECOND, durable_share=0.5
    )


@pytest.mark.parametrize("seed", CALM_SEEDS)
def test_without_faults_nobody_goes_back_and_nothing_is_lost(seed: str) -> None:
    world = DocumentsWorld(f"documents:{seed}", shape=calm_shape(seed))
    world.run()
    counters = world.counters
    assert counters["promoted"] == world.shape.partitions
    assert counters["undo.begun"] == counters["undo.to_zero"] == counters["durable.excused"] == 0
    assert counters["wait.ok"] > 0
    assert not any("wait." in name and name != "wait.ok" for name in counters)


@pytest.mark.parametrize("seed", CALM_SEEDS)
def test_moves_cost_no_write_and_no_history(seed: str) -> None:
    """Masters and copies are moved about under load: under one failover id for ever."""
    shape = msgspec.structs.replace(
        calm_shape(seed), nodes=4, keepers=1, troubles=(DocumentsTrouble.MOVE,)
    )
    world = DocumentsWorld(f"documents:{seed}", shape=shape)
    world.run()
    assert world.counters["move.done"] > 0
    assert world.counters["promoted"] == world.shape.partitions
    assert world.counters["durable.excused"] == 0


def test_every_trouble_of_documents_is_drawn() -> None:
    shapes = [draw(str(seed)) for seed in range(300)]
    assert {trouble for shape in shapes for trouble in shape.troubles} == set(DocumentsTrouble)
    assert any(shape.is_calm for shape in shapes)
