"""A swap study: the judges, their rewards on stored rollouts, the comparison, the folder.

Judges are reward specs, which are asked, and recordings, which are read.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from adjudge.errors import ConfigError, ErrorKind
from adjudge.files import atomic_write, write_json
from adjudge.judge_evaluation.benchmarks.items import (
    VERDICT_SCORES,
    MissingJudgement,
    PairItem,
    PairVerdict,
)
from adjudge.judge_evaluation.benchmarks.readers import read_llmbar_judge, recorded_place
from adjudge.judge_evaluation.swap.comparison import (
    compare_criteria,
    compare_rewards,
    explain_advantages,
)
from adjudge.judge_evaluation.swap.judgements import (
    JudgeRewards,
    SampleRow,
    SwapTable,
    read_criterion_marks,
    write_swap_rows,
)
from adjudge.judge_evaluation.swap.report import render_swap_page
from adjudge.judge_evaluation.swap.rollouts import (
    GatheredRollouts,
    RolloutSource,
    digest_answer,
    find_rollout_sources,
    gather_rollouts,
    source_row_number,
)
from adjudge.rewards.spec import RewardSpec, is_trained_judge
from adjudge.runs.folder import hold_lock
from adjudge.runs.grading import grade_rollouts, read_first_samples
from adjudge.runs.job import GradingJob
from adjudge.runs.judge_calls import JudgeCallEstimate, estimate_run_calls
from adjudge.stats import describe_sizes, mean_and_std
from adjudge.version import __version__

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,80}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-]")
_CALL_COUNTS = ("calls", "sends", "retries", "input_tokens", "output_tokens")


@dataclass
class SwapJudge:
    """A judge as named on the command line: a spec, or recordings of a benchmark's judge.

    Files of recordings whose paths name the same judge are one: one file a subset.
    """

    name: str
    paths: list[Path]
    spec: RewardSpec | None


def read_swap_judges(entries: Sequence[str]) -> list[SwapJudge]:
    """``FILE`` or ``NAME=FILE`` entries; the name defaults to that of the file or folder.

    Specs are read here, so that a mistake in the last one costs no call. Raises
    :class:`ConfigError` for what is no judge, and for a name that is used twice.
    """
    found: dict[str, SwapJudge] = {}
    for entry in entries:
        name, path = _split_name(entry)
        if path.suffix.lower() == ".json" and path.is_file():
            judge = found.setdefault(name, SwapJudge(name, [], None))
            if judge.spec is None:
                judge.paths.append(path)
                continue
        elif name not in found:
            found[name] = SwapJudge(name, [path], RewardSpec.load(_spec_path(path)))
            continue
        raise ConfigError(
            f"--judges: two judges are called {name!r}. Give one another name: NAME={path}"
        )
    return list(found.values())


def _split_name(entry: str) -> tuple[str, Path]:
    name, equals, rest = entry.partition("=")
    if equals and not Path(entry).exists():
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"--judges {entry!r}: a judge's name must be letters, digits, '_', '.', '-'"
            )
        return name, Path(rest)
    path = Path(entry)
    stem = path.stem if path.suffix else path.name
    if path.suffix.lower() == ".json":
        stem = recorded_place(path).judge
    if stem in ("reward", "spec", "judge") and path.absolute().parent.name:
        stem = f"{path.absolute().parent.name}.{stem}"
    return _NOT_IN_NAMES.sub("_", stem)[:80] or "judge", path


def _spec_path(path: Path) -> Path:
    if path.suffix.lower() != ".toml" and not is_trained_judge(path):
        hint = ". Put rollouts before --judges." if path.suffix.lower() == ".jsonl" else ""
        raise ConfigError(
            f"--judges {path}: must be a reward spec (.toml), the folder of a trained judge, or a "
            f"file of LLMBar's recorded judges (.json){hint}"
        )
    return path


def judge_rollouts(
    judge: SwapJudge,
    rollouts: Path,
    lines: Sequence[SampleRow],
    folder: Path,
    *,
    budget_usd: float | None,
    show_progress: bool,
) -> JudgeRewards:
    """The judge's word on every sample: what is recorded, or what it says when asked.

    A spec is asked as by ``adjudge grade``, into ``folder``, where the same study resumes; raises
    as :func:`~adjudge.runs.grading.grade_rollouts` does.
    """
    if judge.spec is None:
        return _recorded_rewards(judge, lines)
    job = GradingJob(
        paths=[rollouts],
        spec=judge.spec,
        folder=folder,
        show_progress=show_progress,
        budget_usd=budget_usd,
    )
    run = grade_rollouts(job)
    results = [row.result for row in run.rows]
    return JudgeRewards(
        name=judge.name,
        kind="spec",
        source=str(judge.paths[0]),
        rewards=[result.score for result in results],
        kinds=[None if result.missing is None else str(result.missing.kind) for result in results],
        marks=[read_criterion_marks(result.details) for result in results],
        calls=_call_summary(run.summary),
    )


def _call_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What asking came to: calls of this invocation, and what all invocations cost."""
    graders = [one["judge"] for one in summary["graders"].values() if one["judge"] is not None]
    costs = [one["cost_usd"] for one in graders if one["cost_usd"] is not None]
    models = dict.fromkeys(name for one in graders for name in one["models"])
    return {
        **{key: sum(one[key] for one in summary["endpoints"]) for key in _CALL_COUNTS},
        "models": list(models),
        "result_tokens": sum(one["input_tokens"] + one["output_tokens"] for one in graders),
        "cost_usd": summary["spending"]["cost_usd"] or (0.0 if costs else None),
        "resumed_results": summary["resumed_results"],
        "elapsed_s": summary["elapsed_s"],
        "spec_hash": summary["spec"]["hash"],
    }


def _recorded_rewards(judge: SwapJudge, lines: Sequence[SampleRow]) -> JudgeRewards:
    """A recorded judge of pairs: an answer's reward is the mean of its verdicts in both orders.

    1 where both orders prefer it, 0 where neither does, ½ where they disagree; missing where one of
    the two could not be read, with that kind.
    """
    said: dict[tuple[str, str, str], tuple[str, float | MissingJudgement]] = {}
    for path in judge.paths:
        benchmark, judgements = read_llmbar_judge(path)
        for item, one in zip(benchmark.items, judgements, strict=True):
            if not isinstance(item, PairItem) or item.texts is None:
                continue
            prompt = str(item.prompt[-1]["content"])
            worth = _pair_reward(one.verdicts or [])
            for side, text in zip(("A", "B"), item.texts, strict=True):
                own = worth if side == "A" or isinstance(worth, MissingJudgement) else 1.0 - worth
                said[item.subset, source_row_number(item.where), side] = (
                    digest_answer(prompt, text),
                    own,
                )
    rewards: list[float | None] = []
    kinds: list[str | None] = []
    for line in lines:
        digest, found = said.get(line.pair or ("", "", ""), ("", None))
        if found is not None and digest != line.digest:
            raise ConfigError(
                f"{judge.paths[0]}: has another pair {'/'.join(line.pair or ())[:80]} than the "
                "rollouts"
            )
        kind = ErrorKind.INVALID_INPUT if found is None else getattr(found, "kind", None)
        rewards.append(found if isinstance(found, float) else None)
        kinds.append(None if kind is None else str(kind))
    if all(reward is None for reward in rewards):
        raise ConfigError(
            f"{judge.paths[0]}: has no recorded verdicts on these rollouts. Use it with the "
            "dataset.json of its own subset."
        )
    return JudgeRewards(judge.name, "recorded", ", ".join(map(str, judge.paths)), rewards, kinds)


def _pair_reward(verdicts: Sequence[PairVerdict | MissingJudgement]) -> float | MissingJudgement:
    """What the first answer is worth."""
    total = 0.0
    for verdict in verdicts:
        if isinstance(verdict, MissingJudgement):
            return verdict
        total += VERDICT_SCORES[verdict]
    return total / len(verdicts)


@dataclass
class SwapStudy:
    """What is to be compared, and what came of it: ``summary`` is empty until it is done.

    ``judges``: ``FILE`` or ``NAME=FILE``; ``stored``: judges whose rewards are a column, by name.
    ``group``: the columns that together name a group. ``budget_usd``: what each judge may cost.
    """

    rollouts: Sequence[Path]
    judges: Sequence[str]
    folder: Path
    mapping: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    group: Sequence[str] = ()
    seed: int = 0
    budget_usd: float | None = None
    show_progress: bool = True
    summary: dict[str, Any] = field(default_factory=dict)


def run_swap(study: SwapStudy) -> dict[str, Any]:
    """Do the study and give its summary.

    Writes to its folder ``rollouts.jsonl`` (what every judge is asked about), ``judges/NAME`` (a
    run folder of ``adjudge grade`` per judge that is asked, from which the same study resumes),
    ``summary.json``, ``report.html``, and a row per sample and judge: ``rows.parquet`` where
    pyarrow is installed, else ``rows.jsonl``. Raises :class:`~adjudge.errors.ConfigError` for fewer
    than two judges and what cannot be read, and as :func:`~adjudge.runs.grading.grade_rollouts`.
    """
    started = time.perf_counter()
    files = _find_judges(study)
    sources = find_rollout_sources(study.rollouts, study.mapping)
    with hold_lock(study.folder):
        rollouts = study.folder / "rollouts.jsonl"
        gathered = gather_rollouts(sources, rollouts, group=study.group, stored=study.stored)
        gathered.table.judges[:0] = [
            judge_rollouts(
                one,
                rollouts,
                gathered.table.samples,
                study.folder / "judges" / one.name,
                budget_usd=study.budget_usd,
                show_progress=study.show_progress,
            )
            for one in files
        ]
        gathered.table.snap_ties()
        numbers = summarise_swap(gathered.table, seed=study.seed)
        circumstances = _study_facts(study, sources, gathered)
        study.summary = {**circumstances, **numbers}
        study.summary["rows"] = write_swap_rows(study.folder, gathered.table).name
        study.summary["elapsed_s"] = round(time.perf_counter() - started, 3)
        write_json(study.folder / "summary.json", study.summary)
        atomic_write(study.folder / "report.html", render_swap_page(study.summary).encode())
    return study.summary


_ESTIMATE_ROWS = 200


def estimate_swap(study: SwapStudy) -> dict[str, JudgeCallEstimate]:
    """What each judge would be asked, by its name; nobody is asked, and nothing is kept.

    Recorded judges are asked nothing. Raises as :func:`run_swap` does for what cannot be read.
    """
    files = _find_judges(study)
    sources = find_rollout_sources(study.rollouts, study.mapping)
    with TemporaryDirectory() as folder:
        rollouts = Path(folder) / "rollouts.jsonl"
        gather_rollouts(sources, rollouts, group=study.group, stored=study.stored)
        return {one.name: _estimate_judge(one, rollouts) for one in files}


def _estimate_judge(judge: SwapJudge, rollouts: Path) -> JudgeCallEstimate:
    if judge.spec is None:
        return JudgeCallEstimate("outcome")
    job = GradingJob(paths=[rollouts], spec=judge.spec, folder=rollouts.parent / judge.name)
    samples, groups, rows = read_first_samples(job, _ESTIMATE_ROWS)
    return estimate_run_calls(judge.spec, samples, groups, rows)


def _find_judges(study: SwapStudy) -> list[SwapJudge]:
    files = read_swap_judges(study.judges)
    names = Counter([*(one.name for one in files), *study.stored])
    if twice := [name for name, count in names.items() if count > 1]:
        raise ConfigError(f"--stored: there is already a judge called {twice[0]!r}")
    if len(names) < 2:
        raise ConfigError(
            f"a swap compares two judges or more (found {', '.join(names) or 'none'})"
        )
    return files


def summarise_swap(sheet: SwapTable, *, seed: int = 0) -> dict[str, Any]:
    """``samples``, ``groups``, ``judges`` and ``pairs`` of ``summary.json``; pure."""
    members = sheet.members
    return {
        "samples": len(sheet.samples),
        "groups": describe_sizes(map(len, members)),
        "judges": [_judge_summary(one, sheet, members, seed) for one in sheet.judges],
        "pairs": [
            {
                "judges": [a.name, b.name],
                **msgspec.to_builtins(compare_rewards(a.rewards, b.rewards, members, seed=seed)),
                "criteria": msgspec.to_builtins(
                    compare_criteria(a.marks, b.marks, members, seed=seed)
                ),
            }
            for a, b in sheet.pairs
        ],
    }


def _judge_summary(
    one: JudgeRewards, sheet: SwapTable, members: Sequence[Sequence[int]], seed: int
) -> dict[str, Any]:
    present = [reward for reward in one.rewards if reward is not None]
    features = [line.features for line in sheet.samples]
    mean, std = mean_and_std(present) if present else (None, None)
    inside = [[r for at in group if (r := one.rewards[at]) is not None] for group in members]
    compared = [group for group in inside if len(group) > 1]
    shares = explain_advantages(one.rewards, features, members, seed=seed)
    return {
        "name": one.name,
        "kind": one.kind,
        "source": one.source,
        "judged": len(present),
        "missing": len(one.rewards) - len(present),
        "missing_by_kind": one.missing,
        "mean": mean,
        "std": std,
        "compared_groups": len(compared),
        "flat_groups": sum(min(group) == max(group) for group in compared),
        "tied_best": sum(group.count(max(group)) > 1 for group in compared),
        "explained": msgspec.to_builtins(shares),
        "calls": one.calls,
    }


def _study_facts(
    study: SwapStudy, sources: Sequence[RolloutSource], gathered: GatheredRollouts
) -> dict[str, Any]:
    return {
        "adjudge": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "inputs": [
            {"path": str(one.path), "shape": one.shape, "map": one.mapping} for one in sources
        ],
        "grouped_by": gathered.grouped_by,
        "seed": study.seed,
        "level": 0.95,
        "broken_rows": {
            "count": len(gathered.broken),
            "first": [{"where": row.where, "message": row.message} for row in gathered.broken[:20]],
        },
    }
