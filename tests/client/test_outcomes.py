"""What people are told of an append whose outcome is unknown."""

import pytest

from millrace.client import chain_path, commit_path, sequenced_path
from millrace.client.outcomes import BlockAppend, UnknownAppend, Whereabouts, settle
from millrace.core.append import AppendOutcome, AppendUnknown
from millrace.core.procedure import Procedure
from millrace.lsn import first_of
from millrace.types import Epoch, Lsn


def never_run() -> Procedure[AppendOutcome]:
    raise AssertionError("it only has to be told of")


@pytest.mark.parametrize(
    ("whereabouts", "unknown", "words"),
    [
        pytest.param(
            chain_path.whereabouts,
            AppendUnknown(Lsn(47), Epoch(3), "late"),
            "the append at 47 may or may not have happened (late)",
            id="chain: it had its position",
        ),
        pytest.param(
            sequenced_path.whereabouts,
            AppendUnknown(first_of(Epoch(7)), Epoch(7), "late"),
            "the append that the sequencer of epoch 7 was asked for may or may not",
            id="sequenced: who was asked",
        ),
        pytest.param(
            commit_path.whereabouts,
            AppendUnknown(Lsn(12), Epoch(2), "late"),
            "the append may or may not have happened (late)",
            id="commit: nothing",
        ),
    ],
)
def test_only_what_is_known_is_said(
    whereabouts: Whereabouts, unknown: AppendUnknown, words: str
) -> None:
    with pytest.raises(UnknownAppend) as raised:
        settle(unknown, BlockAppend(never_run, 1), "events", whereabouts)
    assert words in str(raised.value)
    assert "n0" not in str(raised.value)
