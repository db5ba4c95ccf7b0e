"""Every self-made dump under tests/data/rollouts is read without a flag, up to rewards."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adjudge.cli.main import app
from adjudge.datasets.files import find_files
from adjudge.judges import discovery
from adjudge.rollouts.formats.recognition import FORMATS
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
