"""`millrace pipeline query`: a view that runs, and one that does not."""

import json

from millrace import sync
from millrace.local import LocalCluster
from tests.cli.commands import Command
from tests.spark.pipelines import view_functions
from tests.spark.pipelines.pipeline_commands import millrace

__all__ = ["millrace"]


def test_one_that_has_ended_answers_as_of_now_if_it_has_seen_all_and_else_says_so(
    millrace: Command, calm_cluster: LocalCluster, bucket: sync.SyncBucket
) -> None:
    bucket.set(b"a", json.dumps({"city": "york", "amount": 5}).encode())
    ran = millrace(
        *("run", "view", "sums", "--until-caught-up"),
        *("--cluster", ",".join(calm_cluster.addresses), "--bucket", bucket.name),
        *("--map", f"{view_functions.__file__}:by_city", "--reduce", "sum"),
    )
    assert ran.code == 0, ran.err
    asked = ("query", "sums", "--as-of-now", "--format", "json")
    assert millrace(*asked).json["rows"] == [{"key": "york", "value": 5}]
    bucket.set(b"b", json.dumps({"city": "york", "amount": 7}).encode())
    late = millrace(*asked[:-2])
    assert late.code == 1
    assert "sums has not seen all of now, and is finished" in late.err
    assert "`millrace pipeline run view sums` goes on" in late.err
    assert millrace("query", "sums", "--format", "json").json["rows"][0]["value"] == 5
