"""A judge's training by verl 0.6.1: what it would do, doing it, and the judge that is left."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError, RunFolderError
from adjudge.judge_training.folder import JudgeFolder
from adjudge.judge_training.judge_tables import VARIABLES
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.verl.files import JudgeFiles, tokenizer_of, write_judge_files
from adjudge.judge_training.verl.finish import LATEST, finish
from adjudge.judge_training.verl.settings import check_verl, verl_judge_command
from adjudge.runs.lock import locking
from adjudge.training.verl.run import Launch, shown
from adjudge.training.verl.version import installed_verl, verl_version

__all__ = ["COMMAND", "VerlJudgePlan", "plan_verl_judge", "run_verl_judge"]

_log = logging.getLogger("adjudge")

COMMAND = "verl.sh"
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
    tokenizer = tokenizer_of(judge) if measured else None
    if write:
        with locking(folder):
            if (folder / "config.toml").exists():
                raise RunFolderError(
                    f"{folder}: holds a run, whose files a plan would replace; give another output "
                    "folder with -o"
                )
            plan = _plan(judge, write_judge_files(judge, folder, tokenizer), folder)
            text = f"#!/bin/sh\n{shown(plan.command, plan.environment)}\n"
            (folder / COMMAND).write_text(text, encoding="utf-8")
    else:
        with tempfile.TemporaryDirectory(prefix="adjudge-") as private:
            files = write_judge_files(judge, Path(private), tokenizer)
        train, validation = folder / files.train.name, folder / files.validation.name
        plan = _plan(judge, replace(files, train=train, validation=validation), folder)
    return replace(plan, unmeasured=not measured)


def run_verl_judge(
    judge: JudgeFile, source: Path, folder: Path, *, launch: Launch
) -> int | dict[str, Any]:
    """Train ``judge`` (its file is ``source``) with verl, in a process of its own.

    ``launch`` gets the command from the module's name on, as ``python -m`` does, and variables to
    add to the environment; it gives an exit code. Where that is not 0 it is what is returned; else
    the summary, as :func:`~adjudge.judge_training.run.run_judge` gives it, of the judge that
    ``folder`` then is. The same call goes on from verl's last checkpoint. Raises
    :class:`~adjudge.errors.ConfigError` and :class:`~adjudge.errors.RunFolderError`.
    """
    check_verl(judge)
    if verl_version() != "0.6.1" or installed_verl() is None:
        raise ConfigError(
            f"{judge.where}: backend = 'verl' trains judges on verl 0.6.1, found "
            f"{installed_verl() or 'none'}: pip install verl==0.6.1 in an environment of its own, "
            "or see what it would be told with --dry-run"
        )
    started = time.perf_counter()
    for name, value in judge.overrides.items():
        table, key, _ = VARIABLES[name]
        _log.warning("%s.%s is %s, by the environment variable %s", table, key, value, name)
    tokenizer = tokenizer_of(judge)
    folder = folder.resolve()
    with closing(JudgeFolder(folder, judge, source)) as claimed:
        plan = _plan(judge, write_judge_files(judge, folder, tokenizer), folder)
        if (claimed.checkpoints / LATEST).exists():
            claimed.checkpoint = claimed.checkpoints  # verl goes on by itself
        facts = plan.files.facts
        claimed.learns_from({key: value for key, value in facts.items() if "sha256" in key})
        _python, _m, *argv = plan.command
        before = time.perf_counter()
        if code := launch(argv, plan.environment):
            return code
        now = time.perf_counter()
        seconds = {"data": before - started, "training": now - before, "total": now - started}
        return finish(judge, source, claimed, plan.files, seconds)


def _plan(judge: JudgeFile, files: JudgeFiles, folder: Path) -> VerlJudgePlan:
    command = verl_judge_command(judge, files, folder)
    return VerlJudgePlan(command, _environment(folder), files, unmeasured=False)


def _environment(folder: Path) -> dict[str, str]:
    """Where verl's own log goes, a new one for each start: it would overwrite the last."""
    number = 1
    while (log := folder / f"verl-{number}.jsonl").exists():
        number += 1
    return {
        "VERL_FILE_LOGGER_PATH": str(log),
        "WANDB_MODE": os.environ.get("WANDB_MODE", "offline"),
    }
