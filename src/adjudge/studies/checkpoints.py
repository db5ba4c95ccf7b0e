"""A checkpoint of verl in shards (FSDP), merged into a model's folder by verl's own tool."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError

__all__ = ["find_shards", "merge_checkpoint"]

_SHARD = re.compile(r"model_world_size_([0-9]{1,6})_rank_([0-9]{1,6})\.pt\Z")
_STEP = re.compile(r"global_step_([0-9]{1,12})\Z")
_NEWEST = "latest_checkpointed_iteration.txt"
_STAMP = "adjudge-merge.json"
_TOKENIZERS = ("tokenizer_config.json", "tokenizer.json")
_SHOWN_LINES = 12


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
        raise ConfigError(f"--ckpt-dir {folder}: is merged already; name it as TARGET instead")
    if any(place.is_dir() for place in (folder / "dist_ckpt", folder / "actor" / "dist_ckpt")):
        raise ConfigError(f"--ckpt-dir {folder}: is Megatron's; only FSDP checkpoints are merged")
    raise ConfigError(
        f"--ckpt-dir {folder}: has no model_world_size_N_rank_K.pt, no actor/ with them and no "
        "global_step_N (give a run's checkpoint folder, or one of its steps)"
    )


def _newest_step(folder: Path) -> Path | None:
    file = folder / _NEWEST
    if file.is_file():
        said = file.read_text(encoding="utf-8", errors="replace").strip()[:20]
        step = folder / f"global_step_{said}"
        if not said.isdigit() or not step.is_dir():
            raise ConfigError(f"{file}: says {said!r}, but there is no {step.name} beside it")
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


def _check(place: Path) -> None:
    """Raise for what verl's tool would stumble over."""
    config = place / "fsdp_config.json"
    if not config.is_file():
        raise ConfigError(f"{config}: is missing; verl 0.6.1 writes it beside the shards")
    try:
        world = msgspec.json.decode(config.read_bytes(), type=dict[str, Any]).get("world_size")
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{config}: is no JSON object: {error}") from None
    if not isinstance(world, int) or world < 1:
        raise ConfigError(f"{config}: world_size: found {world!r}, must be a number of ranks")
    found = _shards(place)
    lost = [rank for rank in range(world) if (world, rank) not in found]
    if lost:
        raise ConfigError(
            f"{place}: {len(lost)} of {world} shards are missing, the first: "
            f"model_world_size_{world}_rank_{lost[0]}.pt"
        )
    about = place / "huggingface"
    if not (about / "config.json").is_file():
        raise ConfigError(f"{about / 'config.json'}: is missing: what model this is")
    if not any((about / name).is_file() for name in _TOKENIZERS):
        raise ConfigError(f"{about}: has no tokenizer ({' or '.join(_TOKENIZERS)})")


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
    stamp = _stamp(place)
    if target.resolve() == Path.cwd():
        raise ConfigError(f"--merge-target {target}: is the folder you are in; give a new one")
    if _is_done(target, stamp, place):
        say(f"{target}: is merged from {place} already")
        return target
    python = _interpreter(python)
    say(f"merging {place} into {target}")
    whole = target.resolve()  # where a link leads
    part = whole.with_name(f".{whole.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    _merge(python, place, part)
    (part / _STAMP).write_bytes(msgspec.json.format(msgspec.json.encode(stamp)))
    if whole.exists():
        whole.rmdir()  # empty, or _is_done had refused it
    os.replace(part, whole)  # noqa: PTH105  (atomic)
    return target


def _stamp(place: Path) -> dict[str, Any]:
    """What a merge is of: the files' names, sizes and times."""
    files = [*_shards(place).values(), *sorted((place / "huggingface").iterdir())]
    about = {one.name: [one.stat().st_size, one.stat().st_mtime_ns] for one in files}
    return {"checkpoint": str(place.resolve()), "files": about}


def _is_done(target: Path, stamp: dict[str, Any], place: Path) -> bool:
    if not target.exists():
        return False
    if not target.is_dir():
        raise ConfigError(f"--merge-target {target}: is a file; give a folder")
    file = target / _STAMP
    if not file.is_file():
        if any(target.iterdir()):
            raise ConfigError(f"--merge-target {target}: holds something else; give a new folder")
        return False
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file}: is no JSON object: {error}") from None
    if found != stamp:
        raise ConfigError(
            f"--merge-target {target}: holds the model of {found.get('checkpoint')}, or of {place} "
            "as it was before; give another folder"
        )
    return True


def _interpreter(python: str | None) -> str:
    if python is None:
        if find_spec("verl") is None:
            raise ConfigError(
                "--ckpt-dir: merging needs verl, which is not installed here: name an interpreter "
                "that has it with --verl-python"
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
        raise ConfigError(f"--verl-python {python}: has no verl installed")
    last = "\n".join(done.stderr.strip().splitlines()[-_SHOWN_LINES:]) or "(it said nothing)"
    raise ConfigError(f"{place}: verl.model_merger failed (exit code {done.returncode}):\n{last}")
