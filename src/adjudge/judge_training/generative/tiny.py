"""``path = "tiny"`` for a judge that writes: large enough to read a question of some 450 tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from adjudge.judge_training.judge_tables import TinyTable
from adjudge.training.tiny import build_model, build_tokenizer

__all__ = ["tiny_judge"]

_TOKENS = 800  # words of the prompt in one piece: with 420 it is over 700 tokens long
_RANGE = 0.64
"""Standard deviation of fresh weights, times √hidden: with 0.02 a narrow one starts late."""


def tiny_judge(texts: Iterable[str], seed: int, size: TinyTable) -> tuple[Any, Any]:
    """Model and tokenizer of ``size``, made from ``texts`` and ``seed``."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    tokenizer = build_tokenizer(texts, vocabulary=_TOKENS)
    built = build_model(tokenizer, seed=seed, hidden=size.hidden, layers=size.layers)
    built.config.initializer_range = _RANGE / math.sqrt(size.hidden)
    torch.manual_seed(seed)
    model = transformers.Qwen3ForCausalLM(built.config)
    model.generation_config = built.generation_config
    return model, tokenizer
