"""``--dry-run`` where judges cost money: calls, tokens and cost, nobody asked, nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.e2e.helpers.command import invoke
from tests.unit.helpers.benchmark_samples import write_sample

from adjudge.cli.grade import check_budget

SPEC = """
[[graders]]
name = "quality"
type = "{type}"

[judges.main]
type = "openai"
model = "m"
base_url = "http://127.0.0.1:9/v1"
max_tokens = 100
{price}
"""
PRICE = "price = {input = 1.0, output = 10.0}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, kind, price in (("scores", "helpfulness", PRICE), ("pairs", "pairwise", "")):
        (tmp_path / f"{name}.toml").write_text(SPEC.format(type=kind, price=price))
    rows = [{"prompt": f"q{n}", "response": f"a{n}", "group": str(n // 2)} for n in range(6)]
    (tmp_path / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_sample(tmp_path / "llmbar.jsonl", "llmbar")
    return tmp_path


def run(*words: str) -> tuple[int, dict[str, Any]]:
    found = invoke(*words, "--dry-run", "--json")
    return found.exit_code, json.loads(found.stdout)


def test_a_validation_is_estimated_for_each_judge(folder: Path) -> None:
    before = sorted(folder.iterdir())
    words = ("eval", "judge", "scores.toml", "--against", "pairs.toml", "--data", "llmbar.jsonl")
    code, found = run(*words)
    assert code == 0
    scores, pairs = found["judges"]["scores"], found["judges"]["pairs"]
    assert scores["calls"] == pairs["calls"] > 0
    assert scores["output_tokens"] == 100 * scores["calls"]
    paid = (scores["input_tokens"] + 10 * scores["output_tokens"]) / 1e6
    assert scores["cost_usd"] == pytest.approx(paid)
    assert pairs["cost_usd"] is None
    assert found["in_all"]["cost_usd"] is None
    assert found["in_all"]["calls"] == scores["calls"] + pairs["calls"]
    assert sorted(folder.iterdir()) == before


def test_a_swap_is_estimated_as_grade_estimates(folder: Path) -> None:
    before = sorted(folder.iterdir())
    words = ("--judge", "scores.toml", "--judge", "again=scores.toml")
    code, found = run("study", "swap", "rollouts.jsonl", *words)
    assert code == 0
    _, graded = run("grade", "rollouts.jsonl", "--spec", "scores.toml")
    one = found["judges"]["scores"]
    assert one == found["judges"]["again"]
    assert one["calls"] == 6
    assert one["cost_usd"] == pytest.approx(graded["in_all"]["cost_usd"])
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    "words",
    [
        ("grade", "rollouts.jsonl", "--spec", "paid.toml"),
        ("probe", "paid.toml", "--n", "2"),
        ("eval", "judge", "paid.toml", "--data", "llmbar.jsonl"),
        ("study", "swap", "rollouts.jsonl", "--judge", "paid.toml", "--judge", "b=paid.toml"),
    ],
)
def test_an_estimate_needs_no_key(
    folder: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    spec = SPEC.format(type="helpfulness", price=PRICE)
    (folder / "paid.toml").write_text(spec.replace("http://127.0.0.1:9", "https://api.example.com"))
    found = invoke(*words, "--dry-run", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)
    if words[0] == "grade":
        assert "the environment variable OPENAI_API_KEY" in found.stderr


def test_a_grading_says_how_long_its_judge_takes(folder: Path) -> None:
    limits = "[judges.main.endpoint]\nmax_concurrency = 4\nrequests_per_minute = 30"
    spec = folder / "scores.toml"
    spec.write_text(spec.read_text() + limits)
    code, found = run("grade", "rollouts.jsonl", "--spec", "scores.toml")
    assert code == 0
    assert found["times"] == {
        "main": {"calls": 6, "max_concurrency": 4, "rounds": 2, "least_s": pytest.approx(6.0)}
    }
    words = ["grade", "rollouts.jsonl", "--spec", "scores.toml", "--dry-run"]
    shown = invoke(*words).stdout
    assert "main: 6 calls, at most 4 at a time: 2 s where a reply takes 1 s" in shown
    assert "at least 6 s by its rates per minute" in shown


@pytest.mark.parametrize(
    ("own", "most", "rounds"),
    [("", 32, 3), ("max_concurrency = 3\n", 3, 20), ("max_concurrency = 500\n", 256, 2)],
)
def test_a_judge_takes_no_more_at_a_time_than_the_spec_asks(
    own: str, most: int, rounds: int, folder: Path
) -> None:
    """60 calls: 20 at first, then twice as many, up to the smaller limit."""
    spec = folder / "scores.toml"
    spec.write_text(own + spec.read_text())
    (folder / "rollouts.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{n}?", "response": "yes"}) + "\n" for n in range(60))
    )
    _, found = run("grade", "rollouts.jsonl", "--spec", "scores.toml")
    main = found["times"]["main"]
    assert (main["calls"], main["max_concurrency"], main["rounds"]) == (60, most, rounds)


def test_a_spent_budget_of_a_service_ends_a_grading_with_4(tmp_path: Path) -> None:
    summary = {
        "endpoints": [{"failures": {}}],
        "missing": {"by_kind": {"budget": 2}},
        "reward": {"missing": 2, "not_sampled": 0},
        "samples": 9,
    }
    with pytest.raises(typer.Exit) as ended:
        check_budget(summary, tmp_path)
    assert ended.value.exit_code == 4
