"""A tokenizer, a random model, batches and specs for verl's own code, made when needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from verl import DataProto

WORDS = """
<pad> <eos> <unk> <|im_start|> <|im_end|> system user assistant what is 2 + 3 ? 5 4 the answer good
poor fail fine <tool_call> </tool_call> <tool_response> </tool_response>
{"name":"add","arguments":{"x":2}} sum a b c d e f g h
""".split()  # noqa: SIM905  (a list of words is a long page)

CHAT = (
    "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
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


def save_model(folder: Path) -> None:
    tokenizer().save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def batch(
    responses: list[str],
    n: int = 4,
    width: int = 8,
    prompt: str = "what is 2 + 3 ?",
    ended: bool = True,
    meta: dict[str, Any] | None = None,
    **columns: list[Any],
) -> DataProto:
    """``responses`` to one prompt per group of ``n``; an empty one has no token at all."""
    tok = tokenizer()
    prompt_ids = tok(prompt)["input_ids"]
    room = len(prompt_ids) + 2
    rows: dict[str, list[list[int]]] = {"prompts": [], "responses": [], "attention_mask": []}
    for text in responses:
        ids = tok(text)["input_ids"] + ([tok.eos_token_id] if text and ended else [])
        pad, fill = room - len(prompt_ids), width - len(ids)
        rows["prompts"].append([0] * pad + prompt_ids)
        rows["responses"].append(ids + [0] * fill)
        rows["attention_mask"].append([0] * pad + [1] * (len(prompt_ids) + len(ids)) + [0] * fill)
    size = len(responses)
    given: dict[str, list[Any]] = {
        "data_source": ["judge/x"] * size,
        "reward_model": [{"style": "rule", "ground_truth": "5"} for _ in range(size)],
        "extra_info": [{"index": i} for i in range(size)],
        "uid": [f"u{i // n}" for i in range(size)],
        **columns,
    }
    return DataProto.from_dict(
        tensors={name: torch.tensor(values) for name, values in rows.items()},
        non_tensors={name: objects(values) for name, values in given.items()},
        meta_info=meta or {},
    )


def objects(values: list[Any]) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
