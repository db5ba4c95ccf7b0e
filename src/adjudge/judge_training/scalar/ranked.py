"""``RankedScalar``: a trained scalar judge's output as a rank among its validation answers."""

from __future__ import annotations

from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.graders.llm.candidate import Truncated
from adjudge.graders.llm.scalar import ScalarGrader
from adjudge.graders.view import View
from adjudge.judge_training.card import read_card
from adjudge.judges.base import ChatModel
from adjudge.types import GraderScore

__all__ = ["RankedScalar"]


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
        card = read_card(model.model)
        if card.normalisation is None:
            raise ConfigError(
                f"{model.model}: its judge is {card.kind}; ranked_scalar is for scalar"
            )
        self._normalise = card.normalisation

    async def aevaluate(self, **fields: Any) -> GraderScore:
        """The rank of one response; see the class."""
        found = await super().aevaluate(**fields)
        if not found.evaluable:
            return found
        metadata = {**found.metadata, "raw": found.score}
        return msgspec.structs.replace(found, score=self._normalise(found.score), metadata=metadata)
