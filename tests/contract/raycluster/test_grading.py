"""`adjudge grade --engine ray` on two nodes: run by `make test-ray-cluster`."""

import json
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_of_two import TwoNodes, adjudge, command, finished

from adjudge.mock import start_mock

ROWS = 300
CONCURRENCY = 4
# Without hedges, of which a busy machine sends some: calls are counted here.
SPEC = """
max_concurrency = {concurrency}
[judges.mock]
type = "openai"
model = "mock"
base_url = "{url}"
endpoint = {{hedge = false}}
[[graders]]
name = "contains"
type = "string_match"
match = "contains"
[[graders]]
name = "quality"
type = "llm"
judge = "mock"
score_range = [0.0, 1.0]
template = \"\"\"
Is it good? {{reply_form}}
{{response}}
\"\"\"
{more}
"""
LISTWISE = '[[graders]]\nname = "short"\ntype = "by_length:ByLength"\n'
SCRIPT = [
    {"when": "nonsense", "reply": "I would rather not say."},
    {"when": "good", "reply": {"score": 1, "reason": "it is good"}},
    {"when": "answer", "reply": {"score": 0, "reason": "it is not"}},
]


def rows(n: int = ROWS) -> list[dict[str, Any]]:
    words = ["good", "bad", "nonsense", "good good", "fair"]
    return [
        {
            "prompt": f"question {i // 4}",
            "response": f"{words[i % 5]} answer {i}",
            "reference": "good",
            "env_reward": i % 3 / 2,
        }
        for i in range(n)
    ]


def as_jsonl(folder: Path, found: list[dict[str, Any]]) -> Path:
    path = folder / "rollouts.jsonl"
    path.write_text("\n".join(map(json.dumps, found)))
    return path


def as_parquet(folder: Path, found: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    path = folder / "rollouts.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), path, row_group_size=120)
    return path


def spec(folder: Path, url: str, more: str = "") -> Path:
    path = folder / "spec.toml"
    path.write_text(SPEC.format(url=url, more=more, concurrency=CONCURRENCY))
    return path


def asked(url: str) -> int:
    with urllib.request.urlopen(f"{url}/stats") as reply:
        return int(json.load(reply)["requests"])


def answers_in(folder: Path) -> int:
    """How many of the judge's answers a run has in its journal."""
    path = folder / "journal.jsonl"
    return path.read_bytes().count(b'"g":"quality"') if path.exists() else 0


def script(folder: Path) -> str:
    path = folder / "script.jsonl"
    path.write_text("\n".join(map(json.dumps, SCRIPT)))
    return str(path)


def summary(folder: Path) -> dict[str, Any]:
    """What does not depend on the clock or on who asked."""
    found = json.loads((folder / "summary.json").read_text())
    clock = ("elapsed_s", "samples_per_s", "created")
    for key in (*clock, "endpoints", "spending", "asks"):
        found.pop(key)
    kept = found["transcripts"]  # the rollouts; the calls of Ray's workers are not
    found["transcripts"] = {key: kept[key] for key in ("kept", "of")}
    return dict(found)


def test_everything_is_as_the_local_engine_has_it(two_nodes: TwoNodes, tmp_path: Path) -> None:
    """Rules, a judge that fails for some, broken rows, a listwise grader, z-scores."""
    two_nodes.complete()
    file = as_jsonl(tmp_path, rows())
    lines = file.read_text().splitlines()
    lines[7], lines[50], lines[51] = "{broken", "", '{"x": 1}'
    file.write_text("\n".join(lines))
    shutil.copy(Path(__file__).with_name("by_length.py"), tmp_path)
    with start_mock(script=script(tmp_path)) as url:
        settings = spec(tmp_path, url, LISTWISE + '[reward]\ngroup = "z_score"\n')
        common: list[str | Path] = ["grade", file, "--spec", settings, "--json"]
        local = adjudge(*common, "-o", tmp_path / "local")
        alone = asked(url)
        there = ["--engine", "ray", "--ray-address", two_nodes.address]
        cluster = adjudge(*common, "-o", tmp_path / "ray", *there)
        assert asked(url) - alone == alone  # each failure asked again as often, too
    assert (local.returncode, cluster.returncode) == (2, 2), cluster.stderr
    assert local.stderr.splitlines() == [
        line for line in cluster.stderr.splitlines() if line.startswith("broken row")
    ]
    written = [(tmp_path / which / "rewards.jsonl").read_bytes() for which in ("local", "ray")]
    assert written[0] == written[1]
    assert summary(tmp_path / "local") == summary(tmp_path / "ray")
    found = json.loads(cluster.stdout)
    assert "judge calls that this process did not make are not kept" in found["transcripts"]["rule"]
    assert found["missing"]["by_kind"]["unparsable"] > 20
    assert sum(one["calls"] for one in found["endpoints"]) == alone


def test_an_interrupted_run_goes_on(two_nodes: TwoNodes, tmp_path: Path) -> None:
    """Parquet, some groups drawn, Ctrl-C in the middle, and the local engine at the end."""
    two_nodes.complete()
    file = as_parquet(tmp_path, rows())
    with start_mock(script=script(tmp_path), latency=("fixed:0.1",)) as url:
        settings = spec(tmp_path, url, "[reward]\nsample_rate = 0.6\n")
        common: list[str | Path] = ["grade", file, "--spec", settings, "--json"]
        there = ["--engine", "ray", "--ray-address", two_nodes.address]
        process = start(*common, "-o", tmp_path / "ray", *there)
        until(lambda: asked(url) > 60, process)
        process.send_signal(signal.SIGINT)
        stopped = finished(process)
        assert stopped.returncode == 130, stopped.stderr
        assert "To resume, run:" in stopped.stderr
        before = asked(url)
        known = answers_in(tmp_path / "ray")
        assert known >= 10  # of more than 60 that were asked; a busy machine reports late
        resumed = adjudge(*common, "-o", tmp_path / "ray", *there)
        assert resumed.returncode == 0, resumed.stderr
        after = asked(url) - before
        local = adjudge(*common, "-o", tmp_path / "local")
        whole = asked(url) - before - after
    assert after == whole - known
    assert json.loads(resumed.stdout)["resumed_results"] >= known
    written = [(tmp_path / which / "rewards.jsonl").read_bytes() for which in ("local", "ray")]
    assert written[0] == written[1]
    assert json.loads(local.stdout)["reward"]["not_sampled"] > 40


def test_a_node_dies(two_nodes: TwoNodes, tmp_path: Path) -> None:
    """In the middle of a JSONL and a Parquet file: nothing is lost, and no known answer is asked
    for again, however late a busy machine's reports are."""
    two_nodes.complete()
    found = [row for row in rows(400) if "nonsense" not in row["response"]]
    files = [as_jsonl(tmp_path, found[:200]), as_parquet(tmp_path, found[200:])]
    with start_mock(script=script(tmp_path), latency=("fixed:0.1",)) as url:
        settings = spec(tmp_path, url)
        there = ["--engine", "ray", "--ray-address", two_nodes.address]
        common: list[str | Path] = ["grade", *files, "--spec", settings, "--json"]
        process = start(*common, "-o", tmp_path / "ray", *there)
        until(lambda: answers_in(tmp_path / "ray") > 60, process)
        known = answers_in(tmp_path / "ray")
        two_nodes.lose()
        unknown = asked(url) - known
        done = finished(process)
        assert done.returncode == 0, done.stderr
        counted = asked(url)
        local = adjudge(*common, "-o", tmp_path / "local")
        assert local.returncode == 0
    assert counted >= len(found)
    assert counted - len(found) <= unknown
    written = [(tmp_path / which / "rewards.jsonl").read_bytes() for which in ("local", "ray")]
    assert written[0] == written[1]
    assert summary(tmp_path / "local") == summary(tmp_path / "ray")


def test_an_outage_stops_the_run(two_nodes: TwoNodes, tmp_path: Path) -> None:
    file = as_jsonl(tmp_path, rows(40))
    with start_mock(fail=("500:1",)) as url:
        settings = spec(tmp_path, url, "[missing]\npatience_s = 1\n")
        once = "endpoint = {max_attempts = 1, deadline_s = 0.2}"
        settings.write_text(settings.read_text().replace("endpoint = {hedge = false}", once))
        there = ["--engine", "ray", "--ray-address", two_nodes.address]
        stopped = adjudge("grade", file, "--spec", settings, "-o", tmp_path / "ray", *there)
    assert stopped.returncode == 3, stopped.stderr
    assert "judges failed for more than 50%" in " ".join(stopped.stderr.split())
    assert "To resume, run:" in stopped.stderr


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def until(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 240  # of a machine that is busy with other things
    while not there():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            pytest.fail("ended too early, or never began: " + "".join(process.communicate()))
        time.sleep(0.05)
