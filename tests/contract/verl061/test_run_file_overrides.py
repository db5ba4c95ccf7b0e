"""The command that a run file becomes, read by verl 0.6.1 itself."""

from pathlib import Path
from typing import Any

import tiny  # type: ignore[import-not-found]  # beside this file
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.trainer.ppo.reward import load_reward_manager
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset

from adjudge.trainers.verl import register  # noqa: F401  (makes the names known)
from adjudge_lab.rl.rewards import build_reward_spec
from adjudge_lab.rl.runfile import RunFile
from adjudge_lab.rl.runfile_checks import resolve_run_file
from adjudge_lab.rl.verl.inputs import VerlRows
from adjudge_lab.rl.verl.run import VerlFiles, build_verl_command, write_verl_files


def run_of(folder: Path, **changed: Any) -> RunFile:
    data: dict[str, Any] = {
        "backend": "verl",
        "model": {"base": "model", "label": "it's a run"},
        "compute": {"gpu_count": 2},
        "graders": [
            {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 2.0]}
        ],
        "judge": {"model": "m", "base_url": "http://127.0.0.1:9/v1", "sample_rate": 0.5},
        "rollout": {"max_tokens": 33, "temperature": 0.7, "max_concurrent_rollouts": 16},
        "training": {
            "iterations_per_epoch": 7, "num_epochs": 2, "batch_size": 8, "group_size": 4,
            "gradient_accumulation_steps": 3, "learning_rate": 5e-5, "save_every_n_iters": 4,
        },
        "evaluation": {"seeds": [3, 4]},
    }  # fmt: skip
    for name, table in changed.items():
        data[name] = {**data.get(name, {}), **table}
    (folder / "model").mkdir(exist_ok=True)
    tiny.save_model(folder / "model")
    return resolve_run_file(data, folder=folder)


def configured(run: RunFile, folder: Path) -> tuple[Any, VerlFiles]:
    files = write_verl_files(run, folder, build_reward_spec(run))
    command = build_verl_command(run, files, folder)  # this environment's verl is seen
    assert command[2] == "adjudge.trainers.verl.main_ppo"
    defaults = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(defaults), version_base=None):
        config = compose("ppo_trainer", overrides=command[3:])
    OmegaConf.resolve(config)
    return config, files


def test_every_setting_arrives_and_verl_finds_nothing_wrong(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    config, files = configured(run, tmp_path / "an out, folder=1")
    policy, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.algorithm.adv_estimator == "adjudge_grpo"
    assert config.reward_model.reward_manager == "adjudge"
    assert config.reward_model.reward_kwargs.spec == str(files.spec)
    assert config.data.train_batch_size == policy.ppo_mini_batch_size == 8 * 3 // 4
    assert rollout.n == 4
    assert (rollout.temperature, rollout.val_kwargs.temperature) == (0.7, 0.7)
    assert (rollout.max_num_seqs, rollout.mode) == (8, "sync")
    assert rollout.prompt_length == files.prompt_tokens
    assert rollout.response_length == 33
    assert policy.optim.lr == 5e-5
    assert config.trainer.total_training_steps == config.trainer.test_freq == 14
    assert config.trainer.save_freq == 4
    assert (config.trainer.n_gpus_per_node, config.trainer.nnodes) == (2, 1)
    assert config.trainer.experiment_name == "it's a run"
    assert not need_critic(config)
    assert not need_reference_policy(config)
    validate_config(config, use_reference_policy=False, use_critic=False)


def test_the_reward_manager_is_ours_and_takes_the_spec(tmp_path: Path) -> None:
    config, _ = configured(run_of(tmp_path), tmp_path / "out")
    kwargs = config.reward_model.get("reward_kwargs", {})
    manager = load_reward_manager(config, tiny.tokenizer(), num_examine=0, **kwargs)
    assert type(manager).__name__ == "JudgeRewardManager"


def test_verl_reads_the_rows_in_the_runs_order(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    config, files = configured(run, tmp_path / "out")
    config.data.filter_overlong_prompts = False
    rows = RLHFDataset([str(files.train)], tiny.tokenizer(), config.data)
    assert len(rows) // config.data.train_batch_size == config.trainer.total_training_steps
    assert [rows[i]["index"] for i in range(len(rows))] == VerlRows(run).seeds
    assert rows[0]["raw_prompt"][0]["role"] == "user"
    assert rows[0]["reward_model"]["ground_truth"]
