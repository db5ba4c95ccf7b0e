"""Groups under `adjudge serve --ray`: run by `make test-ray-cluster`."""

import json
import os
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster_of_two import TwoNodes
from served import post, serving


def test_a_group_meets_in_one_replica(two_nodes: TwoNodes, tmp_path: Path) -> None:
    two_nodes.complete()
    os.environ["JUDGE_KEY"] = "s3cret"
    path = tmp_path / "spec.toml"
    path.write_text(
        '[[graders]]\nname = "same"\ntype = "string_match"\nmatch = "exact"\n'
        '[reward]\ngroup = "z_score"\n'
    )
    samples = [
        {
            "prompt": f"q{group}",
            "completion": str(i % 2),
            "answer": "1",
            "group_id": f"g{group}",
            "group_size": 4,
            "request_id": f"{group}-{i}",
        }
        for i in range(4)
        for group in range(8)
    ]
    with serving(path, two_nodes) as (running, process):
        status, _ = post(f"{running.url}/judge", {"prompt": "p", "completion": "c"})
        assert status == 422  # compares: only /group_judge
        with urllib.request.urlopen(f"{running.url}/health") as response:
            assert json.load(response)["graders"] == ["same"]
        with ThreadPoolExecutor(len(samples)) as pool:
            replies = list(pool.map(lambda one: post(f"{running.url}/group_judge", one), samples))
        assert [status for status, _ in replies] == [200] * len(samples)
        for sample, (_, reply) in zip(samples, replies, strict=True):
            assert (reply["score"] > 0) is (sample["completion"] == "1")
            assert reply["metadata"]["group"]["present"] == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
