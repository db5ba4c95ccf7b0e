"""A worker and the ledger in one process, without Ray."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adjudge import RewardSpec
from adjudge.datasets.shards import cut_files
from adjudge.errors import ConfigError, ErrorKind, JudgeUnavailable
from adjudge.judges.endpoint.settings import EndpointStats
from adjudge.rewards.batch_grader import BatchGrader
from adjudge.rewards.function import SpecRewardFunction
from adjudge.runner.journal import Journal
from adjudge.runner.progress import Tally
from adjudge.runs import ray_worker
from adjudge.runs.ray_engine import RayEngine
from adjudge.runs.ray_worker import Ledger, ShardWorker, WorkerPlan, WorkerReport
from adjudge.types import GraderError, GraderScore

HASH = "h"


class Remote:
    """A ledger as its actor's handle has it: ``handle.method.remote(…)``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ledger, name)
        return type("Method", (), {"remote": staticmethod(method)})


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(ray_worker, "_get", lambda value: value)
    monkeypatch.setattr(ray_worker, "_packed", pickle.dumps)
    return Ledger(str(tmp_path / "journal.jsonl"), HASH)


def worker(ledger: Ledger, folder: Path, *, window: int = 8) -> ShardWorker:
    (folder / "counting.py").write_text(
        "from adjudge.graders.base import BaseGrader\n"
        "from adjudge import GradingFailure\n"
        "asked = []\n"
        "class Counting(BaseGrader):\n"
        "    score_range = (0.0, 1.0)\n"
        "    async def aevaluate(self, response: str) -> float:\n"
        "        asked.append(response)\n"
        "        if response == 'bad':\n"
        "            raise GradingFailure('unparsable', 'no verdict')\n"
        "        if response == 'dies' and asked.count('dies') == 1:\n"
        "            raise SystemError('dies')\n"
        "        return 1.0\n"
    )
    spec = RewardSpec.from_dict(
        {"graders": [{"name": "counting", "type": "counting:Counting"}]}, folder=folder
    )
    plan = WorkerPlan(spec, SpecRewardFunction(spec).fingerprint, {}, str(Path.cwd()), window)
    return ShardWorker(plan, Remote(ledger))


def said(one: ShardWorker, folder: Path, responses: list[str]) -> list[WorkerReport]:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"response": text}) for text in responses))
    [shard] = cut_files([path], 10_000)
    data = msgspec.json.encode((shard, None))
    return [pickle.loads(out["said"][0]) for out in one({"shard": [data]})]


def asked() -> list[str]:
    import counting  # type: ignore[import-not-found]  # written by the test, found in the spec's folder

    return list(counting.asked)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "counting", raising=False)


@pytest.mark.parametrize("count", [30, 3000])
def test_no_more_than_a_window_is_held(ledger: Ledger, tmp_path: Path, count: int) -> None:
    found = said(worker(ledger, tmp_path), tmp_path, [f"r{i}" for i in range(count)])
    assert max(len(one.judged) for one in found) == 8
    assert sum(len(one.judged) for one in found) == count


def test_a_shard_begun_again_asks_nothing_twice(ledger: Ledger, tmp_path: Path) -> None:
    rows = ["good", "bad", "good", "other"]
    first = said(worker(ledger, tmp_path), tmp_path, rows)
    before = len(asked())
    again = said(worker(ledger, tmp_path), tmp_path, rows)
    assert len(asked()) == before
    for one, other in zip(first, again, strict=True):
        assert [j.outcome for j in one.judged] == [j.outcome for j in other.judged]
    outcome = [one.outcome["counting"] for said_ in again for one in said_.judged]
    assert [type(one) for one in outcome] == [GraderScore, GraderError, GraderScore, GraderScore]
    ledger.finish(0)
    [last] = said(worker(ledger, tmp_path), tmp_path, rows)
    assert last.last
    assert not last.judged


def test_a_later_run_takes_each_answer_once(ledger: Ledger, tmp_path: Path) -> None:
    rows = ["good", "bad", "good", "other"]
    said(worker(ledger, tmp_path), tmp_path, rows[1:])
    assert len(Journal(tmp_path / "journal.jsonl", HASH)) == 2  # failures are not written
    later = Ledger(str(tmp_path / "journal.jsonl"), HASH)
    before = len(asked())
    said(worker(later, tmp_path), tmp_path, rows)
    assert sorted(asked()[before:]) == ["bad", "bad", "good"]
    assert later.counts().resumed == 2


def test_what_stops_the_run_is_said(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = worker(ledger, tmp_path)

    async def down(*_: Any) -> Any:
        raise JudgeUnavailable("down")

    monkeypatch.setattr(BatchGrader, "grade", down)
    [found] = said(one, tmp_path, ["good"])
    assert isinstance(found.error, JudgeUnavailable)


def test_another_version_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    one = worker(ledger, tmp_path)
    there = ShardWorker(replace(one.plan, fingerprint="another"), Remote(ledger))
    [found] = said(there, tmp_path, ["good"])
    assert "differs from the one where the run was started" in str(found.error)


def test_reports_of_a_dead_attempt_come_too_late(ledger: Ledger) -> None:
    attempt, _, _ = ledger.begin(3)
    entry = ("key", "g", 0, msgspec.json.encode(GraderScore("g", 1.0)))
    ledger.report(3, attempt, [entry], Tally(done=1))
    second, known, _ = ledger.begin(3)
    assert list(known) == [entry]
    ledger.report(3, attempt, [entry], Tally(done=2))
    failure = GraderError("g", ErrorKind.TIMEOUT, "slow")
    ledger.report(3, second, [("other", "g", 0, msgspec.json.encode(failure))], Tally(done=2))
    assert ledger.begin(3)[1] == [entry, ("other", "g", 0, msgspec.json.encode(failure))]


def test_rows_that_belong_together_are_not_graded_in_parts(ledger: Ledger, tmp_path: Path) -> None:
    one = worker(ledger, tmp_path)
    body = {"object": "chat.completion", "choices": [{"message": {"content": "a"}}]}
    result = {"id": "b", "custom_id": "c", "response": {"status_code": 200, "body": body}}
    line = {"type": "user", "message": {"role": "user", "content": "q"}, "uuid": "1"}
    for row in (result, line, {"prompt": "p", "responses": ["a", "b"]}):
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(row) + "\n")
        [shard] = cut_files([path], 10)
        with pytest.raises(ConfigError, match="by the local engine only"):
            list(one._samples(shard))


def test_reports_of_a_worker_are_counted_in_any_order() -> None:
    engine = RayEngine()
    for calls in (4, 9, 7):
        stats = EndpointStats(calls=calls)
        engine._add_counts(WorkerReport(0, worker="one", endpoints={(("u",), ("m",)): stats}))
    assert [one["calls"] for one in engine.endpoints()] == [9]
