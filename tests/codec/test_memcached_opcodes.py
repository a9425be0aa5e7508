"""The numbers of the protocol, and that the page about it names them all."""

import re
from pathlib import Path

import pytest

from millrace.codec.memcached.opcodes import (
    LOUD,
    SHAPED,
    SHAPES,
    STATUS_TEXT,
    Feature,
    Opcode,
    Status,
    shape_of,
)
from millrace.core.documents.messages import StreamStatus

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "documents-protocol.md").read_text()


@pytest.mark.parametrize("opcode", Opcode, ids=lambda opcode: opcode.name)
def test_the_page_lists_every_opcode(opcode: Opcode) -> None:
    assert re.search(rf"^\| `0x{opcode:02x}` \| {opcode.name} \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("status", Status, ids=lambda status: status.name)
def test_the_page_lists_every_status(status: Status) -> None:
    assert re.search(rf"^\| `0x{status:02x}` \| {status.name} \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("feature", Feature, ids=lambda feature: feature.name)
def test_the_page_lists_every_feature(feature: Feature) -> None:
    assert re.search(rf"^\| `0x{feature:04x}` \| {feature.name} \|", PAGE, re.MULTILINE)


def test_the_page_lists_no_opcode_that_is_not_there() -> None:
    section = PAGE.split("## Opcodes")[1].split("\n## ")[0]
    listed = {int(number, 16) for number in re.findall(r"^\| `(0x..)` \|", section, re.MULTILINE)}
    assert listed == set(Opcode)


def test_every_status_has_a_text() -> None:
    assert set(STATUS_TEXT) == set(Status)


def test_statuses_of_streams_are_statuses_of_the_protocol() -> None:
    assert set(map(int, StreamStatus)) <= set(map(int, Status))


def test_quiet_opcodes_are_named_after_the_loud_ones() -> None:
    names = {opcode.name for opcode in Opcode}
    assert {Opcode(number).name: loud.name for number, loud in LOUD.items()} == {
        f"{name}Q": name for name in names if f"{name}Q" in names
    }


@pytest.mark.parametrize(
    ("opcode", "extras_size", "has_key", "has_value", "is_right"),
    [
        pytest.param(Opcode.GET, 0, True, False, True, id="get"),
        pytest.param(Opcode.GET, 0, False, False, False, id="get-without-key"),
        pytest.param(Opcode.GETKQ, 0, True, True, False, id="get-with-value"),
        pytest.param(Opcode.SETQ, 8, True, False, True, id="set-of-nothing"),
        pytest.param(Opcode.SET, 4, True, True, False, id="set-with-short-extras"),
        pytest.param(Opcode.INCREMENT, 20, True, False, True, id="increment"),
        pytest.param(Opcode.APPEND, 8, True, True, False, id="append-with-extras"),
        pytest.param(Opcode.FLUSH, 4, False, False, True, id="flush-later"),
        pytest.param(Opcode.QUIT, 0, True, False, False, id="quit-with-key"),
        pytest.param(Opcode.STAT, 0, True, False, True, id="stat-of-a-group"),
    ],
)
def test_shapes_are_memcacheds(
    opcode: Opcode, extras_size: int, has_key: bool, has_value: bool, is_right: bool
) -> None:
    assert (shape_of(opcode, extras_size, has_key, has_value) in SHAPES) is is_right


def test_a_quiet_request_has_the_shape_of_the_loud_one() -> None:
    for quiet, loud in LOUD.items():
        assert quiet in SHAPED
        parts = {shape & 0x3FF for shape in SHAPES if shape >> 10 == loud}
        assert parts == {shape & 0x3FF for shape in SHAPES if shape >> 10 == quiet}
