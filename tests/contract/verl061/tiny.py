"""A tokenizer, a random model, batches and specs for verl's own code, made when needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from verl import DataProto
from verl_words import SPEC, make_batch, make_tokenizer, objects  # type: ignore[import-not-found]  # above

__all__ = ["SPEC", "batch", "objects", "save_model", "tokenizer"]

WORDS = """
<pad> <eos> <unk> <|im_start|> <|im_end|> system user assistant what is 2 + 3 ? 5 4 the answer good
poor fail fine <tool_call> </tool_call> <tool_response> </tool_response>
{"name":"add","arguments":{"x":2}} sum a b c d e f g h
""".split()  # noqa: SIM905  (a list of words is a long page)

CHAT = (
    "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)


def tokenizer() -> Any:
    return make_tokenizer(WORDS, CHAT)


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
    end = [tok.eos_token_id] * ended
    ids = [tok(text)["input_ids"] + (end if text else []) for text in responses]
    return make_batch(tok(prompt)["input_ids"], ids, width, n, meta, **columns)
