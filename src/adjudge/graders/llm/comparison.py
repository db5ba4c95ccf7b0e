"""Graders that compare responses: in pairs, in one order or both, or a whole group in a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.base import Between, view_text
from adjudge.graders.llm.candidate_view import (
    CandidateView,
    add_query,
    extract_query,
    get_group_name,
    is_blank,
    missing_field_failure,
    require_text_field,
)
from adjudge.graders.llm.judge_grader import (
    JudgeGrader,
    JudgeOutcome,
    TemplateInput,
    ask_all,
    describe_failure,
    join_failures,
    parse_ending,
    resolve_template,
    sum_costs,
    sum_provenance,
)
from adjudge.graders.llm.reply_forms import NO_RANKING, ChoiceForm, KeyForm, build_object_schema
from adjudge.judges.call_log import call_part
from adjudge.prompts import ChatMessage, LanguageEnum, PromptTemplate
from adjudge.prompts.fence import compute_tag
from adjudge.types import GraderError, GraderMode, GraderRank, GraderScore, Provenance
from adjudge.verdicts import (
    places_in,
)

OrderMode = Literal["both", "one"]
PairOrder = Literal["as_given", "swapped"]
"""Whether the first of two responses is shown first, or second."""

BOTH_ORDERS: tuple[PairOrder, ...] = ("as_given", "swapped")
"""The orders that a comparison is asked in, unless told otherwise."""

_OUTCOME = {
    "as_given": {"A": "win", "B": "loss", "tie": "tie"},
    "swapped": {"A": "loss", "B": "win", "tie": "tie"},
}
OUTCOME_SCORES = {"win": 1.0, "tie": 0.5, "loss": 0.0}
"""What each outcome is worth."""


class PairComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge says of two responses, seen from the first.

    ``verdicts``: ``win``, ``tie`` or ``loss`` by order. ``score``: 1, 0.5 or 0; verdicts that
    differ between the orders are 0.5, and ``consistent`` is false (``None`` for one order).
    """

    verdicts: Mapping[PairOrder, str]
    reasons: Mapping[PairOrder, str]
    provenance: Provenance
    notes: Mapping[str, Any] = {}

    @property
    def consistent(self) -> bool | None:
        """Whether both orders said the same."""
        return len(set(self.verdicts.values())) == 1 if len(self.verdicts) == 2 else None

    @property
    def score(self) -> float:
        """Of the first: 1 for a win, 0 for a loss, 0.5 for a tie or two orders that disagree."""
        return (
            0.5 if self.consistent is False else OUTCOME_SCORES[next(iter(self.verdicts.values()))]
        )


def check_against(against: str) -> None:
    """Refuse a name of no field for the other response; raises :class:`ConfigError`."""
    if against in ("", "response"):
        raise ConfigError(f"against: must name the field of the other response (found {against!r})")


@dataclass(eq=False, repr=False, kw_only=True)
class PairJudge(JudgeGrader):
    """Asks which of two responses is better; the base of pairwise and tournament.

    ``template``: an own question with ``{response_a}``, ``{response_b}`` and, as a rule,
    ``{query}``; other fields are the sample's. Without ``{reply_form}`` it words the reply itself
    ("[[B]]", "Verdict: Output (b)", ``{"winner": "A"}``); ``verdict`` may then say where the choice
    is: ``{"line": "Verdict:"}`` or ``{"tag": "verdict"}``. The rest: see the derived
    classes.
    """

    orders: OrderMode = "both"
    ties: bool = False
    seed: Annotated[int, Between(0)] = 0
    template: TemplateInput = None
    verdict: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.template = resolve_template(self.template, "pairwise", ("response_a", "response_b"))
        self.fingerprint = self.template.hash
        labels = ["A", "B", *(["tie"] if self.ties else [])]
        self._form = ChoiceForm(labels, ending=parse_ending(self.verdict, self.template))

    async def compare(
        self,
        sample: Mapping[str, Any],
        first: str,
        second: str,
        *,
        orders: tuple[PairOrder, ...] = BOTH_ORDERS,
        draw: int = 0,
        group: str | None = None,
    ) -> PairComparison:
        """Ask about ``first`` and ``second`` as answers to ``sample``, all ``orders`` at once.

        ``sample``: the template's other fields, and what ``query`` is taken from. Raises
        ``GradingFailure`` when an order has no verdict: of its kind where it may pass by itself,
        else ``incomplete``; metadata has the other verdict and the interval ``low`` to ``high``
        that the score must lie in.
        """
        values = add_query(sample, self.template)
        told = await ask_all(
            partial(self._ask_in_order, order, values, first, second, draw, group)
            for order in orders
        )
        answers = {
            o: one for o, one in zip(orders, told, strict=True) if isinstance(one, JudgeOutcome)
        }
        failed = {
            o: one for o, one in zip(orders, told, strict=True) if isinstance(one, GradingFailure)
        }
        verdicts = {order: _OUTCOME[order][one.verdict.value] for order, one in answers.items()}
        sources = [one.provenance for one in answers.values()]
        if failed:
            metadata = _partial_metadata(verdicts) | {
                "failures": {o: describe_failure(f) for o, f in failed.items()}
            }
            said = ", ".join(f"{order}: {failure}" for order, failure in failed.items())
            message = f"no verdict in {len(failed)} of {len(orders)} orders ({said})"
            raise join_failures(list(failed.values()), message, metadata, answered=sources)
        return PairComparison(
            verdicts=verdicts,
            reasons={order: one.verdict.reason for order, one in answers.items()},
            provenance=sources[0] if len(sources) == 1 else sum_provenance(sources),
            notes={name: value for one in answers.values() for name, value in one.notes.items()},
        )

    async def _ask_in_order(
        self,
        order: PairOrder,
        values: Mapping[str, Any],
        first: str,
        second: str,
        draw: int,
        group: str | None,
    ) -> JudgeOutcome:
        a, b = (first, second) if order == "as_given" else (second, first)
        shown = {**values, "response_a": a, "response_b": b}
        with call_part(order):
            return await self._ask(self.template, shown, self._form, draw=draw, group=group)

    def _has_content(self, text: str) -> bool:
        """Whether a response says anything: neither empty nor all thinking."""
        seen = view_text(text, self.view)
        return seen is not None and bool(seen.strip())


def _partial_metadata(verdicts: Mapping[PairOrder, str]) -> dict[str, Any]:
    """The verdicts there are, and where the score must lie: half of it hangs on each order."""
    low, high = 0.0, 1.0
    for verdict in verdicts.values():
        low, high = (0.5 if verdict != "loss" else 0.0), (0.5 if verdict != "win" else 1.0)
    return {"verdicts": dict(verdicts), "low": low, "high": high}


@dataclass(eq=False, repr=False, kw_only=True)
class PairwiseGrader(PairJudge):
    """Whether the response is better than another one, asked in both orders.

    Fields: ``response``, the other response in ``against``, and what they answer: ``query``, else
    the conversation before the response in ``messages``, else ``prompt``. 1: better; 0: worse; 0.5:
    a tie, or verdicts that follow the position (``outcome = "inconsistent"`` in the metadata; Zheng
    et al. 2023, arXiv 2306.05685).

    Equal texts are 0.5 and an empty or unended response loses, without a judge; an empty
    ``reference`` is ``invalid_input``. If one of two verdicts fails, the score is missing, with its
    interval in the metadata.

    Args:
        against: The field of the other response.
        orders: ``both``, or ``one``: one question in an order drawn from ``seed`` and the texts.
        ties: The judge may say that neither is better.
        seed: Of the order.
        template: Your wording, with ``{query}``, ``{response_a}`` and ``{response_b}``.
        verdict: Without ``{reply_form}``: where the choice is, such as ``{ line = "Verdict:" }``.

    >>> import asyncio
    >>> from adjudge.judges import ScriptedModel
    >>> grader = PairwiseGrader(ScriptedModel('{"better": "A"}'))
    >>> found = asyncio.run(grader.aevaluate(query="2 + 2?", response="4", reference="5"))
    >>> found.score, found.metadata["outcome"]
    (0.5, 'inconsistent')
    """

    type_name = "pairwise"
    score_range = (0.0, 1.0)
    against: str = "reference"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_against(self.against)

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderScore:
        """Compare ``response`` with the field ``against``; see the class."""
        response = require_text_field(fields, "response", "a comparison")
        other = require_text_field(fields, self.against, "a comparison")
        if self.against == "reference" and is_blank(other):  # a gap, not an answer of somebody
            raise missing_field_failure((self.against,), fields)
        shown = self._showing.render(fields, self.language)
        second = self._showing.render({"response": other}, self.language)
        if (
            shown is None
            or second is None
            or not (self._has_content(response) and self._has_content(other))
        ):
            return self._unsaid(said=self._has_content(response), other=self._has_content(other))
        ours, theirs = shown["response"], second["response"]
        if ours == theirs:
            metadata = {"outcome": "tie", "identical": True}
            return GraderScore(self.name, 0.5, "the two responses are the same text", metadata)
        compared = await self.compare(
            shown,
            ours,
            theirs,
            orders=BOTH_ORDERS if self.orders == "both" else (self._drawn(ours, theirs, draw),),
            draw=draw,
            group=get_group_name(fields),
        )
        return self._scored(compared)

    def _scored(self, compared: PairComparison) -> GraderScore:
        verdicts = compared.verdicts
        outcome = "inconsistent" if compared.consistent is False else next(iter(verdicts.values()))
        metadata = {
            "outcome": outcome,
            "verdicts": dict(verdicts),
            "consistent": compared.consistent,
            **compared.notes,
        }
        reason = "\n\n".join(f"[{o}] {why}" for o, why in compared.reasons.items() if why)
        return GraderScore(
            self.name, compared.score, reason, metadata, provenance=compared.provenance
        )

    def _unsaid(self, *, said: bool, other: bool) -> GraderScore:
        outcome = "tie" if said == other else "win" if said else "loss"
        if outcome == "loss":
            return self._candidate_fault("the response says nothing", outcome=outcome)
        reason = "the other says nothing" if said else "neither says anything"
        return GraderScore(self.name, OUTCOME_SCORES[outcome], reason, {"outcome": outcome})

    def _drawn(self, first: str, second: str, draw: int) -> PairOrder:
        """An order that does not depend on which of the two is called first."""
        key = str(self.seed).encode()
        one, other = compute_tag(key, first), compute_tag(key, second)
        return "as_given" if (one < other) == (draw % 2 == 0) else "swapped"


_T = TypeVar("_T")


class DistinctResponses(NamedTuple):
    """The distinct responses of a group that say something.

    ``texts`` are in an order drawn from a seed and the texts alone, so that it shows nothing of
    the group's order. ``places``: for each response of the group its place in ``texts``, ``None``
    for one that says nothing (it is empty, or never ended its thinking).
    """

    texts: list[str]
    places: list[int | None]

    def ranked(self, ranks: Sequence[float | None]) -> list[float | None]:
        """``ranks`` of the texts as ranks of the group, 1 is best; ``None`` stays ``None``.

        Equal responses share a rank; those that say nothing share the one below all others.
        """
        said = [rank for rank in self.spread(ranks) if rank is not None]
        places = [None if rank is None else 1.0 + sum(one < rank for one in said) for rank in ranks]
        return [1.0 + len(said) if place is None else places[place] for place in self.places]

    def spread(self, values: Sequence[_T]) -> list[_T | None]:
        """``values`` of the texts, for each response of the group."""
        return [None if place is None else values[place] for place in self.places]


class ResponseGroup(NamedTuple):
    """``sample``: the fields that all members share, the question among them; ``id``: its name."""

    sample: dict[str, Any]
    entrants: DistinctResponses
    id: str | None


def read_group(
    fields: Mapping[str, Any],
    showing: CandidateView,
    language: LanguageEnum,
    *,
    seed: int,
    draw: int,
) -> ResponseGroup:
    """The group in a listwise grader's fields, which are lists with one entry per response.

    ``response`` (or ``responses``) lists texts; a field that is no list of that length is shared by
    all. Raises ``GradingFailure(invalid_input)`` for a group of one, for a response that is no
    text, and for members with different prompts.
    """
    members = _members(fields)
    seen = [showing.render(member, language) for member in members]
    texts = [_visible_text(member, one, showing) for member, one in zip(members, seen, strict=True)]
    sample = {k: v for k, v in members[0].items() if all(one.get(k) == v for one in members)}
    sample["query"] = _shared_query(
        [one or member for one, member in zip(seen, members, strict=True)]
    )
    key = f"{seed}:{draw}".encode()
    distinct = {text for text in texts if text is not None}
    order = sorted(distinct, key=lambda text: (compute_tag(key, text), text))
    place_of = {text: place for place, text in enumerate(order)}
    places = [None if text is None else place_of[text] for text in texts]
    return ResponseGroup(sample, DistinctResponses(order, places), get_group_name(sample))


def _visible_text(
    member: Mapping[str, Any], seen: Mapping[str, Any] | None, showing: CandidateView
) -> str | None:
    """A response as the judge sees it; ``None`` when it says nothing."""
    if seen is None or is_blank(view_text(member["response"], showing.view)):
        return None
    response: str = seen["response"]
    return response


def _shared_query(members: Sequence[Mapping[str, Any]]) -> Any:
    """What all answer: the same query or conversation, else the same prompt; else no group."""
    first, *others = map(extract_query, members)
    if all(other == first for other in others):
        return first
    prompt, *prompts = (member.get("prompt") for member in members)
    if prompt is None or any(other != prompt for other in prompts):
        raise _invalid("the members of the group answer different prompts")
    return prompt


def _members(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One mapping of fields per response."""
    responses = fields.get("response", fields.get("responses"))
    if not isinstance(responses, list) or not all(isinstance(one, str) for one in responses):
        raise _invalid("a ranking needs a list of texts in 'response', one per member of the group")
    n = len(responses)
    if n < 2:
        raise _invalid("a lone response has nobody to be compared with")
    shared = {k: v for k, v in fields.items() if k not in ("response", "responses")}
    return [
        {
            **{k: v[i] if isinstance(v, list) and len(v) == n else v for k, v in shared.items()},
            "response": response,
        }
        for i, response in enumerate(responses)
    ]


def _invalid(message: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, message)


_MOST = 26
_ALL = "{responses}"


@dataclass(eq=False, repr=False, kw_only=True)
class ListwiseGrader(JudgeGrader):
    """Ranks the responses of a group in one call, 1 is best, ties as the judge gave them.

    Fields: ``response`` of each, and what all answer: ``query``, else the shared conversation
    before the response in ``messages``, else ``prompt``. The order is drawn from ``seed``, the
    texts and the draw. Equal responses are shown once; empty and unended ones share the last rank
    and are not shown. Fewer than two distinct responses with text tie without a judge. A group of
    one, and under ``truncated = "mask"`` one with a member that was cut, is ``invalid_input``.

    Where a reply has no ranking, the judge is asked again without a half of the responses. Where
    one of three or more makes it fail, that one has failed (a suspect) and the other responses are
    ranked.

    Args:
        max_group: The most distinct responses, at most 26; more are ``invalid_input``.
            ``tournament`` takes more.
        seed: Of the order.
        template: Your wording, with ``{query}`` and ``{responses}``.
    """

    type_name = "listwise"
    mode = GraderMode.LISTWISE

    max_group: Annotated[int, Between(2, _MOST)] = 8
    seed: Annotated[int, Between(0)] = 0
    template: TemplateInput = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.template = resolve_template(self.template, "listwise", ("responses",))
        self.fingerprint = self.template.hash
        self._templates = {n: _expanded(self.template, n) for n in range(2, self.max_group + 1)}

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderRank:
        """Rank a group; see the class."""
        group = read_group(fields, self._showing, self.language, seed=self.seed, draw=draw)
        n = len(group.entrants.texts)
        if n > self.max_group:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT,
                f"{n} distinct responses in one call, allowed are {self.max_group} (max_group); "
                "rank large groups with type = 'tournament'",
            )
        if n < 2:
            reason = "fewer than two distinct responses say something"
            return GraderRank(self.name, group.entrants.ranked([1.0] * n), reason)
        shown = list(range(n))
        blame: GraderError | None = None
        try:
            answer = await self._ask_about(group, shown, draw)
            cost: Provenance | None = answer.provenance
        except GradingFailure as failure:
            suspect, answer = await self._find_suspect(group, failure, draw)
            shown.remove(suspect)
            cost = failure.provenance
            blame = GraderError(self.name, failure.kind, str(failure), failure.metadata)
        ranks = dict(zip(shown, answer.verdict.value, strict=True))
        places = {one: place for place, one in enumerate(shown, 1)}
        return GraderRank(
            self.name,
            group.entrants.ranked([ranks.get(one) for one in range(n)]),
            answer.verdict.reason,
            {"shown_as": group.entrants.spread([*map(places.get, range(n))]), **answer.notes},
            provenance=cost,
            failure=blame,
        )

    async def _ask_about(
        self, group: ResponseGroup, shown: Sequence[int], draw: int
    ) -> JudgeOutcome:
        """The judge's ranking of some of the texts."""
        template = self._templates[len(shown)]
        texts = [group.entrants.texts[one] for one in shown]
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
        everyone = range(len(group.entrants.texts))
        suspects, answer = [*everyone], None
        while answer is None or len(suspects) > 1:
            if len(everyone) < 3 or not failure.suspect:
                raise failure
            parts = 2 if len(everyone) > 3 else len(suspects)  # two texts at least are shown
            asks = [tuple(suspects[i::parts]) for i in range(parts)]
            found = await ask_all(partial(self._ask_without, group, part, draw) for part in asks)
            ranked = {p: o for p, o in zip(asks, found, strict=True) if isinstance(o, JudgeOutcome)}
            failed = [one for one in found if isinstance(one, GradingFailure)]
            answered = [one.provenance for one in ranked.values()]
            failure.provenance = sum_costs(answered, [failure, *failed])
            if len(ranked) != 1 or not all(one.suspect for one in failed):
                raise failure
            ((part, answer),) = ranked.items()
            suspects = [*part]
        return suspects[0], answer

    async def _ask_without(
        self, group: ResponseGroup, left_out: Sequence[int], draw: int
    ) -> JudgeOutcome:
        places = group.entrants.places
        label = ", ".join(str(places.index(one) + 1) for one in left_out)
        with call_part(f"without {label}"):
            shown = [one for one in range(len(group.entrants.texts)) if one not in left_out]
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

    def value_of(self, given: Any) -> Any:
        """See :class:`~adjudge.graders.llm.reply_forms.KeyForm`."""
        named = isinstance(given, dict) and given.keys() == set(self._names)
        places = places_in([given[name] for name in self._names] if named else None, self.n)
        return NO_RANKING if places is None else places


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
