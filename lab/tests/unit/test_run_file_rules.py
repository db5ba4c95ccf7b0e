"""``[judge]`` without a judge: rules alone make its part."""

from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.errors import ConfigError
from adjudge_lab.rl.rewards import build_reward_spec
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.verl.inputs import NOTHING_RUNS, build_verl_spec, find_reward_problem

CAPITAL = {"name": "capital", "type": "adjudge_lab.rl.tiny:CapitalGrader"}
SHORT = {"name": "short", "type": "reasoning_format"}


def read(folder: Path | None = None, **tables: Any) -> RunFile:
    data: dict[str, Any] = {
        "model": {"base": "tiny"},
        "graders": [SHORT, {**CAPITAL, "weight": 0.0}],
        "judge": {"combine_mode": "replace"},
    }
    for name, table in tables.items():
        data[name] = {**data.get(name, {}), **table} if isinstance(table, dict) else table
    return resolve_run_file(data, where="run.toml", folder=folder)


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        ({"base_url": "http://h/v1"}, "judge.base_url: can only be used with a judge"),
        ({"api_key_env": "KEY"}, "judge.api_key_env: can only be used with a judge"),
        ({"price": {"input": 1.0}}, "judge.price: can only be used with a judge"),
        ({"mock": {}}, "judge.mock: judge.mock and base_url"),
    ],
)
def test_what_would_do_nothing_is_refused(judge: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(judge=judge)


def test_a_weight_by_step_is_refused_where_nobody_knows_the_step() -> None:
    weight = {"from": 1.0, "to": 0.5, "steps": 9}
    scheduled = [{**SHORT, "weight": weight}, {**CAPITAL, "weight": 0.0}]
    run = read(graders=scheduled)
    assert build_reward_spec(run).at_step(9).graders[0].weight == 0.5
    assert find_reward_problem(run) == (
        "graders.short.weight",
        repr(weight),
        NOTHING_RUNS,
        "verl tells a reward manager no training step",
    )
    asks = {"name": "asks", "type": "llm", "template": "{response}", "score_range": [0.0, 1.0]}
    judge = {"type": "openai", "model": "m", "base_url": "http://localhost:1/v1"}
    asked: dict[str, Any] = {"judge": judge, "services": {"judge_url": "serve"}}
    read(graders=[*scheduled, asks], **asked)  # the rule is not asked at the service
    with refuses("graders.asks.weight"):
        read(graders=[*scheduled, {**asks, "weight": weight}], **asked)


def test_a_service_has_nothing_to_serve() -> None:
    with refuses("services.judge_url"):
        read(services={"judge_url": "serve"})


def test_rules_that_are_only_watched_make_no_reward() -> None:
    with refuses("graders"):
        read(graders=[{**CAPITAL, "weight": 0.0}])


def test_without_graders_or_with_one_that_asks_a_judge_is_wanted() -> None:
    for graders in ([], [SHORT, {"name": "kind", "type": "llm", "template": "{response}"}]):
        with refuses("judge.model"):
            read(graders=graders)


def test_verl_gets_the_rules() -> None:
    run = read(backend="verl", model={"base": "m/m"})
    assert find_reward_problem(run) is None
    assert build_verl_spec(run, build_reward_spec(run))["judges"] == {}
    added = read(backend="verl", model={"base": "m/m"}, judge={"combine_mode": "weighted_sum"})
    assert find_reward_problem(added) is None
    smallest = read(
        backend="verl",
        model={"base": "m/m"},
        judge={"combine_mode": "weighted_sum", "aggregate": "min"},
    )
    assert "not to 'min'" in str(find_reward_problem(smallest))
