"""Judges that cost money: record, replay, budget and dry run, through the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adjudge.cli.main import app
from adjudge.mock import start_mock

SPEC = """
[[graders]]
name = "quality"
type = "llm"
template = "Rate this from 0 to 1, as JSON with score and reason. {{prompt}} {{response}}"
score_range = [0.0, 1.0]

[judges.main]
type = "vllm"
model = "mock"
base_url = "{url}"
max_tokens = 100
{more}
"""
PRICE = "price = { input = 1.0, output = 2.0 }"


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with start_mock(latency=("fixed:0.002",)) as base_url:
        yield base_url


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


class Folder:
    """A spec and rollouts, and ``grade`` on them."""

    def __init__(self, path: Path, url: str, more: str = PRICE, samples: int = 40) -> None:
        self.path = path
        self.spec(url, more)
        rows = [{"prompt": f"p{i // 4}", "response": f"r{i}"} for i in range(samples)]
        (path / "rollouts.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def spec(self, url: str, more: str = PRICE) -> None:
        (self.path / "spec.toml").write_text(SPEC.format(url=url, more=more))

    def grade(self, out: str, *options: str | Path) -> Any:
        spec, rollouts = self.path / "spec.toml", self.path / "rollouts.jsonl"
        return run("grade", rollouts, "-s", spec, "-o", self.path / out, "-q", *options)

    def rewards(self, out: str) -> list[Any]:
        lines = (self.path / out / "rewards.jsonl").read_text().splitlines()
        return [json.loads(line)["reward"] for line in lines]

    def summary(self, out: str) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.path / out / "summary.json").read_text())
        return summary


def test_a_recorded_run_replays_without_a_server_and_bit_for_bit(tmp_path: Path) -> None:
    tape = tmp_path / "tape.sqlite"
    with start_mock(behaviour="rubric", keywords=("r1",)) as url:
        here = Folder(tmp_path, url)
        first = here.grade("first", "--record", tape)
        assert first.exit_code == 0, first.output
        assert here.summary("first")["cassette"]["stored"] == 40
        again = here.grade("again", "--record", tape)
        assert again.exit_code == 0
        assert here.summary("again")["cassette"]["hits"] == 40
    replayed = here.grade("replayed", "--replay", tape)
    assert replayed.exit_code == 0, replayed.output
    assert here.rewards("replayed") == here.rewards("first")
    assert None not in here.rewards("replayed")
    judged = here.summary("replayed")["graders"]["quality"]["judge"]
    assert judged["sources"] == {"cassette": 40}


def test_a_replay_that_misses_fails_and_names_the_change(tmp_path: Path, provider: str) -> None:
    tape = tmp_path / "tape.sqlite"
    here = Folder(tmp_path, provider)
    assert here.grade("first", "--record", tape).exit_code == 0
    here.spec(provider, f"{PRICE}\ntemperature = 0.5")
    changed = here.grade("changed", "--replay", tape)
    assert changed.exit_code == 1
    assert "40 calls are not in" in changed.output
    row = json.loads((tmp_path / "changed" / "rewards.jsonl").read_text().splitlines()[0])
    assert row["reward"] is None
    assert "temperature" in row["missing"]["message"]


def test_record_and_replay_exclude_each_other(tmp_path: Path, provider: str) -> None:
    here = Folder(tmp_path, provider)
    done = here.grade("out", "--record", tmp_path / "a", "--replay", tmp_path / "b")
    assert done.exit_code == 2
    lost = here.grade("out", "--replay", tmp_path / "none.sqlite")
    assert lost.exit_code == 2
    assert "no such cassette" in lost.output


def test_a_budget_is_kept_and_what_is_beyond_it_is_missing(tmp_path: Path, provider: str) -> None:
    here = Folder(tmp_path, provider)
    assert here.grade("all").exit_code == 0
    cost = here.summary("all")["endpoints"][0]["cost_usd"]
    done = here.grade("some", "--budget-usd", str(cost / 2))
    assert done.exit_code == 0, done.output
    summary = here.summary("some")
    assert 0 < summary["endpoints"][0]["cost_usd"] <= cost / 2
    assert 0 < summary["missing"]["by_kind"]["budget"] < 40
    assert here.rewards("some").count(None) == summary["missing"]["by_kind"]["budget"]


def test_a_budget_needs_prices(tmp_path: Path, provider: str) -> None:
    done = Folder(tmp_path, provider, more="").grade("out", "--budget-usd", "1")
    assert done.exit_code == 2
    assert "judges.main.price: is needed" in done.output


def test_a_dry_run_asks_nobody_and_estimates(tmp_path: Path) -> None:
    here = Folder(tmp_path, "http://127.0.0.1:9/v1", samples=300)
    done = here.grade("out", "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "out").exists()
    report = json.loads(done.output)
    assert (report["rows"], report["looked_at"]) == (300, 200)
    assert report["graders"]["quality"]["calls"] == 200
    whole, half = report["scenarios"]
    assert (whole["calls"], half["calls"]) == (1.0, 0.5)
    assert whole["output_tokens"] == 100
    cost = (whole["input_tokens"] * 1.0 + 100 * 2.0) / 1e6
    assert whole["cost_usd"] == pytest.approx(cost)
    shown = here.grade("out", "--dry-run")
    assert "1,000" in shown.output
    unpriced = Folder(tmp_path, "http://127.0.0.1:9/v1", more="")
    assert "no price" in unpriced.grade("out", "--dry-run").output


def test_an_estimate_is_no_less_than_what_a_run_costs(tmp_path: Path, provider: str) -> None:
    here = Folder(tmp_path, provider)
    report = json.loads(here.grade("out", "--dry-run", "--json").output)
    assert here.grade("out").exit_code == 0
    real = here.summary("out")["endpoints"][0]
    estimated = report["scenarios"][0]
    assert estimated["calls"] * 40 == real["calls"]
    assert estimated["cost_usd"] * 40 >= real["cost_usd"]
    assert estimated["input_tokens"] * 40 <= 2 * real["input_tokens"]
