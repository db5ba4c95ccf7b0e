"""Everything about a training run that needs no trainer: its task, numbers, report, command."""

import json
import random
import re
import sys
import tomllib
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from adjudge import RewardSpec
from adjudge.checks.steps import StepAlarm, StepWatch
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, RunFolderError
from adjudge.runs.story import read_grader_facts
from adjudge.trainers.scoring import Scorer
from adjudge_lab.cli.train import _print_summary
from adjudge_lab.environments import Episode, Policy
from adjudge_lab.rl.held_out import AnswerSample, build_answer_sample, judge_episodes
from adjudge_lab.rl.report import write_training_report
from adjudge_lab.rl.rewards import build_reward_spec
from adjudge_lab.rl.rollouts import group_variances
from adjudge_lab.rl.run import (
    TrainingJob,
    _TrainingRun,
    summarise_training,
    train_run,
)
from adjudge_lab.rl.run_folder import TrainingFolder
from adjudge_lab.rl.runfile_checks import load_run_file, resolve_run_file
from adjudge_lab.rl.tiny import CapitalGrader, CapitalsTask, generate_capital_demonstrations
from adjudge_lab.synthetic import COUNTRY_CAPITALS

EXAMPLE = Path(__file__).parents[3] / "examples" / "rl_tiny.toml"


def test_demonstrations_are_right_as_often_as_wanted() -> None:
    rows: list[Any] = list(islice(generate_capital_demonstrations(random.Random(1), 0.75), 2000))
    grader = CapitalGrader()
    right = 0.0
    for row in rows:
        question, answer = (turn["content"] for turn in row["messages"])
        country = re.search(r"of (\w+)\?", question)
        assert country is not None
        right += grader.evaluate(answer, COUNTRY_CAPITALS[country[1]]).score
    assert 0.71 < right / len(rows) < 0.79


def played(answers: list[str]) -> list[Episode]:
    task = CapitalsTask()
    return [run_blocking(task.play(seed, saying(said))) for seed, said in enumerate(answers)]


def saying(text: str) -> Policy:
    return lambda _: text


def test_a_seed_is_a_country_and_pays_for_its_capital() -> None:
    right, wrong = played(["Havana, I think.", "Havana."])
    assert right.messages[0]["content"] == "What is the capital of Cuba?"
    assert (right.env_return, right.columns["reference"]) == (1.0, "Havana")
    assert (wrong.env_return, wrong.columns["reference"]) == (0.0, "Cairo")
    assert run_blocking(CapitalsTask().play(8, lambda _: "")).messages[0] == right.messages[0]


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("Paris.", 1.0),
        ("Sure! It is Paris.", 1.0),
        ("Rome.", 0.0),
        ("Paris or Rome", 0.0),
        ("", 0.0),
    ],
)
def test_the_gold_takes_one_capital_only(response: str, score: float) -> None:
    assert CapitalGrader().evaluate(response, "Paris").score == score


def test_variances_are_within_groups_and_leave_missing_rewards_out() -> None:
    found = group_variances([5.0, 7.0, None, 9.0, 9.0, 9.0], [0.0, 0.0, 1.0, 1.0, 0.0, 0.0], 3)
    assert found["judge/part_group_var"] == pytest.approx((2.0 + 1 / 3) / 2)
    assert found["judge/env_group_var"] == pytest.approx((0.0 + 1 / 3) / 2)
    assert group_variances([None, 1.0], [0.0, 0.0], 2) == {}


def scripted(reply: str) -> RewardSpec:
    return RewardSpec.from_dict(
        {
            "graders": [
                {"name": "quality", "type": "llm", "template": "{messages}", "score_range": [0, 2]},
                {"name": "gold", "type": "adjudge_lab.rl.tiny:CapitalGrader", "weight": 0.0},
            ],
            "judges": {"judge": {"type": "scripted", "script": reply}},
        }
    )


def judged(reply: str, answers: list[str]) -> list[AnswerSample]:
    found = run_blocking(judge_episodes(Scorer(scripted(reply)), played(answers)))
    return [build_answer_sample(one, "before") for one in found]


def test_answers_come_with_their_verdicts() -> None:
    first, second = judged('{"score": 1, "reason": "so"}', ["Havana", "no idea"])
    assert (first.reward, first.missing, first.when) == (0.5, None, "before")
    assert (first.prompt, first.reference) == ("What is the capital of Cuba?", "Havana")
    assert first.verdicts == {"quality": "1 so", "gold": "1"}
    assert second.verdicts["gold"] == "0"


def test_an_answer_whose_judge_failed_has_no_reward() -> None:
    (one,) = judged("I would rather not", ["x"])
    assert one.reward is None
    assert one.missing is not None
    assert "unparsable" in one.missing
    assert one.verdicts["gold"] == "0"


def rows_of(count: int) -> list[dict[str, float]]:
    return [
        {"step": float(step), "reward": 0.1, "length": 12.0, "judge/outcome_mean": step / count,
         "judge/gold_score_mean": 0.5, "judge/quality_score_mean": 1.0}
        for step in range(1, count + 1)
    ]  # fmt: skip


def shown(when: str, text: str) -> AnswerSample:
    return AnswerSample(
        when=when, prompt=text, response=text, reference=text, reward=None, missing=text,
        verdicts={text: text},
    )  # fmt: skip


def report(
    folder: Path, text: str, rows: list[dict[str, float]], answers: list[AnswerSample] | None = None
) -> str:
    run = load_run_file(EXAMPLE)
    checks = StepWatch()
    checks.alarms += [
        StepAlarm(3, "length", text, text, otherwise=text), StepAlarm(4, "solved", text, text, True)
    ]  # fmt: skip
    answers = answers or [shown("before", text), shown("after", text)]
    summary = {
        **summarise_training(run, build_reward_spec(run, "http://h/v1"), rows, answers, checks),
        "adjudge": "0", "created": "today", "seconds": {"total": 3.0}, "endpoints": [],
        "label": text, "judge": text,
    }  # fmt: skip
    write_training_report(folder / "report.html", summary, rows, answers)
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_report_says_what_happened(tmp_path: Path) -> None:
    page = report(tmp_path, "plain", rows_of(20))
    assert "Judge and gold" in page
    assert page.count("<polyline") >= 5
    assert "Step 3, length" in page
    assert "http" not in re.sub(r'http-equiv="', "", page)  # nothing is fetched


def test_the_report_shows_first_where_the_judge_is_misled(tmp_path: Path) -> None:
    """Of what the gold finds worst, the highest reward; a missing reward misleads nobody."""
    found = [
        ("0", 0.4),
        ("1", 0.9),
        ("0 no", 0.8),
        ("timeout: late", None),
        ("1", 0.1),
        ("0", None),
    ]
    answers = [
        AnswerSample(when=when, prompt=f"question {n}", response="", reference="", reward=reward,
                     missing=None, verdicts={"gold": verdict})
        for when in ("before", "after") for n, (verdict, reward) in enumerate(found)
    ]  # fmt: skip
    page = report(tmp_path, "plain", rows_of(20), answers)
    assert re.findall(r"question (\d)", page) == list("205143")
    assert page.index("2 more") < page.index("question 4")


def test_a_report_of_no_step_at_all(tmp_path: Path) -> None:
    assert "No step was done." in report(tmp_path, "plain", [])


def test_a_mean_of_the_rewards_that_are_left_says_of_how_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "judge/missing_frac": 0.9} for row in rows_of(20)]
    assert re.search(r"of 10(\.0)?\s% of the rollouts", report(tmp_path, "plain", rows))
    assert "of the rollouts" not in report(tmp_path, "plain", rows_of(20))
    job = TrainingJob(load_run_file(EXAMPLE), EXAMPLE, tmp_path)
    job.summary = {
        **summarise_training(
            job.run, build_reward_spec(job.run, "http://h/v1"), rows, [], StepWatch()
        ),
        "seconds": {"total": 3.0},
    }
    _print_summary(job)
    said = capsys.readouterr().out.replace("\n", " ")
    assert "0.100 → 0.100  of 10.0% → 10.0% of the rollouts" in said


def test_without_a_trainer_the_run_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    job = TrainingJob(load_run_file(EXAMPLE), EXAMPLE, tmp_path / "run")
    with pytest.raises(ConfigError, match="make demo-rl"):
        train_run(job)
    assert not job.folder.exists()


def test_a_folder_that_holds_a_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjudge_lab.rl.run.load_libraries", lambda **_: None)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(RunFolderError, match="metrics.jsonl of another run"):
        train_run(TrainingJob(load_run_file(EXAMPLE), EXAMPLE, tmp_path))
    assert not (tmp_path / "config.toml").exists()


@pytest.mark.parametrize("url", [None, "http://127.0.0.1:9"])
def test_the_folder_says_which_graders_ask_and_what_they_weigh(
    tmp_path: Path, url: str | None
) -> None:
    run, job = load_run_file(EXAMPLE), TrainingJob(load_run_file(EXAMPLE), EXAMPLE, tmp_path)
    with closing(TrainingFolder(tmp_path / "run", run, EXAMPLE)) as folder:
        spec = build_reward_spec(run, "http://127.0.0.1:9/v1", url)
        _TrainingRun(job, folder, spec, url, 0.0)
    facts = read_grader_facts(json.loads((tmp_path / "run" / "run.json").read_bytes()))
    assert {name: (one.asks_judge, one.weight) for name, one in facts.items()} == {
        "quality": (True, 1.0), "gold": (False, 0.0),
    }  # fmt: skip


def test_every_held_out_episode_is_judged_whatever_share_training_judges(tmp_path: Path) -> None:
    data = {**tomllib.loads(EXAMPLE.read_text()), "services": {}}
    data["judge"] |= {"combine_mode": "weighted_sum", "sample_rate": 0.01}
    run = resolve_run_file(data, folder=EXAMPLE.parent)
    with closing(TrainingFolder(tmp_path / "run", run, EXAMPLE)) as folder:
        spec = build_reward_spec(run, "http://127.0.0.1:9/v1")
        state = _TrainingRun(TrainingJob(run, EXAMPLE, tmp_path), folder, spec, None, 0.0)
    drawn = [state._held_out_scorer.is_drawn(f"capitals {seed}", 0) for seed in range(40)]
    assert all(drawn)
    assert not all(state._scorer.is_drawn(f"1/{group}", 1) for group in range(40))


def test_a_service_that_died_costs_no_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = load_run_file(EXAMPLE)
    nobody = "http://127.0.0.1:9"
    job = TrainingJob(run, EXAMPLE, tmp_path)
    with closing(TrainingFolder(tmp_path / "run", run, EXAMPLE)) as folder:
        state = _TrainingRun(job, folder, build_reward_spec(run, nobody), nobody, 0.0)
        assert state._calls_made([]) == []
    assert "no table of its calls" in caplog.text
