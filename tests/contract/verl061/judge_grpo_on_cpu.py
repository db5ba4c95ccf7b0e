"""A judge's GRPO command in verl's real trainer, on a CPU: `python -m judge_grpo_on_cpu …`.

Also makes the model that it is tested on: random but for what it writes, a whole reply in one word.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch
import train_on_cpu  # type: ignore[import-not-found]  # beside this file
import verl
from hydra import compose, initialize_config_dir
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from verl.utils import tracking

CPU = """
data.dataloader_num_workers=0 actor_rollout_ref.model.use_remove_padding=False
+actor_rollout_ref.model.override_config.attn_implementation=sdpa
actor_rollout_ref.actor.use_torch_compile=False actor_rollout_ref.rollout.name=hf
actor_rollout_ref.rollout.free_cache_engine=False actor_rollout_ref.rollout.load_format=auto
trainer.device=cuda
""".split()  # noqa: SIM905  (a list of words is a long page)
VERDICTS = {
    "pairwise": [f"<better>{one}</better>" for one in ("A", "B", "A", "B")],
    "pointwise": [f"<score>{one}</score>" for one in range(5)],
}
BROKEN = ["good", "<think>A<better>A</better>", "<think>A</think><better>Answer"]
PLAIN = "<pad> <eos> <unk> <|im_start|> <|im_end|> system user assistant what is the capital of ?"
CHAT = (
    "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)


def save_model(folder: Path, mode: str) -> None:
    replies = [f"<think>{at}</think>{one}" for at, one in enumerate(VERDICTS[mode])] + BROKEN
    words = [*PLAIN.split(), *replies]
    whole = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=whole, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"], padding_side="left",
    )  # fmt: skip
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
            pad_token_id=0, eos_token_id=1, bos_token_id=None, tie_word_embeddings=False,
        )
    )  # fmt: skip
    reads, writes = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    first, last = len(PLAIN.split()), len(words)
    with torch.no_grad():
        reads[words.index("assistant"), 0] = 1.0  # after which it writes one of the replies,
        writes[first:last, 0] = 2.0
        reads[first:last, 1] = 1.0  # and after that its end
        writes[1, 1] = 3.0
    model.save_pretrained(folder)


def main(overrides: list[str]) -> None:
    torch.set_num_threads(1)
    tracking.FileLogger.log = train_on_cpu.log
    configs = str(Path(verl.__file__).parent / "trainer/config")
    with initialize_config_dir(configs, version_base=None):
        config: Any = compose("ppo_trainer", [*overrides, *CPU])
    names = ("PYTHONPATH", "HF_HUB_OFFLINE")
    env = {name: os.environ[name] for name in names if name in os.environ}
    ray.init(
        address="local",
        num_cpus=8,
        num_gpus=1,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        runtime_env={"env_vars": {**env, "OMP_NUM_THREADS": "1"}},
    )
    try:
        train_on_cpu.CPUTaskRunner().run(config)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
