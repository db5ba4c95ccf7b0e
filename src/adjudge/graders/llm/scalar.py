"""``ScalarGrader``: the output of a scalar judge (a reward model) as a score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.llm.candidate import Showing, Truncated
from adjudge.graders.llm.judged import JudgeGrader
from adjudge.graders.llm.material import blank, question, turns_of
from adjudge.graders.rules.params import chosen
from adjudge.graders.view import View
from adjudge.judges.base import ChatModel, Reply
from adjudge.types import GraderScore, ScoreRange

__all__ = ["ScalarGrader"]

_SERVERS = ("openai", "anthropic")
_NOT_SCALAR = (
    "scalar asks a judge with one output ([judges.NAME] type = 'local', task = 'score'); {} is a "
    "chat model"
)
Activation = Literal["none", "sigmoid"]


class _Reading(msgspec.Struct):
    score: float
    tokens: int = 0
    truncated: int = 0


class ScalarGrader(JudgeGrader):
    """The one number that a scalar judge (a reward model) gives to prompt and response.

    The judge is a table ``type = "local"`` with ``task = "score"``. It sees the conversation
    before the response in ``messages``, else ``prompt``, then ``response`` (else the last thing
    said in ``messages``).

    Its raw output has no range. Either state one, ``score_range``, outside of which is
    ``out_of_range``; or ``activation = "sigmoid"``: 1/(1 + e^−x), the probability of winning
    against an output of 0 under Bradley-Terry, range [0, 1]; or set ``[reward] normalise = false``.

    Metadata: ``raw`` (the output, under ``sigmoid``), ``truncated_tokens`` where the judge did not
    see all. ``view`` and ``truncated``: what it sees of the response. Thinking that never ended is
    the lowest score of the range, marked ``unclosed_think`` and unasked; without a range it is
    ``invalid_input``.
    """

    type_name = "scalar"

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        *,
        score_range: ScoreRange | None = None,
        activation: Activation = "none",
        view: View = "final",
        truncated: Truncated = "judge",
    ) -> None:
        super().__init__(model, name)
        chosen(self.type_name, "activation", activation, Activation)
        if getattr(model, "kind", None) in _SERVERS:
            raise ConfigError(f"judge: {_NOT_SCALAR.format(model.model)}")
        if activation == "sigmoid" and score_range is not None:
            raise ConfigError("score_range: is (0, 1) under activation = 'sigmoid'; leave it out")
        self.score_range = (0.0, 1.0) if activation == "sigmoid" else score_range
        self.activation: Activation = activation
        self._showing = Showing(view, truncated)

    async def aevaluate(self, **fields: Any) -> GraderScore:
        """The judge's number for one response; see the class."""
        if self._showing.truncated == "judge":  # no words of ours in what it reads
            fields.pop("finish_reason", None)
        shown = self._showing.shown(fields, self.language)
        if shown is None:
            return self._unsaid()
        group = fields.get("group")
        reply = await self.model.achat(
            _conversation(shown), group=group if isinstance(group, str) else None
        )
        reading = self._read(reply)
        metadata: dict[str, Any] = {}
        if reading.truncated:
            metadata["truncated_tokens"] = reading.truncated
        score = reading.score
        if self.activation == "sigmoid":
            metadata["raw"] = score
            score = _sigmoid(score)
        return GraderScore(
            self.name, score, "", metadata, self.score_range, self.role, reply.provenance
        )

    def _read(self, reply: Reply) -> _Reading:
        if reply.finish_reason != "score":
            message = _NOT_SCALAR.format(self.model.model)
            raise GradingFailure(ErrorKind.UNSUPPORTED, message, provenance=reply.provenance)
        try:
            reading = msgspec.json.decode(reply.text, type=_Reading)
        except msgspec.ValidationError:  # NaN and infinity are written as null
            reading = None
        if reading is None or not math.isfinite(reading.score):
            message = "the judge's output is not a finite number"
            raise GradingFailure(ErrorKind.OUT_OF_RANGE, message, provenance=reply.provenance)
        return reading

    def _unsaid(self) -> GraderScore:
        why = "the response never ended its thinking"
        return self._candidate_fault(why, unclosed_think=True)


def _sigmoid(x: float) -> float:
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    return math.exp(x) / (1 + math.exp(x))


def _conversation(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What came before, and the response as the assistant's turn."""
    response = fields.get("response")
    if not blank(fields.get("messages")):
        turns = turns_of(fields["messages"])
        count, response = question(turns, response)
        before = [{"role": turn["role"], "content": turn.get("content")} for turn in turns[:count]]
    else:
        prompt = fields.get("prompt")
        if not isinstance(prompt, str):
            raise GradingFailure(
                ErrorKind.INVALID_INPUT, "the sample has neither 'messages' nor 'prompt' as text"
            )
        before = [{"role": "user", "content": prompt}]
    if not isinstance(response, str):
        raise GradingFailure(
            ErrorKind.INVALID_INPUT, f"'response' is a {type(response).__name__}, must be text"
        )
    return [*before, {"role": "assistant", "content": response}]
