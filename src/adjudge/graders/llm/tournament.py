"""Ranking a group by comparing its responses in pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.llm.bradley_terry import bradley_terry
from adjudge.graders.llm.candidate import Truncated
from adjudge.graders.llm.comparing import Comparison, Order, Orders, PairJudge
from adjudge.graders.llm.group import Group, group_of
from adjudge.graders.llm.several import curable, each, joined_failure, noted, spent
from adjudge.graders.llm.wording import Template
from adjudge.graders.rules.params import integer, number
from adjudge.graders.view import View
from adjudge.judges.base import ChatModel
from adjudge.prompts import LanguageEnum
from adjudge.types import GraderMode, GraderRank

__all__ = ["TournamentGrader", "pairings"]

_EQUAL = 1e-9
_AGAIN = 500_000
"""Added to a draw's number when a failed comparison is asked once more."""
_MOST = 64
_ORDERS: Mapping[str, tuple[Order, ...]] = {
    "both": ("as_given", "swapped"),
    "one": ("as_given",),
}


class TournamentGrader(PairJudge):
    """Ranks a group by comparing its responses in pairs: Bradley-Terry strengths, 1 is best.

    Fields are lists with one entry per response: ``response``, and what all answer: ``query``, else
    the conversation before the response in ``messages`` where all share it, else ``prompt``. Equal
    responses enter once and share their rank; those that are empty or never ended their thinking
    share the last one, uncompared.

    All pairs meet, or each response at least ``pairs_per_response`` others (≥ 2) in a balanced
    design drawn from ``seed``, the texts and the draw. ``orders = "both"`` asks about each pair in
    both orders, and a preference that does not survive the swap is half a win for each, as a tie
    is; with ``"one"`` every response stands first as often as second (save for one). ``prior``,
    strengths and errors: :func:`~adjudge.graders.llm.bradley_terry.bradley_terry`. Strengths within
    1e-9 share a rank.

    Failed comparisons are left out, and the ranking stands, when they are at most the share
    ``max_failed`` (default 0) of all, every response has been compared, and the others connect all
    responses; else the grader fails. A group of one, of more than ``max_group`` distinct responses
    (default 32, at most 64) and, under ``truncated = "mask"``, with a member that was cut is
    ``invalid_input``. When fewer than two distinct responses say something nobody is asked:
    equal ones tie. ``ties``, ``template``, ``view``, ``truncated``, ``verdict``: as for
    ``pairwise``.
    """

    type_name = "tournament"
    mode = GraderMode.LISTWISE

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        *,
        language: LanguageEnum | str = LanguageEnum.EN,
        orders: Orders = "both",
        pairs_per_response: int | None = None,
        max_group: int = 32,
        max_failed: float = 0.0,
        prior: float = 0.1,
        ties: bool = False,
        seed: int = 0,
        template: Template = None,
        view: View = "final",
        truncated: Truncated = "judge",
        verdict: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            model,
            name,
            mode=GraderMode.LISTWISE,
            language=language,
            orders=orders,
            ties=ties,
            seed=seed,
            template=template,
            view=view,
            truncated=truncated,
            verdict=verdict,
        )
        if pairs_per_response is not None:
            integer(self.name, "pairs_per_response", pairs_per_response, 2, _MOST)
        integer(self.name, "max_group", max_group, 2, _MOST)
        number(self.name, "max_failed", max_failed, 0, 1)
        number(self.name, "prior", prior, 0.001, 10)
        self.pairs_per_response, self.max_group = pairs_per_response, max_group
        self.max_failed, self.prior = max_failed, prior

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderRank:
        """Rank a group; see the class."""
        group = group_of(fields, self._showing, self.language, seed=self.seed, draw=draw)
        n = len(group.entrants.texts)
        if n > self.max_group:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT,
                f"{n} distinct responses, max_group is {self.max_group} (at most {_MOST})",
            )
        if n < 2:
            metadata = {"comparisons": 0}
            reason = "fewer than two distinct responses say something"
            return GraderRank(self.name, group.entrants.ranked([1.0] * n), reason, metadata)
        pairs = pairings(n, self.pairs_per_response)
        found = await each(self._matches(group, pairs, draw))
        again = [i for i, one in enumerate(found) if _curable(one)]
        if again:  # alone: all of a group's comparisons would hardly succeed together
            asked = self._matches(group, [pairs[i] for i in again], draw + _AGAIN)
            for i, one in zip(again, await each(asked), strict=True):
                found[i] = one
        played = _Played.of(pairs, found)
        if not played.suffice(n, self.max_failed):
            raise played.failure()
        return self._ranked(group, played)

    def _matches(self, group: Group, pairs: Sequence[tuple[int, int]], draw: int) -> Iterator[Any]:
        texts = group.entrants.texts
        for first, second in pairs:
            yield partial(
                self.compare,
                group.sample,
                texts[first],
                texts[second],
                orders=_ORDERS[self.orders],
                draw=draw,
                group=group.id,
            )

    def _ranked(self, group: Group, played: _Played) -> GraderRank:
        entrants = group.entrants
        fit = bradley_terry(played.wins(), len(entrants.texts), prior=self.prior)
        ranks = entrants.ranked(_places(fit.strengths))
        said = [one.consistent for _, one in played.compared if one.consistent is not None]
        metadata: dict[str, Any] = {
            "strengths": entrants.spread(fit.strengths),
            "errors": entrants.spread(fit.errors),
            "comparisons": len(played.compared),
            "failed": len(played.failed),
            "inconsistent": said.count(False) / len(said) if said else None,
            "pairs": played.pairs(entrants.places),
        }
        if played.failed:
            metadata["failures"] = [noted(failure) for failure in played.failed]
        provenance = spent([one.provenance for _, one in played.compared], played.failed)
        reason = f"Bradley-Terry strengths from {len(played.compared)} comparisons"
        return GraderRank(self.name, ranks, reason, metadata, provenance=provenance)


def _curable(one: Comparison | GradingFailure) -> bool:
    return isinstance(one, GradingFailure) and curable(one)


class _Played(NamedTuple):
    """What came of a tournament's pairs."""

    compared: list[tuple[tuple[int, int], Comparison]]
    failed: list[GradingFailure]

    @classmethod
    def of(
        cls, pairs: Sequence[tuple[int, int]], found: Sequence[Comparison | GradingFailure]
    ) -> _Played:
        both = list(zip(pairs, found, strict=True))
        return cls(
            [(pair, one) for pair, one in both if isinstance(one, Comparison)],
            [one for _, one in both if isinstance(one, GradingFailure)],
        )

    def suffice(self, n: int, max_failed: float) -> bool:
        """Whether few enough failed, and the others connect all ``n`` (so each was compared)."""
        asked = len(self.compared) + len(self.failed)
        return len(self.failed) <= max_failed * asked and _connected(
            [pair for pair, _ in self.compared], n
        )

    def failure(self) -> GradingFailure:
        """Why there is no ranking."""
        asked = len(self.compared) + len(self.failed)
        metadata = {
            "comparisons": len(self.compared),
            "failed": len(self.failed),
            "failures": [noted(failure) for failure in self.failed],
        }
        message = f"{len(self.failed)} of {asked} comparisons failed; the first: {self.failed[0]}"
        answered = [one.provenance for _, one in self.compared]
        return joined_failure(self.failed, message, metadata, answered=answered)

    def wins(self) -> dict[tuple[int, int], float]:
        """Wins by pair, ties halved."""
        won: dict[tuple[int, int], float] = {}
        for (first, second), one in self.compared:
            won[first, second] = one.score
            won[second, first] = 1.0 - one.score
        return won

    def pairs(self, places: Sequence[int | None]) -> list[dict[str, Any]]:
        """Every comparison, by the responses' places in the group (the first of equal ones)."""
        return [
            {
                "first": places.index(first),
                "second": places.index(second),
                "score": one.score,
                "verdicts": dict(one.verdicts),
            }
            for (first, second), one in self.compared
        ]


def pairings(n: int, meetings: int | None = None) -> list[tuple[int, int]]:
    """Who meets whom of ``n`` ≥ 2, first and second; all, or each at least ``meetings`` ≥ 2 others.

    A circulant design: on a circle everyone meets those at the same distances, 1 among them, so the
    design is regular (one meeting more where ``n`` and ``meetings`` are odd) and connected, and all
    stand first as often as second, save those opposite each other where ``n`` is even.

    >>> pairings(4)
    [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)]
    >>> pairings(5, 2)
    [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
    """
    half, opposite = (n - 1) // 2, n % 2 == 0
    distances = list(range(1, half + 1))
    if meetings is not None and meetings < n - 1:
        opposite = opposite and meetings % 2 == 1
        kept = meetings // 2 if opposite else (meetings + 1) // 2
        distances = [1 + place * half // kept for place in range(kept)]
    pairs = [(i, (i + distance) % n) for distance in distances for i in range(n)]
    return pairs + [(i, i + n // 2) for i in range(n // 2)] * opposite


def _connected(pairs: Sequence[tuple[int, int]], n: int) -> bool:
    near: dict[int, set[int]] = {i: set() for i in range(n)}
    for first, second in pairs:
        near[first].add(second)
        near[second].add(first)
    reached, waiting = {0}, [0]
    while waiting:
        new = near[waiting.pop()] - reached
        reached |= new
        waiting += new
    return len(reached) == n


def _places(strengths: Sequence[float]) -> list[float]:
    """1 + how many are stronger; a chain of strengths within 1e-9 of each other is equal."""
    order = sorted(range(len(strengths)), key=lambda i: -strengths[i])
    places = [1.0] * len(strengths)
    for place, (before, here) in enumerate(pairwise(order), 2):
        apart = strengths[before] - strengths[here] > _EQUAL
        places[here] = float(place) if apart else places[before]
    return places
