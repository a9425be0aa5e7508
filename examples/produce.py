"""Appends page views to a log, which is made if it is not there: something to read.

    python produce.py --count 6000

View number n happened n tenths of a second after the year began, and its page and user follow from
n.  A second run goes on where the log ends.
"""

import argparse
import datetime
import json
import os

import millrace
from millrace.errors import UnknownLog

PAGES = (b"/", b"/docs", b"/", b"/pricing", b"/", b"/docs", b"/", b"/blog")
BEGAN_US = int(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()) * 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Appends page views to a log.")
    parser.add_argument("--cluster", default=os.environ.get("MILLRACE_CLUSTER", "127.0.0.1:7701"))
    parser.add_argument("--log", default="views")
    parser.add_argument("--count", type=int, default=6_000)
    arguments = parser.parse_args()

    with millrace.sync.connect(arguments.cluster) as client:
        try:
            log = client.log(arguments.log)
        except UnknownLog:
            log = client.create_log(arguments.log, write_path="chain")  # Numbered 1, 2, 3, ...
        _, first = log.bounds()
        numbers = range(first, first + arguments.count)
        log.append_many(
            [json.dumps({"user": n * n % 1_000, "ms": n % 400}).encode() for n in numbers],
            keys=[PAGES[n % len(PAGES)] for n in numbers],
            timestamps_us=[BEGAN_US + n * 100_000 for n in numbers],
        )
        print(f"{log.name}: {first}..{numbers[-1]}")


if __name__ == "__main__":
    main()
