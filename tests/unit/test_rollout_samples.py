"""Every self-made dump under tests/data/rollouts is read without a flag, up to rewards."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adjudge.cli.main import app
from adjudge.datasets.files import find_files
from adjudge.errors import ConfigError
from adjudge.judges import discovery
from adjudge.rollouts.formats.recognition import FORMATS, find_reading
from adjudge.rollouts.samples import SampleReader

DUMPS = Path(__file__).parents[1] / "data" / "rollouts"
FILES = find_files([DUMPS])


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_BASE_URL", *(f"{one.upper()}_API_KEY" for one in discovery._MODEL_OF_KEY)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(discovery.find_judge, "__defaults__", ((),))


def test_there_is_a_dump_of_every_format() -> None:
    read = set()
    for file in FILES:
        reader = SampleReader([file], {})
        list(reader.read())
        read |= {one.format.name for one in reader.readings.values() if one.format}
    assert {one.name for one in FORMATS} - read == set()
    assert len(FORMATS) >= 30


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(DUMPS)))
def test_the_first_spec_grades_it(file: Path) -> None:
    done = CliRunner().invoke(app, ["init", str(file), "--json"], catch_exceptions=False)
    if done.exit_code:
        assert "no usable row" in done.output, done.output  # failures only, or a batch's requests
        return
    command = shlex.split(json.loads(done.stdout)["command"])[1:]
    assert "--map" not in command
    done = CliRunner().invoke(app, [*command, "--json", "-o", "out"], catch_exceptions=False)
    summary = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])
    assert done.exit_code in (0, 1, 2)  # 2: failed samples are broken rows
    if done.exit_code == 1:  # in a dump this small perhaps no rollout has two tool calls
        assert summary["missing"]["by_kind"].keys() == {"not_applicable"}
        assert "loop" in summary["graders"]


CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
OWN_ROWS: list[dict[str, Any]] = [
    {"prompt": "p", "response": "r", "reward": 1.0, "step": 3},
    {"prompt": "p", "completion": "c", "step": 3, "reward": 1.0},
    {"prompt": "p", "completion": ["a", "b"], "step": [1, 1]},
    {"prompt": "p", "completions": ["a", "b"], "scores": [1, 0]},
    {"prompt": "p", "response": "r", "label": 1, "reward": 0.5, "status": "ok"},
    {"prompt": "p", "response": "r", "helpfulness": 3},
    {"prompt": "p", "chosen": "a", "rejected": "b", "response": "z"},
    {"prompt": "p", "response_a": "x", "response_b": "y", "winner": "a", "response": "z"},
    {"input": "p", "output": "o", "score": 1.0},
    {"instruction": "i", "input": "p", "output": "o"},
    {"instruction": "i", "completions": ["a", "b"], "output": "c"},
    {"messages": CHAT, "info": {"exit_status": "ok"}},
    {"messages": CHAT, "task": {"id": 3}, "nodes": [1], "rewards": {"a": 1}},
    {"messages": CHAT, "instance_id": "x", "resolved": True},
    {"messages": CHAT, "termination_reason": "done", "reward_info": {"a": 1}, "task_id": 1},
    {"trajectory": CHAT, "instance_id": "x", "target": "gold"},
    {"trajectory": CHAT, "info": {}, "history": "none"},
    {"traj": CHAT, "reward": 1.0, "task_id": 3, "answer": "gold"},
    {"id": 1, "input": "q", "target": "a", "output": "x", "epoch": 1},
    {"id": 1, "input": "q", "target": "a", "output": {"x": 1}, "epoch": 1, "messages": CHAT},
    {"eval": {"name": "x"}, "status": "ok", "version": 2, "prompt": "p", "completion": "c"},
    {"custom_id": "a", "response": "text", "prompt": "p"},
    {"custom_id": "a", "result": {"type": "ok"}, "output": "o"},
    {"custom_id": "a", "body": {"x": 1}, "url": "http://x", "output": "o"},
    {"custom_id": "a", "params": {"temperature": 1}, "completion": "c"},
    {"object": "response", "output": "a", "prompt": "p"},
    {"object": "response", "outputs": ["a"], "output": ["a"], "prompt": "p"},
    {"task": {"name": "x"}, "traces": ["t"], "output": "r", "prompt": "p"},
    {"tasks": ["a"], "simulations": ["b"], "prompt": "p", "completion": "c"},
    {"samples": [], "rollout_id": 1, "prompt": "p", "completion": "c"},
    {"responses_create_params": {"input": "q"}, "response": "text"},
    {"response": "r", "group": "a", "reward": 1, "reward_info": {}},
]


@pytest.mark.parametrize("row", OWN_ROWS, ids=",".join)
def test_rows_of_ones_own_are_of_no_format(row: dict[str, Any]) -> None:
    """Some of their columns are named as a format's are."""
    with suppress(ConfigError):  # no column looks like a response
        assert find_reading([row], {}).format is None


def test_results_of_a_batch_are_joined_with_their_requests(tmp_path: Path) -> None:
    """In any order, and in one folder; a result without request has no prompt."""
    batch = DUMPS / "openai-batch"
    files = [batch / "output.jsonl", batch / "requests.jsonl"]
    for inputs in (files, files[::-1]):
        samples = list(SampleReader(inputs, {}))
        assert samples[0].prompt == "When is high water?"
        assert [one.group for one in samples][:2] == ["a16edc8904fbf6fa", "tide-2"]
        assert samples[1].prompt is None
    anthropic = tmp_path / "requests.jsonl"
    asked = {"system": "Be brief.", "messages": [{"role": "user", "content": "Which tide?"}]}
    results = DUMPS / "anthropic-batch" / "results.jsonl"
    [first, *_] = SampleReader([results], {})
    anthropic.write_text(json.dumps({"custom_id": first.group, "params": asked}) + "\n")
    [joined, *_] = SampleReader([results, anthropic], {})
    assert joined.prompt == "Which tide?"
    assert joined.messages is not None
    assert [one["role"] for one in joined.messages] == ["system", "user", "assistant"]


def test_the_page_names_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "grading.md").read_text()
    assert [one.title for one in FORMATS if one.title not in page] == []
