"""The heavy steps of a study, each a call in a process of its own that leaves a folder or file."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from adjudge.config import load_toml
from adjudge.errors import RunFolderError
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.run import JudgeJob, run_judge
from adjudge.rewards.spec import RewardSpec
from adjudge.runs.whole import write_whole
from adjudge.studies.matrix.workers import progress
from adjudge.training.evaluating.evaluation import evaluate
from adjudge.training.generation import LocalPlayer
from adjudge.training.libraries import load_libraries
from adjudge.training.policy import first_policy, save_policy
from adjudge.training.run import TrainingJob, train_run
from adjudge.training.runfile import RunFile
from adjudge.training.tasks import build_task

__all__ = ["make_policy", "sample_answers", "train_arm", "train_judge", "weights_digest"]

_AT_ONCE = 512
"""Answers that are generated together."""


def train_judge(name: str, file: str, beside: str, folder: str) -> str:
    """Train the judge or policy of the training file ``file`` into ``folder``; its digest.

    ``beside``: the folder that the file's relative paths start from, here and below.
    """
    if not (Path(folder) / "summary.json").exists():
        data = load_toml(Path(file))
        judge = JudgeFile.from_dict(data, where=file, folder=Path(beside), environ={})
        run_judge(JudgeJob(judge, Path(file), Path(folder), on_progress=progress(name)))
    return weights_digest(Path(folder))


def make_policy(name: str, file: str, beside: str, folder: str) -> str:
    """Make the policy that the run file ``file`` begins with, in ``folder``; its digest."""
    load_libraries()
    run, target = _run_file(file, beside), Path(folder)
    if not target.is_dir():
        tell, total = progress(name), run.training.warm_start_iterations
        with TemporaryDirectory() as scratch:
            model, tokenizer, _ = first_policy(
                run, scratch, lambda step: tell("warm start", step, total)
            )
        part = target.with_name(f".{target.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        save_policy(model, tokenizer, part)
        part.rename(target)
    return weights_digest(target)


def train_arm(name: str, file: str, beside: str, folder: str, policy: str) -> str:
    """Train the run file ``file`` into ``folder``; the digest of the policy that it began with.

    Raises :class:`~adjudge.errors.RunFolderError` where that is not the one in ``policy``.
    """
    run = _run_file(file, beside)
    if not (Path(folder) / "summary.json").exists():
        train_run(TrainingJob(run, Path(file), Path(folder), on_progress=progress(name)))
    began = weights_digest(Path(folder) / "checkpoints" / "checkpoint-0")
    if began != weights_digest(Path(policy)):
        raise RunFolderError(
            f"{folder}: began with another policy than {policy}: it cannot be compared with the "
            "others; delete the folder, and the study trains it again"
        )
    return began


def sample_answers(
    name: str, file: str, beside: str, target: str, prompts: int, answers: int
) -> int:
    """Draw ``answers`` answers to each of the first ``prompts`` held-out prompts of ``file``.

    From the policy that the run begins with, before any update; written to ``target`` as rows like
    those of ``evaluation_rollouts.jsonl``. How many there are.
    """
    load_libraries()
    run = _run_file(file, beside)
    nobody = RewardSpec.from_dict({"graders": [{"name": "none", "type": "length"}]})
    player = LocalPlayer(
        *first_policy(run, "", lambda _: None)[:2],
        max_tokens=run.rollout.max_tokens,
        temperature=run.rollout.temperature,
        seed=run.training.seed,
        own_prompts=run.rollout.dataset is not None,
    )
    task, tell = build_task(run, nobody), progress(name)
    seeds = run.evaluation.held_out[:prompts]
    rows: list[dict[str, Any]] = []
    wanted = [seed for seed in seeds for _ in range(answers)]
    for start in range(0, len(wanted), _AT_ONCE):
        player.reseed(f"best of n {start}")
        part = wanted[start : start + _AT_ONCE]
        found = evaluate(task, part, player, None, most=_AT_ONCE)
        rows += [
            {
                "step": 0,
                "seed": one.seed,
                "messages": one.episode.messages,
                "columns": one.episode.columns,
                "error": None if one.error is None else str(one.error.kind),
            }
            for one in found
        ]
        tell("sampling", len(rows), len(wanted))
    lines = (msgspec.json.encode(row, enc_hook=str) + b"\n" for row in rows)
    write_whole(Path(target), lines)
    return len(rows)


def weights_digest(folder: Path) -> str:
    """The hash of a saved policy's weights by name, whatever else its files hold."""
    from safetensors import safe_open  # noqa: PLC0415  (with torch)

    found = sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as weights:
            for name in sorted(weights.keys()):
                tensor = weights.get_tensor(name)
                found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                found.update(tensor.contiguous().view(-1).float().numpy().tobytes())
    return found.hexdigest()


def _run_file(file: str, beside: str) -> RunFile:
    return RunFile.from_dict(load_toml(Path(file)), where=file, folder=Path(beside))
