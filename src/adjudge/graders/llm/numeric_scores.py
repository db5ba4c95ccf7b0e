"""Scores that a model gives as numbers.

``ExpectedScoreGrader``: the mean of a judge's own distribution over a scale, from its token
probabilities. ``ScalarGrader``: the output of a scalar judge (a reward model) as a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field as dataclass_field
from typing import Literal

import msgspec

from adjudge.config_tables import check_setting
from adjudge.errors import ConfigError, ErrorKind, Fields, GradingFailure, InvalidInput, Metadata
from adjudge.graders.llm.judge_grader import JudgeGrader, get_group_name
from adjudge.graders.llm.question import (
    REPLY_FORM,
    add_query,
    load_shipped_prompt,
    read_exchange,
    require_text_field,
)
from adjudge.judges.asking import AskPolicy
from adjudge.judges.base import Reply, ScalarReading, TokenLogprobs
from adjudge.prompts import LanguageEnum
from adjudge.stats import sigmoid
from adjudge.types import GraderScore, ScoreRange
from adjudge.verdicts import Verdict

_AT_MOST = 8
"""The verdict stands among so many first tokens; later ones follow reasons."""

_BLANKS = " \t\r\n▁ĠĊ"
"""What tokens carry around their text, tokenizers' own signs for a blank included."""

_AROUND = " \t\r\n*`.\"'()[]"
"""What a judge may write around the point that is its whole reply."""

_LEAST_COVERAGE = 0.9
_ROUNDING = 1e-6

_FORM = {
    LanguageEnum.EN: "Reply with one of {choices} and nothing else: no reasons, no other words.",
    LanguageEnum.ZH: "只回复 {choices} 中的一个，不要给出理由，也不要输出其他任何内容。",
}
_CRITERION = {
    LanguageEnum.EN: "how well the response serves the request: whether it does what was asked, "
    "is correct and complete, and helps whoever asked",
    LanguageEnum.ZH: "回复在多大程度上满足了请求：是否做到了所要求的事，"
    "是否正确、完整，是否真正帮到了提问者",
}


@dataclass(eq=False, repr=False, kw_only=True)
class ExpectedScoreGrader(JudgeGrader):
    """The expected score under the judge's own probabilities of the points of a small scale.

    Fields: ``response``, and what it answers (``query``, else the conversation before the response
    in ``messages``, else ``prompt``). Score = Σ s·p(s) / Σ p(s) over the whole numbers of the
    range, with p from the log-probabilities at the verdict's token (arXiv 2503.03064). The judge
    writes no reason. An empty or unended response has the lowest score, the candidate's
    fault, and no judge is asked.

    Metadata: ``probabilities``, ``coverage`` = Σ p(s), ``point`` (the one written). Raises
    ``GradingFailure``: ``unsupported`` where the judge gives no log-probabilities or thinks first;
    ``unparsable`` where the reply does not begin with one point, or the coverage is too small. A
    server that holds replies to the points (feature ``choices``) needs only to list 0.9 of what the
    points can have.

    Args:
        criterion: What is rated, in your words; by default how well the response serves the
            request.
        score_range: The lowest and the highest point, one digit each.
    """

    type_name = "expected_score"
    policy = AskPolicy(repairs=False)

    criterion: str = ""
    score_range: ScoreRange = (1.0, 5.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_setting(str, self.criterion, "criterion")
        digits = [point for point in range(10) if point in self.score_range]
        if len(digits) != 2 or self.score_range[0] != digits[0]:
            raise ConfigError(
                "score_range: must be two digits, the lower one first (found "
                f"{self.score_range!r}; allowed: 0 to 9)"
            )
        self.score_range = (float(digits[0]), float(digits[1]))
        self.criterion = self.criterion.strip() or _CRITERION[self.language]
        self.template = load_shipped_prompt("expected_score", "criterion")
        self.fingerprint = self.template.hash
        self._points = list(range(digits[0], digits[1] + 1))

    async def aevaluate(self, response: object, draw: int = 0, **fields: object) -> GraderScore:
        """Rate one response; see the class."""
        given: Metadata = {**fields, "response": response}
        require_text_field(given, "response")
        shown = self._showing.render(given) or given
        if why := self._showing.find_unsaid(response):
            return self._unsaid(why)
        if "logprobs" not in self.model.features:
            raise self._unsupported("is said to give no log-probabilities (features)")
        *points, last = map(str, self._points)
        comma, either = (", ", " or ") if self.language is LanguageEnum.EN else ("、", " 或 ")
        words = _FORM[self.language].format(choices=comma.join(points) + either + last)
        values = add_query(shown, self.template)
        values |= {"criterion": self.criterion, REPLY_FORM: words}
        asked = self._render(self.template, values)

        async def put(_: str | None) -> Reply:
            return await self.model.achat(
                asked.messages,
                choices=[str(point) for point in self._points],
                logprobs=True,
                draw=draw,
                group=get_group_name(fields),
                max_tokens=_AT_MOST,
            )

        told = await self._put_question(put, self._read, self.template)
        score: GraderScore = told.verdict.value
        return msgspec.structs.replace(score, provenance=told.provenance)

    def _read(self, reply: Reply) -> Verdict:
        if not reply.logprobs:
            raise self._unsupported("gave no log-probabilities")
        if reply.reasoning:
            raise self._unsupported("thought before it answered, which collapses what is measured")
        written = reply.text.strip(_AROUND)
        if written not in map(str, self._points):
            number = written.removeprefix("-").isdecimal()
            raise GradingFailure(
                ErrorKind.OUT_OF_RANGE if number else ErrorKind.UNPARSABLE,
                "the reply is not one point of the scale and nothing else",
            )
        shares, unlisted = self._distribution(reply.logprobs, int(written))
        coverage = math.fsum(shares.values())
        metadata = {
            "probabilities": {str(point): share for point, share in shares.items()},
            "coverage": coverage,
            "point": int(written),
        }
        covered, of = coverage, "probability"
        held = "choices" in self.model.features and "choices" not in reply.ignored
        if held and covered:
            covered /= coverage + unlisted
            of = "probability that its points can have, as far as the server lists it"
        if covered < _LEAST_COVERAGE - _ROUNDING:
            raise GradingFailure(
                ErrorKind.UNPARSABLE,
                f"the scale has {covered:.3f} of the {of}, needed is {_LEAST_COVERAGE}",
                metadata,
            )
        mean = math.fsum(point * share for point, share in shares.items()) / coverage
        score = min(max(mean, float(self._points[0])), float(self._points[-1]))
        return Verdict(value=GraderScore(self.name, score, "", metadata))

    def _distribution(
        self, tokens: Sequence[TokenLogprobs], point: int
    ) -> tuple[dict[int, float], float]:
        """The probabilities of the points at the only token among the first that is ``point``.

        And what points that the server did not list can have at most, all together.
        """
        first = tokens[:_AT_MOST]
        points = {str(one) for one in self._points}
        at = [token for token in first if token.token.strip(_BLANKS) in points]
        if len(at) != 1 or at[0].token.strip(_BLANKS) != str(point):
            raise GradingFailure(
                ErrorKind.UNPARSABLE, "the verdict is no single token at the reply's beginning"
            )
        logs = {at[0].token: at[0].logprob, **at[0].top}
        if any(not log <= 1e-3 for log in logs.values()):
            raise GradingFailure(ErrorKind.UNPARSABLE, "there are no log-probabilities")
        shares = dict.fromkeys(self._points, 0.0)
        for token, log in logs.items():
            if (text := token.strip(_BLANKS)) in points:
                shares[int(text)] += math.exp(log)
        if math.fsum(shares.values()) > 1.01:
            raise GradingFailure(ErrorKind.UNPARSABLE, "the probabilities exceed 1")
        rest = max(0.0, 1.0 - math.fsum(map(math.exp, logs.values())))
        unlisted = [point for point, share in shares.items() if not share]
        # The written token is listed whatever its place, so the others say how far the list goes.
        least = min((log for token, log in logs.items() if token != at[0].token), default=0.0)
        return shares, min(rest, len(unlisted) * math.exp(least))

    def _unsupported(self, what: str) -> GradingFailure:
        return GradingFailure(
            ErrorKind.UNSUPPORTED,
            f"{self.model.model} {what}; expected scores need a judge that answers at once, with "
            "top log-probabilities",
        )


_SERVERS = ("openai", "anthropic", "embedded")
_NOT_SCALAR = (
    "scalar needs a judge with one output, but {} is a chat model. Use a [judges.NAME] table with "
    "type = 'classifier', or with type = 'local' and task = 'score'."
)
Activation = Literal["none", "sigmoid"]


@dataclass(eq=False, repr=False, kw_only=True)
class ScalarGrader(JudgeGrader):
    """The one number that a scalar judge (a reward model) gives to prompt and response.

    Fields: ``response`` (else the last thing said in ``messages``), and what it answers: the
    conversation before the response in ``messages``, else ``prompt``. The judge is a table ``type =
    "local"`` with ``task = "score"``, or ``type = "classifier"``. Without a range the output counts
    as it is. Thinking that never ended is the lowest score of the range, or ``invalid_input``
    without a range; no judge is asked. Metadata: ``raw`` (under ``sigmoid``), ``truncated_tokens``.

    Args:
        score_range: The range ``[low, high]``; an output outside is ``out_of_range``.
        activation: ``sigmoid``: 1/(1 + e^−x), range [0, 1]; by default none.
    """

    type_name = "scalar"

    language: LanguageEnum = dataclass_field(
        init=False, default=LanguageEnum.EN
    )  # no words of ours
    score_range: ScoreRange | None = None
    activation: Activation = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.kind in _SERVERS:
            raise ConfigError(f"judge: {_NOT_SCALAR.format(self.model.model)}")
        if self.activation == "sigmoid":
            if self.score_range is not None:
                raise ConfigError(
                    "score_range: is (0, 1) under activation = 'sigmoid'. Leave it out."
                )
            self.score_range = (0.0, 1.0)

    async def aevaluate(self, **fields: object) -> GraderScore:
        """The judge's number for one response; see the class."""
        if self._showing.truncated == "judge":  # no words of ours in what it reads
            fields.pop("finish_reason", None)
        shown = self._showing.render(fields)
        if shown is None:
            return self._unsaid("unclosed_think")
        reply = await self.model.achat(_conversation(shown), group=get_group_name(fields))
        reading = self._read(reply)
        metadata: Metadata = {}
        if reading.truncated:
            metadata["truncated_tokens"] = reading.truncated
        score = reading.score
        if self.activation == "sigmoid":
            metadata["raw"] = score
            score = sigmoid(score)
        return self._result(score, "", metadata, reply.provenance)

    def _read(self, reply: Reply) -> ScalarReading:
        if reply.finish_reason != "score":
            message = _NOT_SCALAR.format(self.model.model)
            raise GradingFailure(ErrorKind.UNSUPPORTED, message, provenance=reply.provenance)
        with suppress(msgspec.ValidationError):  # NaN and infinity are written as null
            reading = msgspec.json.decode(reply.text, type=ScalarReading)
            if math.isfinite(reading.score):
                return reading
        message = "the judge's output is not a finite number"
        raise GradingFailure(ErrorKind.OUT_OF_RANGE, message, provenance=reply.provenance)


def _conversation(fields: Fields) -> list[Metadata]:
    """What came before, and the response as the assistant's turn."""
    before, response = read_exchange(fields)
    if isinstance(before, str):
        before = [{"role": "user", "content": before}]
    if not isinstance(before, list):
        raise InvalidInput("the sample has neither 'messages' nor 'prompt' as text")
    said = require_text_field({"response": response}, "response")
    turns = [{"role": turn["role"], "content": turn.get("content")} for turn in before]
    return [*turns, {"role": "assistant", "content": said}]
