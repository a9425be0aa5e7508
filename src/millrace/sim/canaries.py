"""All planted bugs, by name."""

from millrace.sim import chain_canaries
from millrace.sim.changes import canaries as changes_canaries
from millrace.sim.commit import canaries as commit_canaries
from millrace.sim.documents import canaries as documents_canaries
from millrace.sim.planting import Canary
from millrace.sim.sequenced import canaries as sequenced_canaries

CHAIN = chain_canaries.CANARIES
SEQUENCED = sequenced_canaries.CANARIES
COMMIT = commit_canaries.CANARIES
DOCUMENTS = documents_canaries.CANARIES
CHANGES = changes_canaries.CANARIES
CANARIES: dict[str, Canary] = {**CHAIN, **SEQUENCED, **COMMIT, **DOCUMENTS, **CHANGES}
