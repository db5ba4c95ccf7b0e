"""Responses of a model to the prompts: here by transformers or vLLM, or behind an endpoint."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from adjudge.config import nearest
from adjudge.engine.loop import run_blocking
from adjudge.engine.tasks import run_all
from adjudge.errors import (
    PASSING_KINDS,
    ConfigError,
    ErrorKind,
    GradingFailure,
    JudgeAuthError,
    JudgeUnavailable,
)
from adjudge.judges.base import ChatModel, Reply
from adjudge.judges.endpoint_settings import EndpointSettings
from adjudge.judges.local.loading import DTYPES, digest
from adjudge.judges.local.models import LocalChatModel
from adjudge.judges.openai import OpenAIChatModel
from adjudge.studies.ifeval import vllm_engine
from adjudge.studies.ifeval.vllm_engine import VllmSettings
from adjudge.training.evaluating.targets import Target

__all__ = ["Generation", "Wanted", "check", "generate", "identity_of"]

_IN_FLIGHT = 32
_BATCH = 16
_SILENT = 16
"""So many passing failures and no reply: the server is away."""

Wanted = tuple[str, int]
"""A prompt, and the number of its sample."""
Keep = Callable[[Wanted, "Reply | GradingFailure"], None]


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """How responses are made; raises :class:`ConfigError` for what cannot be meant.

    ``temperature`` 0 takes the likeliest token always. ``batch_size`` (16; with vLLM 256 prompts a
    lot) is a local model's, ``concurrency`` (32) an endpoint's; ``dtype`` a local model's.
    """

    n_samples: int = 1
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int = 2048
    batch_size: int | None = None
    concurrency: int | None = None
    dtype: str | None = None
    vllm: VllmSettings | None = None

    def __post_init__(self) -> None:
        for name in ("n_samples", "max_tokens", "batch_size", "concurrency", "top_k"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{_option(name)}: found {value}, must be at least 1")
        if not 0 <= self.temperature <= 10:
            raise ConfigError(f"--temperature: found {self.temperature}, must be 0 to 10")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"--top-p: found {self.top_p}, must be above 0 and at most 1")
        if self.dtype is not None and self.dtype not in DTYPES:
            hint = nearest(self.dtype, DTYPES)
            raise ConfigError(f"--dtype: found {self.dtype!r}{hint} (allowed: {', '.join(DTYPES)})")
        if self.temperature == 0:
            if self.n_samples > 1:
                raise ConfigError(
                    f"--n-samples {self.n_samples}: all would be the same at temperature 0; "
                    "give --temperature as well"
                )
            for name in ("top_p", "top_k"):
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"{_option(name)}: does nothing at temperature 0; give --temperature"
                    )

    @property
    def sampling(self) -> dict[str, Any]:
        """As chat models take it."""
        names = ("temperature", "top_p", "top_k", "max_tokens")
        return {n: getattr(self, n) for n in names if getattr(self, n) is not None}


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def identity_of(target: Target, how: Generation) -> str:
    """What responses depend on: the model and how they are drawn, and not how many or how fast."""
    made_by = digest(target.place) if target.kind == "folder" else target.identity
    engine = target.kind if target.kind == "endpoint" else "vllm" if how.vllm else "transformers"
    length = how.vllm.max_model_len if how.vllm else None
    return f"{made_by} {engine} {how.dtype} {length} {sorted(how.sampling.items())}"


def check(target: Target, how: Generation) -> None:
    """Raise :class:`ConfigError` for options that this kind of model does not have."""
    if target.kind == "endpoint":
        for name in ("batch_size", "dtype", "vllm"):
            if getattr(how, name) is not None:
                option = "--tp-size, --gpu-mem-util, --max-model-len" if name == "vllm" else (
                    _option(name)
                )  # fmt: skip
                raise ConfigError(
                    f"{option}: for a model that is loaded here; the server of {target.name} has "
                    "its own"
                )
        return
    if how.concurrency is not None:
        raise ConfigError(f"--concurrency: for an endpoint; {target.name} takes --batch-size")
    if how.vllm is not None:
        vllm_engine.check_installed()
        return
    for library in ("torch", "transformers"):
        if importlib.util.find_spec(library) is None:
            raise ConfigError(
                f"{target.name}: to generate here needs torch and transformers ({library} is not "
                "installed): pip install 'adjudge[train]', or give an endpoint, "
                "http://HOST/v1#MODEL"
            )


def generate(
    target: Target,
    how: Generation,
    wanted: Sequence[Wanted],
    keep: Keep,
) -> None:
    """Make the ``wanted`` responses; ``keep`` hears of each as it comes, also of what failed.

    Raises :class:`ConfigError` for a model that cannot be loaded, :class:`JudgeAuthError` for a
    refused key, :class:`JudgeUnavailable` for a server that answers nothing.
    """
    check(target, how)
    if not wanted:
        return
    if how.vllm is not None:
        vllm_engine.generate(
            target.place, how.vllm, wanted, keep,
            sampling=how.sampling, dtype=how.dtype, lot=how.batch_size or 256,
        )  # fmt: skip
    elif target.kind == "endpoint":
        model = _endpoint(target, how.concurrency or _IN_FLIGHT)
        run_blocking(_ask(model, how, wanted, keep, how.concurrency or _IN_FLIGHT, seeded=True))
    else:
        size = how.batch_size or _BATCH
        local = LocalChatModel(target.place, dtype=how.dtype, batch_size=size)
        run_blocking(_ask_here(local, how, wanted, keep, size))


def _endpoint(target: Target, in_flight: int) -> ChatModel:
    return OpenAIChatModel(
        target.model,
        base_url=target.place,
        preset="vllm" if target.api_key_env is None else "openai",
        api_key_env=target.api_key_env,
        settings=EndpointSettings(
            max_concurrency=in_flight,
            start_concurrency=min(20, in_flight),
            min_concurrency=min(4, in_flight),
            deadline_s=600.0,
            hedge=False,  # a second draw that is faster is a shorter one
            dedupe=False,
        ),
    )


async def _ask_here(
    model: LocalChatModel, how: Generation, wanted: Sequence[Wanted], keep: Keep, size: int
) -> None:
    await model.start()
    try:
        # Several batches at once, so that prompts of like length are generated together.
        await _ask(model, how, wanted, keep, 8 * size, seeded=False)
    finally:
        await model.aclose()


async def _ask(
    model: ChatModel,
    how: Generation,
    wanted: Sequence[Wanted],
    keep: Keep,
    in_flight: int,
    *,
    seeded: bool,
) -> None:
    waiting = iter(wanted)
    watch = _Watch()

    async def worker() -> None:
        for prompt, sample in waiting:
            sampling = how.sampling
            if seeded and how.temperature > 0:
                sampling["seed"] = _seed(prompt)
            said: Reply | GradingFailure
            try:
                said = await model.achat(
                    [{"role": "user", "content": prompt}], draw=sample, **sampling
                )
            except GradingFailure as failure:
                said = failure
            keep((prompt, sample), said)
            watch.hear(said)

    await run_all(worker() for _ in range(min(in_flight, len(wanted))))


def _seed(prompt: str) -> int:
    """Of a prompt's first sample; the others count on from it."""
    return random.Random(prompt).getrandbits(30)  # noqa: S311  (no secret)


class _Watch:
    """Ends what is hopeless: a refused key, a server that is away from the start."""

    def __init__(self) -> None:
        self._silent = 0

    def hear(self, said: Reply | GradingFailure) -> None:
        if not isinstance(said, GradingFailure):
            self._silent = -1
            return
        if said.kind is ErrorKind.AUTH:
            raise JudgeAuthError(str(said))
        if said.kind in PASSING_KINDS and self._silent >= 0:
            self._silent += 1
            if self._silent >= _SILENT:
                raise JudgeUnavailable(f"no reply, {self._silent} failures: {said}")
