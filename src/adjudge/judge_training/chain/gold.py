"""What answers about capitals are really worth, for runs that watch what their judge misses."""

from __future__ import annotations

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.base import RuleGrader
from adjudge.judge_training.data.gold import gold_of, question
from adjudge.training.task import CAPITALS
from adjudge.types import GraderScore

__all__ = ["CapitalGold"]

_ASKED = {question(country): country for country in CAPITALS}


class CapitalGold(RuleGrader):
    """The gold of made-up preferences about capitals, read from any text: fact, naming, manner.

    Range [0, 4]. Fields: ``prompt`` and ``response``, both text. ``invalid_input`` for a prompt
    that does not ask for one of the known capitals.
    """

    type_name = "capital_gold"
    score_range = (0.0, 4.0)

    def evaluate(self, prompt: str, response: str) -> GraderScore:
        """The score of one answer."""
        country = _ASKED.get(prompt.strip())
        if country is None:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT, "the prompt asks for none of the known capitals"
            )
        return self._score(float(gold_of(country, response)))
