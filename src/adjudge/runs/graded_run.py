"""What grading gave: a row a sample, the run in numbers, and both as a table and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from adjudge.files import UNENCODABLE
from adjudge.report.elements import Element, bold, paragraph, small
from adjudge.report.page import render_output
from adjudge.report.table import Column, Table, lost, numeric
from adjudge.rollouts.samples import BrokenInputRow
from adjudge.runs.judge_calls import calls_table, describe_calls, endpoint_tables
from adjudge.runs.report import ReportRow, ReportSeries, write_grading_report
from adjudge.runs.report.rows import read_stories
from adjudge.runs.summary import RewardedSample
from adjudge.text import encode_json
from adjudge.types import GraderError, RewardResult

_SHOWN_ROWS = 10
_GROUP_CHARS = 80


@dataclass(frozen=True, slots=True)
class GradedRow:
    """One sample: its place in the input, its group, and what it got.

    ``key`` is what was judged (:func:`~adjudge.rollouts.samples.compute_rollout_key`), ``where``
    the ``FILE:ROW`` that it was read from, ``step`` the training step that the row names.
    ``draws``, where graders were asked several times: the reward of each draw, the first first.
    """

    index: int
    group: str
    result: RewardResult
    key: str = ""
    where: str = ""
    step: int | None = None
    env_reward: float | None = None
    draws: Sequence[float | None] = ()

    @classmethod
    def of(cls, one: RewardedSample) -> Self:
        """The row of a sample that has its reward."""
        facts, draws = one.facts, [draw["reward"] for draw in one.draws]
        return cls(
            facts.index,
            facts.group,
            one.result,
            facts.key,
            facts.where,
            facts.step,
            facts.env_reward,
            draws,
        )

    @property
    def reward(self) -> float | None:
        """The reward; ``None`` where it is missing, and :attr:`missing` says why."""
        return self.result.score

    @property
    def missing(self) -> GraderError | None:
        """Why there is no reward: its ``kind``, and ``error`` in words."""
        return self.result.missing

    @property
    def scores(self) -> dict[str, float | None]:
        """Each grader's score by its name; ``None`` where it failed."""
        info = self.result.reward_info
        return {key.removesuffix("_score"): info[key] for key in info if key.endswith("_score")}

    def as_dict(self) -> dict[str, Any]:
        """The sample's row of ``rewards.jsonl``."""
        result, missing = self.result, self.result.missing
        return {
            "index": self.index,
            "key": self.key,
            "where": self.where,
            "step": self.step,
            "group": self.group,
            "env_reward": self.env_reward,
            "reward": result.score,
            **({"reward_draws": self.draws} if self.draws else {}),
            "missing": missing and {"kind": str(missing.kind), "message": missing.error},
            "reward_info": result.reward_info,
            "details": result.details,
        }


@dataclass
class GradedRun:
    """What :func:`adjudge.grade` gives: ``len()`` counts the samples, iterating gives their rows.

    ``rows``: one a sample in the order of the input; what could not be read is in ``broken``.
    ``summary``: the numbers of ``summary.json``. ``folder``: where the files were written, if so.

    >>> import adjudge
    >>> rollouts = [
    ...     {"prompt": "2 + 2?", "response": "4", "reference": "4"},
    ...     {"prompt": "2 + 2?", "response": "5", "reference": "4"},
    ... ]
    >>> run = adjudge.grade(rollouts, {"graders": [{"name": "right", "type": "string_match"}]})
    >>> run
    GradedRun(2 samples in 1 groups, mean reward 0.500)
    >>> [(row.reward, row.missing) for row in run]
    [(1.0, None), (0.0, None)]
    >>> run.rows[0].scores
    {'right': 1.0}
    >>> run.summary["reward"]["mean"]
    0.5
    """

    rows: Sequence[GradedRow]
    summary: Mapping[str, Any]
    broken: Sequence[BrokenInputRow] = ()
    folder: Path | None = None
    _page: tuple[Sequence[ReportRow], ReportSeries | None] = field(default=((), None), repr=False)

    @property
    def rewards(self) -> list[float | None]:
        """The rewards of :attr:`rows`, in their order; ``None`` is missing, never a number.

        A row of the input that is in :attr:`broken` has none here: match by ``row.index``.
        """
        return [row.reward for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[GradedRow]:
        return iter(self.rows)

    def report(self, path: Path | str) -> Path:
        """Write the page that ``adjudge grade`` writes to ``path``: one HTML file, no network."""
        rows, series = self._page
        stories = None if self.folder is None else read_stories(self.folder)
        write_grading_report(Path(path), self.summary, rows, series, stories)
        return Path(path)

    def __repr__(self) -> str:
        reward = self.summary["reward"]
        mean = "none" if reward["mean"] is None else f"{reward['mean']:.3f}"
        missing = f", {reward['missing']:,} missing" if reward["missing"] else ""
        broken = f", {len(self.broken):,} broken rows" if self.broken else ""
        return (
            f"GradedRun({self.summary['samples']:,} samples in "
            f"{self.summary['groups']['count']:,} groups, mean reward {mean}{missing}{broken})"
        )

    def _repr_html_(self) -> str:
        """For notebooks: the run in numbers, and its first samples."""
        summary = self.summary
        calls: list[object] = [calls_table(one) for one in endpoint_tables(summary)]
        calls += [paragraph(describe_calls(summary))] if calls else []
        return render_output(
            paragraph(repr(self)),
            score_table(summary),
            [paragraph(lost("warning: "), one) for one in summary["warnings"]],
            agreement_table(summary) if summary["env_reward"] else None,
            Element("details", Element("summary", "Judge calls"), calls) if calls else None,
            _first_rows(self.rows),
        )


def _first_rows(rows: Sequence[GradedRow]) -> Table:
    names = list(rows[0].scores) if rows else []
    cells = [
        [
            str(row.index),
            row.group[:_GROUP_CHARS],
            lost(str(row.missing.kind)) if row.missing else _number_cell(row.reward),
            *(_number_cell(row.scores.get(name)) for name in names),
        ]
        for row in rows[:_SHOWN_ROWS]
    ]
    more = len(rows) - len(cells)
    caption = f"The first {len(cells)} samples; {more:,} more are in rows." if more else None
    columns = ["index", "group", *(Column(name, "n") for name in ("reward", *names))]
    return Table(columns, cells, caption=caption)


def score_table(summary: Mapping[str, Any]) -> Table:
    """Each grader's scores and the reward: mean, spread, what is missing."""
    samples, reward = summary["samples"], summary["reward"]
    headings = ("mean", "std", "std in group", "zero spread", "missing", "not evaluable")
    columns = [Column(heading, "n") for heading in headings]
    rows: list[list[object]] = [
        [
            name,
            f"{grader['weight']:g}" if grader["weight"] else "report",
            *_spread_cells(grader),
            *(_count_cell(grader[key], samples) for key in ("missing", "not_evaluable")),
        ]
        for name, grader in summary["graders"].items()
    ]
    if before := reward.get("before_step"):
        cells = [_number_cell(before[key]) for key in ("mean", "std")]
        rows.append([f"before {before['step']}", "", *cells, "", "", "", ""])
    missing = _count_cell(reward["missing"], samples)
    rows.append([bold("reward"), "", *_spread_cells(reward), missing, ""])
    return Table(
        ["grader", Column("weight", "n"), *columns],
        rows,
        drop=("zero spread", "std in group", "std", "weight"),
        keep=("mean", "missing"),
    )


def agreement_table(summary: Mapping[str, Any]) -> Table:
    """Graders, reward and baselines against the environment's reward, which the run must have."""
    kind = "AUC" if summary["env_reward"]["binary"] else "concordance"
    pooled, within = f"{kind}, pooled", "within group"
    columns = ["against the environment's reward", *numeric(pooled), Column("95 %", "i"),
               *numeric(within), Column("95 %", "i"), Column("pairs", "i")]  # fmt: skip
    entries: list[tuple[object, Mapping[str, Any]]] = list(summary["graders"].items())
    if summary["reward"]["auc"]:
        entries.append((bold("reward"), summary["reward"]))
    entries += [
        (small(f"baseline: {name.replace('_', ' ')}"), figures)
        for name, figures in summary["baselines"].items()
    ]
    rows = []
    for label, figures in entries:
        inside = figures["concordance"]
        pairs = f"{inside['pairs']:,}" if inside else "0"
        rows.append([label, *_estimate_cells(figures["auc"]), *_estimate_cells(inside), pairs])
    return Table(columns, rows, keep=(pooled, within))


def _estimate_cells(figures: Mapping[str, Any] | None) -> tuple[str, str]:
    if figures is None:
        return "–", ""
    low, high = figures["low"], figures["high"]
    interval = "" if low is None or high is None else f"{low:.2f}-{high:.2f}"
    return f"{figures['value']:.3f}", interval


def _spread_cells(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    share = row["zero_spread_frac"]
    return (
        _number_cell(row["mean"]),
        _number_cell(row["std"]),
        _number_cell(row["within_group_std"]),
        "–" if share is None else f"{share:.0%}",
    )


def _number_cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".replace("-0.000", "0.000")


def _count_cell(count: int, total: int) -> Element | str:
    if not count:
        return "0"
    return lost(f"{count} ({count / total:.1%})")


def encode_row(row: GradedRow) -> bytes:
    """The line of ``rewards.jsonl``; without metadata of a user's grader that JSON cannot hold."""
    values = row.as_dict()
    try:
        return encode_json(values, str) + b"\n"
    except UNENCODABLE:
        values["details"] = {
            name: {key: value for key, value in said.items() if key != "metadata"}
            if isinstance(said, dict)
            else str(said)
            for name, said in values["details"].items()
        }
        return encode_json(values, str) + b"\n"
