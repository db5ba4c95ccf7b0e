"""``adjudge eval ifeval`` on recorded responses: the recorded numbers, torn files.

The data stays outside the project: set ``ADJUDGE_DATA`` to the folder that has ``ifeval/``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.recorded import find_recorded
from typer.testing import CliRunner

from adjudge.cli.main import command_line

pytestmark = pytest.mark.needs


def data(name: str) -> Path:
    return find_recorded(f"ifeval/{name}")


def summary(out: Path, *responses: Path) -> dict[str, Any]:
    given = ["eval", "ifeval", "--data", str(data("input_data.jsonl")), "-q"]
    given += [part for one in responses for part in ("--responses", str(one))]
    done = CliRunner().invoke(command_line(), [*given, "-o", str(out)])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def four(model: dict[str, Any]) -> list[float]:
    """Pr(S), Ins(S), Pr(L), Ins(L) in percent, two digits."""
    return [
        round(100 * model[reading][level]["value"], 2)
        for reading in ("strict", "loose")
        for level in ("prompt", "instruction")
    ]


@pytest.mark.slow
def test_recorded_models_side_by_side(tmp_path: Path) -> None:
    llama, gpt4 = data("responses_llama31_8b.jsonl"), data("responses_gpt4.jsonl")
    found = summary(tmp_path, llama, gpt4)
    first, second = found["models"]
    assert four(first) == [71.53, 79.86, 75.42, 83.45]
    # One prompt was reworded after GPT-4 was asked: 540 prompts, 832 instructions.
    assert four(second) == [77.22, 83.77, 79.81, 85.82]
    assert second["without_response"]["first"] == [2785]
    assert (second["strict"]["prompt"]["n"], second["strict"]["instruction"]["n"]) == (540, 832)
    strict = found["compared"][0]
    assert (strict["prompts"], strict["only_a"], strict["only_b"]) == (540, 52, 83)
    assert 100 * strict["difference"] == pytest.approx(100 * (52 - 83) / 540)
    assert strict["high"] < 0 < strict["mcnemar_p"] < 0.01
    for model in found["models"]:
        for reading in ("strict", "loose"):
            for level in ("prompt", "instruction"):
                one = model[reading][level]
                assert one["low"] < one["value"] < one["high"]


def test_a_file_that_a_crash_left_is_read_as_far_as_it_is_good(tmp_path: Path) -> None:
    lines = data("responses_llama31_8b.jsonl").read_bytes().splitlines(keepends=True)[:40]
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(b"".join(lines[:20]) + b"\0" * 4096 + b"\n" + b"".join(lines[20:])[:-100])
    [model] = summary(tmp_path / "out", torn)["models"]
    assert model["prompts"] == 39
    assert [one["line"] for one in model["problems"]] == [21, 41]
    assert model["without_response"]["count"] == 541 - 39
