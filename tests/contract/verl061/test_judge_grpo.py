"""GRPO of a judge in verl's real trainer: settings, both orders in one batch, our rewards."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import judge_grpo_on_cpu as on_cpu  # type: ignore[import-not-found]  # beside this file
import pytest
import tiny  # type: ignore[import-not-found]
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM
from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.trainer.ppo.reward import compute_reward, load_reward_manager
from verl.utils.config import validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset

from adjudge.errors import ConfigError
from adjudge.graders.llm.trained_judge_card import read_card, read_prompt_config
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.judge_training.judge_questions import judge_form
from adjudge_lab.judge_training.judgement_rewards import consistent_pair_reward
from adjudge_lab.judge_training.report import judge_summary_lines
from adjudge_lab.judge_training.verl import register
from adjudge_lab.judge_training.verl.inputs import verl_judge_command, write_judge_files
from adjudge_lab.judge_training.verl.run import load_tokenizer, run_verl_judge
from adjudge_lab.rl.launch import run_module

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def judge_of(folder: Path, mode: str = "pairwise", **changed: Any) -> JudgeFile:
    (folder / "model").mkdir()
    on_cpu.save_model(folder / "model", mode)
    rows = [
        {
            "prompt": f"what is the capital of {n} ?",
            "a": f"a{n}",
            "b": f"bb{n}",
            "label": "AB"[n % 2],
        }
        if mode == "pairwise"
        else {"prompt": f"what is the capital of {n} ?", "response": f"a{n}", "label": n % 5}
        for n in range(10)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data: dict[str, Any] = {
        "method": "grpo",
        "mode": mode,
        "backend": "verl",
        "model": {"path": "model", "label": "it's a judge"},
        "data": {
            "train": "rows.jsonl", "train_batch_size": 8, "micro_batch_size": 16,
            "max_length": 512, "val_fraction": 0.2,
        },
        "optim": {"lr": 1e-2},
        "trainer": {"n_gpus_per_node": 1},
        "grpo": {"rollout_n": 4, "kl_loss_coef": 0.002, "max_response_length": 8},
    }  # fmt: skip
    for name, table in changed.items():
        data[name] = {**data.get(name, {}), **table}
    return JudgeFile.from_dict(data, folder=folder, environ={})


def configured(judge: JudgeFile, out: Path) -> tuple[Any, Any]:
    files = write_judge_files(judge, out, load_tokenizer(judge))
    command = verl_judge_command(judge, files, out)
    assert command[:3] == ["python", "-m", "adjudge.trainers.verl.main_ppo"]
    configs = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(configs), version_base=None):
        config = compose("ppo_trainer", overrides=command[3:])
    OmegaConf.resolve(config)
    return config, files


def test_every_setting_arrives_and_verl_finds_nothing_wrong(tmp_path: Path) -> None:
    judge = judge_of(
        tmp_path,
        trainer={"n_gpus_per_node": 2, "param_offload": True, "total_epochs": 3, "eval_every": 2},
        optim={"weight_decay": 0.02, "clip_grad": 0.5, "warmup_steps_ratio": 0.1},
        grpo={"temperature": 0.9},
    )
    config, files = configured(judge, tmp_path / "an out, folder=1")
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.algorithm.adv_estimator == "grpo"
    assert not config.algorithm.use_kl_in_reward
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (
        True, 0.002, "low_var_kl"
    )  # fmt: skip
    assert (rollout.n, rollout.temperature, rollout.mode) == (4, 0.9, "sync")
    assert (config.data.max_prompt_length, config.data.max_response_length) == (512, 8)
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size) == (8, 8)
    assert actor.ppo_micro_batch_size_per_gpu == rollout.log_prob_micro_batch_size_per_gpu == 16
    assert (actor.optim.lr, actor.optim.weight_decay, actor.grad_clip) == (1e-2, 0.02, 0.5)
    assert (actor.optim.lr_warmup_steps_ratio, actor.optim.lr_scheduler_type) == (0.1, "constant")
    assert actor.fsdp_config.param_offload
    assert actor.fsdp_config.optimizer_offload
    assert config.actor_rollout_ref.ref.fsdp_config.param_offload
    assert not config.data.shuffle
    assert (config.trainer.total_epochs, config.trainer.test_freq) == (3, 2)
    assert (config.trainer.n_gpus_per_node, config.trainer.nnodes) == (2, 1)
    assert (files.train_rows, files.val_rows) == (16, 4)
    validate_config(config, use_reference_policy=True, use_critic=False)
    kwargs = config.reward_model.reward_kwargs
    assert dict(kwargs) == {"mode": "pairwise", "ties": False}
    manager = load_reward_manager(config, tiny.tokenizer(), 0, **kwargs)
    assert type(manager).__name__ == "JudgementRewardManager"


def test_both_orders_are_neighbours_in_verls_own_rows(tmp_path: Path) -> None:
    judge = judge_of(tmp_path)
    config, _ = configured(judge, tmp_path / "out")
    rows = RLHFDataset(config.data.train_files, load_tokenizer(judge), config.data)
    assert len(rows) == 16
    for at in range(0, 16, 2):
        given, swapped = rows[at]["extra_info"], rows[at + 1]["extra_info"]
        assert given["row"] == swapped["row"]
        assert (given["swapped"], swapped["swapped"]) == (False, True)
        labels = {rows[at + turn]["reward_model"]["ground_truth"] for turn in (0, 1)}
        assert labels == {"A", "B"}


WORDS = [
    "<think>0</think><better>A</better>", "<think>1</think><better>B</better>", "good", "",
]  # fmt: skip


def batch(replies: list[str], **meta: Any) -> Any:
    """Replies to both orders of one comparison whose better answer stands first, half to each."""
    half = len(replies) // 2
    extra = [
        {"row": 3, "swapped": place >= half, "answer_lengths": [2, 9], "index": 0}
        for place in range(len(replies))
    ]
    truth = [{"ground_truth": "B" if one["swapped"] else "A"} for one in extra]
    data = tiny.batch(replies, n=half, width=4, extra_info=extra, reward_model=truth, meta=meta)
    tokens = {word: 40 + at for at, word in enumerate(WORDS[:2])}
    for place, reply in enumerate(replies):
        if reply in tokens:
            data.batch["responses"][place, 0] = tokens[reply]
    return data


class Tokenizer:
    """The tiny one with two replies as words of their own."""

    def __init__(self) -> None:
        self._tiny = tiny.tokenizer()
        self._tiny.add_tokens([f"<extra{n}>" for n in range(64)])
        self.eos_token_id = self._tiny.eos_token_id
        self.pad_token_id = self._tiny.pad_token_id
        self.words = WORDS[:2]

    def batch_decode(self, rows: Any, **options: Any) -> list[str]:
        return [self.decode(row, **options) for row in rows]

    def decode(self, ids: Any, **options: Any) -> str:
        first = int(ids[0]) if len(ids) else -1
        if first - 40 in (0, 1):
            return self.words[first - 40]
        return str(self._tiny.decode(ids, **options))


def manager() -> Any:
    return register.compute_score(Tokenizer(), 0, mode="pairwise")


def test_rewards_by_both_orders_on_the_last_valid_token() -> None:
    a, b, other, empty = WORDS
    data = batch([a, a, b, other, b, a, empty, b])
    tensor, extra = compute_reward(data, manager())
    first, second = [a, a, b, other], [b, a, empty, b]
    expected = [sum(consistent_pair_reward(x, y, "A").ab for y in second) / 4 for x in first] + [
        sum(consistent_pair_reward(x, y, "A").ba for x in first) / 4 for y in second
    ]
    assert tensor.sum(-1).tolist() == pytest.approx(expected)
    assert tensor[3, 1] == -0.25  # a word and its end
    assert tensor[6, 3] == -0.25  # no token at all: where masks hide it
    assert extra["verdict"] == ["A", "A", "B", "", "B", "A", "", "B"]
    assert extra["unread"] == [0, 0, 0, 1, 0, 0, 1, 0]
    assert extra["unread/no_thinking"] == [0, 0, 0, 1, 0, 0, 1, 0]
    assert extra["accuracy"][:3] == [1, 1, 0]
    assert math.isnan(extra["accuracy"][3])
    assert extra["consistency"][0] == pytest.approx(2 / 3)
    assert extra["first_share"][:3] == [1, 1, 0]
    assert extra["both_right"] == pytest.approx([0.5, 0.5, 0, 0, 0.5, 0, 0, 0.5])
    metrics = extra["judge_metrics"][0]
    assert metrics["train/accuracy"] == pytest.approx(4 / 6)
    assert metrics["train/unread"] == 0.25
    assert metrics["train/reward_mean"] == pytest.approx(sum(expected) / 8)


def test_ratings_are_rewarded_by_their_distance() -> None:
    rated = "<think>0</think><score>3</score>"
    data = batch([WORDS[0], WORDS[1], "good", ""])
    for place, label in enumerate([4, 0, 3, 3]):
        own = {"row": place, "swapped": False, "answer_lengths": [2]}
        data.non_tensor_batch["extra_info"][place] = own
        data.non_tensor_batch["reward_model"][place] = {"ground_truth": label}
    tokenizer = Tokenizer()
    tokenizer.words = [rated, rated]
    rating = register.compute_score(tokenizer, 0, mode="pointwise")
    tensor, extra = compute_reward(data, rating)
    assert tensor.sum(-1).tolist() == [0.75, 0.25, -0.25, -0.25]
    assert extra["verdict"] == ["3", "3", "", ""]
    assert extra["error"][:2] == [1.0, 3.0]
    assert math.isnan(extra["error"][2])
    assert "consistency" not in extra


def test_the_columns_are_always_the_same() -> None:
    a, _, other, _ = WORDS
    keys = [list(compute_reward(batch([one] * 4), manager())[1]) for one in (a, other)]
    assert keys[0] == keys[1]


def test_validations_means_are_those_of_what_was_read() -> None:
    a, b, other, _ = WORDS
    data = batch([a, a, other, b, b, other], validate=True)
    extra = manager()(data, return_dict=True)["reward_extra_info"]
    sources, inputs = ["judge"] * 6, [f"u{at // 3}" for at in range(6)]
    numbers = {key: extra[key] for key in ("accuracy", "unread", "verdict")}
    found = process_validation_metrics(sources, inputs, numbers)["judge"]
    assert found["accuracy"]["mean@3"] == 1.0
    assert found["unread"]["mean@3"] == pytest.approx(1 / 3)
    assert "accuracy" in json.loads(extra["details"][2])["missing_parts"]


def test_half_a_comparison_has_no_reward() -> None:
    data = batch([WORDS[0]] * 4)
    alone = data[:2]
    with pytest.raises(ConfigError, match="not in the batch"):
        manager()(alone)


def test_settings_that_are_none() -> None:
    other: Any = "both"
    with pytest.raises(ConfigError, match="reward_kwargs.mod"):
        register.compute_score(Tokenizer(), 0, mode="pairwise", mod=1)
    with pytest.raises(ConfigError, match="reward_kwargs.mode"):
        register.compute_score(Tokenizer(), 0, mode=other)


def launch(argv: Sequence[str], env: Mapping[str, str]) -> int:
    assert argv[0] == "adjudge.trainers.verl.main_ppo"
    variables = {
        **env,
        "PYTHONPATH": os.pathsep.join(
            map(str, (HERE, HERE.parent / "verl_shared", ROOT / "src", ROOT / "lab/src"))
        ),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    said: list[str] = []
    code = run_module(["judge_grpo_on_cpu", *argv[1:]], env=variables, on_line=said.append)
    assert code == 0, "\n".join(said[-60:])
    return code


def test_verl_trains_on_our_rewards_and_leaves_a_judges_folder(tmp_path: Path) -> None:
    judge = judge_of(tmp_path, trainer={"eval_every": 2})
    source = tmp_path / "judge.toml"
    source.write_text("method = 'grpo'\n")
    out = tmp_path / "out"
    summary = run_verl_judge(judge, source, out, launch=launch)
    assert isinstance(summary, dict)
    for step in (1, 2):
        rows = [
            json.loads(one)
            for one in (out / f"rollouts/{step}.jsonl").read_text().split("\n")
            if one
        ]
        assert len(rows) == 8 * 4
        assert {row["verdict"] for row in rows} >= {"A", "B"}
        for row in rows:
            assert (row["score"] == -0.25) == (row["verdict"] == "") == bool(row["fault"])
            assert (row["accuracy"] is None) == (row["verdict"] == "")
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in metrics if "train/reward_mean" in row]
    assert len(steps) == summary["steps"] == 2
    for row in steps:
        for key in ("policy_loss", "kl_divergence", "accuracy", "consistency", "unread"):
            assert math.isfinite(row[f"train/{key}"])
    assert steps[0]["train/kl_divergence"] == pytest.approx(0, abs=1e-6)
    assert {"reward_mean", "accuracy", "unread"} <= summary["validation"].keys()
    assert {"reward_mean", "accuracy", "unread"} <= summary["first"].keys()
    card = read_card(out)
    assert (card.kind, card.mode, card.verdict) == ("generative", "pairwise", "better")
    assert card.prompt is not None
    assert summary["baselines"]["val"]["best_reward"] == 0.25
    trained = AutoModelForCausalLM.from_pretrained(out).state_dict()
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert any((trained[name] != base[name]).any() for name in trained)
    assert read_prompt_config(out, "pairwise").form == judge_form("pairwise", [])
    assert any(line.startswith("consistency") for line in judge_summary_lines(summary))
