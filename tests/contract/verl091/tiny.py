"""A tokenizer, a configuration, batches and a spec for verl's own code, made when needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_dir
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast
from verl import DataProto

HERE = Path(__file__).parent

WORDS = """
<pad> <eos> <unk> <|im_start|> <|im_end|> system user assistant what is 2 + 3 ? 5 good poor
fail fine other crash look again , <tool_call> </tool_call> <tool_response> </tool_response>
{"name": "look", "arguments": {"word": "good"}} "fine"}}
""".split()  # noqa: SIM905  (a list of words is a long page)

CHAT = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}"
    "<|im_start|> user <tool_response> {{ m['content'] }} </tool_response> <|im_end|> "
    "{% else %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)

SPEC = """
[[graders]]
name = "quality"
type = "llm"
template = "{response}"
score_range = [0.0, 1.0]

[judges.main]
type = "scripted"
[judges.main.script]
fail = "no verdict"
good = '{"score": 1.0}'
poor = '{"score": 0.0}'
fine = '{"score": 0.75}'
"" = '{"score": 0.25}'
"""

MANAGER = [
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.name=JudgeRewardLoopManager",
    "reward.reward_manager.module.path=pkg://adjudge.trainers.verl",
    "algorithm.adv_estimator=adjudge_grpo",
]
"""The lines that docs/verl.md gives."""


def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        padding_side="left",
    )
    fast.chat_template = CHAT
    return fast


def ids(text: str) -> list[int]:
    found: list[int] = tokenizer()(text)["input_ids"]
    return found


def model_lines(folder: Path) -> list[str]:
    """Settings of a run; the tokenizer stands apart from a model that is never loaded."""
    model, words = folder / "model", folder / "words"
    if not model.exists():
        LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=64).save_pretrained(model)
        tokenizer().save_pretrained(words)
    return [
        f"actor_rollout_ref.model.path={model}",
        f"actor_rollout_ref.model.tokenizer_path={words}",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.val_kwargs.n=4",
        "actor_rollout_ref.rollout.prompt_length=32",
        "actor_rollout_ref.rollout.response_length=8",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "reward.num_workers=1",
        "data.train_batch_size=2",
        "critic.enable=False",
    ]


def config(folder: Path, *overrides: str) -> Any:
    """verl's own configuration."""
    defaults = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(defaults), version_base=None):
        return compose("ppo_trainer", overrides=[*model_lines(folder), *overrides])


def batch(responses: list[str], width: int = 4, **columns: list[Any]) -> DataProto:
    """``responses`` to one prompt; an empty one has no token at all."""
    prompt = ids("what is 2 + 3 ?")
    rows: dict[str, list[list[int]]] = {"prompts": [], "responses": [], "attention_mask": []}
    for text in responses:
        found = [*ids(text), 1] if text else []
        fill = width - len(found)
        rows["prompts"].append([0, *prompt])
        rows["responses"].append(found + [0] * fill)
        rows["attention_mask"].append([0] + [1] * (len(prompt) + len(found)) + [0] * fill)
    size = len(responses)
    given: dict[str, list[Any]] = {
        "data_source": ["judge/x"] * size,
        "reward_model": [{"style": "rule", "ground_truth": "5"} for _ in range(size)],
        "extra_info": [{"index": i} for i in range(size)],
        "uid": [f"u{i // 4}" for i in range(size)],
        **columns,
    }
    return DataProto.from_dict(
        tensors={name: torch.tensor(values) for name, values in rows.items()},
        non_tensors={name: objects(values) for name, values in given.items()},
    )


def objects(values: list[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def last_line(spec: str, script: str, *arguments: str) -> Any:
    """What a script beside this file prints last, as JSON."""
    env = {
        **os.environ,
        "ADJUDGE_SPEC": spec,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[2] / "src")]),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        env=env, timeout=600, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
