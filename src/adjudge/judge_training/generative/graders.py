"""Trained generative judges as graders: asked as they were trained, and read as strictly.

Their ``model`` is the judge's folder (``type = "local"``), or any server of it with the folder's
path in ``card``. They are asked in the wording that the card has, and a reply in any other form
than the trained one is ``unparsable``, as it earned the minimum in training; no repair is asked
for, which they never saw. A fresh draw is the run's to ask.

Servers part thinking from text and drop the tags, so that what cannot be told apart then counts as
the same: no thinking and an empty one, and an opening tag that the chat template wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.llm.candidate import Showing, Truncated
from adjudge.graders.llm.comparing import Orders
from adjudge.graders.llm.forms import Form
from adjudge.graders.llm.judged import RAW_LIMIT, JudgeGrader, Told, group_in
from adjudge.graders.llm.material import blank, lacking, question, turns_of
from adjudge.graders.llm.pairwise import PairwiseGrader
from adjudge.graders.llm.tournament import TournamentGrader
from adjudge.graders.llm.wording import query_of
from adjudge.graders.rules.params import flag
from adjudge.graders.view import View, view_text
from adjudge.judge_training.generative.taught import Taught, taught
from adjudge.judges.base import ChatModel, Reply
from adjudge.prompts import PromptTemplate
from adjudge.types import GraderScore
from adjudge.verdicts import Unread, Verdict

__all__ = ["TrainedPreference", "TrainedRating", "TrainedTournament"]

_OPEN, _CLOSE = "<think>", "</think>"


class _Trained(JudgeGrader):
    """Asks as the judge was trained to be asked; what all graders of this module share."""

    _taught: Taught

    async def _ask(
        self,
        template: PromptTemplate,
        values: Mapping[str, Any],
        form: Form | None = None,  # noqa: ARG002  (the card's own form is the only one)
        *,
        draw: int = 0,
        group: str | None = None,
        unread: Verdict | None = None,  # noqa: ARG002  (as for every judge's grader)
    ) -> Told:
        """Ask once and read the reply as in training.

        ``query`` among the values is what was asked. Raises ``GradingFailure``: the call's own, or
        ``unparsable``, ``out_of_range`` and ``truncated`` with the reply in ``metadata["raw"]``.
        """
        if blank(values.get("query")):
            raise lacking(("query", "messages", "prompt"), values)
        values = {**values, "request": _request(values["query"])}
        asked = template.render(
            values,
            self.language,
            key=self.model.fence_key,
            control_tokens=self.model.control_tokens,
        )
        reply = await self.model.achat(asked.messages, draw=draw, group=group)
        source = msgspec.structs.replace(reply.provenance, prompt_hash=template.hash)
        read = self._taught.form.read(_whole(reply), cut=reply.finish_reason == "length")
        if isinstance(read, Unread):
            raw = {"raw": [reply.text[:RAW_LIMIT]]}
            raise GradingFailure(read.kind, f"no verdict: {read.why}", raw, provenance=source)
        return Told(read, source, reply)


class TrainedRating(_Trained):
    """The rating of a judge that was trained to rate one response, 0 to 4.

    Fields: ``response``, else the last thing said in ``messages``; and what it answers: ``query``,
    else the conversation before it, else ``prompt``. A response that says nothing, or never ended
    its thinking, is 0, the candidate's fault, and no judge is asked. ``calibrated`` gives the
    mean label of such ratings on held-out rows instead; metadata has it as ``expected_label`` in
    any case, where the card does. ``card``: the judge's folder, where ``model`` is not.
    """

    type_name = "trained_rating"
    score_range = (0.0, 4.0)

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        *,
        card: Path | None = None,
        calibrated: bool = False,
        view: View = "final",
        truncated: Truncated = "judge",
    ) -> None:
        self._taught = taught(card or _folder(model), "pointwise")
        super().__init__(model, name, language=self._taught.form.language)
        flag(self.name, "calibrated", calibrated)
        if calibrated and self._taught.ratings is None:
            raise ConfigError("calibrated: the judge's card does not say what ratings are worth")
        self.calibrated = calibrated
        self.fingerprint = self._taught.template.hash
        self._showing = Showing(view, truncated)

    async def aevaluate(self, *, draw: int = 0, **fields: Any) -> GraderScore:
        """Rate one response; see the class."""
        values = self._material(fields)
        if isinstance(values, str):
            return self._candidate_fault("no judge was asked", **{values: True})
        told = await self._ask(self._taught.template, values, draw=draw, group=group_in(fields))
        score, metadata = float(told.verdict.value), dict(told.notes)
        if (ratings := self._taught.ratings) is not None:
            expected = ratings.labels(score)
            metadata |= {"rating": int(score), "expected_label": expected}
            score = expected if self.calibrated else score
        return GraderScore(
            self.name,
            score,
            told.verdict.reason,
            metadata,
            self.score_range,
            self.role,
            told.provenance,
        )

    def _material(self, fields: Mapping[str, Any]) -> dict[str, Any] | str:
        """What the judge is shown; or why there is nothing to show."""
        shown = self._showing.shown(fields, self.language)
        if shown is None:
            return "unclosed_think"
        response = shown.get("response")
        if response is None and not blank(shown.get("messages")):
            response = question(turns_of(shown["messages"]), None)[1]
        if not isinstance(response, str):
            found = "is absent" if response is None else f"is a {type(response).__name__}"
            raise GradingFailure(ErrorKind.INVALID_INPUT, f"'response' {found}, must be text")
        said = fields.get("response")  # without the note on a cut
        if blank(response) or (
            isinstance(said, str) and blank(view_text(said, self._showing.view))
        ):
            return "empty"
        return {"query": query_of(shown), "response": response}


class TrainedPreference(_Trained, PairwiseGrader):
    """Whether the response is better than another one, by a judge that was trained to compare.

    As ``pairwise`` in scores, fields and metadata: both orders are asked, and a preference that
    does not survive the swap is 0.5 and ``inconsistent``. Whether ties are offered is the judge's.
    ``card``: the judge's folder, where ``model`` is not.
    """

    type_name = "trained_preference"

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        *,
        card: Path | None = None,
        against: str = "reference",
        orders: Orders = "both",
        seed: int = 0,
        view: View = "final",
        truncated: Truncated = "judge",
    ) -> None:
        self._taught = taught(card or _folder(model), "pairwise")
        super().__init__(
            model,
            name,
            language=self._taught.form.language,
            against=against,
            orders=orders,
            ties=self._taught.form.ties,
            seed=seed,
            template=self._taught.template,
            view=view,
            truncated=truncated,
        )


class TrainedTournament(_Trained, TournamentGrader):
    """Ranks a group by a judge that was trained to compare two responses.

    As ``tournament`` in ranks, fields and metadata. Whether ties are offered is the judge's.
    ``card``: the judge's folder, where ``model`` is not.
    """

    type_name = "trained_tournament"

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        *,
        card: Path | None = None,
        orders: Orders = "both",
        pairs_per_response: int | None = None,
        max_group: int = 32,
        max_failed: float = 0.0,
        prior: float = 0.1,
        seed: int = 0,
        view: View = "final",
        truncated: Truncated = "judge",
    ) -> None:
        self._taught = taught(card or _folder(model), "pairwise")
        super().__init__(
            model,
            name,
            language=self._taught.form.language,
            orders=orders,
            pairs_per_response=pairs_per_response,
            max_group=max_group,
            max_failed=max_failed,
            prior=prior,
            ties=self._taught.form.ties,
            seed=seed,
            template=self._taught.template,
            view=view,
            truncated=truncated,
        )


def _folder(model: ChatModel) -> str:
    """The judge's folder, if that is what the model's name is."""
    folder = getattr(model, "model", "")
    if not Path(folder).is_dir():
        raise ConfigError(
            f"judge: {folder!r} is not the folder of a trained judge; where a server has the "
            "model, give the folder with its card in 'card'"
        )
    return str(folder)


def _request(query: Any) -> Any:
    """What was asked as in training: one message that is text as its text."""
    only = query[0] if isinstance(query, list) and len(query) == 1 else {}
    content = only.get("content") if isinstance(only, Mapping) else None
    return content if isinstance(content, str) and not only.get("tool_calls") else query


def _whole(reply: Reply) -> str:
    """The reply as it was written: the thinking in its tags again, then the text."""
    if not reply.reasoning and reply.text.lstrip().startswith(_OPEN):
        return reply.text
    return f"{_OPEN}{reply.reasoning}{_CLOSE}{reply.text}"
