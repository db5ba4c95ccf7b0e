"""A swap study of a judge's recorded replies: no network, the same verdicts."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from adjudge.cli.main import app
from adjudge.mock import start_mock

pytestmark = pytest.mark.slow

SPEC = """
[[graders]]
name = "quality"
type = "helpfulness"
[judges.main]
{judge}
"""
SCRIPT = [
    {"when": "nonsense", "reply": "I would rather not say."},
    {"when": "long", "reply": {"reason": "it is long", "score": 5}},
    {"when": "short", "reply": {"reason": "it is short", "score": 2}},
]


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_recorded_replies_are_swapped_without_a_network(tmp_path: Path) -> None:
    rollouts, script = tmp_path / "rollouts.jsonl", tmp_path / "script.jsonl"
    texts = ["a long answer", "a short answer", "nonsense"]
    rows = [
        {"prompt": f"question {n // 3}", "response": texts[n % 3], "old": n % 2} for n in range(9)
    ]
    rollouts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    script.write_text("\n".join(map(json.dumps, SCRIPT)))
    live, kept = tmp_path / "live.toml", tmp_path / "kept.toml"
    tape = tmp_path / "tape.sqlite"
    kept.write_text(SPEC.format(judge='type = "recorded"\ncassette = "tape.sqlite"'))
    with start_mock(script=str(script)) as url:
        live.write_text(SPEC.format(judge=f'type = "openai"\nmodel = "m"\nbase_url = "{url}"'))
        done = invoke(
            "grade", rollouts, "--spec", live, "--record", tape, "-o", tmp_path / "run", "-q"
        )
        assert done.exit_code == 0, done.output
    swapped = invoke(  # the server is gone
        "study", "swap", rollouts, "--judges", kept, "--stored", "old=old",
        "-o", tmp_path / "swap", "-q", "--json",
    )  # fmt: skip
    assert swapped.exit_code == 0, swapped.output
    summary: dict[str, Any] = json.loads(swapped.stdout)
    judge = next(one for one in summary["judges"] if one["name"] == "kept")
    assert (judge["judged"], judge["missing"]) == (6, {"unparsable": 3})
    again = tmp_path / "swap" / "judges" / "kept"
    assert rewards(again) == rewards(tmp_path / "run")


def rewards(folder: Path) -> list[float | None]:
    lines = (folder / "rewards.jsonl").read_text().splitlines()
    return [json.loads(line)["reward"] for line in lines]
