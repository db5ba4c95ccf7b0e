"""A finished run of verifiers re-scored by a reward spec with verifiers' own `vf-replay`."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

vf: Any = pytest.importorskip(
    "verifiers.v1", reason="verifiers is not installed here; run `make test-verifiers`"
)
store: Any = pytest.importorskip("verifiers.v1.utils.trace_store")

TASKSET = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str = "42"

class Exact(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.5)
    async def exact(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)

class Questions(vf.Taskset[Exact, vf.TasksetConfig]):
    def load(self):
        return [Exact(Data(prompt="What is it?"))]

__all__ = ["Questions"]
"""
SPEC = """
[[graders]]
name = "quality"
type = "llm"
template = "{response}"
score_range = [0.0, 1.0]

[judges.main]
type = "scripted"
[judges.main.script]
"good" = '{"score": 1.0}'
"fail" = "I would rather not say"
"" = '{"score": 0.25}'
"""
JUDGES = """
[[taskset.task.judges]]
id = "replay_test_judge"
spec = "reward.toml"
name = "quality"
"""
REPLIES = ["good", "fail", "42"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    judge = "from adjudge.trainers.verifiers import AdjudgeJudge\n__all__ = ['AdjudgeJudge']\n"
    (tmp_path / "replay_test_judge.py").write_text(judge)
    (tmp_path / "replay_test_taskset.py").write_text(TASKSET)
    (tmp_path / "reward.toml").write_text(SPEC)
    (tmp_path / "judges.toml").write_text(JUDGES)
    (tmp_path / "run/configs/resolved").mkdir(parents=True)
    taskset = {"id": "replay_test_taskset"}
    config = {"env": {"taskset": taskset}, "taskset": taskset}
    (tmp_path / "run/configs/resolved/eval.json").write_text(json.dumps(config))
    monkeypatch.syspath_prepend(str(tmp_path))
    asyncio.run(write_run(tmp_path / "run"))
    return tmp_path


async def write_run(run: Path) -> None:
    """Three finished rollouts as verifiers writes them."""
    task = vf.task_type("replay_test_taskset")
    lock = asyncio.Lock()
    for index, reply in enumerate(REPLIES):
        data = task.data_type()(prompt="What is it?", idx=index)
        trace = vf.Trace[type(data), vf.State, vf.AgentConfig](
            task=vf.TraceTask[type(data)](type="Exact", data=data),
            agent=vf.AgentInfo[vf.AgentConfig](config=vf.AgentConfig()),
            ok=True,
            is_completed=True,
        )
        trace.nodes = [
            vf.MessageNode(message=vf.UserMessage(content="What is it?")),
            vf.MessageNode(parent=0, message=vf.AssistantMessage(content=reply), sampled=True),
        ]
        await store.append_trace(run, trace, lock)


def test_replay_scores_what_was_said_and_leaves_what_failed_unscored(folder: Path) -> None:
    program = str(Path(sys.executable).with_name("vf-replay"))
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [program, "run", "@", "judges.toml", "--output-dir", "again", "--rich", "False"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path("src").resolve()) + os.pathsep + paths},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {}
    for line in (folder / "again/traces.jsonl").read_text().splitlines():
        for trace in json.loads(line)["traces"]:
            found[trace["task"]["data"]["idx"]] = trace
    rewards = [found[index]["rewards"] for index in range(3)]
    assert [one["quality"] and one["quality"]["score"] for one in rewards] == [1.0, None, 0.25]
    assert [one["exact"]["score"] for one in rewards] == [0.0, 0.0, 1.0]
    assert [found[index]["ok"] for index in range(3)] == [True, False, True]
    assert found[1]["errors"][0]["type"] == "TaskError"
    assert "no reward: unparsable" in found[1]["errors"][0]["message"]
