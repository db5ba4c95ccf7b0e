"""Graders that rank a group: by one question, or by pairs with Bradley-Terry strengths."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar, NamedTuple, TypeVar

from adjudge.errors import ConfigError, Fields, GradingFailure, InvalidInput, Metadata
from adjudge.graders.llm.comparison import BOTH_ORDERS, PairComparison, PairJudge
from adjudge.graders.llm.judge_grader import (
    CandidateView,
    JudgeGrader,
    JudgeOutcome,
    get_group_name,
)
from adjudge.graders.llm.question import TemplateInput, add_query, extract_query, resolve_template
from adjudge.graders.llm.reply_forms import KeyForm, build_object_schema
from adjudge.judges.asking import ask_all, call_part, describe_failure, join_failures, sum_costs
from adjudge.prompts import ChatMessage, LanguageEnum, PromptTemplate, compute_tag
from adjudge.types import GraderError, GraderMode, GraderRank, Provenance
from adjudge.verdicts import UnreadableReply
from adjudge.verdicts.strict import places_in

_T = TypeVar("_T")


class ResponseGroup(NamedTuple):
    """A group's distinct responses that say something.

    ``sample``: the fields that all members share, the question among them; ``id``: the group's
    name. ``texts`` are in an order drawn from the texts alone, so that it shows nothing of the
    group's order. ``places``: for each response of the group its place in ``texts``, ``None``
    for one that says nothing (it is empty, or never ended its thinking).
    """

    sample: Metadata
    id: str | None
    texts: list[str]
    places: list[int | None]

    def ranked(self, ranks: Mapping[int, float]) -> list[float | None]:
        """``ranks`` of the texts as ranks of the group, 1 is best; ``None`` where a text has none.

        Equal responses share a rank; those that say nothing share the one below all others.
        """
        said = [rank for rank in self.spread(ranks) if rank is not None]
        places = {text: 1.0 + sum(one < rank for one in said) for text, rank in ranks.items()}
        return [1.0 + len(said) if one is None else places.get(one) for one in self.places]

    def spread(self, values: Mapping[int, _T]) -> list[_T | None]:
        """``values`` by text, for each response of the group."""
        return [None if place is None else values.get(place) for place in self.places]


def read_group(fields: Fields, showing: CandidateView, draw: int) -> ResponseGroup:
    """The group in a listwise grader's fields, which are lists with one entry per response.

    ``response`` (or ``responses``) lists texts; a field that is no list of that length is shared by
    all. Raises ``GradingFailure(invalid_input)`` for a group of one, for a response that is no
    text, and for members with different prompts.
    """
    members = _members(fields)
    seen = [showing.render(member) for member in members]
    texts: list[str | None] = []
    for member, one in zip(members, seen, strict=True):
        unsaid = one is None or showing.find_unsaid(member["response"])
        texts.append(None if one is None or unsaid else one["response"])
    sample = {k: v for k, v in members[0].items() if all(one.get(k) == v for one in members)}
    sample["query"] = _shared_query([a or b for a, b in zip(seen, members, strict=True)])
    key = f"0:{draw}".encode()
    distinct = {text for text in texts if text is not None}
    order = sorted(distinct, key=lambda text: (compute_tag(key, text), text))
    place_of = {text: place for place, text in enumerate(order)}
    places = [None if text is None else place_of[text] for text in texts]
    return ResponseGroup(sample, get_group_name(sample), order, places)


def _shared_query(members: Sequence[Fields]) -> object:
    """What all answer: the same query or conversation, else the same prompt; else no group."""
    first, *others = map(extract_query, members)
    if all(other == first for other in others):
        return first
    prompt, *prompts = (member.get("prompt") for member in members)
    if prompt is None or any(other != prompt for other in prompts):
        raise InvalidInput("the members of the group answer different prompts")
    return prompt


def _members(fields: Fields) -> list[Metadata]:
    """One mapping of fields per response."""
    responses = fields.get("response", fields.get("responses"))
    if not isinstance(responses, list) or not all(isinstance(one, str) for one in responses):
        raise InvalidInput(
            "a ranking needs a list of texts in 'response', one a member of the group"
        )
    n = len(responses)
    if n < 2:
        raise InvalidInput("a lone response has nobody to be compared with")
    shared = {k: v for k, v in fields.items() if k not in ("response", "responses")}
    return [
        {
            **{k: v[i] if isinstance(v, list) and len(v) == n else v for k, v in shared.items()},
            "response": response,
        }
        for i, response in enumerate(responses)
    ]


class _GroupGrader(JudgeGrader):
    """Ranks a group; derive, say how many are ranked at most, and write :meth:`_rank`."""

    mode = GraderMode.LISTWISE
    most: ClassVar[int]
    beyond: ClassVar[str] = ""
    """What to do about a larger group."""

    async def aevaluate(self, draw: int = 0, **fields: object) -> GraderRank:
        """Rank a group; see the class."""
        group = read_group(fields, self._showing, draw)
        n = len(group.texts)
        if n > self.most:
            raise InvalidInput(f"{n} distinct responses; at most {self.most} go{self.beyond}")
        if n < 2:
            reason = "fewer than two distinct responses say something"
            return GraderRank(self.name, group.ranked({0: 1.0}), reason)
        return await self._rank(group, draw)

    @abstractmethod
    async def _rank(self, group: ResponseGroup, draw: int) -> GraderRank:
        """The ranks of a group with two or more distinct responses."""


_ALL = "{responses}"


@dataclass(eq=False, repr=False, kw_only=True)
class ListwiseGrader(_GroupGrader):
    """Ranks the responses of a group in one call, 1 is best, ties as the judge gave them.

    Fields: ``response`` of each, and what all answer: ``query``, else the shared conversation
    before the response in ``messages``, else ``prompt``. The order is drawn from the texts and the
    draw. Equal responses are shown once; empty and unended ones share the last rank and are not
    shown. Fewer than two distinct responses with text tie without a judge. A group of one, one of
    more than 8 distinct responses (``tournament`` takes more), and under ``truncated = "mask"`` one
    with a member that was cut, is ``invalid_input``.

    Where a reply has no ranking, the judge is asked again without a half of the responses. Where
    one of three or more makes it fail, that one has failed (a suspect) and the other responses are
    ranked.

    Args:
        template: Your wording, with ``{query}`` and ``{responses}``.
    """

    type_name = "listwise"
    most = 8
    beyond = "; rank large groups with type = 'tournament'"

    template: TemplateInput = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.template = resolve_template(self.template, "listwise", ("responses",))
        self.fingerprint = self.template.hash
        self._templates = {n: _expanded(self.template, n) for n in range(2, self.most + 1)}

    async def _rank(self, group: ResponseGroup, draw: int) -> GraderRank:
        shown = list(range(len(group.texts)))
        blame: GraderError | None = None
        try:
            answer = await self._ask_about(group, shown, draw)
            cost: Provenance | None = answer.provenance
        except GradingFailure as failure:
            suspect, answer = await self._find_suspect(group, failure, draw)
            shown.remove(suspect)
            cost = failure.provenance
            blame = GraderError(self.name, failure.kind, str(failure), failure.metadata)
        places = {one: place for place, one in enumerate(shown, 1)}
        metadata = {"shown_as": group.spread(places), **answer.notes}
        ranks = group.ranked(dict(zip(shown, answer.verdict.value, strict=True)))
        reason = answer.verdict.reason
        return GraderRank(self.name, ranks, reason, metadata, provenance=cost, failure=blame)

    async def _ask_about(
        self, group: ResponseGroup, shown: Sequence[int], draw: int
    ) -> JudgeOutcome:
        """The judge's ranking of some of the texts."""
        template = self._templates[len(shown)]
        texts = [group.texts[one] for one in shown]
        values = add_query(group.sample, template)
        values |= {f"response_{number}": text for number, text in enumerate(texts, 1)}
        form = _PlacesForm(len(shown))
        return await self._ask(template, values, form, draw=draw, group=group.id)

    async def _find_suspect(
        self, group: ResponseGroup, failure: GradingFailure, draw: int
    ) -> tuple[int, JudgeOutcome]:
        """The one text that makes the judge fail, and the ranking without it.

        Asks without one half of those who may be it and without the other, and goes on where just
        one of the two works. ``failure`` gets what all asks cost, and is raised where that is not
        so, for a pair, and where no answer can have brought it about.
        """
        everyone = range(len(group.texts))
        suspects, answer = [*everyone], None
        while answer is None or len(suspects) > 1:
            if len(everyone) < 3 or not failure.suspect:
                raise failure
            parts = 2 if len(everyone) > 3 else len(suspects)  # two texts at least are shown
            asks = [tuple(suspects[i::parts]) for i in range(parts)]
            ranked, failed = await ask_all(partial(self._ask_without, group, draw), asks)
            answered = [one.provenance for one in ranked.values()]
            failure.provenance = sum_costs(answered, [failure, *failed.values()])
            if len(ranked) != 1 or not all(one.suspect for one in failed.values()):
                raise failure
            ((part, answer),) = ranked.items()
            suspects = [*part]
        return suspects[0], answer

    async def _ask_without(
        self, group: ResponseGroup, draw: int, left_out: Sequence[int]
    ) -> JudgeOutcome:
        places = group.places
        label = ", ".join(str(places.index(one) + 1) for one in left_out)
        with call_part(f"without {label}"):
            shown = [one for one in range(len(group.texts)) if one not in left_out]
            return await self._ask_about(group, shown, draw)


class _PlacesForm(KeyForm):
    """``{"reason", "places": {"response_1": place, …}}``.

    Places by number, since a bare list could mean places as well as numbers from best to worst.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._names = [f"response_{number}" for number in range(1, n + 1)]
        place = {"type": "integer", "enum": list(range(1, n + 1))}
        super().__init__("places", build_object_schema(dict.fromkeys(self._names, place)))

    def placeholder(self, language: LanguageEnum) -> str:
        """See :class:`~adjudge.graders.llm.reply_forms.KeyForm`."""
        english = language is LanguageEnum.EN
        place = f"<place from 1 to {self.n}>" if english else f"<1 到 {self.n} 的名次>"
        return "{" + ", ".join(f'"{name}": {place}' for name in self._names) + "}"

    def value_of(self, given: object) -> object:
        """See :class:`~adjudge.graders.llm.reply_forms.KeyForm`."""
        named = given if isinstance(given, dict) and given.keys() == set(self._names) else {}
        places = places_in([named[name] for name in self._names if named], self.n)
        return places or UnreadableReply(why="the place for the ranking holds none")


def _expanded(template: PromptTemplate, n: int) -> PromptTemplate:
    """``template`` with one fenced field per response in place of ``{responses}``."""
    fields = "\n\n".join(f"{{response_{number}}}" for number in range(1, n + 1))

    def filled(message: ChatMessage) -> ChatMessage:
        if not isinstance(message.content, str):
            raise ConfigError(
                "template: the messages of a ranking must be texts, not content parts"
            )
        return ChatMessage(message.role, message.content.replace(_ALL, fields), message.name)

    messages = {lang: [filled(m) for m in given] for lang, given in template.messages.items()}
    return PromptTemplate(messages, trusted=template.trusted)


_Pair = tuple[int, int]
_PRIOR = 0.1
_CLOSE = 1e-12
_MOST_SWEEPS = 10_000


def fit_bradley_terry(wins: Mapping[_Pair, float], n: int) -> list[float]:
    """Strengths θ of ``n`` ≥ 1 players with P(i beats j) = σ(θᵢ − θⱼ): logits with mean 0.

    ``wins[i, j]`` ≥ 0: how often i beat j; a tie is half a win for each. Every player besides has
    0.1 wins and as many losses against one opponent that all share, so that θ is finite and unique
    for perfect records and unconnected players too. It favours no player: all results reversed give
    −θ.

    Maximised is Σ wᵢⱼ·log σ(θᵢ − θⱼ) (Bradley and Terry, 1952). A step sets the worth πᵢ = exp θᵢ
    to Σ wᵢⱼ·πⱼ/(πᵢ + πⱼ) ÷ Σ wⱼᵢ/(πᵢ + πⱼ), player after player (Newman, 2023, "Efficient
    computation of rankings from pairwise comparisons", JMLR 24). The half of such a step in θ is a
    minorisation-maximisation, as Hunter's (2004, Annals of Statistics 32), which needs many times
    more sweeps where records are nearly perfect.

    >>> [round(one, 2) for one in fit_bradley_terry({(0, 1): 3, (1, 0): 1}, 2)]
    [0.53, -0.53]
    """
    won = [[(n, _PRIOR)] for _ in range(n)] + [[(i, _PRIOR) for i in range(n)]]
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


@dataclass(eq=False, repr=False, kw_only=True)
class TournamentGrader(_GroupGrader, PairJudge):
    """Ranks a group by comparing its responses in pairs: Bradley-Terry strengths, 1 is best.

    Fields: as for ``listwise``. Equal responses enter once; empty and unended ones share the last
    rank without a comparison. Each response meets all others. A preference that does not survive
    the swap, and a tie, is half a win for each. Strengths within 1e-9 share a rank.

    Where comparisons failed, the grader fails; but where all of them have one response in common,
    that one has failed (a suspect), and the others are ranked. A group of one, and more than 32
    distinct responses, are ``invalid_input``.

    Args:
        orders: ``both`` orders of each pair, or ``one``: each response is first as often as second.
        ties: The judge may say that neither is better.
        template: As in ``pairwise``.
        verdict: As in ``pairwise``.
    """

    type_name = "tournament"
    most = 32

    async def _rank(self, group: ResponseGroup, draw: int) -> GraderRank:
        pairs = schedule_pairs(len(group.texts))
        compared, failed = await ask_all(partial(self._match, group, draw), pairs)
        suspect = _find_suspect(failed)
        if failed and suspect is None:
            raise _tournament_failure(compared, failed)
        return self._ranked(group, compared, failed, suspect)

    async def _match(self, group: ResponseGroup, draw: int, pair: _Pair) -> PairComparison:
        first, second = (group.texts[one] for one in pair)
        one, other = (group.places.index(place) + 1 for place in pair)
        with call_part(f"{one} against {other}"):
            orders = BOTH_ORDERS if self.orders == "both" else BOTH_ORDERS[:1]
            return await self.compare(
                group.sample, first, second, orders=orders, draw=draw, group=group.id
            )

    def _ranked(
        self,
        group: ResponseGroup,
        compared: Mapping[_Pair, PairComparison],
        failed: Mapping[_Pair, GradingFailure],
        suspect: int | None,
    ) -> GraderRank:
        ranked = [i for i in range(len(group.texts)) if i != suspect]
        rest = {pair: one for pair, one in compared.items() if suspect not in pair}
        fitted = fit_bradley_terry(_count_wins(rest, ranked), len(ranked))
        said = [one.consistent for one in rest.values() if one.consistent is not None]
        metadata: Metadata = {
            "strengths": group.spread(dict(zip(ranked, fitted, strict=True))),
            "comparisons": len(rest),
            "failed": len(failed),
            "inconsistent": said.count(False) / len(said) if said else None,
            "pairs": [
                {
                    "first": group.places.index(first),
                    "second": group.places.index(second),
                    "score": one.score,
                    "verdicts": dict(one.verdicts),
                }
                for (first, second), one in rest.items()
            ],
        }
        blame: GraderError | None = None
        if suspect is not None:
            metadata["failures"] = [describe_failure(failure) for failure in failed.values()]
            own = {pair: one for pair, one in compared.items() if suspect in pair}
            why = _tournament_failure(own, failed)
            blame = GraderError(self.name, why.kind, f"of this response {why}", why.metadata)
        return GraderRank(
            self.name,
            group.ranked(dict(zip(ranked, _places(fitted), strict=True))),
            f"Bradley-Terry strengths from {len(rest)} comparisons",
            metadata,
            provenance=sum_costs([one.provenance for one in compared.values()], failed.values()),
            failure=blame,
        )


def _find_suspect(failed: Mapping[_Pair, GradingFailure]) -> int | None:
    """The one response that all failed comparisons have in common; of one pair neither.

    Failures that may pass by themselves, or that no answer can bring about, blame no response.
    """
    common = set(next(iter(failed), ())).intersection(*failed)
    blames = len(common) == 1 and all(failure.suspect for failure in failed.values())
    return common.pop() if blames else None


def _tournament_failure(
    compared: Mapping[_Pair, PairComparison], failed: Mapping[_Pair, GradingFailure]
) -> GradingFailure:
    """Why there is no ranking."""
    failures = list(failed.values())
    metadata = {
        "comparisons": len(compared),
        "failed": len(failures),
        "failures": [describe_failure(failure) for failure in failures],
    }
    asked = len(compared) + len(failures)
    message = f"{len(failures)} of {asked} comparisons failed; the first: {failures[0]}"
    answered = [one.provenance for one in compared.values()]
    return join_failures(failures, message, metadata, answered=answered)


def _count_wins(
    compared: Mapping[_Pair, PairComparison], ranked: Sequence[int]
) -> dict[_Pair, float]:
    """Wins by pair, ties halved; a response's number is its place in ``ranked``."""
    won: dict[_Pair, float] = {}
    for pair, one in compared.items():
        first, second = map(ranked.index, pair)
        won[first, second] = one.score
        won[second, first] = 1.0 - one.score
    return won


def schedule_pairs(n: int) -> list[_Pair]:
    """Who meets whom of ``n`` ≥ 2, first and second.

    On a circle everyone meets those at each distance, so all come first as often as second, save
    those opposite each other where ``n`` is even.

    >>> schedule_pairs(4)
    [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)]
    """
    distances = range(1, (n - 1) // 2 + 1)
    pairs = [(i, (i + distance) % n) for distance in distances for i in range(n)]
    return pairs + [(i, i + n // 2) for i in range(n // 2)] * (n % 2 == 0)


def _places(strengths: Sequence[float]) -> list[float]:
    """1 + how many are stronger; a chain of strengths within 1e-9 of each other is equal."""
    order = sorted(range(len(strengths)), key=lambda i: -strengths[i])
    places = [1.0] * len(strengths)
    for place, (before, here) in enumerate(pairwise(order), 2):
        apart = strengths[before] - strengths[here] > _EQUAL
        places[here] = float(place) if apart else places[before]
    return places
