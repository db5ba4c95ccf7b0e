"""The policy that is evaluated: a run, a checkpoint, a GGUF file, an endpoint, a name on the hub.

A checkpoint of verl in shards (FSDP) is first merged into a model's folder by verl's own tool.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from adjudge.config import suggest_name
from adjudge.errors import ConfigError
from adjudge.hosts import is_address
from adjudge.installation import LAB, install_command
from adjudge.judges.base import ChatModel
from adjudge.judges.endpoint.settings import EndpointSettings
from adjudge.judges.models.embedded import EmbeddedChatModel
from adjudge.judges.models.http import OpenAIChatModel
from adjudge.judges.models.model_files import MODEL_FILES, find_model_file
from adjudge.judges.wire.transport import normalize_url
from adjudge.runs.folder import read_json_object
from adjudge.types import Usage
from adjudge_lab.environments import Policy
from adjudge_lab.rl.episodes import LoopPlayer, Player
from adjudge_lab.rl.run_folder import find_newest_checkpoint
from adjudge_lab.rl.runfile import TINY_BASE, RunFile

_SHARD = re.compile(r"model_world_size_([0-9]{1,6})_rank_([0-9]{1,6})\.pt\Z")
_STEP = re.compile(r"global_step_([0-9]{1,12})\Z")
_LATEST_STEP_FILE = "latest_checkpointed_iteration.txt"
_MERGE_STAMP = "adjudge-merge.json"
_TOKENIZERS = ("tokenizer_config.json", "tokenizer.json")
_MAX_ERROR_LINES = 12


def find_shards(folder: Path) -> Path:
    """The folder with the shards: ``folder``, its ``actor``, or those of a run's newest step.

    The newest step is what verl's ``latest_checkpointed_iteration.txt`` says, else the highest
    ``global_step_N``. Raises :class:`ConfigError` that says what is missing: shards, the
    ``huggingface`` folder with configuration and tokenizer, ``fsdp_config.json``, a rank.
    """
    if not folder.is_dir():
        raise ConfigError(f"--ckpt-dir {folder}: no such folder")
    for place in (folder, folder / "actor"):
        if _shards(place):
            _check(place)
            return place
    if _STEP.search(folder.name) is None and (step := _newest_step(folder)) is not None:
        return find_shards(step)
    if (folder / "config.json").is_file():
        raise ConfigError(f"--ckpt-dir {folder}: is already merged. Name it as TARGET instead.")
    if any(place.is_dir() for place in (folder / "dist_ckpt", folder / "actor" / "dist_ckpt")):
        raise ConfigError(
            f"--ckpt-dir {folder}: is a checkpoint of Megatron, which cannot be merged "
            "(allowed: FSDP)"
        )
    raise ConfigError(
        f"--ckpt-dir {folder}: has no model_world_size_N_rank_K.pt, no actor/ with them and no "
        "global_step_N. Give a run's checkpoint folder, or one of its steps."
    )


def _newest_step(folder: Path) -> Path | None:
    file = folder / _LATEST_STEP_FILE
    if file.is_file():
        said = file.read_text(encoding="utf-8", errors="replace").strip()[:20]
        step = folder / f"global_step_{said}"
        if not said.isdigit() or not step.is_dir():
            raise ConfigError(
                f"{file}: names the step {said!r}, but there is no {step.name} beside it"
            )
        return step
    steps = {
        int(found[1]): one for one in folder.iterdir() if (found := _STEP.search(one.name))
    }  # fmt: skip
    return steps[max(steps)] if steps else None


def _shards(folder: Path) -> dict[tuple[int, int], Path]:
    """Files by world size and rank."""
    if not folder.is_dir():
        return {}
    return {
        (int(found[1]), int(found[2])): one
        for one in sorted(folder.iterdir())
        if (found := _SHARD.match(one.name))
    }


class _FsdpConfig(msgspec.Struct):
    world_size: Annotated[int, msgspec.Meta(ge=1)]


def _check(place: Path) -> None:
    """Raise for what verl's tool would stumble over."""
    config = place / "fsdp_config.json"
    if not config.is_file():
        raise ConfigError(
            f"{config}: the file is missing. Use a checkpoint of verl 0.6.1, which writes it "
            "beside the shards."
        )
    try:
        world = msgspec.json.decode(config.read_bytes(), type=_FsdpConfig).world_size
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{config}: {error}") from None
    found = _shards(place)
    lost = [rank for rank in range(world) if (world, rank) not in found]
    if lost:
        raise ConfigError(
            f"{place}: {len(lost)} of {world} shards are missing (the first: "
            f"model_world_size_{world}_rank_{lost[0]}.pt)"
        )
    about = place / "huggingface"
    if not (about / "config.json").is_file():
        raise ConfigError(f"{about / 'config.json'}: the model's configuration is missing")
    if not any((about / name).is_file() for name in _TOKENIZERS):
        raise ConfigError(f"{about}: has no tokenizer (allowed: {', '.join(_TOKENIZERS)})")


def merge_checkpoint(
    folder: Path,
    target: Path,
    *,
    python: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """``target``, which holds the model of the checkpoint in ``folder``; merged now if it did not.

    ``python`` is an interpreter that has verl (default: this one); its ``verl.model_merger`` does
    the work, in bfloat16. It unpickles the checkpoint: merge only what you trust. A target that
    holds the same files' model already is used as it is. Raises :class:`ConfigError` as
    :func:`find_shards` does, for a target that holds anything else, and for a merge that failed.
    """
    place = find_shards(folder)
    stamp = _merge_stamp(place)
    if target.resolve() == Path.cwd():
        raise ConfigError(f"--merge-target {target}: is the current folder. Give a new one.")
    if _is_merged(target, stamp, place):
        say(f"{target}: is merged from {place} already")
        return target
    python = _interpreter(python)
    say(f"merging {place} into {target}")
    whole = target.resolve()  # where a link leads
    part = whole.with_name(f".{whole.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    _merge(python, place, part)
    (part / _MERGE_STAMP).write_bytes(msgspec.json.format(msgspec.json.encode(stamp)))
    if whole.exists():
        whole.rmdir()  # empty, or _is_done had refused it
    os.replace(part, whole)  # noqa: PTH105  (atomic)
    return target


def _merge_stamp(place: Path) -> dict[str, Any]:
    """What a merge is of: the files' names, sizes and times."""
    files = [*_shards(place).values(), *sorted((place / "huggingface").iterdir())]
    about = {one.name: [one.stat().st_size, one.stat().st_mtime_ns] for one in files}
    return {"checkpoint": str(place.resolve()), "files": about}


def _is_merged(target: Path, stamp: dict[str, Any], place: Path) -> bool:
    if not target.exists():
        return False
    if not target.is_dir():
        raise ConfigError(f"--merge-target {target}: is a file. Give a folder.")
    file = target / _MERGE_STAMP
    if not file.is_file():
        if any(target.iterdir()):
            raise ConfigError(f"--merge-target {target}: holds other files. Give a new folder.")
        return False
    found = read_json_object(file) or {}
    if found != stamp:
        raise ConfigError(
            f"--merge-target {target}: holds the model of {found.get('checkpoint')}, or an "
            f"older model of {place}. Give another folder."
        )
    return True


def _interpreter(python: str | None) -> str:
    if python is None:
        if find_spec("verl") is None:
            raise ConfigError(
                "--ckpt-dir: merging needs verl, which is not installed here. Name an "
                "interpreter that has it with --verl-python."
            )
        return sys.executable
    if shutil.which(python) is None:
        raise ConfigError(f"--verl-python {python}: no such program")
    return python


def _merge(python: str, place: Path, target: Path) -> None:
    folders = ["--local_dir", str(place.resolve()), "--target_dir", str(target.resolve())]
    done = subprocess.run(  # noqa: S603  (the user's own interpreter, no shell)
        [python, "-m", "verl.model_merger", "merge", "--backend", "fsdp", *folders],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0 and (target / "config.json").is_file():
        return
    if "No module named 'verl'" in done.stderr or "No module named verl" in done.stderr:
        raise ConfigError(f"--verl-python {python}: verl is not installed there")
    last = "\n".join(done.stderr.strip().splitlines()[-_MAX_ERROR_LINES:]) or "(it said nothing)"
    raise ConfigError(f"{place}: verl.model_merger failed (exit code {done.returncode}):\n{last}")


_RUN_AT_STEP = re.compile(r"(.+)@(\d{1,9})\Z", re.DOTALL)
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?\Z")


class PolicyTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A policy to evaluate, found but not loaded.

    ``name`` is what was asked for; ``place`` the checkpoint's folder, the hub's name, the GGUF file
    that llama.cpp serves here (``embedded``) or the endpoint's address. ``run`` is the run folder
    that a checkpoint was found in.
    """

    name: str
    kind: Literal["folder", "hub", "embedded", "endpoint"]
    place: str
    model: str = ""
    api_key_env: str | None = None
    run: str | None = None

    @property
    def identity(self) -> str:
        """What the policy is, whatever it was called."""
        return f"{self.place}#{self.model}" if self.model else self.place


def find_policy_target(name: str, *, api_key_env: str | None = None) -> PolicyTarget:
    """What ``name`` means.

    ``http://HOST/v1#MODEL``, a folder with a model in it, a folder of ``adjudge train`` (its last
    model), one with ``@STEP``, a GGUF file, a model of ``adjudge models list``, or a name on the
    hub. Raises :class:`~adjudge.errors.ConfigError`.
    """
    if is_address(name):
        return _endpoint_target(name, name, api_key_env)
    if api_key_env is not None:
        raise ConfigError("--api-key-env: can only be used with an endpoint (http://HOST/v1#MODEL)")
    path, step = Path(name), None
    if not path.is_dir() and (found := _RUN_AT_STEP.match(name)) and Path(found[1]).is_dir():
        path, step = Path(found[1]), int(found[2])
    if path.is_dir():
        return _folder_target(name, path, step)
    if name in MODEL_FILES or path.suffix.lower() == ".gguf":
        try:
            file = find_model_file(name)
        except ConfigError as error:
            raise ConfigError(f"--{error}") from None
        return PolicyTarget(name=name, kind="embedded", place=str(file.resolve()))
    if not _HUB_NAME.match(name):
        raise ConfigError(
            f"--model {name!r}: is neither a folder nor the name of a model (allowed: a run folder "
            "of adjudge train, RUN@STEP, a checkpoint's folder, a GGUF file, a model of adjudge "
            "models list, http://HOST/v1#MODEL, a name on the hub)"
        )
    _check_no_run(name, path)
    return PolicyTarget(name=name, kind="hub", place=name)


def _check_no_run(name: str, path: Path) -> None:
    """Raise where the name would be beside other runs: that is a slip, and no name on the hub."""
    beside = [str(run.parent) for run in sorted(path.parent.glob("*/run.json"))]
    if beside and path.name != name:
        there = ", ".join(Path(run).name for run in beside[:10])
        hint = suggest_name(name, beside) or f" ({path.parent} has: {there})"
        raise ConfigError(f"--model {name!r}: no such run{hint}")


def _endpoint_target(address: str, name: str, api_key_env: str | None) -> PolicyTarget:
    given, _, model = address.partition("#")
    url = normalize_url(given)
    if not model:
        raise ConfigError(
            f"--model: the model's name is missing. Add it after the server's address: {url}#MODEL"
        )
    return PolicyTarget(name=name, kind="endpoint", place=url, model=model, api_key_env=api_key_env)


def _folder_target(name: str, path: Path, step: int | None) -> PolicyTarget:
    if step is None and _has_model(path):
        return PolicyTarget(name=name, kind="folder", place=str(path.resolve()))
    run = str(path.resolve())
    if step is not None:
        found: Path | None = path / "checkpoints" / f"checkpoint-{step}"
    else:
        found = path / "model" if _has_model(path / "model") else find_newest_checkpoint(path)[1]
    if found is None or not _has_model(found):
        steps = sorted(
            int(one.parent.name.removeprefix("checkpoint-"))
            for one in path.glob("checkpoints/checkpoint-*/config.json")
        )
        has = (
            f"found checkpoints of the steps {', '.join(map(str, steps))}"
            if steps
            else "found no config.json, no model/ and no checkpoints/checkpoint-STEP"
        )
        what = (
            "there is no model in it" if step is None else f"there is no model of step {step} in it"
        )
        raise ConfigError(f"--model {name!r}: {what} ({has})")
    return PolicyTarget(name=name, kind="folder", place=str(found.resolve()), run=run)


def _has_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def build_player(target: PolicyTarget, run: RunFile, seeds: Sequence[int]) -> Player:
    """``target`` as the run's policy: its temperature, its longest reply, its seed.

    Raises :class:`~adjudge.errors.ConfigError` where torch is missing or nothing can be loaded.
    """
    if target.kind in ("endpoint", "embedded"):
        judge = run.judge
        # One server has one setting: where the policy's is the judge's too, the judge's is taken.
        places = [url.rstrip("/") for url in judge.base_urls]
        shared = judge.enabled and target.place.rstrip("/") in places
        rollout = run.rollout
        most = None if shared else rollout.max_concurrent_rollouts
        if target.kind == "embedded":  # a slot takes memory for a whole conversation
            most = min(rollout.max_concurrent_rollouts, EmbeddedChatModel.batch_size)
        model = connect_endpoint(target, most, rollout.max_tokens)
        return EndpointPlayer(model, run, seeds)
    try:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"--model {target.name}: playing a model here needs torch and transformers "
            f"({error.name} is not installed). Evaluate it behind an endpoint, "
            f"http://HOST/v1#MODEL, or run: {install_command('train', LAB)}"
        ) from None
    from adjudge_lab.rl.local_player import LocalPlayer  # noqa: PLC0415
    from adjudge_lab.rl.policy import load_policy  # noqa: PLC0415

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if run.model.base == TINY_BASE:
        torch.set_num_threads(1)  # at this size a second thread costs more than it computes
    player = LocalPlayer.for_run(run, *load_policy(target.place))
    player.reseed("evaluation")
    return player


_PROMPT_TOKENS, _EMBEDDED_TOKENS = 2048, 4096


def connect_endpoint(
    target: PolicyTarget, in_flight: int | None, max_tokens: int | None = None
) -> ChatModel:
    """The model behind ``target``, asked ``in_flight`` at a time; ``None``: as its server is.

    ``max_tokens`` is the longest reply; an embedded model's slots have room for it beside a prompt
    of 2,048 tokens.
    """
    if target.kind == "embedded":
        most = in_flight or EmbeddedChatModel.batch_size
        length = max(_EMBEDDED_TOKENS, _PROMPT_TOKENS + (max_tokens or 0))
        return EmbeddedChatModel(target.place, batch_size=most, max_length=length)
    settings = None if in_flight is None else EndpointSettings(
        max_concurrency=in_flight,
        deadline_s=600.0,
        hedge=False,  # a second draw that is faster is a shorter one
    )  # fmt: skip
    return OpenAIChatModel(
        target.model,
        base_url=target.place,
        preset="vllm" if target.api_key_env is None else "openai",
        api_key_env=target.api_key_env,
        settings=settings,
    )


class EndpointPlayer(LoopPlayer):
    """An endpoint that draws each episode by the number of its seed, as far as the server does so.

    A reply that fails ends its episode with that error. ``usage`` sums what the replies consumed,
    where the server says; ``calls`` counts them.
    """

    def __init__(self, model: ChatModel, run: RunFile, seeds: Sequence[int]) -> None:
        self._model, self._run, self._seeds = model, run, seeds
        self.calls = 0
        self.usage = Usage()

    def policy(self, place: int) -> Policy:
        """A policy that asks the endpoint under the seed of the episode at ``place``."""
        rollout, seed = self._run.rollout, f"{self._run.training.seed} {self._seeds[place]}"
        drawn = random.Random(seed).getrandbits(31)  # noqa: S311  (no secret)

        async def ask_policy(messages: Sequence[Any]) -> str:
            reply = await self._model.achat(
                list(messages), max_tokens=rollout.max_tokens, temperature=rollout.temperature,
                seed=drawn,
            )  # fmt: skip
            self.calls += 1
            if reply.usage is not None:
                self.usage += reply.usage
            return reply.text

        return ask_policy
