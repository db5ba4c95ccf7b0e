"""``adjudge train`` with the real trainers, a few steps of it: run by ``make test-trl``."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

from adjudge_lab.rl.run import TrainingJob, train_run
from adjudge_lab.rl.runfile_checks import load_run_file
from adjudge_lab.rl.tiny import build_tiny_tokenizer

EXAMPLES = Path(__file__).parents[3] / "examples"
SHORT = {
    "warm_start_iterations = 160": "warm_start_iterations = 12",
    "batch_size = 64": "batch_size = 16",
    "group_size = 8": "group_size = 4",
    "instances = 16": "instances = 3",
    "max_tokens = 40": "max_tokens = 12",
}


def trained(
    folder: Path, example: str, steps: int = 3, **changes: str
) -> tuple[TrainingJob, list[tuple[str, int, int]]]:
    """A short run of an example; each of ``changes`` replaces the value of a key."""
    text = (EXAMPLES / example).read_text()
    values = {"iterations_per_epoch": str(steps), **changes}
    for old, new in SHORT.items():
        text = text.replace(old, new)
    for key, value in values.items():
        text = re.sub(rf"(?m)^{key} = (\[.*?\]|\S+)", f"{key} = {value}", text)
    source = folder / "run.toml"
    source.write_text(text)
    heard: list[tuple[str, int, int]] = []
    job = TrainingJob(
        load_run_file(source), source, folder / "run", on_progress=lambda *one: heard.append(one)
    )
    train_run(job)
    return job, heard


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_leaves_its_folder(tmp_path: Path) -> None:
    job, heard = trained(tmp_path, "rl_tiny.toml")
    assert (job.folder / "config.toml").read_text() == (tmp_path / "run.toml").read_text()
    metrics = lines(job.folder / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    for row in metrics:
        assert {"reward", "length", "judge/outcome_mean", "judge/gold_score_mean"} <= row.keys()
        assert row["reward"] == pytest.approx(row["judge/score_mean"])
        assert row["judge/gold_score_mean"] == pytest.approx(row["judge/env_mean"])
        assert "judge/latency_p50" in row
    samples = lines(job.folder / "samples.jsonl")
    assert [one["when"] for one in samples] == ["before"] * 3 + ["after"] * 3
    assert [one["prompt"] for one in samples[:3]] == [one["prompt"] for one in samples[3:]]
    assert job.summary == json.loads((job.folder / "summary.json").read_text())
    (endpoint,) = job.summary["endpoints"]
    assert endpoint["calls"] >= 3 * 16 + 6  # the judge's own, behind the service
    assert endpoint["models"] == ["mock"]
    assert "Judge and gold" in (job.folder / "report.html").read_text()
    assert ("warm start", 12, 12) in heard
    assert ("training", 3, 3) in heard
    assert heard[-1] == ("evaluation", 3, 3)


def test_the_judge_alone_decides_what_is_rewarded(tmp_path: Path) -> None:
    """Under ``weighted_sum`` the environment's reward is added, and both variances are known."""
    job, _ = trained(tmp_path, "rl_tiny.toml", 2, combine_mode='"weighted_sum"', judge_scale="10.0")
    for row in lines(job.folder / "metrics.jsonl"):
        assert {"judge/part_group_var", "judge/env_group_var"} <= row.keys()
        if row["judge/missing_frac"] == 0:
            expected = 10 * row["judge/outcome_mean"] + row["judge/env_mean"]
            assert row["reward"] == pytest.approx(expected, abs=1e-4)


def test_an_alarm_stops_the_run_when_told_to(tmp_path: Path) -> None:
    """A judge that gives everybody the same leaves no spread, from the first step on."""
    job, _ = trained(tmp_path, "rl_tiny_biased.toml", 30, behaviour='"fixed"', action='"stop"')
    assert [alarm["rule"] for alarm in job.summary["sentinel"]["alarms"]] == ["no_spread"]
    assert job.summary["steps"] == job.summary["sentinel"]["alarms"][0]["step"] < 30


def test_a_judge_that_drowns_the_environment_is_noticed(tmp_path: Path) -> None:
    """A warm start that now and then names the capital, and a judge that counts twenty times."""
    job, _ = trained(
        tmp_path,
        "rl_tiny.toml",
        12,
        combine_mode='"weighted_sum"',
        judge_scale="20.0",
        action='"stop"',
        warm_start_iterations="50",
        max_tokens="16",
        group_size="8",
    )
    alarms = {alarm["rule"]: alarm for alarm in job.summary["sentinel"]["alarms"]}
    assert alarms["dominates"]["step"] == job.summary["steps"] < 12
    rows = lines(job.folder / "metrics.jsonl")
    env, part = (sum(row[f"judge/{name}_group_var"] for row in rows) for name in ("env", "part"))
    assert part > 9 * env > 0
    assert "lower judge_scale" in alarms["dominates"]["advice"]


def test_a_step_without_a_single_reward_teaches_nothing(tmp_path: Path) -> None:
    """A judge without a verdict: every reward is missing, the weights stay, the run goes on."""
    job, _ = trained(
        tmp_path, "rl_tiny_biased.toml", 2, fail='["refusal:1.0"]', warm_start_iterations="2"
    )
    for row in lines(job.folder / "metrics.jsonl"):
        assert row["judge/missing_frac"] == 1.0
        assert not {"reward", "mean_return", "judge_return"} & row.keys()
    weights = [
        (job.folder / place / "model.safetensors").read_bytes()
        for place in ("checkpoints/checkpoint-0", "model")
    ]
    assert weights[0] == weights[1]


def test_a_weight_falls_while_the_policy_learns(tmp_path: Path) -> None:
    """The evaluations before and after are rewarded alike: with the weights of the last step."""
    scheduled = (
        '[[graders]]\nname = "short"\ntype = "length_penalty"\nmin_length = 0\nmax_length = 1\n'
        "weight = { from = 0.001, to = 0.0, steps = 3 }\n\n[judge]"
    )
    text = (EXAMPLES / "rl_tiny.toml").read_text().replace("[judge]", scheduled, 1)
    (tmp_path / "with.toml").write_text(text)
    job, _ = trained(tmp_path, str(tmp_path / "with.toml"))
    rows = lines(job.folder / "metrics.jsonl")
    weights = [row["judge/short_weight"] for row in rows]
    assert weights == pytest.approx([0.002 / 3, 0.001 / 3, 0.0])
    for row, weight in zip(rows, weights, strict=True):
        assert row["judge/short_score_mean"] < 0
        if row["judge/missing_frac"] == 0:
            expected = row["judge/quality_score_mean"] / 2 + weight * row["judge/short_score_mean"]
            assert row["reward"] == pytest.approx(expected, abs=1e-6)
    for one in lines(job.folder / "evaluation.jsonl"):
        assert one["reward"] == pytest.approx(one["reward_info"]["quality_score"] / 2)


def test_gspo_trains(tmp_path: Path) -> None:
    job, _ = trained(tmp_path, "rl_tiny_biased.toml", 2, variety='"gspo"')
    assert job.summary["steps"] == 2


def test_the_tokenizer_says_anything_and_marks_the_assistant() -> None:
    tokenizer = build_tiny_tokenizer(["What is the capital of Peru?", "Lima."])
    text = "Ünï🙂\x00 Lima"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    turns = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Lima."}]
    found = tokenizer.apply_chat_template(
        turns, return_dict=True, return_assistant_tokens_mask=True
    )
    marked = [
        token
        for token, of_assistant in zip(found["input_ids"], found["assistant_masks"], strict=True)
        if of_assistant
    ]
    assert tokenizer.decode(marked) == "Lima.<|im_end|>"
