"""What an audit looks at: rollouts of dumps and run folders, and what a folder's judges said.

Rollouts come one after the other, with texts; the texts of the few that a page shows are read
again. Of judges only graders of whole samples that ask one count.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from adjudge.checks.judges import JudgedRun, JudgedSample
from adjudge.checks.run import (
    NOT_A_NUMBER,
    REWARD_COPIES,
    AuditedRollout,
    AuditedRun,
    MetricsByStep,
)
from adjudge.errors import ConfigError, ErrorKind, RunFolderError
from adjudge.intake.columns import as_object
from adjudge.intake.rollouts import compute_divergence, compute_prompt_key
from adjudge.judges.asking import JudgeCall
from adjudge.messages import content_text
from adjudge.rollouts.input_report import RUN_FOLDER, may_be_score
from adjudge.rollouts.samples import SampleReader
from adjudge.runs.records import RunRecord, RunRecords
from adjudge.runs.story import read_grader_facts
from adjudge.runs.transcripts import TranscriptStore
from adjudge.text import final_text
from adjudge.types import Sample

PROGRESS_EVERY = 200
AuditProgress = Callable[[str, int, int | None], None]
"""Hears of a stage, how many rollouts are done, and of how many where that is known."""

_MAX_PROMPT, _MAX_RESPONSE, _MAX_REASON, _MAX_REASONS = 1_500, 5_000, 800, 6

_ADVANTAGES = ("advantage", "advantages")
_FINISH_KEYS = (
    *("finish_reason", "stop_reason", "status", "stop_condition", "exit_status"),
    "termination_reason",
)
_CUT = frozenset(
    {
        *("length", "max_tokens", "truncated", "max_length", "model_length", "max_output_tokens"),
        *("max_steps", "max_turns", "exit_context", "exit_max_turns", "max_turns_reached"),
        *("prompt_too_long", "context_length", "max_seq_len", "incomplete"),
    }
)


def read_audited(
    paths: Sequence[Path], mapping: Mapping[str, str], run: AuditedRun
) -> Iterator[AuditedRollout]:
    """Every rollout of dumps and run folders in order; notes on the reading go to ``run``."""
    count = 0
    for path in paths:
        is_run = _is_run_folder(path)
        found = _read_folder(path, run) if is_run else _read_dump([path], mapping, run)
        for rollout in found:
            rollout.index = count
            if len(paths) > 1 and is_run:
                rollout.group = f"{path}: {rollout.group}"
            count += 1
            yield rollout
    run.metrics = _merge_logs(run.logs)


def _merge_logs(logs: Mapping[str, Sequence[Mapping[str, float]]]) -> MetricsByStep:
    """The metrics of each step, in order.

    Raises :class:`ConfigError` where two rows of a step differ: they are of two runs, or no means.
    """
    steps: dict[int, dict[str, float]] = defaultdict(dict)
    for file, rows in logs.items():
        for row in rows:
            known = steps[int(row["step"])]
            for name in row:
                if known.setdefault(name, row[name]) != row[name]:
                    raise ConfigError(
                        f"{file}: metrics: step {row['step']:g} has two values of {name} (found "
                        f"{known[name]:g} and {row[name]:g}). Audit one run at a time; where rows "
                        "are single rewards, name their column: -m env_reward=COLUMN"
                    )
    return dict(sorted(steps.items()))


def _is_run_folder(path: Path) -> bool:
    rows = (path / "rewards.jsonl", path / "rollouts.jsonl")
    return (path / "run.json").is_file() and any(file.is_file() for file in rows)


def _read_dump(
    paths: Sequence[Path], mapping: Mapping[str, str], run: AuditedRun
) -> Iterator[AuditedRollout]:
    reader = SampleReader(paths, mapping, audited=True, say=run.input.hear)
    for sample in reader:
        own, reward = reader.read_own_reward(sample)
        rollout = from_sample(sample, run.input.add(sample, own_reward=own))
        if own:
            rollout.env_reward, rollout.reward = rollout.reward, reward
            rollout.missing = "" if rollout.reward is not None else NOT_A_NUMBER
        yield rollout
    run.input.add_files(reader)
    run.logs |= reader.logs
    run.broken_count += len(reader.broken)
    run.broken += [f"{one.where}: {one.message}" for one in reader.broken[:20]]


def _read_folder(path: Path, run: AuditedRun) -> Iterator[AuditedRollout]:
    """The samples of a run folder; without their texts where the rollouts are gone."""
    records = RunRecords(path)
    run.input.formats[RUN_FOLDER] += 1
    if dropped := records.count_dropped():
        reasons = ", ".join(f"{why} {count:,}" for why, count in dropped.items())
        run.notes.append(
            f"{path}: {sum(dropped.values()):,} samples of the run were not recorded ({reasons})."
        )
    settings, weights = (as_object(records.facts.get(name)) for name in ("settings", "reward"))
    imputes = as_object(settings.get("missing")).get("suspect") == "min"
    graders = read_grader_facts(records.facts).values() if imputes else ()
    counting = [one.name for one in graders if one.weight and weights.get(f"{one.scope}_weight")]
    done = 0
    try:
        for record, sample in records.with_samples():
            yield from_record(record, sample, counting)
            done += 1
    except RunFolderError as error:
        run.notes.append(f"{error} Until then only rewards are audited, no texts.")
        for record in islice(records, done, None):
            yield from_record(record, None, counting)


def read_samples(
    paths: Sequence[Path],
    mapping: Mapping[str, str],
    run: AuditedRun,
    rows: set[int],
    progress: AuditProgress,
) -> dict[int, AuditedRollout]:
    """The texts of ``rows``, read again; no texts of the others were kept."""
    found: dict[int, AuditedRollout] = {}
    last = max(rows, default=-1)
    rollouts = islice(read_audited(paths, mapping, AuditedRun()), last + 1)
    for row, rollout in enumerate(rollouts):
        if row % PROGRESS_EVERY == 0:
            progress("samples", row, last + 1)
        if row in rows:
            found[row] = _cut(rollout, float(run.advantage[row]))
    return found


def _cut(rollout: AuditedRollout, advantage: float) -> AuditedRollout:
    """A rollout as a person reads it: texts are cut in their middle where they are long."""
    reasons = list(rollout.reasons.items())[:_MAX_REASONS]
    return replace(
        rollout,
        advantage=advantage if math.isfinite(advantage) else None,
        prompt=cut_middle(rollout.prompt, _MAX_PROMPT),
        response=cut_middle(rollout.generated, _MAX_RESPONSE),
        messages=(),
        reasons={name: cut_middle(text, _MAX_REASON) for name, text in reasons},
    )


def cut_middle(text: str, size: int) -> str:
    """``text`` with at most about ``size`` characters: its beginning and its end.

    >>> cut_middle("one two three", 8)
    'one  … [5 characters] … hree'
    """
    if len(text) <= size:
        return text
    half = size // 2
    return f"{text[:half]} … [{len(text) - 2 * half:,} characters] … {text[-half:]}"


def read_judges(paths: Sequence[Path], run: AuditedRun) -> dict[str, JudgedRun]:
    """What each judge of one run folder said; none where its samples are not the audited rows."""
    if len(paths) != 1 or not _is_run_folder(paths[0]):
        return {}
    try:
        judged, count = read_judged(paths[0])
    except RunFolderError as error:
        run.notes.append(f"{error} What its judges said is not audited.")
        return {}
    return judged if count in {len(run), MAX_SAMPLES} else {}


def from_sample(sample: Sample, group: str) -> AuditedRollout:
    """A rollout of a dump; its reward is the dump's."""
    extras = sample.extra
    recorded = next((extras[name] for name in _ADVANTAGES if name in extras), None)
    reasons = _sort_names(tuple(extras))[1]
    return AuditedRollout(
        index=sample.original_index,
        where=sample.where,
        group=group,
        step=sample.step,
        reward=sample.env_reward,
        advantage=_number(recorded),
        missing=_why_no_reward(sample),
        components=_find_components(extras),
        reasons={name: extras[name] for name in reasons if isinstance(extras[name], str)},
        has_texts=sample.response is not None,
        **_sample_columns(sample),
    )


def _sample_columns(sample: Sample) -> dict[str, Any]:
    """The texts of a rollout, and how it ended."""
    said = (sample.extra.get(name) for name in _FINISH_KEYS)
    finish = next((one for one in said if isinstance(one, str) and one), "")
    return {
        "prompt": sample.prompt or "",
        "opening": (compute_divergence(sample) is None and compute_prompt_key(sample)) or "",
        "reference": sample.reference if isinstance(sample.reference, str) else "",
        "response": sample.response or "",
        "messages": sample.messages or (),
        "finish": finish,
        "truncated": _is_truncated(sample.extra, finish),
        "extras": sample.extra,
    }


def _find_imputed(details: Mapping[str, Any], counting: list[str]) -> str:
    """The kind of a failure, of the graders that made a reward, that became a number in it."""
    events = details.get("events")
    tables = [details, *(events if isinstance(events, list) else ())]
    said = (one.get(name) for one in tables if isinstance(one, Mapping) for name in counting)
    kinds = [str(one.get("kind") or "") for one in said if isinstance(one, Mapping)]
    failed = [one for one in kinds if one not in ("", ErrorKind.NOT_APPLICABLE)]
    return failed[0] if failed and details.get("source") == "graders" else ""


def from_record(record: RunRecord, sample: Sample | None, counting: list[str]) -> AuditedRollout:
    """A sample of a run folder, with its rollout where that is still there.

    ``counting``: the graders that have a weight.
    """
    details = record.details or {}
    return AuditedRollout(
        index=record.index,
        where=record.where or (sample.where if sample else ""),
        group=f"{record.step}/{record.group}" if record.step is not None else str(record.group),
        step=record.step,
        reward=record.reward,
        env_reward=record.env_reward,
        advantage=record.advantage,
        components=dict(record.scores),
        reasons={
            name: text
            for name, detail in details.items()
            if isinstance(detail, Mapping)
            and (text := next(filter(None, map(detail.get, ("reason", "error", "message"))), ""))
            and isinstance(text, str)
        },
        missing=record.missing.kind if record.missing else _find_imputed(details, counting),
        has_texts=sample is not None and not sample.is_lost,
        **({} if sample is None else _sample_columns(sample)),
    )


def _number(value: Any) -> float | None:
    """A number as it stands, NaN included; no truth value is an advantage."""
    if type(value) is int or type(value) is float:
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return None


def _why_no_reward(sample: Sample) -> str:
    """Why a row of a dump has no reward; a masked one, whose number is still there, is left out."""
    extras = sample.extra
    if "env_reward" in extras and sample.env_reward is not None:
        return ""
    numbers = [v for name in REWARD_COPIES if (v := _number(extras.get(name))) is not None]
    masked = any(map(math.isfinite, numbers)) and not isinstance(extras.get("reward"), Mapping)
    return "" if masked else NOT_A_NUMBER


def _find_components(extras: Mapping[str, Any]) -> dict[str, float | None]:
    """Numbers beside the texts that may be parts of a reward: neither ids nor counts."""
    return {
        name: _number(float(value) if isinstance(value, bool) else value)
        for name in _sort_names(tuple(extras))[0]
        if isinstance(value := extras[name], int | float)
    }


@lru_cache(maxsize=256)
def _sort_names(columns: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The columns that by their names may be parts of a reward, and what judges said."""
    words = ("reason", "judge", "verdict", "critique", "rational")
    others = (one for one in columns if one not in _FINISH_KEYS)
    return (
        [one for one in columns if one not in REWARD_COPIES and may_be_score(one)],
        [one for one in others if any(word in one.lower() for word in words)],
    )


def _is_truncated(extras: Mapping[str, Any], finish: str) -> bool | None:
    for name in ("is_truncated", "truncated"):
        if isinstance(value := extras.get(name), bool):
            return value
    return finish.lower() in _CUT if finish else None


# --- judges ---------------------------------------------------------------------------------------


MAX_SAMPLES = 20_000
"""Samples that are looked at, from the beginning of the run."""
_MAX_CALLS = 60_000
_MAX_CHARS = 300_000_000
"""Characters of prompts that are searched for answers."""


def read_judged(folder: Path) -> tuple[dict[str, JudgedRun], int]:
    """What each grader that asks a judge said of a run, and how many samples were looked at."""
    records = RunRecords(folder)
    facts = read_grader_facts(records.facts)
    if facts and not any(one.asks_judge for one in facts.values()):
        return {}, 0
    judged: dict[str, dict[int, JudgedSample]] = {}
    places: dict[int, int] = {}
    count = 0
    for row, record in enumerate(islice(records, MAX_SAMPLES)):
        count += 1
        places[record.index] = row
        for name, said in (record.details or {}).items():
            if isinstance(said, Mapping):
                judged.setdefault(name, {})[row] = _judged_sample(row, record, said)
    if not records.is_training:
        _read_transcripts(folder, judged, places)
    found = {}
    for name, rows in judged.items():
        fact = facts.get(name)
        if any(one.calls for one in rows.values()) or (fact and fact.asks_judge):
            found[name] = JudgedRun(
                samples=list(rows.values()),
                range=(fact and fact.range) or (None, None),
                judges=max(1, len(fact.judges) if fact else 0),
            )
    return found, count


def _judged_sample(row: int, record: RunRecord, said: Mapping[str, Any]) -> JudgedSample:
    score, metadata = said.get("score"), said.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    verdicts = metadata.get("verdicts")
    orders = None
    if isinstance(verdicts, Mapping) and {"as_given", "swapped"} <= set(verdicts):
        orders = str(verdicts["as_given"]), str(verdicts["swapped"])
    several = orders or metadata.get("criteria")  # reasons, or it counts criteria
    return JudgedSample(
        row=row,
        group=record.group_key,
        env=record.env_reward,
        score=float(score) if isinstance(score, int | float) else None,
        reason="" if several else str(said.get("reason") or ""),
        orders=orders,
        is_repaired=bool(metadata.get("repaired")),
    )


_STATED = re.compile(r"\b(?:score|rating|grade|verdict)\W{0,4}[:=]\W{0,4}\d", re.IGNORECASE)
_THINKING = re.compile(r"<(think|thinking|reasoning)>.*?(?:</\1>|$)", re.DOTALL)


def _read_transcripts(
    folder: Path, judged: Mapping[str, Mapping[int, JudgedSample]], places: Mapping[int, int]
) -> None:
    """Add what the transcripts have."""
    answers: dict[int, str] = {}
    left = _MAX_CHARS
    with TranscriptStore(folder, read_only=True) as store:
        for index, sample in store.iter_samples(MAX_SAMPLES):
            if index not in places or left < 0:
                continue
            text = sample.response or ""  # the last reply without its reasoning
            answer = answers[index] = _squash(final_text(text) or _THINKING.sub("", text))
            left -= len(answer)
            for rows in judged.values():
                if (one := rows.get(places[index])) is not None:
                    one.states_score = _STATED.search(answer[-2000:]) is not None
        for index, grader, call in store.iter_calls(_MAX_CALLS):
            if (one := judged.get(grader, {}).get(places.get(index, -1))) is not None:
                left -= _add_call(one, call, answers.get(index, "") if left > 0 else "")


def _squash(text: str) -> str:
    return " ".join(text.split())


def _add_call(one: JudgedSample, call: JudgeCall, answer: str) -> int:
    """Note one call; returns how many characters were searched."""
    one.calls += 1
    if call.why in ("repair", "redraw"):
        one.is_repaired |= call.reply is not None and not call.unread
    if call.reply is not None:
        source = "live" if call.source == "shared" else call.source or "live"
        one.sources = (*one.sources, (call.model or "", source))
    if not answer or one.shown == 1:
        return 0
    prompt = _squash("\n".join(content_text(message.get("content")) for message in call.messages))
    shown = _shown_share(prompt, answer)
    one.shown = shown if one.shown is None else max(one.shown, shown)
    return len(prompt)


def _shown_share(prompt: str, answer: str) -> float:
    """The share of ``answer`` that stands in ``prompt``, as it is or in JSON; 0 for next to none.

    The end of a short text, "7 seats" of "357 seats", stands in many a prompt by chance.
    """
    if answer in prompt:
        return 1.0
    plain = _squash(_ESCAPED.sub(_unescape, prompt)) if "\\" in prompt else ""

    def has(text: str) -> bool:
        return text in prompt or text in plain

    if has(answer):
        return 1.0
    sizes = range(1, len(answer) + 1)
    most = max(
        bisect_right(sizes, False, key=lambda size: not has(answer[:size])),
        bisect_right(sizes, False, key=lambda size: not has(answer[-size:])),
    )
    return most / len(answer) if most >= min(40, max(24, len(answer) / 2)) else 0.0


_ESCAPED = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[^u])(?:\\ud[c-f][0-9a-f]{2})?")


def _unescape(escaped: re.Match[str]) -> str:
    try:
        return str(json.loads(f'"{escaped[0]}"'))
    except ValueError:
        return escaped[0]
