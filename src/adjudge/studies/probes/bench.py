"""Where probes put their questions and get their answers.

Every probe is one function that is run twice over the same bench: first to plan, when every answer
is ``None`` and the questions are written down (equal ones once), then to measure. So what is
asked and what is measured cannot come apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from adjudge.studies.probes.intervals import Row
from adjudge.studies.probes.items import Item, Topic
from adjudge.studies.probes.subject import Question, Subject
from adjudge.types import GraderError, GraderRank, GraderResult, GraderScore, finite_range

__all__ = ["Bench", "Shown"]


class Shown(NamedTuple):
    """One verdict on a pair in a known order: who stood first, and what the first of them got.

    ``given``: whether the pair was shown as it is named. ``score``: of the one named first, 1, 0.5
    or 0.
    """

    given: bool
    score: float


class Bench:
    """Questions to one subject about some topics, and its answers once there are any.

    ``repeats``: how often the answers are asked for that repeatability is measured on, and that
    shifts are measured against. ``family``: that of the judge's model, as items name it.
    """

    def __init__(
        self,
        subject: Subject,
        topics: Sequence[Topic],
        *,
        repeats: int = 3,
        seed: int = 0,
        family: str = "",
    ) -> None:
        self.subject, self.topics = subject, topics
        self.items = [topic.item for topic in topics]
        self.repeats, self.seed, self.family = repeats, seed, family
        self.questions: dict[Question, None] = {}
        self.answers: Mapping[Question, GraderResult] | None = None
        self.failed: dict[Question, str] = {}
        self._by_id = {item.id: item for item in self.items}
        self._by_id |= {topic.twin.id: topic.twin for topic in topics if topic.twin is not None}
        self._range = finite_range(getattr(subject.one, "score_range", None)) or (0.0, 1.0)
        self._cut: list[float | None] = []

    @property
    def planning(self) -> bool:
        """Whether nobody has been asked yet."""
        return self.answers is None

    def learn(self, answers: Mapping[Question, GraderResult]) -> None:
        """From now on, measure with these answers."""
        self.answers = answers
        self.begin()

    def begin(self) -> None:
        """Forget what another probe found missing."""
        self.failed, self._cut = {}, []

    @property
    def lost(self) -> dict[str, int]:
        """How many of the questions looked at had no answer, by kind of failure."""
        return dict(Counter(self.failed.values()))

    def item_of(self, question: Question) -> Item:
        """The item that a question is about."""
        return self._by_id[question.item]

    def take(self, question: Question) -> GraderResult | None:
        """The answer to a question; ``None`` when there is none, its kind kept in ``failed``."""
        if self.answers is None:
            self.questions[question] = None
            return None
        found = self.answers.get(question)
        if isinstance(found, GraderError):
            self.failed[question] = str(found.kind)
            return None
        return found

    def reference(self, item: Item) -> str:
        """The reference that goes with every question about an item, if any does."""
        return (item.reference or item.right) if self.subject.gives_reference else ""

    # --- one answer at a time -------------------------------------------------------------------

    def score(
        self, item: Item, response: str, draw: int = 0, reference: str | None = None
    ) -> float | None:
        """The raw score of a response."""
        given = self.reference(item) if reference is None else reference
        found = self.take(Question(item.id, response, reference=given, draw=draw))
        return found.score if isinstance(found, GraderScore) else None

    def draws(self, item: Item, response: str) -> list[float] | None:
        """The scores of a response over all repeats; ``None`` where one is missing."""
        found = [self.score(item, response, draw) for draw in range(self.repeats)]
        present = [one for one in found if one is not None]
        return present if len(present) == len(found) else None

    def spread(self, item: Item) -> Row:
        """Sum, sum of squares and number of the first scores of an item's own answers."""
        answers = dict.fromkeys((item.right, item.middling, item.wrong))
        scores = [s for one in answers if (s := self.score(item, one)) is not None]
        return (sum(scores), sum(s * s for s in scores), float(len(scores)))

    # --- one answer against another -------------------------------------------------------------

    def prefers(self, item: Item, one: str, other: str, draw: int = 0) -> float | None:
        """How far ``one`` is preferred to ``other``, both orders taken together, in [−1, 1]."""
        if self.subject.kind == "ranks":
            ways = [(one, other, 1.0), (other, one, -1.0)]
            found = [
                None if (p := self._pair(item, a, b, 2 * draw + place)) is None else sign * p
                for place, (a, b, sign) in enumerate(ways)
            ]
        elif self.subject.asks_both_orders:
            found = [self._pair(item, one, other, draw)]
        else:  # the next draw shows the other order
            found = [self._pair(item, one, other, 2 * draw + place) for place in (0, 1)]
        present = [p for p in found if p is not None]
        return fmean(present) if len(present) == len(found) else None

    def _pair(self, item: Item, one: str, other: str, draw: int) -> float | None:
        found = self.take(Question(item.id, one, other, self.reference(item), draw=draw))
        if isinstance(found, GraderScore):
            low, high = self._range
            return 2 * (found.score - low) / (high - low) - 1
        if isinstance(found, GraderRank) and (scores := found.as_scores()) is not None:
            return scores[0] - scores[1]
        return None

    def shown(self, item: Item, one: str, other: str) -> list[Shown] | None:
        """Verdicts on a pair in known orders, each order ``repeats`` times; ``None`` if any lacks.

        A ranking that draws its own order is asked as often, in whatever orders it draws.
        """
        found: list[Shown] = []
        both = self.subject.asks_both_orders
        for draw in range(self.repeats if both else 2 * self.repeats):
            swapped = self.subject.kind == "ranks" and draw % 2 == 1
            pair = (other, one) if swapped else (one, other)
            answer = self.take(Question(item.id, *pair, self.reference(item), draw=draw))
            found += self._in_order(answer, swapped=swapped)
        return found if len(found) == 2 * self.repeats else None

    def _in_order(self, answer: GraderResult | None, *, swapped: bool) -> list[Shown]:
        if isinstance(answer, GraderScore):
            verdicts = answer.metadata.get("verdicts", {})
            worth = {"win": 1.0, "tie": 0.5, "loss": 0.0}
            return [Shown(order == "as_given", worth[one]) for order, one in verdicts.items()]
        if not isinstance(answer, GraderRank) or (scores := answer.as_scores()) is None:
            return []
        given = not swapped
        if self.subject.tells_places:
            first, second = answer.metadata.get("shown_as", (1, 2))
            given = (first < second) != swapped
        return [Shown(given, scores[1] if swapped else scores[0])]

    # --- either ---------------------------------------------------------------------------------

    def shift(self, item: Item, base: str, changed: str) -> float | None:
        """What a change does: the difference of scores, or how far it is preferred to the base."""
        if self.subject.kind != "scores":
            return self.prefers(item, changed, base)
        before, after = self.draws(item, base), self.score(item, changed)
        # Differences first: the mean of equal scores may be off by rounding, which is no shift.
        return None if before is None or after is None else fmean(after - one for one in before)

    def accepts(self, item: Item, response: str) -> bool | None:
        """Whether a response passes for right.

        Its score is nearer to that of the right answers than of the wrong ones; or, where answers
        are compared, it is preferred to the right one.
        """
        if self.subject.kind != "scores":
            found = self.prefers(item, response, item.right)
            return None if found is None else found > 0
        score, cut = self.score(item, response), self.cut()
        return None if score is None or cut is None else score >= cut

    def cut(self) -> float | None:
        """Half-way between the mean scores of right and wrong answers; ``None`` if not in order."""
        if not self._cut:
            right = [self.score(item, item.right) for item in self.items]
            wrong = [self.score(item, item.wrong) for item in self.items]
            high = [one for one in right if one is not None]
            low = [one for one in wrong if one is not None]
            apart = bool(high and low) and fmean(high) > fmean(low)
            self._cut = [(fmean(high) + fmean(low)) / 2 if apart else None]
        return self._cut[0]
