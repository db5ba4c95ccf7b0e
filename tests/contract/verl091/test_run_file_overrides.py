"""The command that a run file becomes, read by verl 0.9.1 itself."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tiny import tokenizer  # beside this file
from transformers import LlamaConfig
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.reward import resolve_reward_manager_cls
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset

from adjudge.errors import ConfigError
from adjudge.trainers.verl.reward_sources import VerlRun, make_checked_scorer
from adjudge_lab.rl.rewards import build_reward_spec
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.verl.inputs import VerlRows
from adjudge_lab.rl.verl.run import VerlFiles, build_verl_command, write_verl_files

ROOT = Path(__file__).parents[3]
PATHS = os.pathsep.join([str(ROOT / "src"), str(ROOT / "lab" / "src")])


def run_of(folder: Path, **changed: Any) -> RunFile:
    data: dict[str, Any] = {
        "backend": "verl",
        "model": {"base": "model", "label": "a run"},
        "compute": {"gpu_count": 2},
        "graders": [
            {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 2.0]}
        ],
        "judge": {"model": "m", "base_url": "http://127.0.0.1:9/v1", "judge_scale": 10.0},
        "rollout": {"max_tokens": 33, "temperature": 0.7, "max_concurrent_rollouts": 16},
        "training": {
            "iterations_per_epoch": 7, "num_epochs": 2, "batch_size": 8, "group_size": 4,
            "gradient_accumulation_steps": 3, "learning_rate": 5e-5, "seed": 11,
            "save_every_n_iters": 4,
        },
        "evaluation": {"every_n_iters": 5, "seeds": "3-6"},
    }  # fmt: skip
    for name, table in changed.items():
        data[name] = {**data.get(name, {}), **table}
    LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=64).save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    return resolve_run_file(data, folder=folder)


def composed(command: list[str]) -> Any:
    defaults = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(defaults), version_base=None):
        config = compose("ppo_trainer", overrides=command[3:])
    OmegaConf.resolve(config)
    return config


def configured(folder: Path, **changed: Any) -> tuple[Any, VerlFiles]:
    run = run_of(folder, **changed)
    files = write_verl_files(run, folder / "out", build_reward_spec(run))
    return composed(build_verl_command(run, files, folder / "out", "0.9.1")), files


def test_every_setting_arrives_and_verl_finds_nothing_wrong(tmp_path: Path) -> None:
    config, files = configured(tmp_path)
    policy, rollout, trainer = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, (
        config.trainer
    )  # fmt: skip
    assert config.algorithm.adv_estimator == "adjudge_grpo"
    assert config.reward.reward_kwargs.spec == str(files.spec)
    assert config.data.train_batch_size == policy.ppo_mini_batch_size == 8 * 3 // 4
    assert rollout.n == 4
    assert (rollout.temperature, rollout.val_kwargs.temperature) == (0.7, 0.7)
    assert (rollout.seed, rollout.max_num_seqs) == (11, 8)
    assert rollout.prompt_length == files.prompt_tokens
    assert rollout.response_length == config.data.max_response_length == 33
    assert policy.optim.lr == 5e-5
    assert policy.policy_loss.loss_mode == "vanilla"
    assert trainer.total_training_steps == 14
    assert (trainer.save_freq, trainer.test_freq) == (4, 5)
    assert (trainer.n_gpus_per_node, trainer.nnodes) == (2, 1)
    assert (trainer.use_v1, trainer.v1.trainer_mode) == (True, "sync")
    assert trainer.experiment_name == "a run"
    assert config.actor_rollout_ref.model.path == str(tmp_path / "model")
    assert not need_critic(config)
    assert not need_reference_policy(config)
    validate_config(config, use_reference_policy=False, use_critic=False)


def test_the_reward_manager_is_ours_and_takes_the_spec(tmp_path: Path) -> None:
    config, _ = configured(tmp_path)
    assert resolve_reward_manager_cls(config).__name__ == "JudgeRewardLoopManager"
    assert "capital_score" in make_checked_scorer(VerlRun(config), None).info_keys


@pytest.mark.parametrize("variety", ["gspo", "grpo"])
def test_gspo_is_verls_own_loss(tmp_path: Path, variety: str) -> None:
    config, _ = configured(tmp_path, algorithm={"variety": variety})
    loss = get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode)
    assert ("gspo" in loss.__name__) == (variety == "gspo")


def test_the_pipeline_is_verls_trainer_that_runs_one_batch_ahead(tmp_path: Path) -> None:
    config, files = configured(
        tmp_path,
        training={"pipeline_async_enabled": True},
        algorithm={"variety": "gspo", "adv_estimator": "grpo"},
    )
    v1 = config.trainer.v1
    assert v1.trainer_mode == "colocate_async"
    assert (v1.sampler.max_off_policy_threshold, v1.sampler.max_off_policy_strategy) == (2, "wait")
    assert config.algorithm.rollout_correction.bypass_mode
    assert config.actor_rollout_ref.rollout.calculate_log_probs
    make_checked_scorer(VerlRun(config), None)  # refuses estimators that cannot leave a rollout out
    assert len(rows_of(config, files.train)) == 15 * 6
    validate_config(config, use_reference_policy=False, use_critic=False)


def rows_of(config: Any, path: Path) -> Any:
    return RLHFDataset([str(path)], tokenizer(), config.data)


def test_verl_reads_the_rows_in_the_runs_order(tmp_path: Path) -> None:
    config, files = configured(tmp_path)
    rows = rows_of(config, files.train)
    assert len(rows) // config.data.train_batch_size == config.trainer.total_training_steps
    seeds = VerlRows(run_of(tmp_path)).seeds
    assert [rows[i]["index"] for i in range(len(rows))] == seeds
    held_out = rows_of(config, files.validation)
    assert [held_out[i]["index"] for i in range(len(held_out))] == [3, 4, 5, 6]
    assert rows[0]["raw_prompt"][0]["role"] == "user"
    assert rows[0]["reward_model"]["ground_truth"]
    assert not config.data.shuffle


@pytest.mark.parametrize(
    "name",
    [
        "a b", "it's", "a,b=c", "$HOME", "true", "12", "1e3", "null", "[a]",
        "{a: b}", "back\\slash\\", "'", "\\'", "größe/日本", "a:b", "~", "(x)", "", "%#&",
    ],
)  # fmt: skip
def test_names_arrive_as_they_are(tmp_path: Path, name: str) -> None:
    run = run_of(tmp_path, model={"base": name or "x", "label": name})
    config = composed(build_verl_command(run, VerlFiles.within(tmp_path / name), tmp_path, "0.9.1"))
    assert config.actor_rollout_ref.model.path == (name or "x")
    assert config.trainer.experiment_name == (name or "capitals")
    assert config.data.train_files == str(tmp_path / name / "train.parquet")


def test_what_verl_would_look_up_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, model={"label": "${oc.env:HOME}"})
    with pytest.raises(ConfigError, match="would expand"):
        build_verl_command(run, VerlFiles.within(tmp_path), tmp_path, "0.9.1")


def test_the_command_line_itself_is_understood(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    files = VerlFiles.within(tmp_path / "out dir")
    command = build_verl_command(run, files, tmp_path / "out dir", "0.9.1")
    done = subprocess.run(
        [sys.executable, *command[1:], "--cfg", "job"],
        env={**os.environ, "PYTHONPATH": PATHS},
        cwd=tmp_path, timeout=300, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    read = OmegaConf.create(done.stdout[done.stdout.index("actor_rollout_ref:") :])
    assert read.trainer.total_training_steps == 14
    assert read.reward.reward_kwargs.spec == str(files.spec)


def test_any_setting_of_verl_passes_through(tmp_path: Path) -> None:
    """Machines, GPUs, workers, an engine's own options, and an engine of another kind."""
    config, _ = configured(
        tmp_path,
        compute={"gpu_count": 8},
        verl={
            "trainer": {"nnodes": 4, "n_gpus_per_node": 8},
            "reward.num_workers": 16,
            "actor_rollout_ref": {
                "rollout": {
                    "tensor_model_parallel_size": 2,
                    "engine_kwargs": {"vllm": {"attention_backend": "FLASH_ATTN"}},
                },
                "actor": {"ppo_mini_batch_size": 2, "fsdp_config": {"param_offload": True}},
                "model": {"override_config": {"attn_implementation": "flash_attention_3"}},
            },
            "trainer.max_actor_ckpt_to_keep": 3,
            "data.custom_cls.path": "null",
            "+trainer.of_a_fork": "yes",
        },
    )
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    assert (trainer.nnodes, trainer.n_gpus_per_node, config.reward.num_workers) == (4, 8, 16)
    assert (rollout.tensor_model_parallel_size, rollout.n) == (2, 4)
    assert rollout.engine_kwargs.vllm.attention_backend == "FLASH_ATTN"
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 2
    assert config.actor_rollout_ref.actor.fsdp_config.param_offload is True
    assert config.actor_rollout_ref.model.override_config.attn_implementation == "flash_attention_3"
    assert (trainer.max_actor_ckpt_to_keep, trainer.of_a_fork) == (3, "yes")
    assert config.data.custom_cls.path is None
    megatron = {
        "model_engine": "megatron",
        "actor_rollout_ref.actor.megatron": {"use_mbridge": True},
    }
    config, _ = configured(tmp_path, verl=megatron)
    assert config.actor_rollout_ref.actor.megatron.use_mbridge is True


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"trainer.nnode": 2}, "verl.trainer.nnode: .*did you mean 'trainer.nnodes'"),
        ({"reward": {"num_workers": "many"}}, "reward.num_workers: must be a number"),
        ({"trainer.balance_batch": 1}, "trainer.balance_batch: must be true or false"),
        ({"trainer": {"device": 3}}, "trainer.device: must be text"),
        ({"actor_rollout_ref.actor.megatron": {"x": 1}}, "has no 'megatron'"),
        ({"model_engine": "jax"}, "verl.model_engine: .*jax"),
        ({"reward.reward_manager": "naive"}, r"verl.reward.reward_manager: .*\[judge\]"),
    ],
)
def test_a_setting_that_verl_does_not_have_is_refused(
    tmp_path: Path, table: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        configured(tmp_path, verl=table)
