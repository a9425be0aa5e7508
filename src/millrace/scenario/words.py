"""How single things are written in scenario files: blocks, nodes, ranges, tokens, projections."""

import re

from millrace.codec import blocks
from millrace.core.projection import Projection, ReconfigureReason
from millrace.scenario.text import Words
from millrace.types import (
    LSN_MAX,
    NO_TOKEN,
    Block,
    EntryKind,
    Epoch,
    Extent,
    LogId,
    Lsn,
    NodeId,
    Selection,
    Token,
    Weight,
)

LOG = LogId(1)
FIRST_SEQUENCER = 100  # SQ is node 100, SQ2 node 101: they stand apart from SN1, SN2, ...
FIRST_EPOCH = Epoch(1)

_BLOCK = re.compile(r"(\d+)(?:\.\.(\d+))?(?:=([^@]*)|!(hole|loss))?(?:@(\d+)\.(\d+))?")
_RANGE = re.compile(r"\[(\d+),(\d*)\)")
_RUN = re.compile(r"(\d+)(?:\.\.(\d+))?")
_NODE = re.compile(r"(SN|SQ)(\d*)")
_WEIGHT = re.compile(r"(\[\d+,\d+\))=(\d+)")


def parse_block(word: str) -> Block:
    """`5`, `5..6`, `5=x`, `5..6=x|y@7.1`, `5!hole`, `5..9!loss`."""
    match = _BLOCK.fullmatch(word)
    if match is None:
        raise ValueError(word)
    first = Lsn(int(match[1]))
    last = int(match[2] or match[1])
    if last < first:
        raise ValueError(word)
    if match[4]:
        return blocks.junk(LOG, first, last - first + 1, EntryKind[match[4].upper()])
    token = NO_TOKEN if match[5] is None else Token(int(match[5]), int(match[6]))
    values = [f"v{lsn}" for lsn in range(first, last + 1)]
    if match[3] is not None:
        values = match[3].split("|")
    if len(values) != last - first + 1:
        raise ValueError(word)
    return place_values(values, first, token)


def place_values(values: list[str], first: Lsn, token: Token) -> Block:
    body = blocks.draft([value.encode() for value in values], timestamps_us=0, compress=False)
    return blocks.place(body, LOG, FIRST_EPOCH, first, token)


def show_block(block: Block) -> str:
    run = show_run(block.first, block.last)
    if block.kind is not EntryKind.DATA:
        return f"{run}!{block.kind.name.lower()}"
    if block.is_published:
        return f"{run}@published{_show_writer(block.token)}"
    values = "|".join(record.value.decode() for record in blocks.records(block))
    return f"{run}={values}{_show_writer(block.token)}"


def show_extent(extent: Extent) -> str:
    run = show_run(extent.first, extent.last)
    if extent.kind is not EntryKind.DATA:
        return f"{run}!{extent.kind.name.lower()}"
    return f"{run}{_show_writer(extent.token)}"


def parse_extent(word: str) -> Extent:
    return parse_block(word).extent()


def _show_writer(token: Token) -> str:
    return "" if token == NO_TOKEN else f"@{show_token(token)}"


def parse_token(word: str) -> Token:
    client, _, request = word.partition(".")
    return Token(int(client), int(request))


def show_token(token: Token) -> str:
    return f"{token.client}.{token.request}"


def parse_lsn(word: str) -> Lsn:
    return LSN_MAX if word == "max" else Lsn(int(word))


def show_lsn(lsn: Lsn) -> str:
    return "max" if lsn == LSN_MAX else str(lsn)


def parse_range(word: str) -> tuple[Lsn, Lsn]:
    """`[5,8)` is half-open; `[5,)` has no end."""
    match = _RANGE.fullmatch(word)
    if match is None:
        raise ValueError(word)
    return Lsn(int(match[1])), Lsn(int(match[2])) if match[2] else LSN_MAX


def show_range(first: Lsn, end: Lsn) -> str:
    return f"[{first},)" if end == LSN_MAX else f"[{first},{end})"


def parse_run(word: str) -> tuple[Lsn, Lsn]:
    """`5` or `5..7`, the last included."""
    match = _RUN.fullmatch(word)
    if match is None:
        raise ValueError(word)
    return Lsn(int(match[1])), Lsn(int(match[2] or match[1]))


def show_run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}..{last}"


def parse_weight(word: str) -> Weight:
    """`[1,9)=512`: positions and their bytes."""
    match = _WEIGHT.fullmatch(word)
    if match is None:
        raise ValueError(word)
    return Weight(*parse_range(match[1]), int(match[2]))


def show_weight(weight: Weight) -> str:
    return f"{show_range(weight.first, weight.end)}={weight.bytes}"


def parse_selection(word: str) -> Selection:
    """`key,value`, `none`, `value/keys=a|b`, `key/from=5/until=9`."""
    names, *filters = word.split("/")
    columns = () if names == "none" else tuple(names.split(","))
    wanted = dict(part.split("=", 1) for part in filters)
    first, end, keys = (wanted.pop(name, None) for name in ("from", "until", "keys"))
    if wanted:
        raise ValueError(word)
    return Selection(
        columns,
        None if first is None else int(first),
        None if end is None else int(end),
        None if keys is None else tuple(key.encode() for key in keys.split("|")),
    )


def show_selection(selection: Selection) -> str:
    shown = ",".join(selection.columns) or "none"
    if selection.time_first_us is not None:
        shown += f"/from={selection.time_first_us}"
    if selection.time_end_us is not None:
        shown += f"/until={selection.time_end_us}"
    if selection.keys is not None:
        shown += "/keys=" + "|".join(key.decode() for key in selection.keys)
    return shown


def parse_node(word: str) -> NodeId:
    match = _NODE.fullmatch(word)
    if match is None or (match[1] == "SN" and not match[2]):
        raise ValueError(word)
    number = int(match[2] or 1)
    return NodeId(number if match[1] == "SN" else FIRST_SEQUENCER + number - 1)


def show_node(node: NodeId) -> str:
    if node < FIRST_SEQUENCER:
        return f"SN{node}"
    return "SQ" if node == FIRST_SEQUENCER else f"SQ{node - FIRST_SEQUENCER + 1}"


def parse_chain(word: str) -> tuple[NodeId, ...]:
    return tuple(parse_node(part) for part in word.split("->"))


def show_chain(chain: tuple[NodeId, ...]) -> str:
    return "->".join(map(show_node, chain))


def parse_nodes(word: str) -> tuple[NodeId, ...]:
    return tuple(parse_node(part) for part in word.split(","))


def show_nodes(nodes: tuple[NodeId, ...]) -> str:
    return ",".join(map(show_node, nodes))


PROJECTION_USAGE = (
    "epoch E chain SN1->SN2 sequencer SQ [replication R] [previous E] [reason REASON] "
    "[issuing E] [sealed]"
)


def take_projection(words: Words) -> Projection:
    """The rest of a line that describes a projection."""
    epoch = chain = sequencer = None
    replication, previous, issuing_since = None, Epoch(0), Epoch(0)
    reason, is_sealed = ReconfigureReason.CREATED, False
    while words:
        match words.take(PROJECTION_USAGE):
            case "epoch":
                epoch = Epoch(words.number("an epoch"))
            case "chain":
                chain = words.parse("a chain such as SN1->SN2", parse_chain)
            case "sequencer":
                sequencer = words.parse("a node such as SQ", parse_node)
            case "replication":
                replication = words.number("a number of replicas")
            case "previous":
                previous = Epoch(words.number("an epoch"))
            case "reason":
                reason = words.parse("a reason", ReconfigureReason)
            case "issuing":
                issuing_since = Epoch(words.number("an epoch"))
            case "sealed":
                is_sealed = True
            case word:
                words.fail(f"expected {PROJECTION_USAGE}, found {word!r}")
    if epoch is None or chain is None or sequencer is None:
        words.fail(f"expected {PROJECTION_USAGE}")
    return Projection(
        LOG,
        epoch,
        chain,
        sequencer,
        replication or len(chain),
        previous,
        reason,
        is_sealed,
        issuing_since=issuing_since,
    )


def show_projection(projection: Projection) -> str:
    text = (
        f"epoch {projection.epoch} chain {show_chain(projection.chain)} "
        f"sequencer {show_node(projection.sequencer)}"
    )
    if projection.previous:
        text += f" previous {projection.previous} reason {projection.reason.value}"
    if projection.issuing_since > FIRST_EPOCH:
        text += f" issuing {projection.issuing_since}"
    return text + (" sealed" if projection.is_sealed else "")
