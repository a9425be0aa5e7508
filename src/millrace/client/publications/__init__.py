"""Many rows that appear in a log, or in several, as one: staged first, then published at once.

Here is how rows are staged and published, and how readers find them; which blocks count is decided
in `core/publications.py`."""

from millrace.client.publications.publishing import Published
from millrace.client.publications.staging import Staged

__all__ = ["Published", "Staged"]
