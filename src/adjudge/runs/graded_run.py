"""What grading gave: a row a sample, and the run in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from adjudge.files import UNENCODABLE
from adjudge.rollouts.samples import BrokenInputRow
from adjudge.runs.page_rows import ReportRow, ReportSeries
from adjudge.runs.summary import RewardedSample
from adjudge.text import encode_json
from adjudge.types import GraderError, RewardResult

_SHOWN_ROWS = 10


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
        from adjudge.runs.report.page import (  # noqa: PLC0415  (slow to load; few want a page)
            read_stories,
            write_grading_report,
        )

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
        from adjudge.runs.report.tables import (  # noqa: PLC0415  (few runs are shown)
            FirstSample,
            render_run,
        )

        first = [
            FirstSample(
                row.index,
                row.group,
                "" if row.missing is None else str(row.missing.kind),
                row.reward,
                row.scores,
            )
            for row in self.rows[:_SHOWN_ROWS]
        ]
        return render_run(repr(self), self.summary, first, len(self.rows))


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
