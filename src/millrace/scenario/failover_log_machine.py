"""Machine `failover-log`: from where on a client may stream, by the comparison of two logs."""

from collections.abc import Callable

from millrace.core.documents.document import NO_SEQ, SEQ_MAX, Seq
from millrace.core.documents.failover_log import NO_LOG, FailoverLog
from millrace.core.documents.rollback import Place, Refuse, find_start
from millrace.scenario import document_words as dw
from millrace.scenario.machine import Command, Machine
from millrace.scenario.text import Words

MASTER_USAGE = "master LOG [high SEQ] [purged SEQ]"
CLIENT_USAGE = "client LOG snapshot SEQ seen SEQ [running SEQ]"


class FailoverLogMachine(Machine):
    name = "failover-log"

    def __init__(self) -> None:
        self._master = NO_LOG
        self._high: Seq | None = None
        self._purged = NO_SEQ
        self._client = Place()

    def commands(self) -> list[Command]:
        actions: list[tuple[str, Callable[[Words], list[str]]]] = [
            (MASTER_USAGE, self._set_master),
            (CLIENT_USAGE, self._set_client),
            ("begin ID at SEQ", self._begin),
            ("compare", self._compare),
            ("compare-as-written", self._compare_as_written),
        ]
        return [Command(usage, run) for usage, run in actions]

    def _set_master(self, words: Words) -> list[str]:
        self._master = words.parse("a log such as deadbeef@5,cafebabe@0", dw.parse_log)
        seqs = _take_seqs(words, MASTER_USAGE, "high", "purged")
        self._high, self._purged = seqs.get("high"), seqs.get("purged", NO_SEQ)
        return []

    def _set_client(self, words: Words) -> list[str]:
        log = words.parse("a log such as cafebabe@0, or none", dw.parse_log)
        seqs = _take_seqs(words, CLIENT_USAGE, "snapshot", "seen", "running")
        if not {"snapshot", "seen"} <= seqs.keys():
            words.fail(f"expected {CLIENT_USAGE}")
        running = seqs.get("running", SEQ_MAX)
        self._client = Place(log, seqs["snapshot"], seqs["seen"], running)
        return []

    def _begin(self, words: Words) -> list[str]:
        """Somebody becomes the master."""
        id = words.parse("an id such as cafebabe", dw.parse_id)
        if not words.option("at"):
            words.fail("expected `at` and a seq")
        self._master = self._master.begin(id, Seq(words.number("a seq")))
        return [f"master {dw.show_log(self._master)}"]

    def _compare(self, words: Words) -> list[str]:
        found = find_start(self._master, self._client, self._high, self._purged)
        if isinstance(found, Refuse):
            return [f"refuse {found.reason.value}"]
        return [f"start {found.seq} {found.reason.value}"]

    def _compare_as_written(self, words: Words) -> list[str]:
        return [f"as written {start_as_written(self._master, self._client)}"]


def _take_seqs(words: Words, usage: str, *keywords: str) -> dict[str, Seq]:
    found: dict[str, Seq] = {}
    while words:
        keyword = words.take(usage)
        if keyword not in keywords:
            words.fail(f"expected {usage}, found {keyword!r}")
        found[keyword] = Seq(words.number("a seq"))
    return found


def start_as_written(master: FailoverLog, client: Place) -> Seq:
    """The seed's text to the letter: a dummy entry in front of both logs, and of the entries next
    newer than the newest common one always the smaller.  Nothing but scenario files asks."""
    mine = client.log.up_to(client.snapshot)
    seqs_of_mine = [client.snapshot, *(entry.seq for entry in mine.entries)]
    seqs_of_master = [client.seen, *(entry.seq for entry in master.entries)]
    for at, entry in enumerate(mine.entries):
        at_master = master.position_of(entry.id)
        if at_master is not None:
            return min(seqs_of_mine[at], seqs_of_master[at_master])
    return NO_SEQ
