"""New epochs of sequenced logs, without harm to any node: another sequencer takes over."""

from millrace.client import Client, Log
from millrace.core.epochs import EpochRecord
from millrace.core.messages import AskTail
from millrace.core.sequenced.activation import Activated, activate
from millrace.types import Epoch, LogId
from tests.support.clusters import ASK_TIMEOUT_MS, eventually


async def record_of(client: Client, log: LogId) -> EpochRecord:
    """As the repository has it."""
    record, _ = await client.directory.read_epochs(log)
    assert record is not None
    return record


async def next_epoch(client: Client, log: Log) -> Epoch:
    """Claims an epoch for another node, which then begins one of its own; returns when the epochs
    before are recovered.  The sequencer that was replaced hears of it with the next append: there
    must be one before the next call."""
    before = await record_of(client, log.info.id)
    heir = next(node for node in before.nodeset if node != before.sequencer)
    claim = activate(log.info.id, heir, suspects=(before.sequencer,))
    claimed = await client.runner.run(claim, ASK_TIMEOUT_MS)
    assert isinstance(claimed, Activated), claimed
    await client.ask_node(heir, AskTail(log.info.id), ASK_TIMEOUT_MS)

    async def is_recovered() -> EpochRecord:
        return await record_of(client, log.info.id)

    record = await eventually(
        is_recovered, lambda now: now.clean == now.epoch - 1, what="the recovery"
    )
    assert (record.sequencer, record.epoch) == (heir, claimed.record.epoch + 1)
    return record.epoch
