"""The same API without `await`: in scripts, notebooks, threads and forked workers."""

import asyncio
import subprocess
import sys
import threading

import pyarrow as pa
import pytest

import millrace
from millrace.errors import LogExists, UnknownLog
from millrace.local import LocalCluster
from millrace.types import Gap, Record

SCRIPT_TIMEOUT_S = 60

PLAIN_SCRIPT = """
import sys
import millrace
client = millrace.sync.connect(sys.argv[1])
log = client.create_log("sync-script", write_path="chain")
print([log.append(b"%d" % number, key=b"k", headers=(("h", b"v"),)) for number in range(3)])
with log.read() as reader:
    for record in reader:
        print(record.lsn, record.value, record.key, record.headers)
client.close()
"""

FORKING_SCRIPT = """
import os, sys
import millrace
from millrace.errors import UsageError
client = millrace.sync.connect(sys.argv[1])
log = client.create_log("sync-fork", write_path="chain")
log.append(b"parent before")
child = os.fork()
if child == 0:
    try:
        log.append(b"over the parent's connection")
    except UsageError:
        own = millrace.sync.connect(sys.argv[1])
        own.log("sync-fork").append(b"child")
        own.close()
        os._exit(7)
    os._exit(1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
log.append(b"parent after")
with log.read() as reader:
    print([record.value.decode() for record in reader])
client.close()
"""


def script(text: str, cluster: LocalCluster) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", text, ",".join(cluster.addresses)],
        capture_output=True,
        text=True,
        timeout=SCRIPT_TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def test_a_plain_script(calm_cluster: LocalCluster) -> None:
    assert script(PLAIN_SCRIPT, calm_cluster).splitlines() == [
        "[1, 2, 3]",
        "1 b'0' b'k' (('h', b'v'),)",
        "2 b'1' b'k' (('h', b'v'),)",
        "3 b'2' b'k' (('h', b'v'),)",
    ]


def test_a_forked_child_connects_for_itself(calm_cluster: LocalCluster) -> None:
    said = script(FORKING_SCRIPT, calm_cluster)
    assert said == "['parent before', 'child', 'parent after']\n"


def test_inside_a_running_loop(calm_cluster: LocalCluster) -> None:
    async def notebook_cell() -> list[bytes]:
        with millrace.sync.connect(calm_cluster.addresses) as client:
            log = client.create_log("sync-notebook", write_path="chain")
            log.append(b"one")
            log.append_many([b"two", b"three"])
            with log.read() as reader:
                return [item.value for item in reader if isinstance(item, Record)]

    assert asyncio.run(notebook_cell()) == [b"one", b"two", b"three"]


def test_many_threads_share_a_client(calm_cluster: LocalCluster) -> None:
    with millrace.sync.connect(calm_cluster.addresses) as client:
        log = client.create_log("sync-threads", write_path="chain")
        positions: dict[bytes, int] = {}

        def work(thread: int) -> None:
            for number in range(40):
                value = b"%d.%d" % (thread, number)
                positions[value] = log.append(value)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with log.read() as reader:
            seen = {item.value: item.lsn for item in reader if isinstance(item, Record)}
        assert seen == positions
        assert sorted(seen.values()) == list(range(1, 321))
        for thread_number in range(8):  # One writer's appends keep their order.
            mine = [positions[b"%d.%d" % (thread_number, number)] for number in range(40)]
            assert mine == sorted(mine)


def test_tables_go_in_and_come_out(calm_cluster: LocalCluster) -> None:
    rows = 5_000
    table = pa.table(
        {
            "value": pa.array([b"value %d" % row for row in range(rows)], pa.binary()),
            "key": pa.array(
                [None if row % 3 else b"key %d" % row for row in range(rows)], pa.binary()
            ),
        }
    )
    with millrace.sync.connect(calm_cluster.addresses) as client:
        log = client.create_log("sync-tables", write_path="chain")
        appended = log.append_table(table)
        assert sum(part.last - part.first + 1 for part in appended) == rows
        with log.read() as reader:
            batches = [batch for batch in reader.batches() if not isinstance(batch, Gap)]
        read = pa.Table.from_batches(batches)
        assert read["lsn"].to_pylist() == list(range(1, rows + 1))
        assert read["value"].to_pylist() == table["value"].to_pylist()
        assert read["key"].to_pylist() == table["key"].to_pylist()
        with log.read(10, 20) as reader:
            (some,) = reader.batches(columns=["value"])
        assert not isinstance(some, Gap)
        assert some.column_names == ["value"]
        assert some["value"].to_pylist() == table["value"].to_pylist()[9:19]


def test_the_rest_of_the_api(calm_cluster: LocalCluster) -> None:
    with millrace.sync.connect(calm_cluster.addresses) as client:
        assert client.name == calm_cluster.name
        log = client.create_log("sync-rest", write_path="chain")
        with pytest.raises(LogExists):
            client.create_log("sync-rest", write_path="chain")
        log.append_many([b"%d" % number for number in range(10)])
        assert log.peek() == 10
        assert log.bounds() == (1, 11)
        assert log.resolve("-2") == 9
        found = log.get(4, timeout_ms=5_000)
        assert isinstance(found, Record)
        assert found.value == b"3"
        assert log.trim(5) == 5
        assert log.describe().trim_end == 5
        assert [info.name for info in client.logs()].count("sync-rest") == 1
        assert len(client.status().nodes) == 3
        with log.tail(2, fill_after_ms=500) as reader:
            part = reader.take(timeout_ms=5_000)
        assert part is not None and not isinstance(part, Gap)
        assert (part.first, part.end) == (9, 11)
        client.delete_log("sync-rest")
        with pytest.raises(UnknownLog):
            client.log("sync-rest")
