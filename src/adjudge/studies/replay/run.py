"""A whole replay: prompts read, asked again where a judge is given, replies parsed, set beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import adjudge
from adjudge.config import nearest
from adjudge.errors import ConfigError, ErrorKind, RunFolderError
from adjudge.runs.lock import locking
from adjudge.runs.whole import write_json, write_whole
from adjudge.studies.ifeval.files import Problem
from adjudge.studies.replay.asking import Answers, Judge, ask
from adjudge.studies.replay.dump import Dumped, read_dump
from adjudge.studies.replay.parsing import FORMS, PARSES, Parsed, form_of, parse_reply
from adjudge.studies.replay.table import Line, arms, ranges

__all__ = ["ReplayJob", "replay_dump"]

_KIND = "replay"
_SHOWN = 50


@dataclass
class ReplayJob:
    """What is replayed, how it is read, and where it goes.

    ``judge``: who is asked again, ``repeats`` times a prompt; without one the recorded replies are
    parsed anew. ``parse``: ``strict``, ``anywhere`` or ``either``; ``form`` and ``scale`` as in
    :func:`~adjudge.studies.replay.parsing.form_of`. ``summary`` is what all comes to.
    """

    dump: Path
    folder: Path
    judge: Judge | None = None
    parse: Any = "strict"
    form: str | None = None
    scale: tuple[float | None, float | None] = (None, None)
    repeats: int = 1
    concurrency: int = 16
    mapping: Mapping[str, str] = field(default_factory=dict)
    on_progress: Callable[[str, int, int], None] = lambda *_: None
    summary: dict[str, Any] = field(default_factory=dict)


def replay_dump(job: ReplayJob) -> dict[str, Any]:
    """Do it; the summary.

    Writes ``answers.jsonl`` (replies of the judge, by the prompt's SHA-256 and the draw),
    ``rows.jsonl`` (a row for each dumped prompt) and ``summary.json``. The same folder is gone on
    with: no prompt is asked twice, what failed is asked again, another ``parse`` reads the same
    replies. Raises :class:`~adjudge.errors.RunFolderError` for a folder of anything else or of
    another judge, :class:`~adjudge.errors.ConfigError` for what cannot be replayed,
    :class:`~adjudge.errors.JudgeAuthError` and :class:`~adjudge.errors.JudgeUnavailable`.
    """
    _check(job)
    dumped, problems = read_dump(job.dump, job.mapping)
    with locking(job.folder):
        _claim(job)
        answers = Answers(job.folder / "answers.jsonl")
        made = _asked(job, dumped, answers)
        lines = [_line(job, one, answers) for one in dumped]
        job.summary = _summary(job, lines, problems, made)
        write_whole(job.folder / "rows.jsonl", map(_row, lines))
        write_json(job.folder / "summary.json", job.summary)
    return job.summary


def _check(job: ReplayJob) -> None:
    for name, value, allowed in (("--parse", job.parse, PARSES), ("--form", job.form, FORMS)):
        if value is not None and value not in allowed:
            hint = nearest(value, allowed)
            raise ConfigError(f"{name}: found {value!r}{hint} (allowed: {', '.join(allowed)})")
    if job.judge is None and job.repeats != 1:
        raise ConfigError("--repeats: goes with --judge; recorded replies are there once")
    for name, number in (("--repeats", job.repeats), ("--concurrency", job.concurrency)):
        if number < 1:
            raise ConfigError(f"{name}: found {number}, must be at least 1")
    low, high = job.scale
    if low is not None and high is not None and not low < high:
        raise ConfigError(f"--scale: found {low} to {high}, must go upwards")


def _claim(job: ReplayJob) -> None:
    """The folder for this judge; raises where it holds anything else."""
    file = job.folder / "run.json"
    said = {
        "kind": _KIND,
        "adjudge": adjudge.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "label": f"replay of {job.dump.name}",
        "judge": None if job.judge is None else job.judge.identity,
    }
    if not file.exists():
        if taken := [
            one for one in ("summary.json", "rewards.jsonl") if (job.folder / one).exists()
        ]:
            raise RunFolderError(f"{job.folder}: holds {taken[0]} of another run; give another -o")
        write_json(file, said)
        return
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise RunFolderError(f"{file}: is not a run of adjudge: {error}") from None
    if found.get("kind") != _KIND:
        raise RunFolderError(f"{job.folder}: holds another run; give another folder with -o")
    if found.get("judge") != said["judge"]:
        raise RunFolderError(
            f"{job.folder}: holds replies of another judge, or drawn in another way; give another "
            "folder with -o"
        )


def _asked(job: ReplayJob, dumped: Sequence[Dumped], answers: Answers) -> int:
    """How many prompts were asked now."""
    if job.judge is None:
        return 0
    prompts = {one.sha: one.messages for one in dumped}
    wanted = [(sha, draw) for draw in range(job.repeats) for sha in prompts]
    todo = [one for one in wanted if not answers.has(one)]
    done = len(wanted) - len(todo)
    job.on_progress("asking", done, len(wanted))

    def heard() -> None:
        nonlocal done
        done += 1
        job.on_progress("asking", done, len(wanted))

    ask(job.judge, prompts, todo, answers, concurrency=job.concurrency, on_done=heard)
    return len(todo)


def _line(job: ReplayJob, one: Dumped, answers: Answers) -> Line:
    form = form_of(one.text, one.rubric, name=job.form, scale=job.scale)

    def read(text: Any, cut: bool) -> Parsed:
        if not isinstance(text, str):
            kind = ErrorKind.INVALID_INPUT.value
            return Parsed(kind=kind, why="the dump has no reply to this prompt")
        return parse_reply(text, form, job.parse, cut=cut)

    if job.judge is None:
        return Line(dumped=one, form=form.name, verdicts=[read(one.said, cut=False)])
    verdicts = []
    for draw in range(job.repeats):
        row = answers.of((one.sha, draw))
        if "error" in row:
            verdicts.append(Parsed(kind=row["error"]["kind"], why="the judge gave no reply"))
        else:
            verdicts.append(read(row.get("text"), cut=row.get("finish_reason") == "length"))
    return Line(dumped=one, form=form.name, verdicts=verdicts)


def _summary(
    job: ReplayJob, lines: Sequence[Line], problems: Sequence[Problem], made: int
) -> dict[str, Any]:
    judge = job.judge
    return {
        "adjudge": adjudge.__version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "dump": str(job.dump),
        "parse": job.parse,
        "asked": None
        if judge is None
        else {
            "judge": judge.name,
            "model": judge.model.model,
            "sampling": judge.sampling,
            "repeats": job.repeats,
            "now": made,
            "prompts": len({line.dumped.sha for line in lines}),
        },
        "rows": len(lines),
        "arms": arms(lines),
        "ranges": ranges(lines, by_prompt=judge is not None),
        "problems": {
            "count": len(problems),
            "first": [msgspec.to_builtins(one) for one in problems[:_SHOWN]],
        },
    }


def _row(line: Line) -> bytes:
    one = line.dumped
    about = {
        "line": one.line,
        "item": one.item,
        "judge": one.judge,
        "source": one.source,
        "prompt_sha256": one.sha,
        "form": line.form,
        "recorded": one.recorded,
        "score": line.score,
        "changed": line.changed,
        "verdicts": [msgspec.to_builtins(verdict) for verdict in line.verdicts],
    }
    return msgspec.json.encode(about) + b"\n"
