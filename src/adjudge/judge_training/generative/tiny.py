"""``path = "tiny"`` for a judge that writes: large enough to read a question of some 450 tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from adjudge.training.tiny import build_model, build_tokenizer

__all__ = ["tiny_judge"]

_TOKENS = 800  # words of the prompt in one piece: with 420 it is over 700 tokens long
_LAYERS = 2  # one layer cannot look up what an earlier token said
_RANGE = 0.08
"""Standard deviation of fresh weights: with the usual 0.02 so narrow a model starts late."""


def tiny_judge(texts: Iterable[str], seed: int) -> tuple[Any, Any]:
    """Model and tokenizer, made from ``texts`` and ``seed``."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    tokenizer = build_tokenizer(texts, vocabulary=_TOKENS)
    built = build_model(tokenizer, seed=seed, hidden=64, layers=_LAYERS)
    built.config.initializer_range = _RANGE
    torch.manual_seed(seed)
    model = transformers.Qwen3ForCausalLM(built.config)
    model.generation_config = built.generation_config
    return model, tokenizer
