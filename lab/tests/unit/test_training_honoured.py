"""What a backend does otherwise than a run file asks, and that a run is refused for it."""

from pathlib import Path
from typing import Any

import pytest

from adjudge.errors import ConfigError
from adjudge_lab.rl.backend_checks import check_backend_support, find_unsupported_settings
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import load_run_file, resolve_run_file
from adjudge_lab.rl.verl.inputs import verl_gpus, verl_version

EXAMPLES = Path(__file__).parents[3] / "examples"
QUALITY = {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 2.0]}


def run_of(**changed: Any) -> RunFile:
    data: dict[str, Any] = {
        "model": {"base": "Qwen/Qwen3-0.6B"},
        "graders": [QUALITY],
        "judge": {"model": "m", "combine_mode": "replace"},
        "training": {"batch_size": 16, "group_size": 4},
    }
    for name, table in changed.items():
        data[name] = {**data.get(name, {}), **table} if isinstance(table, dict) else table
    return resolve_run_file(data)


def keys(run: RunFile, version: str | None = None) -> list[str]:
    return [one.key for one in find_unsupported_settings(run, version)]


SPLIT = {"type": "single_node_split", "gpus_for_vllm": 4, "gpus_for_training": 3, "gpus_for_ref": 1}


def test_the_full_example_under_trl() -> None:
    run = load_run_file(EXAMPLES / "rl_crafter_full.toml")
    split = [f"topology.gpus_for_{part}" for part in ("vllm", "training", "ref")]
    assert keys(run) == ["compute.gpu_count", *split]
    with pytest.raises(ConfigError) as refused:
        check_backend_support(run, approximate=False)
    said = str(refused.value)
    assert "rl_crafter_full.toml" in said
    assert "--approximate" in said
    assert all(f"  {one}" in said for one in find_unsupported_settings(run))
    check_backend_support(run, approximate=True)


def test_verl_takes_the_gpus_but_not_their_split() -> None:
    run = run_of(backend="verl", compute={"gpu_count": 8}, topology=SPLIT)
    assert keys(run) == [f"topology.gpus_for_{part}" for part in ("vllm", "training", "ref")]
    assert verl_gpus(run) == verl_gpus(run_of(topology=SPLIT)) == 8
    assert verl_gpus(run_of()) == 1
    assert keys(run_of(topology={"type": "single_node_split"})) == ["topology.type"]
    assert keys(run_of(topology={"gpus_for_training": 1})) == []


def test_what_verl_cannot_run_at_all_is_refused_whatever_the_flag() -> None:
    rubric = {"model": "m", "rubric_id": "a@v1", "combine_mode": "replace"}
    impossible = {
        "services.task_url": run_of(
            backend="verl", services={"task_url": "http://h"}, rollout={"env_name": "x"},
            judge=rubric,
        ),
        "rollout.env_name": run_of(backend="verl", rollout={"env_name": "crafter"}, judge=rubric),
        "model.base": run_of(backend="verl", model={"base": "tiny"}),
        "compute.gpu_count": run_of(backend="verl", compute={"gpu_count": 0}),
        "judge.combine_mode": run_of(backend="verl", judge={"combine_mode": "multiply"}),
        "graders.ranked": run_of(
            backend="verl",
            graders=[{"name": "ranked", "type": "listwise", "weight": 1.0}],
        ),
    }  # fmt: skip
    for key, run in impossible.items():
        assert [one.key for one in find_unsupported_settings(run, "0.9.1") if not one.runs] == [key]
        with pytest.raises(ConfigError, match=f"Change {key}: the run is impossible"):
            check_backend_support(run, approximate=True)


def test_the_environments_reward_is_added_where_a_rule_can_compute_it() -> None:
    added = run_of(backend="verl", judge={"combine_mode": "weighted_sum"})
    assert keys(added) == []
    negative = run_of(backend="verl", judge={"combine_mode": "weighted_sum", "judge_scale": -1.0})
    assert keys(negative) == ["judge.combine_mode"]
    alone = run_of(backend="verl", judge={"enabled": False})
    assert keys(alone) == []


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.6.1", ["judge.sample_rate", "training.pipeline_async_enabled", "training.seed"]),
        ("0.9.1", ["judge.sample_rate"]),
    ],
)
def test_what_each_verl_lacks(version: str, expected: list[str]) -> None:
    run = run_of(
        backend="verl",
        judge={"sample_rate": 0.5, "combine_mode": "weighted_sum"},
        training={"pipeline_async_enabled": True, "seed": 3},
    )
    assert keys(run, version) == expected


def test_other_keys_that_verl_does_otherwise() -> None:
    run = run_of(
        backend="verl",
        compute={"gpu_count": 8},
        rollout={"episodes_per_batch": 4, "max_concurrent_rollouts": 6},
        training={
            "step_rewards_enabled": True, "step_rewards_beta": 0.5,
            "step_rewards_indicator_lambda": 1.0, "warm_start_iterations": 10,
        },
        sentinel={"action": "stop"},
    )  # fmt: skip
    assert keys(run, "0.9.1") == [
        "rollout.episodes_per_batch",
        "rollout.max_concurrent_rollouts",
        "training.warm_start_iterations",
        "training.step_rewards_beta",
        "training.step_rewards_indicator_lambda",
        "sentinel.action",
    ]
    assert all(one.runs for one in find_unsupported_settings(run, "0.9.1"))


def test_a_warm_start_is_for_the_tiny_model_and_its_default_asks_for_none() -> None:
    assert keys(run_of(training={"warm_start_iterations": 5})) == ["training.warm_start_iterations"]
    assert keys(run_of(training={"warm_start_iterations": 0})) == []
    assert keys(run_of(model={"base": "tiny"}, training={"warm_start_iterations": 5})) == []
    assert keys(run_of().with_seed(4)) == []


def test_the_version_is_read_without_importing_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    found = "adjudge_lab.rl.verl.inputs.installed_verl"
    for installed, meant in (
        (None, "0.9.1"), ("0.6.1", "0.6.1"), ("0.5.0.post1", "0.6.1"),
        ("0.9.1", "0.9.1"), ("0.10.0.dev0", "0.9.1"), ("1.0", "0.9.1"),
    ):  # fmt: skip
        monkeypatch.setattr(found, lambda version=installed: version)
        assert verl_version() == meant


def test_verl_has_no_part_of_a_model_and_no_comparison_of_its_own() -> None:
    evaluation = {"report_spec": "judge_smollm2.toml"}
    data: dict[str, Any] = {"training": {"trained_layers": 2}, "evaluation": evaluation}
    run = resolve_run_file(
        {
            "model": {"base": "smollm2"}, "graders": [QUALITY], "backend": "verl",
            "judge": {"model": "m", "combine_mode": "replace"}, **data,
        },
        folder=EXAMPLES,
    )  # fmt: skip
    found = find_unsupported_settings(run, "0.9.1")
    assert [one.key for one in found] == [
        "model.base", "training.trained_layers", "evaluation.report_spec"
    ]  # fmt: skip
    assert [one.runs for one in found] == [False, True, True]
    assert keys(run_of(**data | {"evaluation": {}})) == []


def test_a_judge_on_loopback_does_not_reach_other_machines() -> None:
    many = {"trainer": {"nnodes": 4, "n_gpus_per_node": 8}}
    run = run_of(backend="verl", verl=many)
    assert (verl_gpus(run), keys(run)) == (32, [])
    served = run_of(backend="verl", verl=many, services={"judge_url": "serve"})
    [unmet] = find_unsupported_settings(served)
    assert (unmet.key, unmet.runs) == ("services.judge_url", False)
    mocked = run_of(
        backend="verl", verl=many, judge={"base_url": "mock", "mock": {"behaviour": "length"}}
    )
    assert keys(mocked) == ["judge.base_url"]
    assert keys(run_of(backend="verl", verl={}, services={"judge_url": "serve"})) == []


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"verl": {"trainer.nnodes": 2}}, "verl: is for backend = 'verl'"),
        (
            {"backend": "verl", "verl": {"actor_rollout_ref.actor.optim.lr": 1.0}},
            "verl.actor_rollout_ref.actor.optim.lr: this file sets it by training.learning_rate",
        ),
        (
            {"backend": "verl", "verl": {"+reward": {"reward_kwargs": {"spec": "x"}}}},
            r"sets it by \[judge\]",
        ),
        (
            {"backend": "verl", "verl": {"trainer.nnodes": 0}},
            "verl.trainer.nnodes: must be a whole",
        ),
        ({"backend": "verl", "compute": {"gpu_count": 4},
          "verl": {"trainer": {"n_gpus_per_node": 8}}},
         "n_gpus_per_node: must be compute.gpu_count"),
    ],
)  # fmt: skip
def test_what_the_file_says_itself_is_not_said_twice(
    changed: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        run_of(**changed)
