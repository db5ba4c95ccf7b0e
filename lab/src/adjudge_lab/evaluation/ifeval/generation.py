"""Responses to IFEval prompts: by transformers, vLLM or llama.cpp here, or behind an endpoint.

vLLM draws many prompts at a time, on one or several GPUs.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.config import check_allowed
from adjudge.engine.loop import run_blocking
from adjudge.errors import (
    ConfigError,
    ErrorKind,
    GradingFailure,
)
from adjudge.installation import LAB, install_command
from adjudge.judges.base import Reply
from adjudge.judges.models.embedded import EmbeddedChatModel
from adjudge.judges.models.local import LocalChatModel
from adjudge.judges.models.local_loading import (
    DTYPES,
    apply_chat_template,
    compute_model_digest,
    convert_to_turns,
    get_special_tokens,
)
from adjudge.text import split_thinking
from adjudge_lab.evaluation.responses import OnReply, ReplyKey, ask_model
from adjudge_lab.evaluation.targets import PolicyTarget, connect_endpoint

_IN_FLIGHT = {"endpoint": 32, "embedded": EmbeddedChatModel.batch_size}
_BATCH = 16


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How vLLM loads a model: GPUs it is split over, the share of their memory, longest input."""

    tp_size: int = 1
    gpu_mem_util: float = 0.9
    max_model_len: int | None = None


def check_vllm_installed() -> None:
    """Raise :class:`ConfigError` where vLLM is not."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "--tp-size, --gpu-mem-util, --max-model-len: need vLLM, which is not installed. "
            "Run: pip install vllm, or leave them out (transformers generates then), or ask a "
            "running server as http://HOST/v1#MODEL"
        )


def generate_with_vllm(
    model: str,
    settings: VllmSettings,
    wanted: Sequence[ReplyKey],
    keep: OnReply,
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
        raise ConfigError(f"{model}: vLLM cannot load the model: {first}") from error

    tokenizer = engine.get_tokenizer()
    if not tokenizer.chat_template:
        raise ConfigError(f"{model}: the model has no chat template, so it cannot be asked")
    longest = engine.llm_engine.model_config.max_model_len - sampling["max_tokens"]
    for start in range(0, len(wanted), lot):
        encoded: list[tuple[ReplyKey, list[int]]] = []
        for one in wanted[start : start + lot]:
            try:
                encoded.append((one, _encode_prompt(tokenizer, one[0], longest)))
            except GradingFailure as failure:
                keep(one, failure)
        if not encoded:
            continue
        made = engine.generate(
            [{"prompt_token_ids": ids} for _, ids in encoded],
            sampling_params=[
                vllm.SamplingParams(**sampling, seed=_sample_seed(*one)) for one, _ in encoded
            ],
            use_tqdm=False,
        )
        for (one, _), output in zip(encoded, made, strict=True):
            said = output.outputs[0]
            text, reasoning = split_thinking(said.text)
            keep(one, Reply(text=text, reasoning=reasoning, finish_reason=said.finish_reason))


def _encode_prompt(tokenizer: Any, prompt: str, longest: int) -> list[int]:
    """The tokens that transformers would be given here; what does not fit is not asked."""
    turns = convert_to_turns([{"role": "user", "content": prompt}], get_special_tokens(tokenizer))
    ids = apply_chat_template(tokenizer, turns, reply=True)
    if len(ids) > longest:
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            f"the prompt's {len(ids)} tokens and max_tokens exceed the model's length",
        )
    return ids


def _sample_seed(prompt: str, sample: int) -> int:
    return random.Random(f"{sample} {prompt}").getrandbits(30)  # noqa: S311  (no secret)


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How responses are made; raises :class:`ConfigError` for what cannot be meant.

    ``temperature`` 0 takes the likeliest token always. ``batch_size`` (16; with vLLM 256 prompts a
    lot) and ``dtype`` are a local model's.
    """

    n_samples: int = 1
    temperature: float = 0.0
    max_tokens: int = 2048
    batch_size: int | None = None
    dtype: str | None = None
    vllm: VllmSettings | None = None

    def __post_init__(self) -> None:
        for name in ("n_samples", "max_tokens", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{_option_name(name)}: must be at least 1 (found {value})")
        if not 0 <= self.temperature <= 10:
            raise ConfigError(
                f"--temperature: must be a number from 0 to 10 (found {self.temperature})"
            )
        if self.dtype is not None:
            check_allowed("--dtype", self.dtype, DTYPES)
        if self.temperature == 0 and self.n_samples > 1:
            raise ConfigError(
                f"--n-samples {self.n_samples}: all samples are the same at temperature 0. "
                "Give --temperature as well."
            )

    @property
    def sampling(self) -> dict[str, Any]:
        """As chat models take it."""
        return {"temperature": self.temperature, "max_tokens": self.max_tokens}


def _option_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def generation_identity(target: PolicyTarget, how: GenerationSettings) -> str:
    """What responses depend on: the model and how they are drawn, and not how many or how fast."""
    if target.kind == "folder":
        made_by = compute_model_digest(target.place)
    elif target.kind == "embedded":
        made_by = EmbeddedChatModel(target.place).fingerprint
    else:
        made_by = target.identity
    engine = target.kind if target.kind in _IN_FLIGHT else "vllm" if how.vllm else "transformers"
    length = how.vllm.max_model_len if how.vllm else None
    return f"{made_by} {engine} {how.dtype} {length} {sorted(how.sampling.items())}"


def check_generation(target: PolicyTarget, how: GenerationSettings) -> None:
    """Raise :class:`ConfigError` for options that this kind of model does not have."""
    if target.kind in _IN_FLIGHT:
        for name in ("batch_size", "dtype", "vllm"):
            if getattr(how, name) is not None:
                option = "--tp-size, --gpu-mem-util, --max-model-len" if name == "vllm" else (
                    _option_name(name)
                )  # fmt: skip
                raise ConfigError(
                    f"{option}: can only be used with a model that is loaded here; the server "
                    f"of {target.name} has its own. Leave it out."
                )
        if target.kind == "embedded":
            EmbeddedChatModel(target.place).check_machine()
        return
    if how.vllm is not None:
        check_vllm_installed()
        return
    for library in ("torch", "transformers"):
        if importlib.util.find_spec(library) is None:
            raise ConfigError(
                f"{target.name}: generation here needs torch and transformers ({library} is "
                f"not installed). Give an endpoint, http://HOST/v1#MODEL, or run: "
                + install_command("train", LAB)
            )


def generate_responses(
    target: PolicyTarget,
    how: GenerationSettings,
    wanted: Sequence[ReplyKey],
    keep: OnReply,
) -> None:
    """Make the ``wanted`` responses; ``keep`` hears of each as it comes, also of what failed.

    Raises :class:`ConfigError` for a model that cannot be loaded, :class:`JudgeAuthError` for a
    refused key, :class:`JudgeUnavailable` for a server that answers nothing.
    """
    check_generation(target, how)
    if not wanted:
        return
    if how.vllm is not None:
        generate_with_vllm(
            target.place, how.vllm, wanted, keep,
            sampling=how.sampling, dtype=how.dtype, lot=how.batch_size or 256,
        )  # fmt: skip
    elif target.kind in _IN_FLIGHT:
        most = _IN_FLIGHT[target.kind]
        model = connect_endpoint(target, most, how.max_tokens)
        prompts = _prompts(how, seeded=True)
        run_blocking(ask_model(model, wanted, prompts, keep, in_flight=most))
    else:
        size = how.batch_size or _BATCH
        local = LocalChatModel(target.place, dtype=how.dtype, batch_size=size)
        run_blocking(_ask_local_model(local, how, wanted, keep, size))


async def _ask_local_model(
    model: LocalChatModel,
    how: GenerationSettings,
    wanted: Sequence[ReplyKey],
    keep: OnReply,
    size: int,
) -> None:
    await model.start()
    try:
        # Several batches at once, so that prompts of like length are generated together.
        await ask_model(model, wanted, _prompts(how, seeded=False), keep, in_flight=8 * size)
    finally:
        await model.aclose()


def _prompts(
    how: GenerationSettings, *, seeded: bool
) -> Callable[[ReplyKey], tuple[Sequence[Mapping[str, Any]], dict[str, Any]]]:
    """A wanted response's messages and sampling; ``seeded``: draws of one prompt begin alike."""

    def prompt(wanted: ReplyKey) -> tuple[Sequence[Mapping[str, Any]], dict[str, Any]]:
        sampling = how.sampling
        if seeded and how.temperature > 0:
            sampling["seed"] = _first_sample_seed(wanted[0])
        return [{"role": "user", "content": wanted[0]}], sampling

    return prompt


def _first_sample_seed(prompt: str) -> int:
    """Of a prompt's first sample; the others count on from it."""
    return random.Random(prompt).getrandbits(30)  # noqa: S311  (no secret)
