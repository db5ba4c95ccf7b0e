"""A tokenizer, a configuration, batches and a spec for verl's own code, made when needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import verl
from hydra import compose, initialize_config_dir
from transformers import LlamaConfig
from verl import DataProto
from verl_words import (  # type: ignore[import-not-found]  # above
    SPEC,
    make_batch,
    make_tokenizer,
    objects,
    run_script,
)

__all__ = ["SPEC", "batch", "objects", "tokenizer"]

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

MANAGER = [
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.name=JudgeRewardLoopManager",
    "reward.reward_manager.module.path=pkg://adjudge.trainers.verl",
    "algorithm.adv_estimator=adjudge_grpo",
]
"""The lines that docs/verl.md gives."""

ROLLOUTS = (
    "+actor_rollout_ref.rollout.agent.agent_loop_manager_class="
    "adjudge.trainers.verl.JudgeAgentLoopManager"
)


def tokenizer() -> Any:
    return make_tokenizer(WORDS, CHAT)


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


def manager_config(folder: Path, spec: str, *overrides: str) -> Any:
    """verl's own configuration with our manager."""
    return config(folder, *MANAGER, f"+reward.reward_kwargs.spec={spec}", *overrides)


def batch(responses: list[str], width: int = 4, **columns: list[Any]) -> DataProto:
    """``responses`` to one prompt; an empty one has no token at all."""
    found = [[*ids(text), 1] if text else [] for text in responses]
    return make_batch(ids("what is 2 + 3 ?"), found, width, **columns)


def last_line(spec: str, script: str, folder: Path, *arguments: str) -> Any:
    """What a script beside this file prints last, as JSON."""
    return json.loads(run_script(HERE / script, spec, folder, *arguments).strip().splitlines()[-1])
