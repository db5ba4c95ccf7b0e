"""A trained scalar judge as a grader: its output as a rank, or as the odds against another's."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from adjudge.errors import Cause, ConfigError, ErrorKind, GradingFailure
from adjudge.graders.llm.candidate import Truncated
from adjudge.graders.llm.scalar import ScalarGrader
from adjudge.graders.llm.several import each, joined_failure, spent
from adjudge.graders.view import View
from adjudge.judge_training.card import Card, read_card
from adjudge.judges.base import ChatModel
from adjudge.types import GraderScore

__all__ = ["RankedScalar", "ScalarPreference"]


class RankedScalar(ScalarGrader):
    """The output of a judge that has a card, normalised by it; range [0, 1].

    0.8 means: higher than 80 % of the answers that the judge was validated on. Under Bradley-Terry
    only differences of outputs mean something, so that σ(output) depends on where training happened
    to put 0, and this does not. Outputs above the highest seen then are 1. The judge's ``model``
    must be the folder of a trained judge; raises :class:`ConfigError` otherwise.

    Metadata: ``raw`` (the output), and those of ``scalar``.
    """

    type_name = "ranked_scalar"

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        *,
        view: View = "final",
        truncated: Truncated = "judge",
    ) -> None:
        super().__init__(model, name, score_range=(0.0, 1.0), view=view, truncated=truncated)
        card = _scalar_card(model, self.type_name)
        if card.normalisation is None:
            raise ConfigError(f"{model.model}: its card has no quantiles; train it anew")
        self._normalise = card.normalisation

    async def aevaluate(self, **fields: Any) -> GraderScore:
        """The rank of one response; see the class."""
        found = await super().aevaluate(**fields)
        if found.cause is Cause.CANDIDATE:
            return found
        metadata = {**found.metadata, "raw": found.score}
        return msgspec.structs.replace(found, score=self._normalise(found.score), metadata=metadata)


class ScalarPreference(ScalarGrader):
    """The probability that the response is better than another one, by its card; range [0, 1].

    The judge scores both, and the calibration on held-out pairs says what their difference Δ is
    worth: σ(Δ/T) by the card's temperature T, or where it has none its isotonic fit. Unlike a
    judge's own verdict it depends on no order. The other response is the field ``against``. The
    judge's ``model`` must be the folder of a trained judge; raises :class:`ConfigError` otherwise,
    and for one without a calibration.

    Equal texts are 0.5 without asking, and a response that says nothing, or whose thinking never
    ended, loses to one that says something. Metadata: ``raw`` (both
    outputs) and ``calibration`` (``temperature`` or ``isotonic``).
    """

    type_name = "scalar_preference"

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        *,
        against: str = "reference",
        view: View = "final",
        truncated: Truncated = "judge",
    ) -> None:
        super().__init__(model, name, score_range=(0.0, 1.0), view=view, truncated=truncated)
        if against in ("", "response"):
            raise ConfigError(f"against: found {against!r}, must name the other response's field")
        card = _scalar_card(model, self.type_name)
        if card.calibration is None or card.calibration.method is None:
            missing = {} if card.calibration is None else card.calibration.missing
            why = next(iter(missing.values()), "it was trained before there was one")
            raise ConfigError(
                f"{model.model}: its card has no calibration ({why}); use RankedScalar, or train "
                "it with more held-out pairs"
            )
        self.against, self._calibration = against, card.calibration

    async def aevaluate(self, **fields: Any) -> GraderScore:
        """Compare ``response`` with the field ``against``; see the class."""
        shown = [self._said(fields, name) for name in ("response", self.against)]
        said = [text is not None and bool(text.strip()) for text in shown]
        if not all(said) or shown[0] == shown[1]:
            if said[1] and not said[0]:
                return self._candidate_fault("the response says nothing")
            score = 0.5 + (said[0] - said[1]) / 2
            return self._scored(score, "nothing to compare", {})
        ask = super().aevaluate
        theirs = {**fields, "response": fields[self.against], "finish_reason": None}
        told = await each([partial(ask, **fields), partial(ask, **theirs)])
        found = [one for one in told if isinstance(one, GraderScore)]
        sources = [one.provenance for one in found]
        if failed := [one for one in told if isinstance(one, GradingFailure)]:
            message = f"{len(failed)} of two responses have no score: {failed[0]}"
            raise joined_failure(failed, message, {}, answered=sources)
        ours, other = (one.score for one in found)
        metadata = {"raw": [ours, other], "calibration": self._calibration.method}
        if unseen := sum(one.metadata.get("truncated_tokens", 0) for one in found):
            metadata["truncated_tokens"] = unseen
        result = self._scored(self._calibration.probability(ours - other), "", metadata)
        return msgspec.structs.replace(result, provenance=spent(sources))

    def _said(self, fields: dict[str, Any], name: str) -> str | None:
        """A response as the judge sees it; ``None`` when its thinking never ended."""
        text = fields.get(name)
        if not isinstance(text, str):
            found = "is absent" if text is None else f"is a {type(text).__name__}"
            raise GradingFailure(
                ErrorKind.INVALID_INPUT, f"a comparison needs text in {name!r}, which {found}"
            )
        shown = self._showing.shown({"response": text}, self.language)
        return None if shown is None else shown["response"]

    def _scored(self, score: float, reason: str, metadata: dict[str, Any]) -> GraderScore:
        return GraderScore(self.name, score, reason, metadata, self.score_range, self.role)


def _scalar_card(model: ChatModel, asked: str) -> Card:
    card = read_card(model.model)
    if card.kind != "scalar":
        raise ConfigError(f"{model.model}: its judge is {card.kind}; {asked} is for scalar")
    return card
