"""Whether one response is better than another, asked in one order or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from adjudge.errors import ConfigError, Fields, Metadata
from adjudge.graders.llm.judge_grader import JudgeGrader, JudgeOutcome, get_group_name
from adjudge.graders.llm.question import (
    TemplateInput,
    add_query,
    is_blank,
    missing_field_failure,
    parse_ending,
    require_text_field,
    resolve_template,
)
from adjudge.graders.llm.reply_forms import ChoiceForm
from adjudge.judges.asking import (
    ask_all,
    call_part,
    describe_failure,
    join_failures,
    sum_provenance,
)
from adjudge.prompts import compute_tag
from adjudge.types import GraderScore, Provenance

OrderMode = Literal["both", "one"]
PairOrder = Literal["as_given", "swapped"]
"""Whether the first of two responses is shown first, or second."""

BOTH_ORDERS: tuple[PairOrder, ...] = ("as_given", "swapped")
"""The orders that a comparison is asked in, unless told otherwise."""

_OUTCOME = {
    "as_given": {"A": "win", "B": "loss", "tie": "tie"},
    "swapped": {"A": "loss", "B": "win", "tie": "tie"},
}
OUTCOME_SCORES = {"win": 1.0, "tie": 0.5, "inconsistent": 0.5, "loss": 0.0}
"""What each outcome is worth."""


class PairComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge says of two responses, seen from the first.

    ``verdicts``: ``win``, ``tie`` or ``loss`` by order. ``score``: 1, 0.5 or 0; verdicts that
    differ between the orders are 0.5, and ``consistent`` is false (``None`` for one order).
    """

    verdicts: Mapping[PairOrder, str]
    reasons: Mapping[PairOrder, str]
    provenance: Provenance
    notes: Fields = {}

    @property
    def consistent(self) -> bool | None:
        """Whether both orders said the same."""
        return len(set(self.verdicts.values())) == 1 if len(self.verdicts) == 2 else None

    @property
    def outcome(self) -> str:
        """What both orders said, or ``inconsistent``."""
        return "inconsistent" if self.consistent is False else next(iter(self.verdicts.values()))

    @property
    def score(self) -> float:
        """Of the first: 1 for a win, 0 for a loss, 0.5 for a tie or two orders that disagree."""
        return OUTCOME_SCORES[self.outcome]


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
        sample: Fields,
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

        async def ask(order: PairOrder) -> JudgeOutcome:
            a, b = (first, second) if order == "as_given" else (second, first)
            shown = {**values, "response_a": a, "response_b": b}
            with call_part(order):
                return await self._ask(self.template, shown, self._form, draw=draw, group=group)

        answers, failed = await ask_all(ask, orders)
        verdicts = {order: _OUTCOME[order][one.verdict.value] for order, one in answers.items()}
        sources = [one.provenance for one in answers.values()]
        if failed:
            failures = {order: describe_failure(one) for order, one in failed.items()}
            metadata = {**_partial_metadata(verdicts), "failures": failures}
            said = ", ".join(f"{order}: {failure}" for order, failure in failed.items())
            message = f"no verdict in {len(failed)} of {len(orders)} orders ({said})"
            raise join_failures(list(failed.values()), message, metadata, answered=sources)
        return PairComparison(
            verdicts=verdicts,
            reasons={order: one.verdict.reason for order, one in answers.items()},
            provenance=sources[0] if len(sources) == 1 else sum_provenance(sources),
            notes={name: value for one in answers.values() for name, value in one.notes.items()},
        )


def _partial_metadata(verdicts: Mapping[PairOrder, str]) -> Metadata:
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
        orders: ``both``, or ``one``: one question in an order drawn from the texts.
        ties: The judge may say that neither is better.
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
        if self.against in ("", "response"):
            raise ConfigError(
                f"against: must name the field of the other response (found {self.against!r})"
            )

    async def aevaluate(self, draw: int = 0, **fields: object) -> GraderScore:
        """Compare ``response`` with the field ``against``; see the class."""
        response = require_text_field(fields, "response")
        other = require_text_field(fields, self.against)
        if self.against == "reference" and is_blank(other):  # a gap, not an answer of somebody
            raise missing_field_failure((self.against,), fields)
        shown = self._showing.render(fields) or dict(fields)
        second = self._showing.render({"response": other}) or {}
        said, answered = (not self._showing.find_unsaid(one) for one in (response, other))
        if not (said and answered):
            return self._forfeit(said=said, other=answered)
        ours, theirs = shown["response"], second["response"]
        if ours == theirs:
            metadata = {"outcome": "tie", "identical": True}
            return GraderScore(self.name, 0.5, "the two responses are the same text", metadata)
        orders = BOTH_ORDERS if self.orders == "both" else (self._drawn(ours, theirs, draw),)
        group = get_group_name(fields)
        compared = await self.compare(shown, ours, theirs, orders=orders, draw=draw, group=group)
        metadata = {
            "outcome": compared.outcome,
            "verdicts": dict(compared.verdicts),
            "consistent": compared.consistent,
            **compared.notes,
        }
        reason = "\n\n".join(f"[{o}] {why}" for o, why in compared.reasons.items() if why)
        return GraderScore(
            self.name, compared.score, reason, metadata, provenance=compared.provenance
        )

    def _forfeit(self, *, said: bool, other: bool) -> GraderScore:
        outcome = "tie" if said == other else "win" if said else "loss"
        if outcome == "loss":
            return self._candidate_fault("the response says nothing", outcome=outcome)
        reason = "the other says nothing" if said else "neither says anything"
        return GraderScore(self.name, OUTCOME_SCORES[outcome], reason, {"outcome": outcome})

    def _drawn(self, first: str, second: str, draw: int) -> PairOrder:
        """An order that does not depend on which of the two is called first."""
        one, other = compute_tag(b"0", first), compute_tag(b"0", second)
        return "as_given" if (one < other) == (draw % 2 == 0) else "swapped"
