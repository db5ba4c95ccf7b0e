"""Responses by vLLM in this process: many prompts at a time, on one or several GPUs."""

from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.base import Reply
from adjudge.judges.local.conversation import templated, turns_of
from adjudge.judges.local.tokenizers import special_tokens_of
from adjudge.judges.wire_text import split_thinking

__all__ = ["VllmSettings", "check_installed", "generate"]

Wanted = tuple[str, int]
Keep = Callable[[Wanted, "Reply | GradingFailure"], None]


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How vLLM loads a model: GPUs it is split over, the share of their memory, longest input."""

    tp_size: int = 1
    gpu_mem_util: float = 0.9
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        for option, value in (("--tp-size", self.tp_size), ("--max-model-len", self.max_model_len)):
            if value is not None and value < 1:
                raise ConfigError(f"{option}: found {value}, must be at least 1")
        if not 0 < self.gpu_mem_util <= 1:
            found = self.gpu_mem_util
            raise ConfigError(f"--gpu-mem-util: found {found}, must be above 0 and at most 1")


def check_installed() -> None:
    """Raise :class:`ConfigError` where vLLM is not."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "--tp-size, --gpu-mem-util, --max-model-len: need vLLM, which is not installed "
            "(pip install vllm); without them transformers generates, and a running server is "
            "asked as http://HOST/v1#MODEL"
        )


def generate(
    model: str,
    settings: VllmSettings,
    wanted: Sequence[Wanted],
    keep: Keep,
    *,
    sampling: Mapping[str, Any],
    dtype: str | None,
    lot: int,
) -> None:
    """Generate ``lot`` responses at a time; ``keep`` hears of each when its lot is done.

    Raises :class:`ConfigError` for a model that vLLM cannot load.
    """
    vllm: Any = importlib.import_module("vllm")
    try:
        engine = vllm.LLM(
            model=model,
            tensor_parallel_size=settings.tp_size,
            gpu_memory_utilization=settings.gpu_mem_util,
            max_model_len=settings.max_model_len,
            dtype=dtype or "auto",
        )
    except (OSError, ValueError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        raise ConfigError(f"{model}: vLLM cannot load it: {first}") from error

    tokenizer = engine.get_tokenizer()
    if not tokenizer.chat_template:
        raise ConfigError(f"{model}: has no chat template, so it cannot be asked")
    longest = engine.llm_engine.model_config.max_model_len - sampling["max_tokens"]
    for start in range(0, len(wanted), lot):
        encoded: list[tuple[Wanted, list[int]]] = []
        for one in wanted[start : start + lot]:
            try:
                encoded.append((one, _prompt(tokenizer, one[0], longest)))
            except GradingFailure as failure:
                keep(one, failure)
        if not encoded:
            continue
        made = engine.generate(
            [{"prompt_token_ids": ids} for _, ids in encoded],
            sampling_params=[
                vllm.SamplingParams(**sampling, seed=_seed(*one)) for one, _ in encoded
            ],
            use_tqdm=False,
        )
        for (one, _), output in zip(encoded, made, strict=True):
            said = output.outputs[0]
            text, reasoning = split_thinking(said.text)
            keep(one, Reply(text=text, reasoning=reasoning, finish_reason=said.finish_reason))


def _prompt(tokenizer: Any, prompt: str, longest: int) -> list[int]:
    """The tokens that transformers would be given here; what does not fit is not asked."""
    turns = turns_of([{"role": "user", "content": prompt}], special_tokens_of(tokenizer))
    ids = templated(tokenizer, turns, reply=True)
    if len(ids) > longest:
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            f"the prompt's {len(ids)} tokens and max_tokens exceed the model's length",
        )
    return ids


def _seed(prompt: str, sample: int) -> int:
    return random.Random(f"{sample} {prompt}").getrandbits(30)  # noqa: S311  (no secret)
