"""Ranking a group by comparing its responses in pairs, with Bradley-Terry strengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.base import Between
from adjudge.graders.llm.comparison import (
    PairComparison,
    PairJudge,
    PairOrder,
    ResponseGroup,
    read_group,
)
from adjudge.graders.llm.judge_grader import ask_all, describe_failure, join_failures, sum_costs
from adjudge.judges.call_log import call_part
from adjudge.types import GraderError, GraderMode, GraderRank, Provenance

_CLOSE = 1e-12
_MOST_SWEEPS = 10_000


def fit_bradley_terry(
    wins: Mapping[tuple[int, int], float], n: int, *, prior: float = 0.1
) -> list[float]:
    """Strengths θ of ``n`` ≥ 1 players with P(i beats j) = σ(θᵢ − θⱼ): logits with mean 0.

    ``wins[i, j]`` ≥ 0: how often i beat j; a tie is half a win for each. Every player besides has
    ``prior`` wins and as many losses against one opponent that all share, so that θ is finite and
    unique for perfect records and unconnected players too; the smaller ``prior``, the closer to
    maximum likelihood. It favours no player: all results reversed give −θ.

    Maximised is Σ wᵢⱼ·log σ(θᵢ − θⱼ) (Bradley and Terry, 1952). A step sets the worth πᵢ = exp θᵢ
    to Σ wᵢⱼ·πⱼ/(πᵢ + πⱼ) ÷ Σ wⱼᵢ/(πᵢ + πⱼ), player after player (Newman, 2023, "Efficient
    computation of rankings from pairwise comparisons", JMLR 24). The half of such a step in θ is a
    minorisation-maximisation, as Hunter's (2004, Annals of Statistics 32), which needs many times
    more sweeps where records are nearly perfect. Raises ``ValueError`` for a ``prior`` that is not
    positive.

    >>> strong, weak = fit_bradley_terry({(0, 1): 3, (1, 0): 1}, 2, prior=1e-9)
    >>> round(strong - weak, 6) == round(math.log(3), 6)
    True
    """
    if not 0 < prior < math.inf:
        raise ValueError(f"prior must be positive and finite, got {prior!r}")
    won = [[(n, prior)] for _ in range(n)] + [[(i, prior) for i in range(n)]]
    lost = [list(one) for one in won]
    for (i, j), count in wins.items():
        won[i].append((j, count))
        lost[j].append((i, count))
    worth = [1.0] * (n + 1)  # the last is the opponent of all
    for _ in range(_MOST_SWEEPS):
        before = list(worth)
        for i, own in enumerate(before):
            up = sum(count * worth[j] / (own + worth[j]) for j, count in won[i])
            worth[i] = up / sum(count / (own + worth[j]) for j, count in lost[i])
        worth = [one / worth[n] for one in worth]
        if all(abs(one / old - 1) < _CLOSE for one, old in zip(worth, before, strict=True)):
            break
    strengths = [math.log(one) for one in worth[:n]]
    mean = math.fsum(strengths) / n
    return [one - mean for one in strengths]


_EQUAL = 1e-9
_MOST = 32
_ORDERS: Mapping[str, tuple[PairOrder, ...]] = {
    "both": ("as_given", "swapped"),
    "one": ("as_given",),
}


@dataclass(eq=False, repr=False, kw_only=True)
class TournamentGrader(PairJudge):
    """Ranks a group by comparing its responses in pairs: Bradley-Terry strengths, 1 is best.

    Fields: as for ``listwise``. Equal responses enter once; empty and unended ones share the last
    rank without a comparison. Each response meets all others, or ``pairs_per_response`` of them in
    a balanced design. A preference that does not survive the swap, and a tie, is half a win for
    each. Strengths within 1e-9 share a rank.

    Where comparisons failed, the grader fails; but where all of them have one response in common,
    that one has failed (a suspect), and the others are ranked. A group of one, and more than 32
    distinct responses, are ``invalid_input``.

    Args:
        orders: ``both`` orders of each pair, or ``one``: each response is first as often as second.
        pairs_per_response: How many others each response meets, at least 2; by default all.
        ties: The judge may say that neither is better.
        seed: Of the pairs and orders.
        template: As in ``pairwise``.
        verdict: As in ``pairwise``.
    """

    type_name = "tournament"
    mode = GraderMode.LISTWISE

    pairs_per_response: Annotated[int | None, Between(2, _MOST)] = None

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderRank:
        """Rank a group; see the class."""
        group = read_group(fields, self._showing, self.language, seed=self.seed, draw=draw)
        n = len(group.entrants.texts)
        if n > _MOST:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT, f"{n} distinct responses, at most {_MOST} are compared"
            )
        if n < 2:
            metadata = {"comparisons": 0}
            reason = "fewer than two distinct responses say something"
            return GraderRank(self.name, group.entrants.ranked([1.0] * n), reason, metadata)
        pairs = schedule_pairs(n, self.pairs_per_response)
        found = await ask_all(self._matches(group, pairs, draw))
        played = _Played.of(pairs, found)
        suspect = played.find_suspect() if played.failed else None
        if played.failed and suspect is None:
            raise played.failure()
        return self._ranked(group, played, suspect)

    def _matches(
        self, group: ResponseGroup, pairs: Sequence[tuple[int, int]], draw: int
    ) -> Iterator[Any]:
        texts = group.entrants.texts
        places = group.entrants.places
        for first, second in pairs:
            yield partial(
                self._match,
                f"{places.index(first) + 1} against {places.index(second) + 1}",
                group.sample,
                texts[first],
                texts[second],
                orders=_ORDERS[self.orders],
                draw=draw,
                group=group.id,
            )

    async def _match(self, label: str, *pair: Any, **options: Any) -> PairComparison:
        with call_part(label):
            return await self.compare(*pair, **options)

    def _ranked(self, group: ResponseGroup, played: _Played, suspect: int | None) -> GraderRank:
        entrants = group.entrants
        ranked = [i for i in range(len(entrants.texts)) if i != suspect]
        rest = played.among(ranked)
        strengths = fit_bradley_terry(rest.wins(ranked), len(ranked))
        places = dict(zip(ranked, _places(strengths), strict=True))
        strength_of = dict(zip(ranked, strengths, strict=True))
        said = [one.consistent for _, one in rest.compared if one.consistent is not None]
        metadata: dict[str, Any] = {
            "strengths": entrants.spread([*map(strength_of.get, range(len(entrants.texts)))]),
            "comparisons": len(rest.compared),
            "failed": len(played.failed),
            "inconsistent": said.count(False) / len(said) if said else None,
            "pairs": rest.pairs(entrants.places),
        }
        if played.failed:
            metadata["failures"] = [describe_failure(failure) for _, failure in played.failed]
        return GraderRank(
            self.name,
            entrants.ranked([*map(places.get, range(len(entrants.texts)))]),
            f"Bradley-Terry strengths from {len(rest.compared)} comparisons",
            metadata,
            provenance=played.cost(),
            failure=None if suspect is None else self._blame(played, suspect),
        )

    def _blame(self, played: _Played, suspect: int) -> GraderError:
        """Why the one response that all failed comparisons have in common has no rank."""
        own = [(pair, one) for pair, one in played.compared if suspect in pair]
        failure = _Played(own, played.failed).failure()
        return GraderError(self.name, failure.kind, f"of this response {failure}", failure.metadata)


class _Played(NamedTuple):
    """What came of a tournament's pairs."""

    compared: list[tuple[tuple[int, int], PairComparison]]
    failed: list[tuple[tuple[int, int], GradingFailure]]

    @classmethod
    def of(
        cls, pairs: Sequence[tuple[int, int]], found: Sequence[PairComparison | GradingFailure]
    ) -> _Played:
        both = list(zip(pairs, found, strict=True))
        return cls(
            [(pair, one) for pair, one in both if isinstance(one, PairComparison)],
            [(pair, one) for pair, one in both if isinstance(one, GradingFailure)],
        )

    def find_suspect(self) -> int | None:
        """The one response that all failed comparisons have in common; of one pair neither.

        Failures that may pass by themselves, or that no answer can bring about, blame no response.
        """
        common = set.intersection(*(set(pair) for pair, _ in self.failed))
        blames = len(common) == 1 and all(failure.suspect for _, failure in self.failed)
        return common.pop() if blames else None

    def among(self, ranked: Sequence[int]) -> _Played:
        """The comparisons of these responses with each other."""
        both = [(pair, one) for pair, one in self.compared if set(pair) <= set(ranked)]
        return _Played(both, [])

    def failure(self) -> GradingFailure:
        """Why there is no ranking."""
        failures = [failure for _, failure in self.failed]
        asked = len(self.compared) + len(failures)
        metadata = {
            "comparisons": len(self.compared),
            "failed": len(failures),
            "failures": [describe_failure(failure) for failure in failures],
        }
        message = f"{len(failures)} of {asked} comparisons failed; the first: {failures[0]}"
        answered = [one.provenance for _, one in self.compared]
        return join_failures(failures, message, metadata, answered=answered)

    def cost(self) -> Provenance | None:
        """What all comparisons cost."""
        return sum_costs(
            [one.provenance for _, one in self.compared], [failure for _, failure in self.failed]
        )

    def wins(self, ranked: Sequence[int]) -> dict[tuple[int, int], float]:
        """Wins by pair, ties halved; a response's number is its place in ``ranked``."""
        won: dict[tuple[int, int], float] = {}
        for pair, one in self.compared:
            first, second = map(ranked.index, pair)
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


def schedule_pairs(n: int, meetings: int | None = None) -> list[tuple[int, int]]:
    """Who meets whom of ``n`` ≥ 2, first and second; all, or each at least ``meetings`` ≥ 2 others.

    A circulant design: on a circle everyone meets those at the same distances, 1 among them, so the
    design is regular (one meeting more where ``n`` and ``meetings`` are odd) and connected, and all
    come first as often as second, save those opposite each other where ``n`` is even.

    >>> schedule_pairs(4)
    [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)]
    >>> schedule_pairs(5, 2)
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


def _places(strengths: Sequence[float]) -> list[float]:
    """1 + how many are stronger; a chain of strengths within 1e-9 of each other is equal."""
    order = sorted(range(len(strengths)), key=lambda i: -strengths[i])
    places = [1.0] * len(strengths)
    for place, (before, here) in enumerate(pairwise(order), 2):
        apart = strengths[before] - strengths[here] > _EQUAL
        places[here] = float(place) if apart else places[before]
    return places
