"""How what procedures take, order and return is written in scenario files."""

from typing import assert_never

from millrace.core import procedure as p
from millrace.core.append import Append, Appended, AppendUnknown, NotAppended
from millrace.core.keeper import Step
from millrace.core.messages import Message
from millrace.core.projection import Projection, ReconfigureReason
from millrace.core.reconfigure import Change
from millrace.core.repair import ChainTrouble, FillPolicy, RepairResult
from millrace.scenario import speech
from millrace.scenario import words as w
from millrace.scenario.text import Words
from millrace.types import Ack, Epoch, Lsn, NodeId, NodeInfo, Role, Token

WRITER = Token(1, 1)

# -- Reading what procedures take ---------------------------------------------------------------


def take_append(words: Words, token: Token = WRITER, ack: Ack = Ack.DISK) -> Append:
    values = words.take("a value").split("|")
    if words.option("token"):
        token = words.parse("a token such as 1.1", w.parse_token)
    if words.option("ack"):
        ack = words.parse("disk or memory", Ack)
    return Append(
        w.LOG, len(values), token, ack, lambda first, epoch: w.place_values(values, first, token)
    )


def take_repair(words: Words, wait_ms: int | None = 1_000) -> tuple[Lsn, FillPolicy]:
    lsn = Lsn(words.number("a position"))
    if words.option("wait"):
        wait_ms = words.number("milliseconds")
    elif words.option("never"):
        wait_ms = None
    return lsn, FillPolicy(wait_ms)


CHANGE_USAGE = (
    "REASON [suspects NODE,...] [only-from E] [add NODE,...] [remove NODE,...] [for-good]"
)


def take_change(words: Words) -> Change:
    reason = words.parse("a reason such as unreachable", ReconfigureReason)
    suspects: tuple[NodeId, ...] = ()
    add: tuple[NodeId, ...] = ()
    remove: tuple[NodeId, ...] = ()
    only_from, for_good = None, False
    while words:
        match words.take("a part of the change"):
            case "suspects":
                suspects = words.parse("nodes", w.parse_nodes)
            case "only-from":
                only_from = Epoch(words.number("an epoch"))
            case "add":
                add = words.parse("nodes", w.parse_nodes)
            case "remove":
                remove = words.parse("nodes", w.parse_nodes)
            case "for-good":
                for_good = True
            case word:
                words.fail(f"expected {CHANGE_USAGE}, found {word!r}")
    return Change(w.LOG, reason, frozenset(suspects), only_from, add, frozenset(remove), for_good)


def take_view(words: Words) -> p.ClusterView:
    nodes = words.parse("nodes such as SN1,SN2,SQ", w.parse_nodes)
    live = words.parse("nodes", w.parse_nodes) if words.option("live") else nodes
    return p.ClusterView(tuple(map(node_info, nodes)), frozenset(live))


def node_info(node: NodeId) -> NodeInfo:
    role = Role.STORAGE if node < w.FIRST_SEQUENCER else Role.SEQUENCER
    return NodeInfo(node, w.show_node(node), roles=(role,))


# -- Showing what procedures order --------------------------------------------------------------


def asks_of(effect: p.Effect) -> list[p.Ask]:
    if isinstance(effect, p.Ask):
        return [effect]
    return list(effect.asks) if isinstance(effect, p.AskAll) else []


def show_effect(effect: p.Effect) -> list[str]:
    match effect:
        case p.Ask() | p.AskAll():
            return [
                f"ask {w.show_node(ask.node)} {speech.show(ask.message)}" for ask in asks_of(effect)
            ]
        case p.Pause(ms):
            return [f"pause {ms} ms"]
        case p.Note(event, _):
            return [f"note {event}"]
        case p.ReadProjection():
            return ["read-projection"]
        case p.ReplaceProjection(projection, expected):
            return [f"replace-projection version {expected} {w.show_projection(projection)}"]
        case p.Refresh(_, epoch):
            return [f"refresh epoch {epoch}"]
        case p.Reconfigure(_, suspects, reason):
            return [f"reconfigure {reason.value}{show_suspects(suspects)}"]
        case p.ListNodes():
            return ["list-nodes"]
        case p.ReadEpochs():
            return ["read-epochs"]
        case p.ReplaceEpochs(record, expected):
            return [f"replace-epochs version {expected} epoch {record.epoch} clean {record.clean}"]
        case p.ReadCommits():
            return ["read-commits"]
        case p.ReplaceCommits(commits, expected):
            term, version = commits.term, commits.version
            return [f"replace-commits version {expected} term {term} at {version}"]
        case p.ReadBucket(name):
            return [f"read-bucket {name}"]
        case p.ReplaceBucket(bucket, expected):
            return [f"replace-bucket version {expected} {bucket.name} at {bucket.revision}"]
        case p.ReadNodesetChanges():
            return ["read-nodeset-changes"]
        case p.AppendNodesetChange(_, change):
            nodeset = w.show_nodes(change.nodeset)
            return [f"append-nodeset-change since {change.since} {nodeset}"]
        case p.ReadStatuses():
            return ["read-statuses"]
        case p.RenewRebuilds(nodes):
            return [f"renew-rebuilds {w.show_nodes(nodes)}"]
        case _:
            assert_never(effect)


def show_suspects(suspects: frozenset[NodeId]) -> str:
    return f" suspects {w.show_nodes(tuple(sorted(suspects)))}" if suspects else ""


def show_result(result: object) -> str:
    match result:
        case Appended(first, last):
            return f"appended {w.show_run(first, last)}"
        case NotAppended(reason):
            return f"not appended: {reason.value}"
        case AppendUnknown(first):
            return f"unknown at {first}"
        case RepairResult():
            return result.value
        case ChainTrouble(node, cause, epoch):
            why = "" if cause is None else f" {cause.value}"
            return f"trouble with {w.show_node(node)}{why}" + (f" epoch {epoch}" if epoch else "")
        case Step(kind, _, _, nodes, reason):
            return f"{kind.value} {w.show_nodes(nodes)} reason {reason.value}"
        case Projection():
            return f"projection {w.show_projection(result)}"
        case p.Failure(kind):
            return f"fails {kind.value}"
        case Message():
            return speech.show(result)
        case (int() as node, (Message() | p.Failure()) as answer):
            return f"{w.show_node(NodeId(node))} {speech.show_answer(answer)}"
        case None:
            return "ok"
        case _:
            raise AssertionError(f"no words for {result!r}")
