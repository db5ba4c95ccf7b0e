"""``adjudge train --dry-run``: what it says, counts and writes; verl's files and how it starts."""

import asyncio
import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from adjudge.cli.main import command_line
from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge.runner.progress import format_duration
from adjudge.trainers.scoring import Scorer
from adjudge.types import RewardSample
from adjudge_lab.cli.plan import print_run_plan
from adjudge_lab.rl.launch import run_module
from adjudge_lab.rl.plan import plan_run
from adjudge_lab.rl.rewards import build_reward_spec
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import load_run_file, resolve_run_file
from adjudge_lab.rl.verl.inputs import VerlRows, build_verl_spec
from adjudge_lab.rl.verl.run import VerlFiles, build_verl_command, run_verl, write_verl_files
from adjudge_lab.synthetic import COUNTRY_CAPITALS

ROOT = Path(__file__).parents[3]
FULL = ROOT / "examples" / "rl_crafter_full.toml"


def full(**changed: Any) -> RunFile:
    data = tomllib.loads(FULL.read_text())
    for name, table in changed.items():
        data[name] = {**data.get(name, {}), **table} if isinstance(table, dict) else table
    return resolve_run_file(data, folder=FULL.parent)


def test_the_full_example_needs_nothing_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    found = plan_run(load_run_file(FULL))
    assert found.rollouts == {
        "steps": 100, "groups_per_step": 8, "per_step": 32, "training": 3200,
        "evaluations": 11, "evaluation": 220,
    }  # fmt: skip
    assert [(one.name, one.scope, one.calls) for one in found.graders] == [("rubric", "outcome", 1)]
    assert found.in_all["calls"] == 3200 + 220
    assert found.in_all["cost_usd"] is None
    said = "\n".join(found.warnings)
    assert "OPENAI_API_KEY is not set" in said
    assert "crafter/bundle@v1.toml is not there" in said
    assert "the dry run did not connect to https://my-crafter-app.modal.run" in said
    assert "judge.price is not set" in said
    assert found.settings["importance_sampling_level"] == "sequence"
    assert "torch" not in sys.modules


@pytest.mark.parametrize(
    ("judge", "calls", "in_all"),
    [
        ({}, 1, 3200 + 220),
        ({"event_weight": 1.0, "outcome_weight": 1.0}, 51, 51 * 3420),
        (
            {"event_weight": 1.0, "outcome_weight": 0.0, "sample_rate": 0.5},
            25,
            25 * 3200 + 50 * 220,
        ),
    ],
)
def test_calls_of_an_episode_of_50_turns(judge: dict[str, Any], calls: int, in_all: int) -> None:
    found = plan_run(full(judge=judge))
    assert found.episode is not None
    assert (found.episode.calls, found.in_all["calls"]) == (calls, in_all)


def test_a_rubric_that_is_there_is_counted_by_how_it_is_asked(tmp_path: Path) -> None:
    (tmp_path / "rubrics").mkdir()
    criteria = [{"id": name, "criterion": name, "points": 1} for name in "abc"]
    (tmp_path / "rubrics" / "a@v1.json").write_text(json.dumps({"criteria": criteria}))
    data = tomllib.loads(FULL.read_text())
    data["judge"]["rubric_id"] = "a@v1"
    data["graders"] = [
        {"name": "each", "type": "rubric", "rubric_id": "a@v1", "ask": "each", "weight": 0.0},
        {"name": "thrice", "type": "llm", "template": "{messages}", "score_range": [0.0, 1.0],
         "panel": {"votes": 3}},
        {"name": "ranked", "type": "listwise"},
    ]  # fmt: skip
    found = plan_run(resolve_run_file(data, folder=tmp_path))
    calls = {one.name: one.calls for one in found.graders}
    assert calls == {"rubric": 1, "each": 3, "thrice": 3, "ranked": 0.25}
    assert not any("is not there" in one for one in found.warnings)


@pytest.mark.parametrize("there", [True, False])
def test_a_grader_that_cannot_be_asked_is_not_free(
    tmp_path: Path, there: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its column is not in the rows, or the rows are not there yet: nobody knows the cost."""
    if there:
        (tmp_path / "rows.jsonl").write_text('{"prompt": "q"}\n' * 30)
    template = "{response} {right_one} {reply_form}"
    graders = [{"name": name, "type": "llm", "template": template[: end or None],
                "score_range": [0, 1]} for name, end in (("asks", 10), ("needs", 0))]  # fmt: skip
    judge = {"model": "m", "base_url": "http://127.0.0.1:9/v1", "combine_mode": "replace"}
    run = {"model": {"base": "a/b"}, "rollout": {"dataset": "rows.jsonl"}, "graders": graders}
    found = plan_run(resolve_run_file({**run, "judge": judge}, folder=tmp_path))
    assert {one.name: one.calls for one in found.graders} == {"asks": 1, "needs": None}
    assert set(found.in_all.values()) == {None}
    assert found.episode is None
    (said,) = (one for one in found.warnings if "graders.needs" in one)
    assert "right_one" in said
    print_run_plan(found, as_json=False)
    shown = capsys.readouterr().out
    assert "not counted" in shown
    assert "calls," not in shown


def test_without_a_judge_nothing_is_asked() -> None:
    found = plan_run(full(judge={"enabled": False}))
    assert found.judge is None
    assert found.in_all["calls"] == 0
    assert [one.asks_judge for one in found.graders] == [False]


@pytest.mark.parametrize(
    ("judge", "formula"),
    [
        ({}, "env + 10 · (1 · outcome)"),
        ({"combine_mode": "multiply"}, "env · 10 · (1 · outcome)"),
        ({"combine_mode": "replace", "event_weight": 0.5, "event_reduce": "mean"},
         "10 · (0.5 · mean of events + 1 · outcome)"),
        ({"enabled": False}, "env"),
    ],
)  # fmt: skip
def test_the_reward_as_a_formula(judge: dict[str, Any], formula: str) -> None:
    assert plan_run(full(judge=judge)).reward == formula


def test_what_event_rewards_are_under_each_estimator() -> None:
    events = {"event_weight": 1.0}
    stock = plan_run(full(judge=events, algorithm={"adv_estimator": "grpo"})).warnings
    assert any("no turn gets credit" in one for one in stock)
    product = plan_run(full(judge={**events, "combine_mode": "multiply"})).warnings
    assert any("no sum over turns" in one for one in product)
    assert not any("turn" in one for one in plan_run(full(judge=events)).warnings)


# verl


SCRIPTED = {"type": "scripted", "script": {"good": '{"score": 2.0}', "": '{"score": 0.5}'}}
"""A judge, as a spec has it: what it says goes by a word of the answer."""


def single(tmp_path: Path, **changed: Any) -> RunFile:
    data: dict[str, Any] = {
        "backend": "verl",
        "model": {"base": "Qwen/Qwen3-0.6B", "label": "a run"},
        "graders": [
            {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 2.0]},
            {"name": "short", "type": "length_penalty", "weight": 0.0},
        ],
        "judge": {"model": "m", "base_url": "http://127.0.0.1:9/v1"},
        "rollout": {"max_tokens": 16},
        "training": {"iterations_per_epoch": 3, "batch_size": 8, "group_size": 4},
        "evaluation": {"seeds": [1, 2]},
    }
    for name, table in changed.items():
        data[name] = {**data.get(name, {}), **table} if isinstance(table, dict) else table
    return resolve_run_file(data, folder=tmp_path)


def dataset(tmp_path: Path, rows: int) -> str:
    lines = [
        json.dumps({"prompt": f"say {i}", "answer": str(i), "level": i % 3, "note": None})
        for i in range(rows)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return "rows.jsonl"


def test_the_plan_for_verl_is_its_command_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan_run(single(tmp_path)).verl
    assert found is not None
    assert found.command[:3] == ["python", "-m", "verl.trainer.main_ppo"]
    assert "trainer.total_training_steps=3" in found.command
    spec, train, validation = found.files.values()
    assert tomllib.loads(spec)["judges"]["judge"]["model"] == "m"
    assert (train["rows"], validation["rows"]) == (6, 2)
    assert train["first"]["reward_model"]["ground_truth"] in COUNTRY_CAPITALS.values()
    print_run_plan(plan_run(single(tmp_path)), as_json=False)
    shown = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert "python -m verl.trainer.main_ppo \\\n" in shown
    assert spec.rstrip() in shown
    assert list(tmp_path.iterdir()) == []  # nothing is written


def test_a_dataset_that_is_not_there_yet_is_a_warning(tmp_path: Path) -> None:
    run = single(tmp_path, rollout={"dataset": "later.jsonl"}, judge={"combine_mode": "replace"})
    found = plan_run(run)
    assert any("later.jsonl is not there" in one for one in found.warnings)
    assert found.verl is not None
    assert list(found.verl.files) == ["runs/NAME/reward.toml"]


def test_rows_are_all_steps_in_order_without_held_out_ones(tmp_path: Path) -> None:
    run = single(
        tmp_path, rollout={"dataset": dataset(tmp_path, 5)}, judge={"combine_mode": "replace"}
    )
    rows = VerlRows(run)
    assert len(rows.seeds) == 3 * 2
    assert set(rows.seeds[:3]) == set(rows.seeds[3:]) == {0, 3, 4}
    files = write_verl_files(run, tmp_path / "out", build_reward_spec(run))
    train = pq.read_table(files.train).to_pylist()
    assert [row["extra_info"]["index"] for row in train] == rows.seeds
    assert train[0]["prompt"] == [{"role": "user", "content": f"say {rows.seeds[0]}"}]
    assert train[0]["reward_model"]["ground_truth"] == str(rows.seeds[0])
    assert train[0]["extra_info"]["level"] == rows.seeds[0] % 3
    held_out = pq.read_table(files.validation).to_pylist()
    assert [row["extra_info"]["index"] for row in held_out] == [1, 2]


def test_datasets_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    run = single(
        tmp_path, rollout={"dataset": dataset(tmp_path, 2)}, judge={"combine_mode": "replace"}
    )
    with pytest.raises(
        ConfigError, match=r"evaluation\.seeds: a seed is not a row .*found 2; allowed: 0 to 1"
    ):
        VerlRows(run)
    mixed = [{"prompt": "a", "x": 1}, {"prompt": "b", "x": {"y": 2}}, {"prompt": "c", "x": "d"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, [*mixed, *mixed])))
    with pytest.raises(ConfigError, match=r"each column one type"):
        write_verl_files(run, tmp_path / "out", build_reward_spec(run))


def scores(spec: RewardSpec, env: Sequence[float]) -> list[float | None]:
    answers = ["Paris good", "Rome", "Paris", "good Rome"]
    samples = [
        RewardSample(i, i, "q", text, [{"role": "user", "content": "q"},
                                       {"role": "assistant", "content": text}],
                     {"reference": "Paris", "env_reward": env[i]})
        for i, text in enumerate(answers)
    ]  # fmt: skip
    scored = asyncio.run(Scorer(spec).ascore(samples, ["g"] * 4))
    return [one.score for one in scored.results]


WEIGHTS = st.sampled_from([0.0, 0.25, 1.0, 10.0])


@given(
    mode=st.sampled_from(["weighted_sum", "replace", "none"]),
    scale=WEIGHTS,
    weights=st.tuples(WEIGHTS, WEIGHTS).filter(any),
    of_graders=st.tuples(WEIGHTS, WEIGHTS).filter(any),
    reduce=st.sampled_from(["sum", "mean"]),
)
@settings(max_examples=30)
def test_the_spec_for_verl_gives_the_runs_rewards(
    mode: str,
    scale: float,
    weights: tuple[float, float],
    of_graders: tuple[float, float],
    reduce: str,
) -> None:
    outcome, event = weights
    judge: dict[str, Any] = {
        "judge_scale": scale, "outcome_weight": outcome, "event_weight": event,
        "event_reduce": reduce, "combine_mode": mode,
    }  # fmt: skip
    run = single(
        Path(),
        judge={"enabled": False} if mode == "none" else judge,
        graders=[
            {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 2.0],
             "weight": of_graders[0]},
            {"name": "gold", "type": "adjudge_lab.rl.tiny:CapitalGrader",
             "weight": of_graders[1]},
            {"name": "turn", "type": "llm", "template": "{event}", "score_range": [0.0, 4.0],
             "scope": "event"},
        ],
    )  # fmt: skip
    spec = build_reward_spec(run)
    asked = {"judges": {"judge": SCRIPTED}} if run.judge.enabled else {}
    own = RewardSpec.from_dict({**spec.model_dump(exclude_unset=True), **asked})
    theirs = RewardSpec.from_dict({**build_verl_spec(run, spec), **asked})
    # The environment is not asked in verl: its 1, 0, 1, 0 must come from the answers.
    expected = scores(own, [1.0, 0.0, 1.0, 0.0])
    assert None not in expected
    assert scores(theirs, [9.0] * 4) == pytest.approx(expected)


def test_a_rule_of_the_datasets_own_pays(tmp_path: Path) -> None:
    run = single(
        tmp_path,
        rollout={"dataset": dataset(tmp_path, 5), "env_grader": "pays"},
        graders=[
            {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 2.0]},
            {"name": "pays", "type": "adjudge_lab.rl.tiny:CapitalGrader", "weight": 0.0},
        ],
    )
    data = build_verl_spec(run, build_reward_spec(run))
    weights = {one["name"]: one["weight"] for one in data["graders"]}
    assert weights == {"pays": 1.0, "quality": 1.0}
    assert data["reward"]["outcome_weight"] == 2.0


def test_paths_in_the_spec_hold_anywhere(tmp_path: Path) -> None:
    (tmp_path / "rubrics").mkdir()
    (tmp_path / "rubrics" / "a@v1.json").write_text(
        json.dumps({"criteria": [{"id": "a", "criterion": "a", "points": 1}]})
    )
    run = single(
        tmp_path,
        judge={"combine_mode": "replace", "rubric_id": "a@v1"},
        graders=[{"name": "more", "type": "rubric", "rubric_id": "a@v1", "weight": 0.0}],
    )
    files = write_verl_files(run, tmp_path / "else" / "where", build_reward_spec(run))
    spec = RewardSpec.load(files.spec)
    assert spec.build_graders().keys() == {"rubric", "more"}


@pytest.mark.parametrize(
    ("base", "backend", "rate"),
    [("Qwen/Qwen3-8B", "trl", 1e-6), ("Qwen/Qwen3-8B", "verl", 1e-6), ("tiny", "trl", 5e-4)],
)
def test_the_learning_rate_suits_the_model_and_is_said(
    base: str, backend: str, rate: float, capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"model": {"base": base}, "backend": backend, "judge": {"enabled": False}}
    run = resolve_run_file(data)
    found = plan_run(run)
    assert run.learning_rate == rate
    if found.verl is not None:
        assert f"actor_rollout_ref.actor.optim.lr={rate}" in found.verl.command
    else:
        assert found.settings["learning_rate"] == rate
    print_run_plan(found, as_json=False)
    assert f"{rate:g}, the default for base = {base!r}" in capsys.readouterr().out
    said = resolve_run_file({**data, "training": {"learning_rate": 2e-5}})
    assert said.learning_rate == 2e-5
    assert plan_run(said).assumed_learning_rate is None


def test_the_run_is_verls_module_with_files_and_variables(tmp_path: Path) -> None:
    """A stand-in for verl records how it is started: a trainer needs a GPU."""
    # Not beside the run file, where this process would find it, too.
    stand_in = tmp_path / "stand-in"
    (stand_in / "verl" / "trainer").mkdir(parents=True)
    (stand_in / "verl" / "__init__.py").touch()
    (stand_in / "verl" / "trainer" / "__init__.py").touch()
    (stand_in / "verl" / "trainer" / "main_ppo.py").write_text(
        "import json, os, sys, pathlib\n"
        "given = dict(one.split('=', 1) for one in sys.argv[1:])\n"
        "spec = pathlib.Path(given['+reward.reward_kwargs.spec']).read_text()\n"
        "log = os.environ['VERL_FILE_LOGGER_PATH']\n"
        "print(json.dumps({'given': given, 'spec': spec, 'log': log,\n"
        "    'there': pathlib.Path(given['data.train_files']).exists()}))\n"
        "sys.exit(7)\n"
    )
    run = single(tmp_path, judge={"base_url": "mock", "mock": {"behaviour": "length"}})
    lines: list[str] = []

    def launch(argv: Sequence[str], env: Mapping[str, str]) -> int:
        path = os.pathsep.join([str(stand_in), env.get("PYTHONPATH", "")])
        return run_module(argv, env={**env, "PYTHONPATH": path}, on_line=lines.append)

    assert run_verl(run, tmp_path / "out", launch=launch) == 7
    seen = json.loads(lines[-1])
    assert seen["there"]
    assert seen["log"] == str(tmp_path / "out" / "verl.jsonl")
    assert "http://127.0.0.1:" in seen["spec"]  # the mock that listens meanwhile
    files = VerlFiles.within(tmp_path / "out")
    command = build_verl_command(run, files, tmp_path / "out")
    assert [f"{key}={value}" for key, value in seen["given"].items()] == command[3:]


def test_the_plan_says_how_long_judging_takes_as_far_as_the_file_does() -> None:
    judge = {"base_url": "http://127.0.0.1:9/v1", "mock": None}
    paced = {**judge, "endpoint": {"requests_per_minute": 1.0}}
    quick, slow = plan_run(full(judge=judge)), plan_run(full(judge=paced))
    calls = quick.in_all["calls"]
    assert calls is not None
    assert f"judging about {format_duration(calls * 2 / 16)} at 2 s a call" in quick.time
    assert f"about {format_duration(calls * 60)}" in slow.time
    assert f"at most {format_duration(calls * 60)}" in slow.time


DATASET = """
[model]
base = "tiny"
[rollout]
dataset = "rows.jsonl"
[judge]
combine_mode = "replace"
[[graders]]
name = "valid"
type = "json_valid"
[evaluation]
seeds = SEEDS
"""


ANSWERED = '[[graders]]\nname = "right"\ntype = "answer"\n'
WATCHED = f"{ANSWERED}weight = 0.0\n"
MIXED = [*[{"prompt": "q"}] * 20, {"prompt": "q", "answer": "4"}]


@pytest.mark.parametrize(
    ("rows", "seeds", "code", "said"),
    [
        ([{"prompt": f"q{n}"} for n in range(20)], "[0, 1]", 0, "20 rows"),
        (None, "[0, 1]", 2, "rollout.dataset: "),
        ([{"mine": f"q{n}"} for n in range(20)], "[0, 1]", 2, "prompt"),
        ([{"prompt": "q"}, {"prompt": "r"}], "[0, 1]", 2, "held out"),
        ([{"prompt": "q", "answer": "4"}] * 20, "[0, 1]\n" + ANSWERED, 0, "20 rows"),
        ([{"prompt": "q", "mine": "4"}] * 20, "[0, 1]\n" + ANSWERED, 2, "graders.right"),
        ([{"prompt": "q", "mine": "4"}] * 20, "[0, 1]\n" + WATCHED, 0, "20 rows"),
        (MIXED, "[0, 1]\n" + ANSWERED, 0, "21 rows"),
        ([{"prompt": f"q{n}"} for n in range(20)], "[0, 20]", 2, "evaluation.seeds: "),
    ],
)
def test_a_dry_run_reads_the_dataset_that_the_run_would_read(
    tmp_path: Path, rows: list[dict[str, str]] | None, seeds: str, code: int, said: str
) -> None:
    (tmp_path / "run.toml").write_text(DATASET.replace("SEEDS", seeds))
    if rows is not None:
        (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    arguments = ["train", str(tmp_path / "run.toml"), "--dry-run"]
    done = CliRunner().invoke(command_line(), arguments)
    assert done.exit_code == code, done.output
    assert said in done.output
