"""A replay of dumped judge prompts: asked again or only parsed again, and compared.

Each reply of a judge that is asked is kept in a file. Results are by recorded judge and source, and
by item over its repeats.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from adjudge.config import check_allowed, suggest_name
from adjudge.config_tables import validate_model
from adjudge.engine.loop import run_blocking
from adjudge.errors import (
    ConfigError,
    ErrorKind,
    GradingFailure,
)
from adjudge.files import atomic_write
from adjudge.hosts import is_address
from adjudge.judges.base import ChatModel, Reply
from adjudge.judges.table import NOT_ABOUT_REPLIES, JudgeTable, LocalTable, build_judge
from adjudge.rewards.spec import RewardSpec
from adjudge.runs.folder import RunFolder
from adjudge.runs.judge_calls import JudgeCallEstimate, build_call_meters
from adjudge.version import describe_writer
from adjudge_lab.evaluation.responses import FileProblem, ReplyKey, ReplyLog, ask_model
from adjudge_lab.studies.judge_dumps import (
    PARSE_MODES,
    REPLY_FORMS,
    DumpedPrompt,
    ParsedReply,
    detect_reply_form,
    parse_reply,
    read_dump,
)


class ReplayJudge(msgspec.Struct, frozen=True):
    """A judge to ask: ``identity`` is a digest of all that its replies depend on."""

    name: str
    model: ChatModel
    identity: str
    sampling: dict[str, Any]


def find_replay_judge(name: str) -> ReplayJudge:
    """``http://HOST/v1#MODEL``, a reward spec with one judge, or ``SPEC.toml#JUDGE``.

    A trained judge's folder gives the spec in it. Raises :class:`ConfigError`.
    """
    place, _, chosen = name.partition("#")
    if is_address(place):
        if not chosen:
            raise ConfigError(f"--judge {name}: the model's name is missing. Use {place}#MODEL.")
        given: dict[str, Any] = {"type": "vllm", "model": chosen, "base_url": place}
        return _build_replay_judge(name, chosen, given, None)
    if not Path(place).exists():
        raise ConfigError(
            f"--judge {name}: there is no such spec (allowed: SPEC.toml, http://HOST/v1#MODEL)"
        )
    judges = RewardSpec.load(place).judges
    if not chosen and len(judges) == 1:
        chosen = next(iter(judges))
    if chosen not in judges:
        raise ConfigError(
            f"--judge {name}: must name one judge of the spec as {place}#JUDGE"
            f"{suggest_name(chosen, judges)} (it has: {', '.join(judges) or 'none'})"
        )
    given = judges[chosen].model_dump(exclude_unset=True)
    folder = Path(place) if Path(place).is_dir() else Path(place).parent
    return _build_replay_judge(place, chosen, given, folder)


def _build_replay_judge(
    where: str, name: str, given: dict[str, Any], folder: Path | None
) -> ReplayJudge:
    table = validate_model(JudgeTable, given, f"--judge {where}")
    if isinstance(table, LocalTable) and table.task == "score":
        raise ConfigError(f"--judge {where}: {name} is a scalar judge, which reads no prompts")
    model = build_judge(name, table, where=f"--judge {where}", folder=folder)
    about = {key: value for key, value in given.items() if key not in NOT_ABOUT_REPLIES}
    said = msgspec.json.encode([about, model.fingerprint], order="sorted")
    drawn: dict[str, Any] = {
        key: given[key] for key in ("temperature", "max_tokens", "seed") if key in given
    }
    return ReplayJudge(name, model, sha256(said).hexdigest()[:16], drawn)


_ROUNDING = 1e-9


class ReplayRow(msgspec.Struct, frozen=True, kw_only=True):
    """A dumped prompt with what was read: a verdict for each draw."""

    dumped: DumpedPrompt
    form: str
    verdicts: list[ParsedReply]

    @property
    def scores(self) -> list[float]:
        """Those that could be read."""
        return [one.score for one in self.verdicts if one.score is not None]

    @property
    def score(self) -> float | None:
        """Their mean; ``None`` where none could be read."""
        return fmean(self.scores) if self.scores else None

    @property
    def changed(self) -> bool | None:
        """Whether it differs from the recorded score; ``None`` where there are not both."""
        if self.score is None or self.dumped.recorded is None:
            return None
        return abs(self.score - self.dumped.recorded) > _ROUNDING


def summarise_replay_arms(lines: Iterable[ReplayRow]) -> list[dict[str, Any]]:
    """By the dump's judge and source: how many were read, of what kind the others are, and means.

    ``recorded`` and ``score`` are means over ``common``, the rows that have both; all means are
    ``None`` of nothing, and what could not be read is in none.
    """
    by_arm: dict[tuple[str, str], list[ReplayRow]] = defaultdict(list)
    for line in lines:
        by_arm[line.dumped.judge, line.dumped.source].append(line)
    return [
        {"judge": judge, "source": source, **_arm_summary(own)}
        for (judge, source), own in by_arm.items()
    ]


def _arm_summary(lines: Sequence[ReplayRow]) -> dict[str, Any]:
    verdicts = [one for line in lines for one in line.verdicts]
    common = [line for line in lines if line.changed is not None]
    return {
        "rows": len(lines),
        "verdicts": len(verdicts),
        "parsed": sum(one.score is not None for one in verdicts),
        "how": dict(Counter(one.how for one in verdicts if one.how)),
        "unparsable": dict(Counter(one.kind for one in verdicts if one.kind)),
        "mean_recorded": _mean([line.dumped.recorded for line in lines]),
        "mean_score": _mean([line.score for line in lines]),
        "common": {
            "rows": len(common),
            "recorded": _mean([line.dumped.recorded for line in common]),
            "score": _mean([line.score for line in common]),
            "changed": sum(line.changed is True for line in common),
        },
    }


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return fmean(found) if found else None


def score_ranges(lines: Iterable[ReplayRow], *, by_prompt: bool) -> list[dict[str, Any]]:
    """How far the scores of one item lie apart, by source: mean and largest range.

    An item's scores are those of its rows; with ``by_prompt`` each prompt counts once, since rows
    with the same prompt share its replies. Items with one score only have no range.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        one = line.dumped
        own = found[one.source]
        if not by_prompt:
            own[one.item] += line.scores
        else:
            own.setdefault(f"{one.item} {one.sha[:8]}", line.scores)
    return [_ranges(source, items) for source, items in found.items()]


def _ranges(source: str, items: dict[str, list[float]]) -> dict[str, Any]:
    spans = {name: max(own) - min(own) for name, own in items.items() if len(own) > 1}
    widest = max(spans, key=lambda name: spans[name], default=None)
    return {
        "source": source,
        "items": len(items),
        "repeated": len(spans),
        "mean": _mean(spans.values()),
        "largest": None if widest is None else spans[widest],
        "item": widest,
        "by_item": spans,
    }


_KIND = "replay"
_MAX_PROBLEMS = 50
_IN_FLIGHT = 16
"""Questions; a judge's own ``endpoint`` may allow fewer."""


@dataclass
class ReplayJob:
    """What is replayed, how it is read, and where it goes.

    ``judge``: who is asked again, ``repeats`` times a prompt; without one the recorded replies are
    parsed anew. ``parse``: ``strict``, ``anywhere`` or ``either``; ``form`` and ``scale`` as in
    :func:`~adjudge_lab.studies.judge_dumps.detect_reply_form`. ``summary`` is the result.
    """

    dump: Path
    folder: Path
    judge: ReplayJudge | None = None
    parse: Any = "strict"
    form: str | None = None
    scale: tuple[float | None, float | None] = (None, None)
    repeats: int = 1
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
    with _open_folder(job) as folder:
        answers = ReplyLog(job.folder / "answers.jsonl", ("prompt_sha256", "draw", "text"))
        made = _ask_missing(job, dumped, answers)
        lines = [_replay_row(job, one, answers) for one in dumped]
        job.summary = _summary(job, lines, problems, made)
        atomic_write(folder.path / "rows.jsonl", map(_encode_row, lines))
        folder.write_json("summary.json", job.summary)
    return job.summary


def _check(job: ReplayJob) -> None:
    check_allowed("--parse", job.parse, PARSE_MODES)
    if job.form is not None:
        check_allowed("--form", job.form, REPLY_FORMS)
    if job.judge is None and job.repeats != 1:
        raise ConfigError(
            "--repeats: can only be used with --judge, because each recorded reply exists once"
        )
    if job.repeats < 1:
        raise ConfigError(f"--repeats: must be at least 1 (found {job.repeats})")
    low, high = job.scale
    if low is not None and high is not None and not low < high:
        raise ConfigError(
            f"--scale: the first number must be below the second (found {low} to {high})"
        )


def _open_folder(job: ReplayJob) -> RunFolder:
    """The folder for this judge; raises where it holds anything else."""
    facts = {
        "kind": _KIND,
        "label": f"replay of {job.dump.name}",
        "judge": None if job.judge is None else job.judge.identity,
    }
    return RunFolder(job.folder, facts, {"judge": "another judge, or of other settings"})


def _ask_missing(job: ReplayJob, dumped: Sequence[DumpedPrompt], answers: ReplyLog) -> int:
    """How many prompts were asked now."""
    if job.judge is None:
        return 0
    prompts = {one.sha: one.messages for one in dumped}
    wanted = [(sha, draw) for draw in range(job.repeats) for sha in prompts]
    todo = [one for one in wanted if not answers.has(one)]
    done = len(wanted) - len(todo)
    job.on_progress("asking", done, len(wanted))

    def keep(one: ReplyKey, reply: Reply | GradingFailure) -> None:
        nonlocal done
        answers.append(one, reply, after={"model": reply.model} if isinstance(reply, Reply) else {})
        done += 1
        job.on_progress("asking", done, len(wanted))

    if todo:
        asking = ask_model(
            job.judge.model, todo, lambda one: (prompts[one[0]], {}), keep,
            in_flight=_IN_FLIGHT,
        )  # fmt: skip
        run_blocking(asking)
    return len(todo)


def estimate_replay(job: ReplayJob) -> dict[str, JudgeCallEstimate]:
    """What the judge would be asked, by its name; no call is made, and nothing is written."""
    _check(job)
    dumped, _ = read_dump(job.dump, job.mapping)
    if job.judge is None:
        return {}
    once, asked = JudgeCallEstimate("outcome"), JudgeCallEstimate("outcome")
    meter = build_call_meters({job.judge.name: job.judge.model}, once)[job.judge.name]
    for messages in {one.sha: one.messages for one in dumped}.values():
        with suppress(GradingFailure):
            run_blocking(meter.achat(messages))
    asked.add_all(once, job.repeats)
    return {job.judge.name: asked}


def _replay_row(job: ReplayJob, one: DumpedPrompt, answers: ReplyLog) -> ReplayRow:
    form = detect_reply_form(one.text, one.rubric, name=job.form, scale=job.scale)

    def read(text: Any, cut: bool) -> ParsedReply:
        if not isinstance(text, str):
            kind = ErrorKind.INVALID_INPUT.value
            return ParsedReply(kind=kind, why="the dump has no reply to this prompt")
        return parse_reply(text, form, job.parse, cut=cut)

    if job.judge is None:
        return ReplayRow(dumped=one, form=form.name, verdicts=[read(one.reply, cut=False)])
    verdicts = []
    for draw in range(job.repeats):
        row = answers.find((one.sha, draw))
        if "error" in row:
            verdicts.append(ParsedReply(kind=row["error"]["kind"], why="the judge gave no reply"))
        else:
            verdicts.append(read(row.get("text"), cut=row.get("finish_reason") == "length"))
    return ReplayRow(dumped=one, form=form.name, verdicts=verdicts)


def _summary(
    job: ReplayJob, lines: Sequence[ReplayRow], problems: Sequence[FileProblem], made: int
) -> dict[str, Any]:
    judge = job.judge
    return {
        **describe_writer(),
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
        "arms": summarise_replay_arms(lines),
        "ranges": score_ranges(lines, by_prompt=judge is not None),
        "problems": {
            "count": len(problems),
            "first": [msgspec.to_builtins(one) for one in problems[:_MAX_PROBLEMS]],
        },
    }


def _encode_row(line: ReplayRow) -> bytes:
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
