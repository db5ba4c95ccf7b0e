"""`[trl]` of a run file and of a judge's training file, in the trainer that trains.

Run by ``make test-trl``.
"""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="trl is not installed here; run `make test-trl`")

import torch
import transformers
import trl

from adjudge.errors import ConfigError
from adjudge_lab.cli.plan import print_judge_plan
from adjudge_lab.judge_training.judge_file import JudgeFile, JudgeJob
from adjudge_lab.judge_training.run import run_judge
from adjudge_lab.rl import trl_backend
from adjudge_lab.rl.plan import plan_run
from adjudge_lab.rl.policy import save_policy
from adjudge_lab.rl.run import TrainingJob, train_run
from adjudge_lab.rl.runfile_checks import load_run_file
from adjudge_lab.rl.tiny import build_tiny_model, build_tiny_tokenizer

RUN = """
version = 1
[model]
base = "base"
[rollout]
max_tokens = 8
[training]
iterations_per_epoch = 2
batch_size = 4
group_size = 2
warm_start_iterations = 0
[evaluation]
instances = 1
[logging]
to = "none"
"""
OWN = """
[trl]
gradient_checkpointing = true
bf16 = true
loss_type = "dr_grpo"
adam_beta2 = 0.95
optim = "adamw_torch"
max_grad_norm = 0.5
optim_args = "foreach=False"

[trl.model_init_kwargs]
dtype = "bfloat16"
attn_implementation = "eager"
"""


def run_file(folder: Path, more: str = OWN) -> Path:
    tokenizer = build_tiny_tokenizer(["Name the capital of France.", "Paris it is"])
    save_policy(
        build_tiny_model(tokenizer, seed=1, hidden=32, layers=2), tokenizer, folder / "base"
    )
    path = folder / "run.toml"
    path.write_text(RUN + more)
    return path


def test_every_setting_reaches_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_file(tmp_path)
    planned = plan_run(load_run_file(path))
    assert planned.settings["adam_beta2"] == 0.95
    assert not [one for one in planned.warnings if "[trl]" in one]
    seen: dict[str, Any] = {}
    own_class = trl_backend._trainer_class()

    def note(**given: Any) -> Any:
        seen.update(given)
        return own_class(**given)

    monkeypatch.setattr(trl_backend, "_trainer_class", lambda: note)
    job = TrainingJob(load_run_file(path), path, tmp_path / "out")
    train_run(job)
    arguments, model = seen["args"], seen["model"]
    assert arguments.bf16
    checkpointing = (arguments.gradient_checkpointing, arguments.activation_checkpointing)
    assert any(checkpointing)
    assert (arguments.loss_type, arguments.adam_beta2) == ("dr_grpo", 0.95)
    assert arguments.max_grad_norm == 0.5
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert model.config._attn_implementation == "eager"
    assert model.is_gradient_checkpointing
    assert job.summary["steps"] == 2
    kept = transformers.AutoConfig.from_pretrained(tmp_path / "out" / "model")
    assert kept.dtype == torch.bfloat16
    rows = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert all("reward" in json.loads(row) for row in rows)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("adam_beta_2 = 0.9", "trl.adam_beta_2: GRPOConfig of TRL .* did you mean 'adam_beta2'"),
        ("max_steps = 3", "trl.max_steps: .*by training.iterations_per_epoch"),
        ("use_vllm = true", "trl.use_vllm: .*the run's own player .*backend = 'verl'"),
        ('deepspeed = "zero3.json"', "trl.deepspeed: .*one process"),
        ('disable_dropout = "yes"', "trl.disable_dropout: must be true or false"),
        ("[trl.model_init_kwargs]\ntrust_remote_code = true", "trust_remote_code: cannot be set"),
    ],
)
def test_what_the_trainer_does_not_take_is_refused_by_the_plan(
    tmp_path: Path, table: str, complaint: str
) -> None:
    path = run_file(tmp_path, f"[trl]\n{table}\n")
    with pytest.raises(ConfigError, match=complaint):
        plan_run(load_run_file(path))


def test_options_that_the_model_does_not_know_are_told(tmp_path: Path) -> None:
    more = '[trl.model_init_kwargs]\nattn_implementation = "flash_attention_9"\n'
    path = run_file(tmp_path, more)
    with pytest.raises(ConfigError, match="cannot be loaded: .*flash_attention_9"):
        train_run(TrainingJob(load_run_file(path), path, tmp_path / "out"))


JUDGE = """
kind = "judge"
method = "{method}"
[model]
path = "base"
[data]
synthetic = {{ n = 60, seed = 1 }}
train_batch_size = 16
micro_batch_size = 8
max_length = 128
[optim]
lr = 1e-2
[trainer]
enable_gradient_checkpointing = true
[trl]
adam_beta2 = 0.9
bf16 = true
[trl.model_init_kwargs]
dtype = "bfloat16"
attn_implementation = "eager"
"""


@pytest.mark.parametrize(
    ("method", "config"), [("sft", "SFTConfig"), ("bradley_terry", "RewardConfig")]
)
def test_a_judges_weights_and_trainer_are_as_the_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, config: str
) -> None:
    run_file(tmp_path)
    source = tmp_path / "judge.toml"
    source.write_text(JUDGE.format(method=method))
    seen: list[Any] = []
    original = getattr(trl, config).__post_init__

    def note(arguments: Any) -> None:
        original(arguments)
        seen.append(arguments)

    monkeypatch.setattr(getattr(trl, config), "__post_init__", note)
    judge = JudgeFile.load(source, environ={})
    summary = run_judge(JudgeJob(judge, source, tmp_path / "out"))
    assert summary["steps"] > 0
    assert (seen[-1].adam_beta2, seen[-1].bf16) == (0.9, True)
    assert seen[-1].gradient_checkpointing or seen[-1].activation_checkpointing
    kept = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert kept.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ("learning_rate = 1e-3", "trl.learning_rate: .*by optim.lr"),
        ("packing = true", "trl.packing: .*like lengths"),
        ('deepspeed = "zero3.json"', "trl.deepspeed: .*trainer.strategy"),
    ],
)
def test_what_a_judges_trainer_does_not_take_is_refused_by_the_plan(
    tmp_path: Path, table: str, complaint: str
) -> None:
    judge = JUDGE.format(method="bradley_terry").partition("[trl]")[0] + f"[trl]\n{table}\n"
    source = tmp_path / "judge.toml"
    source.write_text(judge)
    with pytest.raises(ConfigError, match=complaint):
        print_judge_plan(JudgeFile.load(source, environ={}), None, as_json=True)
