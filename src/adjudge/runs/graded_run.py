"""What grading gave: a row a sample, the run in numbers, and both as a table and as a page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.report.elements import Element, Fragment, bold, paragraph
from adjudge.report.table import Column, Table, lost
from adjudge.rollouts.samples import BrokenInputRow
from adjudge.runs.report import ReportRow, ReportSeries, write_grading_report
from adjudge.types import GraderError, RewardResult

if TYPE_CHECKING:
    import pandas

_DEPTH = 20
_SHOWN_ROWS = 10


@dataclass(frozen=True, slots=True)
class GradedRow:
    """One sample: its place in the input, its group, and what it got."""

    index: int
    group: str
    result: RewardResult

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
            "group": self.group,
            "reward": result.score,
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
        write_grading_report(Path(path), self.summary, rows, series)
        return Path(path)

    def to_pandas(self) -> pandas.DataFrame:
        """A table with a row a sample: index, group, reward, missing (its kind), and each part.

        A missing reward is NaN, as pandas writes "none"; take ``reward.notna()`` before you count.
        """
        try:
            import pandas  # noqa: PLC0415  (no dependency of ours)
        except ModuleNotFoundError as error:
            raise ConfigError("to_pandas: needs pandas. Run: pip install pandas") from error
        return pandas.DataFrame(
            [
                {
                    "index": row.index,
                    "group": row.group,
                    "reward": math.nan if row.reward is None else row.reward,
                    "missing": None if row.missing is None else str(row.missing.kind),
                    **row.result.reward_info,
                }
                for row in self.rows
            ]
        )

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
        return str(Fragment(paragraph(repr(self)), score_table(self.summary), self._first_rows()))

    def _first_rows(self) -> Table:
        names = list(self.summary["graders"])
        rows = [
            [
                str(row.index),
                row.group,
                lost(str(row.missing.kind)) if row.missing else _number_cell(row.reward),
                *(_number_cell(row.scores.get(name)) for name in names),
            ]
            for row in self.rows[:_SHOWN_ROWS]
        ]
        more = len(self.rows) - len(rows)
        caption = f"The first {len(rows)} samples; {more:,} more are in rows." if more else None
        columns = ["index", "group", *(Column(name, "n") for name in ("reward", *names))]
        return Table(columns, rows, caption=caption)


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
    missing = _count_cell(reward["missing"], samples)
    rows.append([bold("reward"), "", *_spread_cells(reward), missing, ""])
    return Table(
        ["grader", Column("weight", "n"), *columns],
        rows,
        drop=("zero spread", "std in group", "std", "weight"),
        keep=("mean", "missing"),
    )


def _spread_cells(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    share = row["zero_spread_frac"]
    return (
        _number_cell(row["mean"]),
        _number_cell(row["std"]),
        _number_cell(row["within_group_std"]),
        "–" if share is None else f"{share:.0%}",
    )


def _number_cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _count_cell(count: int, total: int) -> Element | str:
    if not count:
        return "0"
    return lost(f"{count} ({count / total:.1%})")


_encoder = msgspec.json.Encoder(enc_hook=str)


def encode_row(row: GradedRow) -> bytes:
    """The line of ``rewards.jsonl``."""
    values = row.as_dict()
    try:
        return _encoder.encode(values) + b"\n"
    except (UnicodeEncodeError, TypeError, ValueError, RecursionError):
        # Metadata of a user's grader that JSON cannot hold, or a lone surrogate: as text.
        values["details"] = _json_safe(values["details"])
        return json.dumps(values).encode() + b"\n"


def _json_safe(value: Any, depth: int = 0) -> Any:
    """``value`` as JSON can hold it, whatever it is."""
    if isinstance(value, dict) and depth < _DEPTH:
        return {str(key): _json_safe(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple) and depth < _DEPTH:
        return [_json_safe(inner, depth + 1) for inner in value]
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return f"<{type(value).__name__}>"
