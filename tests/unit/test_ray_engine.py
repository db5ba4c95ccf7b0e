"""Workers and the process that asks them, in one process and without Ray."""

import asyncio
import json
import pickle
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from adjudge import RewardSpec
from adjudge.errors import ConfigError, JudgeUnavailable
from adjudge.judges.endpoint.settings import EndpointStats
from adjudge.rewards.batch_grader import BatchGrader
from adjudge.runner.journal import Journal
from adjudge.runs import ray_engine
from adjudge.runs.grading import grade_rollouts
from adjudge.runs.job import GradedRun, GradingJob
from adjudge.runs.ray_engine import RayEngine

COUNTING = """
from adjudge import GraderMode, GraderRank, GradingFailure
from adjudge.graders.base import BaseGrader
asked = []
class Counting(BaseGrader):
    score_range = (0.0, 1.0)
    async def aevaluate(self, response: str) -> float:
        asked.append(response)
        if response == "bad":
            raise GradingFailure("unparsable", "no verdict")
        return 1.0
class Longest(BaseGrader):
    def __init__(self) -> None:
        super().__init__("longest", GraderMode.LISTWISE)
    async def aevaluate(self, response: list[str]) -> GraderRank:
        order = sorted(response, key=len)
        return GraderRank("longest", [order.index(text) + 1 for text in response])
"""


class RayActorError(Exception):
    pass


class Actor:
    """A worker as its handle has it: ``handle.grade.options(…).remote(…)`` streams reports.

    ``lives``: after how many reports it dies; of workers that are made later the next one counts.
    """

    lives: Iterator[int]

    def __init__(self, plan: Any) -> None:
        self._worker, self._left = ray_engine.RayWorker(plan), next(self.lives)
        self.grade = self

    def options(self, **_: Any) -> "Actor":
        return self

    async def remote(self, *part: Any) -> AsyncIterator[Any]:
        reports = self._worker.grade(*part)
        while (report := await asyncio.to_thread(next, reports, None)) is not None:
            if not self._left:
                raise RayActorError("the machine is gone")
            self._left -= 1
            yield ready(report)


async def ready(report: bytes) -> bytes:
    return report


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> type[Actor]:
    made = type("Actors", (Actor,), {"lives": iter(lambda: -1, 0)})
    fake: Any = ModuleType("ray")
    fake.remote = lambda _: type("Made", (), {"options": lambda *_, **__: Remote(made)})()
    fake.exceptions = type("Exceptions", (), {"RayActorError": RayActorError})
    fake.is_initialized = lambda: True
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_engine, "_pack", pickle.dumps)
    monkeypatch.delitem(sys.modules, "counting", raising=False)
    return made


class Remote:
    def __init__(self, made: type[Actor]) -> None:
        self.remote = made


def run(folder: Path, responses: list[str], engine: RayEngine | None, **more: Any) -> GradedRun:
    (folder / "counting.py").write_text(COUNTING)
    graders = [{"name": "counting", "type": "counting:Counting"}, *more.pop("graders", ())]
    spec = RewardSpec.from_dict({"graders": graders, **more}, folder=folder)
    rows = [(f"row {i}", {"prompt": f"q{i // 4}", "response": text})
            for i, text in enumerate(responses)]  # fmt: skip
    job = GradingJob([], spec, folder / "out", rows=rows, engine=engine, show_progress=False)
    return grade_rollouts(job)


def asked() -> list[str]:
    return list(sys.modules["counting"].asked)


RESPONSES = [text * (1 + at % 7) for at, text in enumerate(["good", "bad", "fair", "other"] * 30)]


@pytest.mark.parametrize("workers", [1, 3])
def test_rewards_are_those_of_the_local_engine(
    tmp_path: Path, ray: type[Actor], workers: int
) -> None:
    longest = {"name": "longest", "type": "counting:Longest", "weight": 2}
    rows = []
    for name, engine in (("here", None), ("there", RayEngine(workers=workers))):
        (tmp_path / name).mkdir()
        sys.modules.pop("counting", None)
        found = run(tmp_path / name, RESPONSES, engine, graders=[longest],
                    reward={"group": "z_score", "sample_rate": 0.7})  # fmt: skip
        rows.append([row.as_dict() for row in found])
        assert found.summary["resumed_results"] == 0
    assert rows[0] == rows[1]


def test_a_part_whose_worker_died_goes_on_elsewhere(tmp_path: Path, ray: type[Actor]) -> None:
    ray.lives = iter([1, -1])
    found = run(tmp_path, ["good"] * 20 + ["bad"] * 4, RayEngine(workers=1))
    assert asked().count("good") == 20  # answers that were reported are not asked for again
    assert len(Journal(tmp_path / "out/journal.jsonl", _hash(tmp_path))) == 20
    assert found.rewards == [1.0] * 20 + [None] * 4
    assert found.summary["resumed_results"] == 0


def test_a_later_run_takes_each_answer_once(tmp_path: Path, ray: type[Actor]) -> None:
    ray.lives = iter([1, *[0] * 100])
    with pytest.raises(ConfigError, match="workers die"):
        run(tmp_path, ["good", "bad", "fair"], RayEngine(workers=1))
    ray.lives = iter(lambda: -1, 0)
    before = len(asked())
    found = run(tmp_path, ["good", "bad", "fair"], RayEngine(workers=1))
    assert set(asked()[before:]) == {"bad"}  # failures are not written
    assert found.summary["resumed_results"] == 2


def test_what_stops_the_run_is_said(
    tmp_path: Path, ray: type[Actor], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: Any) -> Any:
        raise JudgeUnavailable("down")

    monkeypatch.setattr(BatchGrader, "grade", down)
    with pytest.raises(JudgeUnavailable):
        run(tmp_path, ["good"], RayEngine(workers=1))


def test_another_version_is_refused(
    tmp_path: Path, ray: type[Actor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "compute_fingerprint", lambda *_: "another")
    with pytest.raises(ConfigError, match="differs from the one where the run was started"):
        run(tmp_path, ["good"], RayEngine(workers=1))


def test_calls_of_workers_are_added_up() -> None:
    key = (("u",), ("m",))
    engine = RayEngine(_calls={name: {key: EndpointStats(calls=4)} for name in ("one", "two")})
    assert [one["calls"] for one in engine.endpoints()] == [8]


def _hash(folder: Path) -> str:
    return str(json.loads((folder / "out/run.json").read_text())["spec_hash"])
