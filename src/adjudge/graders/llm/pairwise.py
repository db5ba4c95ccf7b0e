"""Comparing the response with another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.llm.candidate import Truncated
from adjudge.graders.llm.comparing import BOTH, SCORES, Comparison, Order, Orders, PairJudge
from adjudge.graders.llm.judged import group_in
from adjudge.graders.llm.wording import Template
from adjudge.graders.view import View
from adjudge.judges.base import ChatModel
from adjudge.prompts import LanguageEnum
from adjudge.prompts.fence import tag_of
from adjudge.types import GraderScore

__all__ = ["PairwiseGrader"]


class PairwiseGrader(PairJudge):
    """Whether the response is better than another one, asked in both orders.

    Score 1: better; 0: worse; 0.5: a tie, or verdicts that follow the position (``outcome`` in the
    metadata says ``inconsistent``), since only a preference that survives the swap counts (Zheng et
    al. 2023, arXiv 2306.05685). Range [0, 1].

    Fields: ``response``, the other response in ``against`` (default ``reference``), and what they
    answer: ``query``, else the conversation before the response in ``messages``, else ``prompt``.
    ``orders = "one"`` asks once, in an order drawn from ``seed`` and the texts; the
    next draw uses the other. ``ties`` allows the verdict that neither is better. ``template``: an
    own wording with ``{query}``, ``{response_a}`` and ``{response_b}``; ``verdict`` says where the
    choice stands in the replies to a wording without ``{reply_form}`` (``{"line": "Verdict:"}``).

    Nobody is asked about equal texts (0.5), nor when one is empty or never ended its thinking: it
    loses to one that says something. Two verdicts are needed for both
    orders: if one fails, so does the grader, with the interval in the metadata.

    >>> import asyncio
    >>> from adjudge.judges import ScriptedModel
    >>> grader = PairwiseGrader(ScriptedModel('{"better": "A"}'))
    >>> found = asyncio.run(grader.aevaluate(query="2 + 2?", response="4", reference="5"))
    >>> found.score, found.metadata["outcome"]
    (0.5, 'inconsistent')
    """

    type_name = "pairwise"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        *,
        language: LanguageEnum | str = LanguageEnum.EN,
        against: str = "reference",
        orders: Orders = "both",
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
            language=language,
            orders=orders,
            ties=ties,
            seed=seed,
            template=template,
            view=view,
            truncated=truncated,
            verdict=verdict,
        )
        if against in ("", "response"):
            raise ConfigError(f"against: found {against!r}, must name the other response's field")
        self.against = against

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderScore:
        """Compare ``response`` with the field ``against``; see the class."""
        response, other = _text(fields, "response"), _text(fields, self.against)
        shown = self._showing.shown(fields, self.language)
        second = self._showing.shown({"response": other}, self.language)
        if shown is None or second is None or not (self._said(response) and self._said(other)):
            return self._unsaid(said=self._said(response), other=self._said(other))
        ours, theirs = shown["response"], second["response"]
        if ours == theirs:
            metadata = {"outcome": "tie", "identical": True}
            return GraderScore(self.name, 0.5, "the two responses are the same text", metadata)
        compared = await self.compare(
            shown,
            ours,
            theirs,
            orders=BOTH if self.orders == "both" else (self._drawn(ours, theirs, draw),),
            draw=draw,
            group=group_in(fields),
        )
        return self._scored(compared)

    def _scored(self, compared: Comparison) -> GraderScore:
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
        return GraderScore(self.name, SCORES[outcome], reason, {"outcome": outcome})

    def _drawn(self, first: str, second: str, draw: int) -> Order:
        """An order that does not depend on which of the two is called first."""
        key = str(self.seed).encode()
        one, other = tag_of(key, first), tag_of(key, second)
        return "as_given" if (one < other) == (draw % 2 == 0) else "swapped"


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if isinstance(value, str):
        return value
    found = "is absent" if value is None else f"is a {type(value).__name__}"
    raise GradingFailure(
        ErrorKind.INVALID_INPUT, f"a comparison needs text in {name!r}, which {found}"
    )
