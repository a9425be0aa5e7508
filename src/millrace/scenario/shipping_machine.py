"""Machine `shipping`: which node sends which blocks of a sequenced log to a reader."""

from millrace.core.messages import Shipping
from millrace.core.shipping import Shipper, donor
from millrace.scenario import words as w
from millrace.scenario.machine import Command, Machine, Setting
from millrace.scenario.text import Words
from millrace.types import Copy, CopysetOrder, LocalScd, NodeId, Placement

START_USAGE = (
    "start [all-send-all] [known-down NODE,...] [order ORDER] [seed N] [local off|region|rack] "
    "[location LOCATION]"
)


class ShippingMachine(Machine):
    name = "shipping"

    def __init__(self) -> None:
        self._copies: list[tuple[Copy, tuple[NodeId, ...]]] = []  # With those that hold it.
        self._locations: dict[NodeId, str] = {}

    def settings(self) -> list[Setting]:
        return [
            Setting("copies EXTENT on NODE,... [held-by NODE,...]", self._add_copies),
            Setting("location NODE LOCATION", self._locate),
        ]

    def commands(self) -> list[Command]:
        return [
            Command(START_USAGE, self._start),
            Command("donors [rebuilding NODE,...]", self._donors),
        ]

    def _add_copies(self, words: Words) -> None:
        extent = words.parse("a block such as 42", w.parse_extent)
        if not words.option("on"):
            words.fail("expected `on` and a copyset such as SN1,SN2")
        copyset = words.parse("a copyset such as SN1,SN2", w.parse_nodes)
        holders = copyset
        if words.option("held-by"):
            holders = words.parse("nodes such as SN1,SN2", w.parse_nodes)
        self._copies.append((Copy(extent, Placement(copyset)), holders))

    def _locate(self, words: Words) -> None:
        node = words.parse("a node such as SN1", w.parse_node)
        self._locations[node] = words.take("a location such as eu.dc1.c1.row1.rack1")

    def _start(self, words: Words) -> list[str]:
        shipping = _take_shipping(words)
        nodes = {node for copy, holders in self._copies for node in holders}
        return [self._sends(node, shipping) for node in sorted(nodes)]

    def _sends(self, node: NodeId, shipping: Shipping) -> str:
        shipper = Shipper(node, shipping, self._locations)
        sent = [
            w.show_extent(copy.extent)
            for copy, holders in self._copies
            if node in holders and shipper.ships(copy)
        ]
        return f"{w.show_node(node)} sends {' '.join(sent) or 'nothing'}"

    def _donors(self, words: Words) -> list[str]:
        rebuilding: tuple[NodeId, ...] = ()
        if words.option("rebuilding"):
            rebuilding = words.parse("nodes such as SN1,SN2", w.parse_nodes)
        shown = []
        for copy, _ in self._copies:
            giver = donor(copy.placement, rebuilding)
            name = "nobody" if giver is None else w.show_node(giver)
            shown.append(f"{w.show_extent(copy.extent)} from {name}")
        return shown


def _take_shipping(words: Words) -> Shipping:
    """The rest of a line that says what a reader asks for."""
    known_down: tuple[NodeId, ...] = ()
    is_single_copy, order, seed = True, CopysetOrder.SHUFFLED, 0
    local, location = LocalScd.OFF, ""
    while words:
        match words.take(START_USAGE):
            case "all-send-all":
                is_single_copy = False
            case "known-down":
                known_down = words.parse("nodes such as SN1,SN2", w.parse_nodes)
            case "order":
                order = words.parse("stored, shuffled or shuffled_per_client", CopysetOrder)
            case "seed":
                seed = words.number("a seed")
            case "local":
                local = words.parse("off, region or rack", LocalScd)
            case "location":
                location = words.take("a location such as eu.dc1.c1.row1.rack1")
            case word:
                words.fail(f"expected {START_USAGE}, found {word!r}")
    return Shipping(is_single_copy, known_down, order, seed, local, location)
