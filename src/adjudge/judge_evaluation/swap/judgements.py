"""What a swap study compares: samples with their features, judges' rewards, the tidy table.

Features are what an answer looks like, whatever it says: counts of its length and its format. The
study keeps a line per sample; the tidy table has a row per sample and judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from adjudge.files import write_table
from adjudge.rewards.groups import group_step

_BULLETS = ("- ", "* ", "+ ", "• ")
_DIGITS = "0123456789"
_MOST_DIGITS = 3


class TextFeatures(NamedTuple):
    """Counts of one answer.

    ``length``: characters. ``markdown``: headings, table rows and pairs of bold marks. ``lists``:
    lines that are items of a list. ``code``: pairs of fences and of single backticks.
    """

    length: int
    markdown: int
    lists: int
    code: int


TEXT_FEATURES = TextFeatures._fields


def compute_features(text: str) -> TextFeatures:
    r"""The counts of ``text``; linear in its length.

    >>> compute_features("# Plan\n- **one**\n2. `two`")
    TextFeatures(length=25, markdown=2, lists=2, code=1)
    """
    headings = items = 0
    for line in text.splitlines():
        begin = line.lstrip()
        headings += begin.startswith("|") or begin.lstrip("#")[:1] == " " != begin[:1]
        items += begin.startswith(_BULLETS) or _is_numbered(begin)
    fences = text.count("```") // 2
    ticks = (text.count("`") - 3 * text.count("```")) // 2
    return TextFeatures(len(text), headings + text.count("**") // 2, items, fences + ticks)


def _is_numbered(line: str) -> bool:
    """Whether a line begins with a number of up to three digits, a dot or bracket, a space."""
    rest = line[: _MOST_DIGITS + 2].lstrip(_DIGITS)
    return line[:1] in _DIGITS and line[:1] != "" and rest[:2] in (". ", ") ")


CriterionMarks = dict[str, float | None]
"""A rubric's marks of one sample: ``GRADER: CRITERION`` to true, false, a share, or null."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A sample without its texts.

    ``pair`` names one side of a benchmark's pair, with a digest of what was shown there.
    """

    index: int
    group: str
    step: int | None
    env_reward: float | None
    features: TextFeatures
    pair: tuple[str, str, str] | None = None
    digest: str = ""


@dataclass
class JudgeRewards:
    """One judge's rewards, in the order of the samples.

    ``rewards``: a number, or ``None``; then ``kinds`` says which kind of failure. ``marks``: what a
    rubric grader said of each criterion, where there is one. ``calls``: what it cost to ask.
    """

    name: str
    kind: str
    source: str
    rewards: list[float | None]
    kinds: list[str | None]
    marks: list[CriterionMarks] = field(default_factory=list)
    calls: Mapping[str, Any] | None = None

    @property
    def missing(self) -> dict[str, int]:
        """How many rewards are missing, by kind of failure."""
        return dict(Counter(kind for kind in self.kinds if kind is not None).most_common())


@dataclass
class SwapTable:
    """The samples of a study, and the judges' word on them."""

    samples: list[SampleRow]
    judges: list[JudgeRewards] = field(default_factory=list)

    @property
    def members(self) -> list[list[int]]:
        """The places of each group's samples, groups in the order of their first sample."""
        found: dict[str, list[int]] = {}
        for place, line in enumerate(self.samples):
            found.setdefault(line.group, []).append(place)
        return list(found.values())

    @property
    def pairs(self) -> list[tuple[JudgeRewards, JudgeRewards]]:
        """Every two judges, once."""
        return [(a, b) for at, a in enumerate(self.judges) for b in self.judges[at + 1 :]]

    def snap_ties(self) -> None:
        """Make rewards of a judge equal that differ, inside a group, by rounding alone."""
        for judge in self.judges:
            for group in self.members:
                rewards = group_step([judge.rewards[at] for at in group], "none")
                for at, reward in zip(group, rewards, strict=True):
                    judge.rewards[at] = reward


def read_criterion_marks(details: Any) -> CriterionMarks:
    """The marks of criteria in a result's ``details``; a failed rubric's partial marks count too.

    >>> metadata = {"criteria": {"c1": {"met": True}}}
    >>> read_criterion_marks({"style": {"score": 1.0, "metadata": metadata}})
    {'style: c1': True}
    """
    marks: CriterionMarks = {}
    if not isinstance(details, Mapping):
        return marks
    for grader, detail in details.items():
        metadata = detail.get("metadata") if isinstance(detail, Mapping) else None
        criteria = metadata.get("criteria") if isinstance(metadata, Mapping) else None
        if not isinstance(criteria, Mapping):
            continue
        for name, mark in criteria.items():
            if isinstance(mark, Mapping) and isinstance(
                mark.get("met", ...), bool | int | float | None
            ):
                marks[f"{grader}: {name}"] = mark["met"]
    return marks


_COLUMNS = {
    "index": "int64", "group": "string", "step": "int64", "judge": "string", "reward": "double",
    "missing": "string", "advantage": "double", "best": "bool",
    **dict.fromkeys(TEXT_FEATURES, "int64"), "env_reward": "double",
}  # fmt: skip


def iter_swap_rows(sheet: SwapTable) -> Iterator[dict[str, Any]]:
    """The rows, judge by judge in the order of the samples.

    ``reward`` is null where it is missing, and ``missing`` then the kind of failure. ``advantage``
    is (r − mean)/std over what this judge judged of the group; ``best``: none of the group has a
    higher reward; both null where the reward is.
    """
    members = sheet.members
    for judge in sheet.judges:
        advantages: list[float | None] = [None] * len(sheet.samples)
        best: list[bool | None] = [None] * len(sheet.samples)
        for group in members:
            rewards = [judge.rewards[at] for at in group]
            highest = max((one for one in rewards if one is not None), default=None)
            for at, own, reward in zip(group, group_step(rewards, "z_score"), rewards, strict=True):
                advantages[at] = own
                best[at] = None if reward is None else reward == highest
        for at, line in enumerate(sheet.samples):
            yield {
                "index": line.index,
                "group": line.group,
                "step": line.step,
                "judge": judge.name,
                "reward": judge.rewards[at],
                "missing": judge.kinds[at],
                "advantage": advantages[at],
                "best": best[at],
                **line.features._asdict(),
                "env_reward": line.env_reward,
            }


def write_swap_rows(folder: Path, sheet: SwapTable) -> Path:
    """Write ``rows.parquet`` where pyarrow is installed, else ``rows.jsonl``; the path written."""
    return write_table(folder, "rows", _COLUMNS, iter_swap_rows(sheet))
