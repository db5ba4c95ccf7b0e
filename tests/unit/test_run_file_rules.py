"""``[judge]`` without a judge: rules alone make its part."""

from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError
from adjudge.training.planning.plan import plan
from adjudge.training.runfile import RunFile
from adjudge.training.verl.spec import unrewardable, verl_spec

CAPITAL = {"name": "capital", "type": "adjudge.training.task:CapitalGrader"}
SHORT = {"name": "short", "type": "reasoning_format"}


def read(folder: Path | None = None, **tables: Any) -> RunFile:
    data: dict[str, Any] = {
        "model": {"base": "tiny"},
        "graders": [SHORT, {**CAPITAL, "weight": 0.0}],
        "judge": {"combine_mode": "replace"},
    }
    for name, table in tables.items():
        data[name] = {**data.get(name, {}), **table} if isinstance(table, dict) else table
    return RunFile.from_dict(data, where="run.toml", folder=folder)


def test_nobody_is_named_asked_or_paid() -> None:
    run = read()
    spec = run.reward_spec()
    assert [one.name for one in spec.graders] == ["short", "capital"]
    assert not spec.judges
    assert spec.reward.combine_mode == "replace"
    assert spec.reward.normalise
    assert (run.judge_name, run.judge_key_env, run.judge_cards) == ("rules", None, [])
    assert not run.awaits_judge


def test_a_dry_run_says_so() -> None:
    found = plan(read())
    assert found.judge == "rules alone"
    assert [one.calls for one in found.graders] == [0.0, 0.0]
    assert found.in_all["calls"] == 0.0
    assert not [one for one in found.warnings if "judge." in one]


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        ({"base_url": "http://h/v1"}, "judge.base_url: is for a judge"),
        ({"api_key_env": "KEY"}, "judge.api_key_env: is for a judge"),
        ({"price": {"input": 1.0}}, "judge.price: is for a judge"),
        ({"mock": {}}, "judge.mock: goes with base_url"),
    ],
)
def test_what_would_do_nothing_is_refused(judge: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(judge=judge)


def test_a_service_has_nothing_to_serve() -> None:
    with pytest.raises(ConfigError, match="services.judge_url: no grader asks the judge"):
        read(services={"judge_url": "serve"})


def test_rules_that_are_only_watched_make_no_reward() -> None:
    with pytest.raises(ConfigError, match="every weight is 0"):
        read(graders=[{**CAPITAL, "weight": 0.0}])


def test_without_graders_or_with_one_that_asks_a_judge_is_wanted() -> None:
    for graders in ([], [SHORT, {"name": "kind", "type": "llm", "template": "{response}"}]):
        with pytest.raises(ConfigError, match="judge.model: is required"):
            read(graders=graders)


def test_verl_gets_the_rules() -> None:
    run = read(backend="verl", model={"base": "m/m"})
    assert unrewardable(run) is None
    assert verl_spec(run, run.reward_spec(), every_rollout=False)["judges"] == {}
    added = read(backend="verl", model={"base": "m/m"}, judge={"combine_mode": "weighted_sum"})
    assert unrewardable(added) is None
    smallest = read(
        backend="verl",
        model={"base": "m/m"},
        judge={"combine_mode": "weighted_sum", "aggregate": "min"},
    )
    assert "no mean" in str(unrewardable(smallest))


def test_several_graders_are_one_score_by_what_the_file_says() -> None:
    both = [SHORT, {**CAPITAL, "weight": 2.0}]
    reward = read(graders=both, judge={"aggregate": "soft_min", "beta": 0.1}).reward_spec().reward
    assert (reward.aggregate, reward.beta) == ("soft_min", 0.1)
    assert read(graders=both).reward_spec().reward.aggregate == "weighted_mean"
    with pytest.raises(ConfigError, match=r"judge\.aggregate"):
        read(judge={"aggregate": "points"})
