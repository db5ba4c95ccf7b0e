"""What verl left, made a judge's folder: the model, its card, its curves, its report."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.errors import ConfigError
from adjudge.judge_training.card import CARD, SPEC, Card, spec_of
from adjudge.judge_training.folder import JudgeFolder
from adjudge.judge_training.generative.taught import prompt_of
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.report import write_judge_report
from adjudge.judge_training.verl.files import SOURCE, JudgeFiles
from adjudge.judge_training.verl.settings import steps_of
from adjudge.judges.local.loading import digest

__all__ = ["LATEST", "finish", "rows_of", "trained_model"]

LATEST = "latest_checkpointed_iteration.txt"
"""Where verl says, among its checkpoints, which is the last."""

_NAMES = {
    "train/loss": "train/loss",
    "val/loss": "val/loss",
    "actor/pg_loss": "train/policy_loss",
    "actor/kl_loss": "train/kl_divergence",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "lr",
    "critic/rewards/mean": "train/reward_mean",
    "actor/entropy": "train/entropy",
    "response_length/mean": "train/response_length",
    "response_length/clip_ratio": "train/clipped",
    "perf/total_num_tokens": "tokens",
    f"val-core/{SOURCE}/reward/mean@1": "val/reward_mean",
}
_OF_VALIDATION = f"val-aux/{SOURCE}/"


def finish(
    judge: JudgeFile,
    source: Path,
    folder: JudgeFolder,
    files: JudgeFiles,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """Make ``folder`` the judge that verl's last checkpoint is; the content of ``summary.json``.

    The last checkpoint, not the best: verl keeps no account of that. Raises
    :class:`~adjudge.errors.ConfigError` where verl left no model.
    """
    step, model = trained_model(folder.checkpoints, judge)
    rows = rows_of(folder.path)
    for row in rows:
        folder.append(row)
    _take(model, folder, judge.data.max_length)
    validation = _validation_of(rows, step)
    if validation and files.bayes_accuracy is not None:
        validation["bayes_accuracy"] = files.bayes_accuracy
    card = _card(judge, source, files, validation)
    if (spec := spec_of(card)) is not None:
        folder.write(SPEC, spec.encode())
    folder.write_json(CARD, card)
    summary = {
        **_summary(judge, card, files, step, rows),
        "weights": _weights(folder.path),
        **_speed(files, rows, _rows(_logs(folder.path)[-1:]), seconds["training"]),
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
    }
    write_judge_report(folder.path / "report.html", summary, rows, card)
    folder.write_json("summary.json", summary)
    return summary


def trained_model(checkpoints: Path, judge: JudgeFile) -> tuple[int, Path]:
    """The step of verl's last checkpoint, and the folder in it that holds the whole model."""
    latest = checkpoints / LATEST
    try:
        step = int(latest.read_text())
    except (OSError, ValueError):
        raise ConfigError(f"{checkpoints}: verl left no checkpoint there; see its output") from None
    parts = ["huggingface"] if judge.method == "sft" else ["actor", "huggingface"]
    model = checkpoints.joinpath(f"global_step_{step}", *parts)
    if not list(model.glob("*.safetensors")):
        raise ConfigError(
            f"{model}: holds no model; python -m verl.model_merger merge --backend fsdp "
            f"--local_dir {model.parent} --target_dir FOLDER makes one of the checkpoint"
        )
    return step, model


def rows_of(folder: Path) -> list[dict[str, float]]:
    """A row a step from what verl logged, by our names; of a step done twice what it said last.

    A run that goes on validates once more at the step that it goes on from, and says no more of it.
    """
    return _rows(_logs(folder))


def _logs(folder: Path) -> list[Path]:
    """What verl logged, a file for each start, in their order."""
    return sorted(folder.glob("verl-*.jsonl"), key=lambda path: (len(path.name), path.name))


def _rows(logs: Sequence[Path]) -> list[dict[str, float]]:
    rows: dict[int, dict[str, float]] = {}
    for log in logs:
        for step, data in _logged(log):
            rows.setdefault(step, {}).update(_named(data))
    return [{"step": step, **rows[step]} for step in sorted(rows) if rows[step]]


def _logged(log: Path) -> list[tuple[int, dict[str, Any]]]:
    found = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)  # which has NaN, unlike JSON
        except ValueError:
            continue  # cut off by a kill
        if isinstance(entry, dict) and isinstance(entry.get("data"), dict):
            found.append((int(entry["step"]), entry["data"]))
    return found


def _named(data: Mapping[str, Any]) -> dict[str, float]:
    row = {}
    for key, value in data.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            continue
        if key == "train/lr(1e-3)":
            row["lr"] = value / 1000
        elif key in _NAMES:
            row[_NAMES[key]] = float(value)
        elif key.startswith("train/") and "(" not in key:  # our own manager's
            row[key] = float(value)
        elif key.startswith(_OF_VALIDATION) and key.endswith("/mean@1"):
            row[f"val/{key.removeprefix(_OF_VALIDATION).removesuffix('/mean@1')}"] = float(value)
    return row


def _take(model: Path, folder: JudgeFolder, longest: int) -> None:
    """The model's files into the judge's folder; the same bytes where the disk allows it."""
    for file in sorted(model.iterdir()):
        if not file.is_file():
            continue
        part = folder.path / f".{file.name}.part"
        part.unlink(missing_ok=True)
        try:
            os.link(file, part)
        except OSError:
            shutil.copyfile(file, part)
        os.replace(part, folder.path / file.name)  # noqa: PTH105  (atomic)
    settings = model / "tokenizer_config.json"
    if settings.is_file():
        # Who serves the judge shows it as much of a conversation as it was trained on.
        said = msgspec.json.decode(settings.read_bytes())
        folder.write_json(settings.name, {**said, "model_max_length": longest})


def _card(judge: JudgeFile, source: Path, files: JudgeFiles, validation: dict[str, float]) -> Card:
    form = files.form
    return Card(
        adjudge=adjudge.__version__,
        kind="generative",
        method=judge.method,
        mode=judge.mode,
        label=judge.model.label or source.stem,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        base={"path": judge.model.path, "digest": digest(judge.base)},
        data=files.facts,
        config={**judge.model_dump(mode="json"), "overrides": judge.overrides},
        validation=validation,
        max_length=judge.data.max_length,
        prompt=None if form is None else prompt_of(form),
        verdict=None if form is None else form.verdict,
        trained_ids=files.trained_ids,
    )


def _summary(
    judge: JudgeFile, card: Card, files: JudgeFiles, step: int, rows: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    left_out = files.train_rows % judge.data.train_batch_size
    notes = ["the best checkpoint was not looked for: the last one is the judge"]
    if not card.validation:
        notes.append(f"verl gave no number for the validation after step {step}; see its output")
    if left_out:
        notes.append(f"{left_out} rows of each epoch fill no batch, and verl leaves them out")
    return {
        "adjudge": card.adjudge,
        "created": card.created,
        "label": card.label,
        "method": judge.method,
        "mode": judge.mode,
        "backend": "verl 0.6.1",
        "base": judge.model.path,
        "seed": judge.trainer.seed,
        "overrides": judge.overrides,
        "not_done": notes,
        "steps": steps_of(judge, files.train_rows),
        "batch_size": judge.data.train_batch_size,
        "best_step": step,
        "learned": "all turns" if judge.method == "sft" else "replies",
        "data": files.facts,
        "first": _validation_of(rows, 0),
        "validation": card.validation,
        **({"baselines": files.baselines} if files.baselines else {}),
        **({} if files.form is None else {"form": msgspec.to_builtins(files.form)}),
        "resumed_from": None,
    }


def _speed(
    files: JudgeFiles,
    rows: Sequence[Mapping[str, float]],
    latest: Sequence[Mapping[str, float]],
    seconds: float,
) -> dict[str, float]:
    """Tokens learned from, padding not counted, and a second's of the ``latest`` start of verl.

    ``seconds`` are those of that start, verl's own preparations among them.
    """

    def seen(some: Sequence[Mapping[str, float]]) -> float:
        if files.tokens is not None:
            return files.tokens * sum("train/loss" in row for row in some)
        return math.fsum(row.get("tokens", 0.0) for row in some)

    return {"tokens": round(seen(rows)), "tokens_per_s": seen(latest) / max(seconds, 1e-9)}


def _validation_of(rows: Sequence[Mapping[str, float]], step: int) -> dict[str, float]:
    """The metrics of the validation after ``step``, of which the model is; no other's."""
    row = next((row for row in rows if row["step"] == step), {})
    return {k.removeprefix("val/"): v for k, v in row.items() if k.startswith("val/")}


def _weights(folder: Path) -> dict[str, int]:
    """How many weights the model has, all of which were trained."""
    safetensors: Any = import_module("safetensors")  # verl's environment has it

    count = 0
    for file in folder.glob("*.safetensors"):
        with safetensors.safe_open(file, framework="np") as opened:
            count += sum(math.prod(opened.get_slice(key).get_shape()) for key in opened.keys())  # noqa: SIM118  (no dict)
    return {"parameters": count, "trainable": count}
