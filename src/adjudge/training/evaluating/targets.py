"""Who is evaluated: a checkpoint, a run's newest one, a model on the hub, or an endpoint."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from adjudge.config import nearest
from adjudge.environments import Policy
from adjudge.errors import ConfigError
from adjudge.judges.base import ChatModel
from adjudge.judges.endpoint_settings import EndpointSettings
from adjudge.judges.openai import OpenAIChatModel
from adjudge.judges.transport import checked_url
from adjudge.training.playing import EndpointPlayer, Player
from adjudge.training.rundir import newest_checkpoint
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.tables import TINY
from adjudge.types import Usage

__all__ = ["SeededEndpoint", "Target", "find_target", "player_for"]

_AT_STEP = re.compile(r"(.+)@(\d{1,9})\Z", re.DOTALL)
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?\Z")
_LINGER_S = 0.02


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A policy to evaluate, found but not loaded.

    ``name`` is what was asked for; ``place`` the checkpoint's folder, the hub's name or the
    endpoint's address. ``run`` is the run folder that a checkpoint was found in.
    """

    name: str
    kind: Literal["folder", "hub", "endpoint"]
    place: str
    model: str = ""
    api_key_env: str | None = None
    run: str | None = None

    @property
    def identity(self) -> str:
        """What the policy is, whatever it was called."""
        return f"{self.place}#{self.model}" if self.model else self.place


def find_target(
    name: str, *, base_url: str | None = None, api_key_env: str | None = None
) -> Target:
    """What ``name`` means.

    With ``base_url`` a model's name there; else ``http://HOST/v1#MODEL``, a folder with a model in
    it, a folder of ``adjudge train`` (its last model), one with ``@STEP``, or a name on the hub.
    Raises :class:`~adjudge.errors.ConfigError`.
    """
    if base_url is not None:
        return _endpoint(f"{base_url}#{name}", name, api_key_env)
    if name.startswith(("http://", "https://")):
        return _endpoint(name, name, api_key_env)
    if api_key_env is not None:
        raise ConfigError(
            "--api-key-env: goes with an endpoint, http://HOST/v1#MODEL or --base-url"
        )
    path, step = Path(name), None
    if not path.is_dir() and (found := _AT_STEP.match(name)) and Path(found[1]).is_dir():
        path, step = Path(found[1]), int(found[2])
    if path.is_dir():
        return _folder(name, path, step)
    if not _HUB_NAME.match(name):
        raise ConfigError(
            f"--model {name!r}: is neither a folder nor the name of a model (allowed: a run folder "
            "of adjudge train, RUN@STEP, a checkpoint's folder, http://HOST/v1#MODEL, a name on "
            "the hub)"
        )
    _check_no_run(name, path)
    return Target(name=name, kind="hub", place=name)


def _check_no_run(name: str, path: Path) -> None:
    """Raise where the name would be beside other runs: that is a slip, and no name on the hub."""
    beside = [str(run.parent) for run in sorted(path.parent.glob("*/run.json"))]
    if beside and path.name != name:
        there = ", ".join(Path(run).name for run in beside[:10])
        hint = nearest(name, beside) or f" ({path.parent} has: {there})"
        raise ConfigError(f"--model {name!r}: no such run{hint}")


def _endpoint(address: str, name: str, api_key_env: str | None) -> Target:
    given, _, model = address.partition("#")
    url = checked_url(given)
    if not model:
        raise ConfigError(f"--model: add the name of the model at that server: {url}#MODEL")
    return Target(name=name, kind="endpoint", place=url, model=model, api_key_env=api_key_env)


def _folder(name: str, path: Path, step: int | None) -> Target:
    if step is None and _has_model(path):
        return Target(name=name, kind="folder", place=str(path.resolve()))
    run = str(path.resolve())
    if step is not None:
        found: Path | None = path / "checkpoints" / f"checkpoint-{step}"
    else:
        found = path / "model" if _has_model(path / "model") else newest_checkpoint(path)[1]
    if found is None or not _has_model(found):
        steps = sorted(
            int(one.parent.name.removeprefix("checkpoint-"))
            for one in path.glob("checkpoints/checkpoint-*/config.json")
        )
        has = (
            f"its checkpoints are of the steps {', '.join(map(str, steps))}"
            if steps
            else ("it has no config.json, no model/ and no checkpoints/checkpoint-STEP")
        )
        what = "no model in it" if step is None else f"no model of step {step} in it"
        raise ConfigError(f"--model {name!r}: {what}: {has}")
    return Target(name=name, kind="folder", place=str(found.resolve()), run=run)


def _has_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def player_for(target: Target, run: RunFile, seeds: Sequence[int]) -> Player:
    """``target`` as the run's policy: its temperature, its longest reply, its seed.

    Raises :class:`~adjudge.errors.ConfigError` where torch is missing or nothing can be loaded.
    """
    if target.kind == "endpoint":
        return SeededEndpoint(_chat_model(target, run), run, seeds)
    try:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"--model {target.name}: to play a model here needs torch and transformers "
            f"({error.name} is not installed): pip install 'adjudge[train]', or evaluate it behind "
            "an endpoint, http://HOST/v1#MODEL"
        ) from None
    from adjudge.training.generation import LocalPlayer  # noqa: PLC0415
    from adjudge.training.policy import load_policy  # noqa: PLC0415

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if run.model.base == TINY:
        torch.set_num_threads(1)  # at this size a second thread costs more than it computes
    model, tokenizer = load_policy(target.place)
    player = LocalPlayer(
        model,
        tokenizer,
        max_tokens=run.rollout.max_tokens,
        temperature=run.rollout.temperature,
        seed=run.training.seed,
        linger_s=None if run.services.task_url is None else _LINGER_S,
        own_prompts=run.rollout.dataset is not None,
    )
    player.reseed("evaluation")
    return player


def _chat_model(target: Target, run: RunFile) -> ChatModel:
    judge = run.judge
    # One server has one setting: where the policy's is the judge's too, the judge's is taken.
    shared = judge.enabled and judge.base_url is not None
    shared = shared and str(judge.base_url).rstrip("/") == target.place.rstrip("/")
    settings = None if shared else EndpointSettings(
        max_concurrency=run.rollout.max_concurrent_rollouts,
        start_concurrency=min(20, run.rollout.max_concurrent_rollouts),
        min_concurrency=min(4, run.rollout.max_concurrent_rollouts),
        deadline_s=600.0,
        hedge=False,  # a second draw that is faster is a shorter one
        dedupe=False,
    )  # fmt: skip
    return OpenAIChatModel(
        target.model,
        base_url=target.place,
        preset="vllm" if target.api_key_env is None else "openai",
        api_key_env=target.api_key_env,
        settings=settings,
    )


class SeededEndpoint(EndpointPlayer):
    """An endpoint that draws each episode by the number of its seed, as far as the server does so.

    ``usage`` sums what its replies consumed, where the server says; ``calls`` counts them.
    """

    def __init__(self, model: ChatModel, run: RunFile, seeds: Sequence[int]) -> None:
        rollout = run.rollout
        super().__init__(model, max_tokens=rollout.max_tokens, temperature=rollout.temperature)
        self._run_seed, self._seeds = run.training.seed, seeds
        self.calls = 0
        self.usage = Usage()

    def policy(self, place: int) -> Policy:
        """A policy that asks the endpoint under the seed of the episode at ``place``."""
        rng = random.Random(f"{self._run_seed} {self._seeds[place]}")  # noqa: S311  (no secret)
        drawn = rng.getrandbits(31)

        async def asked(messages: Sequence[Any]) -> str:
            reply = await self._model.achat(list(messages), **self._sampling, seed=drawn)
            self.calls += 1
            if reply.usage is not None:
                self.usage += reply.usage
            return reply.text

        return asked
