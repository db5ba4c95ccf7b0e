"""A judge's training by verl 0.6.1: the plan, the run, the judge's folder made of what verl left.

The folder has the model, its card, its curves and its report.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, RunFolderError
from adjudge.graders.llm.trained_judge_card import card_prompt
from adjudge.runs.folder import hold_lock
from adjudge.trainers.verl import installed_verl
from adjudge_lab.judge_training.judge_file import JudgeFile, validation_metrics
from adjudge_lab.judge_training.run import (
    JudgeFolder,
    make_judge_card,
    warn_overrides,
    write_judge,
)
from adjudge_lab.judge_training.verl.inputs import (
    JUDGE_DATA_SOURCE,
    JudgeFiles,
    check_verl,
    verl_judge_command,
    verl_steps,
    write_judge_files,
)
from adjudge_lab.rl.verl.inputs import verl_version
from adjudge_lab.rl.verl.run import LaunchFunction, format_command

LATEST_CHECKPOINT_FILE = "latest_checkpointed_iteration.txt"
"""Where verl says, among its checkpoints, which is the last."""

_METRIC_NAMES = {
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
    f"val-core/{JUDGE_DATA_SOURCE}/reward/mean@1": "val/reward_mean",
}
_VALIDATION_PREFIX = f"val-aux/{JUDGE_DATA_SOURCE}/"


def finish_verl_judge(
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
    step, model = find_trained_model(folder.checkpoints, judge)
    rows = read_verl_metrics(folder.path)
    for row in rows:
        folder.append(row)
    _copy_model_files(model, folder, judge.data.max_length)
    validation = validation_metrics(rows, step)
    if validation and files.bayes_accuracy is not None:
        validation["bayes_accuracy"] = files.bayes_accuracy
    form = files.form
    card = make_judge_card(
        judge,
        source,
        files.facts,
        validation,
        prompt=None if form is None else card_prompt(form),
        verdict=None if form is None else form.verdict,
    )
    return write_judge(
        folder,
        judge,
        card,
        rows,
        seconds,
        backend="verl 0.6.1",
        not_done=_list_not_done(judge, files, step, validation),
        steps=verl_steps(judge, files.train_rows),
        best_step=step,
        learned="all turns" if judge.method == "sft" else "replies",
        **({"baselines": files.baselines} if files.baselines else {}),
        **({} if form is None else {"form": msgspec.to_builtins(form)}),
        resumed_from=None,
        weights=_weight_counts(folder.path),
        **_speed(files, rows, _merge_logs(_log_files(folder.path)[-1:]), seconds["training"]),
    )


def find_trained_model(checkpoints: Path, judge: JudgeFile) -> tuple[int, Path]:
    """The step of verl's last checkpoint, and the folder in it that holds the whole model."""
    latest = checkpoints / LATEST_CHECKPOINT_FILE
    try:
        step = int(latest.read_text())
    except (OSError, ValueError):
        raise ConfigError(
            f"{checkpoints}: verl left no checkpoint there. Read verl's output."
        ) from None
    parts = ["huggingface"] if judge.method == "sft" else ["actor", "huggingface"]
    model = checkpoints.joinpath(f"global_step_{step}", *parts)
    if not list(model.glob("*.safetensors")):
        raise ConfigError(
            f"{model}: holds no model. Convert the checkpoint, run: python -m verl.model_merger "
            f"merge --backend fsdp --local_dir {model.parent} --target_dir FOLDER"
        )
    return step, model


def read_verl_metrics(folder: Path) -> list[dict[str, float]]:
    """A row a step from what verl logged, by our names; of a step done twice what it said last.

    A run that goes on validates once more at the step that it goes on from, and says no more of it.
    """
    return _merge_logs(_log_files(folder))


def _log_files(folder: Path) -> list[Path]:
    """What verl logged, a file for each start, in their order."""
    return sorted(folder.glob("verl-*.jsonl"), key=lambda path: (len(path.name), path.name))


def _merge_logs(logs: Sequence[Path]) -> list[dict[str, float]]:
    rows: dict[int, dict[str, float]] = {}
    for log in logs:
        for step, data in _read_log(log):
            rows.setdefault(step, {}).update(_rename_metrics(data))
    return [{"step": step, **rows[step]} for step in sorted(rows) if rows[step]]


def _read_log(log: Path) -> list[tuple[int, dict[str, Any]]]:
    found = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)  # which has NaN, unlike JSON
        except ValueError:
            continue  # cut off by a kill
        if isinstance(entry, dict) and isinstance(entry.get("data"), dict):
            found.append((int(entry["step"]), entry["data"]))
    return found


def _rename_metrics(data: Mapping[str, Any]) -> dict[str, float]:
    row = {}
    for key, value in data.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            continue
        if key == "train/lr(1e-3)":
            row["lr"] = value / 1000
        elif key in _METRIC_NAMES:
            row[_METRIC_NAMES[key]] = float(value)
        elif key.startswith("train/") and "(" not in key:  # our own manager's
            row[key] = float(value)
        elif key.startswith(_VALIDATION_PREFIX) and key.endswith("/mean@1"):
            row[f"val/{key.removeprefix(_VALIDATION_PREFIX).removesuffix('/mean@1')}"] = float(
                value
            )
    return row


def _copy_model_files(model: Path, folder: JudgeFolder, longest: int) -> None:
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


def _list_not_done(
    judge: JudgeFile, files: JudgeFiles, step: int, validation: Mapping[str, float]
) -> list[str]:
    left_out = files.train_rows % judge.data.train_batch_size
    notes = ["the best checkpoint was not looked for: the last one is the judge"]
    if not validation:
        notes.append(f"verl gave no number for the validation after step {step}; see its output")
    if left_out:
        notes.append(f"{left_out} rows of each epoch fill no batch, and verl leaves them out")
    return notes


def _speed(
    files: JudgeFiles,
    rows: Sequence[Mapping[str, float]],
    latest: Sequence[Mapping[str, float]],
    seconds: float,
) -> dict[str, float]:
    """Tokens learned from, padding not counted, and a second's of the ``latest`` start of verl.

    ``seconds`` are those of that start, verl's own preparations among them.
    """

    def count_tokens(some: Sequence[Mapping[str, float]]) -> float:
        if files.tokens is not None:
            return files.tokens * sum("train/loss" in row for row in some)
        return math.fsum(row.get("tokens", 0.0) for row in some)

    return {
        "tokens": round(count_tokens(rows)),
        "tokens_per_s": count_tokens(latest) / max(seconds, 1e-9),
    }


def _weight_counts(folder: Path) -> dict[str, int]:
    """How many weights the model has, all of which were trained."""
    safetensors: Any = import_module("safetensors")  # verl's environment has it

    count = 0
    for file in folder.glob("*.safetensors"):
        with safetensors.safe_open(file, framework="np") as opened:
            count += sum(math.prod(opened.get_slice(key).get_shape()) for key in opened.keys())  # noqa: SIM118  (no dict)
    return {"parameters": count, "trainable": count}


COMMAND_FILE = "verl.sh"
"""The file in which a written plan has its command."""


@dataclass(frozen=True)
class VerlJudgePlan:
    """The exact ``command`` and ``environment``, and the ``files`` that it reads.

    ``unmeasured``: there is no tokenizer here, so no row's length is known.
    """

    command: Sequence[str]
    environment: dict[str, str]
    files: JudgeFiles
    unmeasured: bool

    def data(self) -> dict[str, Any]:
        """The plan as plain data."""
        files = self.files
        return {
            "command": list(self.command),
            "environment": self.environment,
            "files": {
                str(files.train): {"rows": files.train_rows, "first": files.first},
                str(files.validation): {"rows": files.val_rows},
            },
            "data": files.facts,
            "unmeasured": self.unmeasured,
        }


def plan_verl_judge(judge: JudgeFile, folder: Path, *, write: bool) -> VerlJudgePlan:
    """What :func:`run_verl_judge` would do; with ``write`` its files and command into ``folder``.

    Needs neither verl nor, for a name on the hub, the network. Raises
    :class:`~adjudge.errors.ConfigError` for what verl would not do, and for rows that cannot be
    used, and :class:`~adjudge.errors.RunFolderError` for a folder that holds a run.
    """
    check_verl(judge)
    folder = folder.resolve()
    measured = find_spec("transformers") is not None and Path(judge.base).is_dir()
    tokenizer = load_tokenizer(judge) if measured else None
    if write:
        with hold_lock(folder):
            if (folder / "config.toml").exists():
                raise RunFolderError(
                    f"{folder}: holds a run, and a plan would replace its files. Give another "
                    "output folder with -o."
                )
            plan = _make_plan(judge, write_judge_files(judge, folder, tokenizer), folder)
            text = f"#!/bin/sh\n{format_command(plan.command, plan.environment)}\n"
            (folder / COMMAND_FILE).write_text(text, encoding="utf-8")
    else:
        with tempfile.TemporaryDirectory(prefix="adjudge-") as private:
            files = write_judge_files(judge, Path(private), tokenizer)
        train, validation = folder / files.train.name, folder / files.validation.name
        plan = _make_plan(judge, replace(files, train=train, validation=validation), folder)
    return replace(plan, unmeasured=not measured)


def run_verl_judge(
    judge: JudgeFile, source: Path, folder: Path, *, launch: LaunchFunction
) -> int | dict[str, Any]:
    """Train ``judge`` (its file is ``source``) with verl, in a process of its own.

    ``launch`` gets the command from the module's name on, as ``python -m`` does, and variables to
    add to the environment; it gives an exit code. Where that is not 0 it is what is returned; else
    the summary, as :func:`~adjudge_lab.judge_training.run.run_judge` gives it, of the judge that
    ``folder`` then is. The same call goes on from verl's last checkpoint. Raises
    :class:`~adjudge.errors.ConfigError` and :class:`~adjudge.errors.RunFolderError`.
    """
    check_verl(judge)
    if verl_version() != "0.6.1" or installed_verl() is None:
        raise ConfigError(
            f"{judge.where}: backend = 'verl' trains judges on verl 0.6.1 (found "
            f"{installed_verl() or 'none'}). Use --dry-run to see verl's settings, or run "
            "in an environment of its own: pip install verl==0.6.1"
        )
    started = time.perf_counter()
    warn_overrides(judge)
    tokenizer = load_tokenizer(judge)
    folder = folder.resolve()
    with closing(JudgeFolder(folder, judge, source)) as claimed, claimed.releases_failed_start():
        plan = _make_plan(judge, write_judge_files(judge, folder, tokenizer), folder)
        if (claimed.checkpoints / LATEST_CHECKPOINT_FILE).exists():
            claimed.checkpoint = claimed.checkpoints  # verl goes on by itself
        facts = plan.files.facts
        claimed.record_data_digests({key: value for key, value in facts.items() if "sha256" in key})
        _python, _m, *argv = plan.command
        before = time.perf_counter()
        if code := launch(argv, plan.environment):
            claimed.release()
            return code
        now = time.perf_counter()
        seconds = {"data": before - started, "training": now - before, "total": now - started}
        return finish_verl_judge(judge, source, claimed, plan.files, seconds)


def _make_plan(judge: JudgeFile, files: JudgeFiles, folder: Path) -> VerlJudgePlan:
    command = verl_judge_command(judge, files, folder)
    return VerlJudgePlan(command, _verl_environment(folder), files, unmeasured=False)


def _verl_environment(folder: Path) -> dict[str, str]:
    """Where verl's own log goes, a new one for each start: it would overwrite the last."""
    number = 1
    while (log := folder / f"verl-{number}.jsonl").exists():
        number += 1
    return {
        "VERL_FILE_LOGGER_PATH": str(log),
        "WANDB_MODE": os.environ.get("WANDB_MODE", "offline"),
    }


def load_tokenizer(judge: JudgeFile) -> Any:
    """The base model's tokenizer; raises :class:`~adjudge.errors.ConfigError` without one."""
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415  (heavy)
    except ImportError:
        raise ConfigError(
            "backend = 'verl' needs transformers, which comes with verl. Run: pip install "
            "verl==0.6.1"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(judge.base)
    except (OSError, ValueError, KeyError) as error:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        judge.refuse("model.path", f"{judge.base} has no tokenizer: {first}")
    if not tokenizer.chat_template:
        judge.refuse("model.path", f"{judge.base} has no chat template")
    return tokenizer
