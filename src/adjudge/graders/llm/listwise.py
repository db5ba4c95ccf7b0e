"""Ranking all responses of a group in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.llm.candidate import Showing, Truncated
from adjudge.graders.llm.forms import object_schema
from adjudge.graders.llm.group import Entrants, group_of
from adjudge.graders.llm.judged import JudgeGrader
from adjudge.graders.llm.wording import Template, chosen_template, with_query
from adjudge.graders.rules.params import integer
from adjudge.graders.view import View
from adjudge.judges.base import ChatModel
from adjudge.prompts import ChatMessage, LanguageEnum, PromptTemplate
from adjudge.types import GraderMode, GraderRank
from adjudge.verdicts import Unread, Verdict, places_in, read_ranking, reason_in, wrong_keys

__all__ = ["ListwiseGrader"]

_MOST = 26
_ALL = "{responses}"


class ListwiseGrader(JudgeGrader):
    """Ranks the responses of a group in one call, 1 is best, ties as the judge told them.

    Fields are lists with one entry per response: ``response``, and what all answer: ``query``, else
    the conversation before the response in ``messages`` where all share it, else ``prompt``. The
    responses are shown in an order drawn from ``seed``, the texts and the draw, so neither the
    group's order nor a fixed one decides. Equal responses are shown once and share their rank;
    those that are empty or never ended their thinking share the last one, unshown.

    More than ``max_group`` distinct responses (default 8, at most 26) are ``invalid_input``: judges
    lose track of long lists, and ``tournament`` compares by pairs. So is a group of one, and, under
    ``truncated = "mask"``, one with a member that was cut.

    ``template``: an own wording with ``{query}`` and ``{responses}``, which becomes the fenced
    responses one after the other.

    When fewer than two distinct responses say something nobody is asked: equal ones tie.
    """

    type_name = "listwise"
    mode = GraderMode.LISTWISE

    def __init__(
        self,
        model: ChatModel,
        name: str = "",
        *,
        language: LanguageEnum | str = LanguageEnum.EN,
        max_group: int = 8,
        seed: int = 0,
        template: Template = None,
        view: View = "final",
        truncated: Truncated = "judge",
    ) -> None:
        super().__init__(model, name, mode=GraderMode.LISTWISE, language=language)
        integer(self.name, "max_group", max_group, 2, _MOST)
        integer(self.name, "seed", seed, 0)
        self.max_group, self.seed = max_group, seed
        self.template = chosen_template(template, "listwise", ("responses",))
        self.fingerprint = self.template.hash
        self._showing = Showing(view, truncated)
        self._templates = {n: _expanded(self.template, n) for n in range(2, max_group + 1)}

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderRank:
        """Rank a group; see the class."""
        group = group_of(fields, self._showing, self.language, seed=self.seed, draw=draw)
        texts, n = group.entrants.texts, len(group.entrants.texts)
        if n > self.max_group:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT,
                f"{n} distinct responses in one call, allowed are {self.max_group} (max_group); "
                "rank large groups with type = 'tournament'",
            )
        if n < 2:
            reason = "fewer than two distinct responses say something"
            return self._ranked(group.entrants, [1.0] * n, reason, {})
        template = self._templates[n]
        values = with_query(group.sample, template)
        values |= {f"response_{number}": text for number, text in enumerate(texts, 1)}
        told = await self._ask(template, values, _PlacesForm(n), draw=draw, group=group.id)
        shown = group.entrants.spread(range(1, n + 1))
        answer = self._ranked(
            group.entrants,
            told.verdict.value,
            told.verdict.reason,
            {"shown_as": shown, **told.notes},
        )
        return GraderRank(
            answer.name, answer.rank, answer.reason, answer.metadata, provenance=told.provenance
        )

    def _ranked(
        self, entrants: Entrants, ranks: Sequence[float], reason: str, metadata: dict[str, Any]
    ) -> GraderRank:
        return GraderRank(self.name, entrants.ranked(ranks), reason, metadata)


class _PlacesForm:
    """``{"reason", "places": {"response_1": place, …}}``.

    Places by number, since a bare list could mean places as well as numbers from best to worst.
    """

    imposed = False

    def __init__(self, n: int) -> None:
        self.n = n
        names = [f"response_{number}" for number in range(1, n + 1)]
        place = {"type": "integer", "enum": list(range(1, n + 1))}
        places = object_schema(dict.fromkeys(names, place))
        self.schema: Mapping[str, Any] = object_schema(
            {"reason": {"type": "string"}, "places": places}
        )

    def example(self, language: LanguageEnum) -> str:
        """See :class:`~adjudge.graders.llm.forms.Form`."""
        english = language is LanguageEnum.EN
        why = "<your reasons, in a few sentences>" if english else "<简要理由>"
        place = f"<place from 1 to {self.n}>" if english else f"<1 到 {self.n} 的名次>"
        places = [f'"response_{number}": {place}' for number in range(1, self.n + 1)]
        return f'{{"reason": "{why}", "places": {{{", ".join(places)}}}}}'

    def verdict_of(self, found: dict[str, Any]) -> Verdict | Unread:
        """See :class:`~adjudge.graders.llm.forms.Form`."""
        if (wrong := wrong_keys(found, "places")) is not None:
            return wrong
        given = found["places"]
        names = [f"response_{number}" for number in range(1, self.n + 1)]
        named = isinstance(given, dict) and given.keys() == set(names)
        places = places_in([given[name] for name in names] if named else None, self.n)
        if places is None:
            return Unread(why="the place for the ranking holds none")
        return Verdict(value=places, reason=reason_in(found), form="json")

    def read(self, text: str, *, quoted: Sequence[str], cut: bool) -> Verdict | Unread:
        """See :class:`~adjudge.graders.llm.forms.WordedForm`."""
        return read_ranking(text, self.n, keys=("places",), quoted=quoted, cut=cut)


def _expanded(template: PromptTemplate, n: int) -> PromptTemplate:
    """``template`` with one fenced field per response in place of ``{responses}``."""
    fields = "\n\n".join(f"{{response_{number}}}" for number in range(1, n + 1))

    def filled(message: ChatMessage) -> ChatMessage:
        if not isinstance(message.content, str):
            raise ConfigError("template: a ranking's messages are texts, not content parts")
        return ChatMessage(message.role, message.content.replace(_ALL, fields), message.name)

    messages = {lang: [filled(m) for m in given] for lang, given in template.messages.items()}
    return PromptTemplate(messages, trusted=template.trusted)
