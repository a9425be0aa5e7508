"""Prints the tables that the project has made so far."""

from pathlib import Path

import pyarrow.parquet as pq

WAREHOUSE = Path(__file__).resolve().parent / "spark-warehouse"


def main() -> None:
    for table in ("pages", "users"):
        for row in sorted(pq.read_table(WAREHOUSE / table).to_pylist(), key=str):
            print(f"{table}:", *row.values())


if __name__ == "__main__":
    main()
