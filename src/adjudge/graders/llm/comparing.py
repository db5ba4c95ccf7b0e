"""Asking a judge which of two responses is better, in one order or both."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import msgspec

from adjudge.errors import GradingFailure
from adjudge.graders.llm.candidate import Showing, Truncated
from adjudge.graders.llm.forms import ChoiceForm
from adjudge.graders.llm.judged import JudgeGrader, Told, summed
from adjudge.graders.llm.several import each, joined_failure, noted
from adjudge.graders.llm.wording import Template, chosen_template, ending_of, with_query
from adjudge.graders.rules.params import chosen, flag, integer
from adjudge.graders.view import View, view_text
from adjudge.judges.base import ChatModel
from adjudge.prompts import LanguageEnum
from adjudge.types import GraderMode, Provenance
from adjudge.verdicts import Menu

__all__ = ["BOTH", "SCORES", "Comparison", "Order", "Orders", "PairJudge"]

Orders = Literal["both", "one"]
Order = Literal["as_given", "swapped"]
"""Whether the first of two responses is shown first, or second."""

BOTH: tuple[Order, ...] = ("as_given", "swapped")
"""The orders that a comparison is asked in, unless told otherwise."""

_OUTCOME = {
    "as_given": {"A": "win", "B": "loss", "tie": "tie"},
    "swapped": {"A": "loss", "B": "win", "tie": "tie"},
}
SCORES = {"win": 1.0, "tie": 0.5, "loss": 0.0}
"""What each outcome is worth."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What a judge says of two responses, seen from the first.

    ``verdicts``: ``win``, ``tie`` or ``loss`` by order. ``score``: 1, 0.5 or 0; verdicts that
    differ between the orders are 0.5, and ``consistent`` is false (``None`` for one order).
    """

    verdicts: Mapping[Order, str]
    reasons: Mapping[Order, str]
    provenance: Provenance
    notes: Mapping[str, Any] = {}

    @property
    def consistent(self) -> bool | None:
        """Whether both orders said the same."""
        return len(set(self.verdicts.values())) == 1 if len(self.verdicts) == 2 else None

    @property
    def score(self) -> float:
        """Of the first: 1 for a win, 0 for a loss, 0.5 for a tie or two orders that disagree."""
        return 0.5 if self.consistent is False else SCORES[next(iter(self.verdicts.values()))]


class PairJudge(JudgeGrader):
    """Asks which of two responses is better; the base of pairwise and tournament.

    ``template``: an own question with ``{response_a}``, ``{response_b}`` and, as a rule,
    ``{query}``; other fields are the sample's. Without ``{reply_form}`` it words the reply itself
    ("Output (a)", "[[B]]", ``{"winner": "A"}`` are understood); ``verdict`` may then say where the
    choice stands: ``{"line": "Verdict:"}`` or ``{"tag": "verdict"}``. The rest: see the derived
    classes.
    """

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        *,
        mode: GraderMode = GraderMode.POINTWISE,
        language: LanguageEnum | str = LanguageEnum.EN,
        orders: Orders = "both",
        ties: bool = False,
        seed: int = 0,
        template: Template = None,
        view: View = "final",
        truncated: Truncated = "judge",
        verdict: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(model, name, mode=mode, language=language)
        chosen(self.name, "orders", orders, Orders)
        flag(self.name, "ties", ties)
        integer(self.name, "seed", seed, 0)
        self.orders, self.ties, self.seed, self.view = orders, ties, seed, view
        self.template = chosen_template(template, "pairwise", ("response_a", "response_b"))
        self.fingerprint = self.template.hash
        self._showing = Showing(view, truncated)
        menu = Menu.pair(tie="tie" if ties else None)
        labels = ["A", "B", *(["tie"] if ties else [])]
        self._form = ChoiceForm(menu, labels, ending=ending_of(verdict, self.template))

    async def compare(
        self,
        sample: Mapping[str, Any],
        first: str,
        second: str,
        *,
        orders: tuple[Order, ...] = BOTH,
        draw: int = 0,
        group: str | None = None,
    ) -> Comparison:
        """Ask about ``first`` and ``second`` as answers to ``sample``, all ``orders`` at once.

        ``sample``: the template's other fields, and what ``query`` is taken from. Raises
        ``GradingFailure`` when an order has no verdict: of its kind where it may pass by itself,
        else ``incomplete``; metadata has the other verdict and the interval ``low`` to ``high``
        that the score must lie in.
        """
        values = with_query(sample, self.template)
        told = await each(
            partial(self._ask_in, order, values, first, second, draw, group) for order in orders
        )
        answers = {o: one for o, one in zip(orders, told, strict=True) if isinstance(one, Told)}
        failed = {
            o: one for o, one in zip(orders, told, strict=True) if isinstance(one, GradingFailure)
        }
        verdicts = {order: _OUTCOME[order][one.verdict.value] for order, one in answers.items()}
        sources = [one.provenance for one in answers.values()]
        if failed:
            metadata = _partial(verdicts) | {"failures": {o: noted(f) for o, f in failed.items()}}
            said = ", ".join(f"{order}: {failure}" for order, failure in failed.items())
            message = f"no verdict in {len(failed)} of {len(orders)} orders ({said})"
            raise joined_failure(list(failed.values()), message, metadata, answered=sources)
        return Comparison(
            verdicts=verdicts,
            reasons={order: one.verdict.reason for order, one in answers.items()},
            provenance=sources[0] if len(sources) == 1 else summed(sources),
            notes={name: value for one in answers.values() for name, value in one.notes.items()},
        )

    async def _ask_in(
        self,
        order: Order,
        values: Mapping[str, Any],
        first: str,
        second: str,
        draw: int,
        group: str | None,
    ) -> Told:
        a, b = (first, second) if order == "as_given" else (second, first)
        shown = {**values, "response_a": a, "response_b": b}
        return await self._ask(self.template, shown, self._form, draw=draw, group=group)

    def _said(self, text: str) -> bool:
        """Whether a response says anything: neither empty nor all thinking."""
        seen = view_text(text, self.view)
        return seen is not None and bool(seen.strip())


def _partial(verdicts: Mapping[Order, str]) -> dict[str, Any]:
    """The verdicts there are, and where the score must lie: half of it hangs on each order."""
    low, high = 0.0, 1.0
    for verdict in verdicts.values():
        low, high = (0.5 if verdict != "loss" else 0.0), (0.5 if verdict != "win" else 1.0)
    return {"verdicts": dict(verdicts), "low": low, "high": high}
