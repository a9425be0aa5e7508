"""What the masters of a bucket's partitions have at a moment.

I1  The map is read anew before anybody is asked.  So whoever made a change that was acknowledged
    before the question is a master that is asked, or one whose history a master that is asked
    has taken over: what is left of that change is in what is said here.
"""

import asyncio
from collections.abc import Awaitable, Mapping

from millrace.client.bucket import Bucket
from millrace.core.documents.change_query import MasterState
from millrace.core.documents.document import PartitionId
from millrace.errors import PartitionUnavailable
from millrace.spark import workers
from millrace.spark.changes.masters import Masters

Standings = Mapping[PartitionId, MasterState]


def standings(cluster: str, bucket: str, timeout_ms: int) -> Standings:
    """Of all partitions.  Raises Unavailable, UnknownBucket."""
    client = workers.client(cluster)
    return workers.run(_standings(client.bucket(bucket), bucket, timeout_ms))


async def _standings(opening: Awaitable[Bucket], name: str, timeout_ms: int) -> Standings:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            bucket = await opening  # The client's own, which it keeps.
            await bucket.asker.map.reload()  # Keeps I1.
            numbers = [PartitionId(number) for number in range(len(bucket.asker.map.masters))]
            masters = Masters(bucket)
            try:
                found = await masters.states(numbers)
            finally:
                await masters.close()
    except TimeoutError:
        raise PartitionUnavailable(f"the masters of bucket {name!r} do not answer") from None
    missing = [number for number in numbers if number not in found]
    if missing:
        raise PartitionUnavailable(
            f"nobody says how far partition {missing[0]} of bucket {name!r} is: it has no master, "
            "or its master does not answer"
        )
    return found
