"""Graders that ask a trained judge as it was trained, and read it as strictly.

Generative judges: their ``model`` is the judge's folder (``type = "local"``), or any server of it
with the folder's path in ``card``. They are asked in the wording that the card has, and a reply in
any other form than the trained one is ``unparsable``, as it earned the minimum in training; no
repair is asked for, which they never saw: the same question is put once more. Servers part thinking
from text and drop the tags. What then looks the same counts as the same: no thinking and an empty
one, and an opening tag that the chat template wrote.

Scalar judges: their output as a rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from adjudge.errors import Cause, ConfigError
from adjudge.graders.llm.comparison import PairwiseGrader
from adjudge.graders.llm.judge_grader import EmptyReason, JudgeGrader, JudgeOutcome
from adjudge.graders.llm.numeric_scores import Activation, ScalarGrader
from adjudge.graders.llm.question import (
    extract_query,
    is_blank,
    missing_field_failure,
    read_exchange,
    require_text_field,
)
from adjudge.graders.llm.ranking import TournamentGrader
from adjudge.graders.llm.reply_forms import JudgeReplyForm
from adjudge.graders.llm.shipped_graders import ShippedGrader
from adjudge.graders.llm.trained_judge_card import (
    JudgeMode,
    read_card,
    read_prompt_config,
)
from adjudge.judges.asking import AskPolicy
from adjudge.judges.base import ChatModel, Reply
from adjudge.prompts import LanguageEnum, PromptTemplate
from adjudge.text import THINK_CLOSE, THINK_OPEN
from adjudge.types import GraderScore, ScoreRange
from adjudge.verdicts import UnreadableReply, Verdict


@dataclass(eq=False, repr=False, kw_only=True)
class _TrainedGrader(JudgeGrader):
    """Asks as the judge was trained to be asked; what all graders of this module share.

    ``card``: the judge's folder, where ``model`` is not.
    """

    policy = AskPolicy(repairs=False)
    trained_mode: ClassVar[JudgeMode] = "pairwise"
    card: Path | None = None
    language: LanguageEnum = field(init=False, default=LanguageEnum.EN)

    def __post_init__(self) -> None:
        asked = read_prompt_config(self.card or _card_folder(self.model), self.trained_mode)
        self._prompt_config = asked
        if self.trained_mode == "pairwise":
            self.ties, self.template = asked.form.ties, asked.template
        super().__post_init__()

    async def _ask(
        self,
        template: PromptTemplate,
        values: Mapping[str, Any],
        form: JudgeReplyForm,
        **asked: Any,
    ) -> JudgeOutcome:
        """Ask, and read the reply as in training; ``query`` among the values is what was asked."""
        if is_blank(values.get("query")):
            raise missing_field_failure(("query", "messages", "prompt"), values)
        values = {**values, "request": _request_text(values["query"])}
        return await super()._ask(template, values, form, **asked)

    def _read_reply(
        self,
        form: JudgeReplyForm,  # noqa: ARG002  (the card's own form is the only one)
        reply: Reply,
        *_: Any,
        **__: Any,
    ) -> Verdict | UnreadableReply:
        cut = reply.finish_reason == "length"
        return self._prompt_config.form.read(_full_reply(reply), cut=cut)


@dataclass(eq=False, repr=False, kw_only=True)
class TrainedRating(_TrainedGrader, ShippedGrader):
    """The rating of a judge that was trained to rate one response, 0 to 4.

    Fields: ``response``, else the last thing said in ``messages``; and what it answers: ``query``,
    else the conversation before it, else ``prompt``. A response that says nothing, or never ended
    its thinking, is 0, the candidate's fault, and no judge is asked. Metadata has the mean label of
    such ratings on held-out rows as ``expected_label``, where the card does. ``card``: the judge's
    folder, where ``model`` is not.
    """

    type_name = "trained_rating"
    score_range = (0.0, 4.0)

    trained_mode: ClassVar[JudgeMode] = "pointwise"

    def _prompt(self, shown: Iterable[str]) -> PromptTemplate:  # noqa: ARG002  (the card's is whole)
        return self._prompt_config.template

    def _scored(self, told: JudgeOutcome) -> GraderScore:
        score, ratings, metadata = float(told.verdict.value), self._prompt_config.ratings, {}
        if ratings is not None:
            metadata = {"rating": int(score), "expected_label": ratings.labels(score)}
        return self._score(score, told, metadata)

    def _material(self, fields: Mapping[str, Any]) -> dict[str, Any] | EmptyReason:
        """What the judge is shown; or why there is nothing to show."""
        shown = self._showing.render(fields)
        if shown is None:
            return "unclosed_think"
        response = require_text_field({"response": read_exchange(shown)[1]}, "response")
        said = fields.get("response")  # without the note on a cut
        why = self._showing.find_unsaid(said if isinstance(said, str) else response)
        return why or {"query": extract_query(shown), "response": response}


@dataclass(eq=False, repr=False, kw_only=True)
class _TrainedPairs(_TrainedGrader):
    """Asks about two responses in the judge's own wording, with ties or without."""

    ties: bool = field(init=False, default=False)
    template: Any = field(init=False, default=None)
    verdict: Any = field(init=False, default=None)


@dataclass(eq=False, repr=False, kw_only=True)
class TrainedPreference(_TrainedPairs, PairwiseGrader):
    """Whether the response is better than another one, by a judge that was trained to compare.

    As ``pairwise`` in scores, fields and metadata: both orders are asked, and a preference that
    does not survive the swap is 0.5 and ``inconsistent``. Whether ties are offered is the judge's.
    ``card``: the judge's folder, where ``model`` is not.
    """

    type_name = "trained_preference"


@dataclass(eq=False, repr=False, kw_only=True)
class TrainedTournament(_TrainedPairs, TournamentGrader):
    """Ranks a group by a judge that was trained to compare two responses.

    As ``tournament`` in ranks, fields and metadata. Whether ties are offered is the judge's.
    ``card``: the judge's folder, where ``model`` is not.
    """

    type_name = "trained_tournament"


def _card_folder(model: ChatModel) -> str:
    """The judge's folder, if that is what the model's name is."""
    folder = getattr(model, "model", "")
    if not Path(folder).is_dir():
        raise ConfigError(
            f"judge: {folder!r} is not the folder of a trained judge. Set 'card' to the "
            "folder with the judge's card if a server holds the model."
        )
    return str(folder)


def _request_text(query: Any) -> Any:
    """What was asked as in training: one message that is text as its text."""
    only = query[0] if isinstance(query, list) and len(query) == 1 else {}
    content = only.get("content") if isinstance(only, Mapping) else None
    return content if isinstance(content, str) and not only.get("tool_calls") else query


def _full_reply(reply: Reply) -> str:
    """The reply as it was written: the thinking in its tags again, then the text."""
    if not reply.reasoning and reply.text.lstrip().startswith(THINK_OPEN):
        return reply.text
    return f"{THINK_OPEN}{reply.reasoning}{THINK_CLOSE}{reply.text}"


@dataclass(eq=False, repr=False, kw_only=True)
class RankedScalar(ScalarGrader):
    """The output of a judge that has a card, normalised by it; range [0, 1].

    0.8 means: higher than 80 % of the answers that the judge was validated on. Under Bradley-Terry
    only differences of outputs mean something, so that σ(output) depends on where training happened
    to put 0, and this does not. Outputs above the highest seen then are 1. The judge's ``model``
    must be the folder of a trained judge; raises :class:`ConfigError` otherwise.

    Metadata: ``raw`` (the output), and those of ``scalar``.
    """

    type_name = "ranked_scalar"

    score_range: ScoreRange | None = field(init=False, default=(0.0, 1.0))
    activation: Activation = field(init=False, default="none")

    def __post_init__(self) -> None:
        super().__post_init__()
        card = read_card(self.model.model)
        if card.kind != "scalar":
            raise ConfigError(
                f"{self.model.model}: the judge is {card.kind}, but {self.type_name} needs a "
                "scalar judge"
            )
        if card.normalisation is None:
            raise ConfigError(
                f"{self.model.model}: the judge's card has no quantiles. Train it again."
            )
        self._normalise = card.normalisation

    async def aevaluate(self, **fields: Any) -> GraderScore:
        """The rank of one response; see the class."""
        found = await super().aevaluate(**fields)
        if found.cause is Cause.CANDIDATE:
            return found
        metadata = {**found.metadata, "raw": found.score}
        return msgspec.structs.replace(found, score=self._normalise(found.score), metadata=metadata)
