"""The judges' half of ``adjudge eval``: a judge on a benchmark, alone or against others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, get_args

import typer

from adjudge.cli.consoles import clean, errors, output, print_json
from adjudge.cli.eval_judge_tables import contaminated_lines, print_validation
from adjudge.cli.grade import new_folder
from adjudge.errors import ConfigError, JudgeAuthError, JudgeUnavailable
from adjudge.judge_training.benchmarks.asking import Mode
from adjudge.judge_training.benchmarks.preference import ScoreScale
from adjudge.judge_training.validating.run import ValidationJob, validate_judges
from adjudge.rewards.spec import is_trained_judge

__all__ = ["concerns_judge", "eval_judge"]


def concerns_judge(target: str | None, judge_options: Mapping[str, Any]) -> bool:
    """Whether a judge is to be validated, and not a policy evaluated."""
    if target is None or any(judge_options.values()):
        return any(judge_options.values())
    return target.endswith(".json") or ".jsonl" in target or is_trained_judge(target)


def eval_judge(
    target: str | None,
    against: Sequence[str],
    folder: Path | None,
    *,
    judge_options: Mapping[str, Any],
    policy_options: Mapping[str, Any],
    as_json: bool,
    quiet: bool,
) -> None:
    """Validate and print; raises :class:`ConfigError` for options that do not go together."""
    if target is None:
        raise ConfigError(
            "JUDGE: is required: a reward spec (.toml), the folder of a trained judge, or recorded "
            "judgements"
        )
    if given := [name for name, value in policy_options.items() if value]:
        raise ConfigError(f"{given[0]}: is for a policy, and {target} is asked about as a judge")
    job = ValidationJob(
        judges=[target, *against],
        folder=folder or new_folder("eval"),
        data=judge_options["--data"] or (),
        kind=judge_options["--benchmark"],
        mode=_one_of("--mode", judge_options["--mode"], get_args(Mode)),
        scale=_one_of("--scale", judge_options["--scale"], get_args(ScoreScale)),
        concurrency=judge_options["--concurrency"],
        show_progress=not quiet,
    )
    try:
        with redirect_stdout(sys.stderr):
            validate_judges(job)
    except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError):
        errors().print(f"To go on where it stopped: the same command with -o {clean(job.folder)}")
        raise
    _print(job, as_json=as_json)
    if unusable := job.summary["benchmark"]["unusable"]["rows"]:
        errors().print(f"[yellow]{unusable:,} rows could not be used[/] (summary.json)")
        raise typer.Exit(2)


def _one_of(option: str, value: str | None, allowed: Sequence[str]) -> Any:
    if value is not None and value not in allowed:
        raise ConfigError(f"{option}: found {value!r}, allowed: {', '.join(allowed)}")
    return value


def _print(job: ValidationJob, *, as_json: bool) -> None:
    if as_json:
        for line in contaminated_lines(job.summary):
            errors().print(f"[bold red]{clean(line)}[/]")
        print_json(job.summary)
    else:
        print_validation(output(), job)
