"""Judges of a study: reward specs that are asked, and recordings that are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError, ErrorKind
from adjudge.judge_training.benchmarks.items import PairItem
from adjudge.judge_training.benchmarks.judgements import Missing, Verdict
from adjudge.judge_training.benchmarks.llmbar_judges import read_llmbar_judge
from adjudge.rewards.spec import RewardSpec, is_trained_judge
from adjudge.runs.grading import GradingJob, grade_rollouts
from adjudge.studies.swap.rollouts import row_number, shown
from adjudge.studies.swap.sheet import Judgements, Line, marks_of

__all__ = ["JudgeFile", "ask", "judge_files"]

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,80}")
_OTHER = re.compile(r"[^A-Za-z0-9_.\-]")
_WORTH: Mapping[Verdict, float] = {"A": 1.0, "tie": 0.5, "B": 0.0}
_CALLS = ("calls", "sends", "retries", "input_tokens", "output_tokens")


class JudgeFile:
    """A judge as named on the command line: a spec, or recordings of a benchmark's judge.

    Files of recordings with the same name are one judge: one file a subset.
    """

    def __init__(self, name: str, paths: list[Path], spec: RewardSpec | None) -> None:
        self.name = name
        self.paths = paths
        self.spec = spec


def judge_files(entries: Sequence[str]) -> list[JudgeFile]:
    """``FILE`` or ``NAME=FILE`` entries; the name defaults to that of the file or folder.

    Specs are read here, so that a mistake in the last one costs no call. Raises
    :class:`ConfigError` for what is no judge, and for a name that is used twice.
    """
    found: dict[str, JudgeFile] = {}
    for entry in entries:
        name, path = _named(entry)
        if path.suffix.lower() == ".json" and path.is_file():
            judge = found.setdefault(name, JudgeFile(name, [], None))
            if judge.spec is None:
                judge.paths.append(path)
                continue
        elif name not in found:
            found[name] = JudgeFile(name, [path], RewardSpec.load(_spec(path)))
            continue
        raise ConfigError(f"--judges: two judges are called {name!r}; name them: NAME={path}")
    return list(found.values())


def _named(entry: str) -> tuple[str, Path]:
    name, equals, rest = entry.partition("=")
    if equals and not Path(entry).exists():
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"--judges {entry!r}: a judge's name is letters, digits, '_', '.', '-'"
            )
        return name, Path(rest)
    path = Path(entry)
    stem = path.stem if path.suffix else path.name
    if stem in ("reward", "spec", "judge") and path.absolute().parent.name:
        stem = f"{path.absolute().parent.name}.{stem}"
    return _OTHER.sub("_", stem)[:80] or "judge", path


def _spec(path: Path) -> Path:
    if path.suffix.lower() != ".toml" and not is_trained_judge(path):
        hint = "; rollouts stand before --judges" if path.suffix.lower() == ".jsonl" else ""
        raise ConfigError(
            f"--judges {path}: must be a reward spec (.toml), the folder of a trained judge, or a "
            f"file of LLMBar's recorded judges (.json){hint}"
        )
    return path


def ask(
    judge: JudgeFile,
    rollouts: Path,
    lines: Sequence[Line],
    folder: Path,
    *,
    budget_usd: float | None = None,
    show_progress: bool = True,
) -> Judgements:
    """The judge's word on every sample: what is recorded, or what it says when asked.

    A spec is asked as by ``adjudge grade``, into ``folder``, where the same study resumes; raises
    as :func:`~adjudge.runs.grading.grade_rollouts` does.
    """
    if judge.spec is None:
        return _recorded(judge, lines)
    job = GradingJob(
        paths=[rollouts],
        spec=judge.spec,
        folder=folder,
        show_progress=show_progress,
        budget_usd=budget_usd,
    )
    results = grade_rollouts(job)
    return Judgements(
        name=judge.name,
        kind="spec",
        source=str(judge.paths[0]),
        rewards=[result.score for result in results],
        kinds=[None if result.missing is None else str(result.missing.kind) for result in results],
        marks=[marks_of(result.details) for result in results],
        calls=_calls(job.summary),
    )


def _calls(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What asking came to: calls of this invocation, and what all results together cost."""
    graders = [one["judge"] for one in summary["graders"].values() if one["judge"] is not None]
    costs = [one["cost_usd"] for one in graders if one["cost_usd"] is not None]
    models = dict.fromkeys(name for one in graders for name in one["models"])
    return {
        **{key: sum(one[key] for one in summary["endpoints"]) for key in _CALLS},
        "models": list(models),
        "result_tokens": sum(one["input_tokens"] + one["output_tokens"] for one in graders),
        "cost_usd": sum(costs) if costs else None,
        "resumed_results": summary["resumed_results"],
        "elapsed_s": summary["elapsed_s"],
        "spec_hash": summary["spec"]["hash"],
    }


def _recorded(judge: JudgeFile, lines: Sequence[Line]) -> Judgements:
    """A recorded judge of pairs: an answer's reward is the mean of its verdicts in both orders.

    1 where both orders prefer it, 0 where neither does, ½ where they disagree; missing where one of
    the two could not be read, with that kind.
    """
    said: dict[tuple[str, str, str], tuple[str, float | Missing]] = {}
    for path in judge.paths:
        benchmark, judgements = read_llmbar_judge(path)
        for item, one in zip(benchmark.items, judgements, strict=True):
            if not isinstance(item, PairItem) or item.texts is None:
                continue
            prompt = str(item.prompt[-1]["content"])
            worth = _worth(one.verdicts or [])
            for side, text in zip(("A", "B"), item.texts, strict=True):
                own = worth if side == "A" or isinstance(worth, Missing) else 1.0 - worth
                said[item.subset, row_number(item.where), side] = (shown(prompt, text), own)
    rewards: list[float | None] = []
    kinds: list[str | None] = []
    for line in lines:
        digest, found = said.get(line.pair or ("", "", ""), ("", None))
        if found is not None and digest != line.digest:
            raise ConfigError(
                f"{judge.paths[0]}: was shown another pair {'/'.join(line.pair or ())[:80]} than "
                "the rollouts have"
            )
        kind = ErrorKind.INVALID_INPUT if found is None else getattr(found, "kind", None)
        rewards.append(found if isinstance(found, float) else None)
        kinds.append(None if kind is None else str(kind))
    if all(reward is None for reward in rewards):
        raise ConfigError(
            f"{judge.paths[0]}: has nothing recorded of these rollouts; it goes with the "
            "dataset.json of its own subset"
        )
    return Judgements(judge.name, "recorded", ", ".join(map(str, judge.paths)), rewards, kinds)


def _worth(verdicts: Sequence[Verdict | Missing]) -> float | Missing:
    """What the first answer is worth."""
    total = 0.0
    for verdict in verdicts:
        if isinstance(verdict, Missing):
            return verdict
        total += _WORTH[verdict]
    return total / len(verdicts)
