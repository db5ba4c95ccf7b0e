"""The reply that rates every step of a trajectory, and the check against the steps there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from adjudge.errors import ErrorKind
from adjudge.graders.llm.forms import object_schema
from adjudge.prompts import LanguageEnum
from adjudge.verdicts import Scale, Unread, Verdict, number_in, reason_in, wrong_keys

__all__ = ["DIMENSIONS", "RATING_RANGE", "RatedStep", "StepForm"]

DIMENSIONS = ("contribution", "relevance", "accuracy", "efficiency")
"""What each step is rated on."""

RATING_RANGE = (1, 5)

_SCALE = Scale(*RATING_RANGE, integer=True)
_ANY = Scale(integer=True)
_LISTED = 40


class RatedStep(NamedTuple):
    """A step by the number of its turn, its four ratings (whole numbers from 1 to 5), and why."""

    step: int
    ratings: dict[str, int]
    reason: str

    @property
    def total(self) -> int:
        """The sum of the ratings."""
        return sum(self.ratings.values())


_RATING = {"type": "integer", "enum": list(range(RATING_RANGE[0], RATING_RANGE[1] + 1))}
_STEP = {
    "step": {"type": "integer"},
    "reason": {"type": "string"},
    **dict.fromkeys(DIMENSIONS, _RATING),
}
# The same for every trajectory, so that a server compiles it once.
_SCHEMA = object_schema(
    {"reason": {"type": "string"}, "steps": {"type": "array", "items": object_schema(_STEP)}}
)
_WORDS = {
    LanguageEnum.EN: (
        "<your view of the whole trajectory, in a few sentences>",
        "<number of the turn>",
        "<why, in one sentence>",
        "<integer from 1 to 5>",
        "one object for each step",
    ),
    LanguageEnum.ZH: (
        "<对整个轨迹的简要看法>",
        "<该轮的编号>",
        "<一句话理由>",
        "<1 到 5 之间的整数>",
        "每个步骤一个对象",
    ),
}


class StepForm:
    """``{"reason", "steps": [{"step", "reason", "contribution", …}, …]}``, each step once.

    One object serves one question: ``rated`` has those of the last reply's steps that exist, stand
    in it once and have all four ratings. When a reply rates steps that there are not, its numbering
    cannot be trusted, and there are none.
    """

    imposed = False
    schema: Mapping[str, Any] = _SCHEMA

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = list(steps)
        self.rated: list[RatedStep] = []

    def example(self, language: LanguageEnum) -> str:
        """See :class:`~adjudge.graders.llm.forms.Form`."""
        whole, number, reason, rating, each = _WORDS[language]
        rated = ", ".join(f'"{name}": {rating}' for name in DIMENSIONS)
        step = f'{{"step": {number}, "reason": "{reason}", {rated}}}'
        return f'{{"reason": "{whole}", "steps": [{step}, … <{each}>]}}'

    def verdict_of(self, found: dict[str, Any]) -> Verdict | Unread:
        """The :class:`RatedStep` of all steps as ``value``, in order.

        ``incomplete`` when steps are missing, rated twice or do not exist, or lack a rating;
        ``out_of_range`` when all that is wrong are ratings outside 1 to 5.
        """
        self.rated = []
        if (wrong := wrong_keys(found, "steps")) is not None:
            return wrong
        given = _numbered(found["steps"])
        if given is None:
            return Unread(why="its 'steps' is no list of objects with the number of a step each")
        times = Counter(number for number, _ in given)
        if times.keys() - set(self.steps):
            why = "it rates steps that are none; the steps are: " + _listed(self.steps)
            return Unread(why=why, kind=ErrorKind.INCOMPLETE)
        outside = self._rate({number: one for number, one in given if times[number] == 1})
        complaint = self._complaint([number for number in times if times[number] > 1], outside)
        return complaint or Verdict(
            value=self.rated, reason=reason_in(found), form="json", fields=found
        )

    def _rate(self, given: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """Fill ``rated``; the steps that have all ratings, but some outside the scale."""
        outside = []
        for step in self.steps:
            if step not in given:
                continue
            found = {name: number_in(given[step].get(name), _SCALE) for name in DIMENSIONS}
            ratings = {n: int(one) for n, one in found.items() if not isinstance(one, Unread)}
            kinds = {one.kind for one in found.values() if isinstance(one, Unread)}
            if ErrorKind.UNPARSABLE in kinds:
                continue
            if not kinds:
                reason = given[step].get("reason")
                self.rated.append(RatedStep(step, ratings, reason if type(reason) is str else ""))
            else:
                outside.append(step)
        return outside

    def _complaint(self, twice: list[int], outside: list[int]) -> Unread | None:
        if twice:
            why = "these steps are rated more than once: " + _listed(sorted(twice))
            return Unread(why=why, kind=ErrorKind.INCOMPLETE)
        rated = {one.step for one in self.rated}
        missing = [step for step in self.steps if step not in rated]
        if missing and missing == outside:
            why = "ratings that are no whole number from 1 to 5, in steps: " + _listed(missing)
            return Unread(why=why, kind=ErrorKind.OUT_OF_RANGE)
        if missing:
            why = "these steps lack a rating: " + _listed(missing)
            return Unread(why=why, kind=ErrorKind.INCOMPLETE)
        return None


def _numbered(steps: Any) -> list[tuple[int, Mapping[str, Any]]] | None:
    """The objects of a list with their step's number; ``None`` for anything else."""
    if not isinstance(steps, list):
        return None
    numbered = []
    for one in steps:
        number = number_in(one.get("step"), _ANY) if isinstance(one, Mapping) else None
        if not isinstance(number, float):
            return None
        numbered.append((int(number), one))
    return numbered


def _listed(steps: Sequence[int]) -> str:
    more = ", …" if len(steps) > _LISTED else ""
    return ", ".join(map(str, steps[:_LISTED])) + more
