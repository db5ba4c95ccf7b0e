"""``VerIFGrader``: rules run in the sandbox, times one verdict on everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.graders.llm.candidate import Showing, Truncated
from adjudge.graders.llm.forms import ScoreForm
from adjudge.graders.llm.judged import JudgeGrader, Told, group_in
from adjudge.graders.llm.material import asked, blank, first_given, lacking, turns_of
from adjudge.graders.llm.several import each
from adjudge.graders.llm.shipped import prompt_with
from adjudge.graders.llm.wording import query_of
from adjudge.graders.rules.params import flag, integer, number
from adjudge.graders.rules.text import text_of
from adjudge.graders.verif.checking import Checked, Limits, check, driver_source
from adjudge.graders.verif.constraints import Constraints, parse_constraints
from adjudge.graders.verif.parts import Parts
from adjudge.graders.view import content_text, final_text
from adjudge.judges.base import ChatModel
from adjudge.prompts import LanguageEnum
from adjudge.rollouts.guess import conversation
from adjudge.rollouts.mapping import MISSING, get_path
from adjudge.types import GraderScore

__all__ = ["VerIFGrader"]


class VerIFGrader(JudgeGrader):
    """The share of a prompt's rules that hold, times a judge's 0 or 1 for its other constraints.

    Range [0, 1]: mean(rules) × llm (VerIF, arXiv 2506.09942). Fields: ``response`` (text) and the
    column ``field`` (a dotted path, default ``ground_truth``; where it is lacking, ``reference``):
    ``{"checkers": ["[llm] Name: text" | "[rule] Name: text"], "functions": [source, …]}``, as an
    object or as JSON text, position by position; the prompt is ``instruction``, ``query``, the
    conversation before the response, or ``prompt``.

    Each ``[rule]`` is the function ``check_following(instruction, response)`` of its source, which
    comes with the data: it runs in the sandbox and nowhere else, all of a sample in one process,
    with the prompt's text (of a conversation: its last turn of the user's). All ``[llm]``
    constraints are one question to the judge. Without a rule the first factor is 1, without an
    ``[llm]`` constraint the second, and no judge is asked; both are asked even where one is 0, so
    that whether a sample has a score does not depend on how good it is.

    ``skip_rules``: the rules go to the judge as text and no code runs. ``ignore_rules``: they are
    left out. ``truncated``: as for all graders with a judge. Judged is what stands after the
    thinking. ``deadline_s`` (30): wall-clock seconds for all functions of a sample, each of which
    gets at most ``check_deadline_s`` (5); ``memory_mb`` (512): address space.

    Raises ``GradingFailure``: ``unsupported`` where there is no sandbox; ``invalid_input`` for
    constraints that cannot be read or of which none is left, and for a function that raises or
    returns neither true nor false; ``timeout`` for one that does not return in time; and whatever
    asking a judge raises. Nothing of these is a score: the metadata has the half that is known, and
    ``low`` and ``high``, between which the score must lie. A response that says nothing, or never
    ended its thinking, is 0, the candidate's fault, and nothing is run or asked.
    Metadata: ``rules`` (``name``, ``passed``), ``rule_part``, ``llm_part``, ``constraints``, how
    many the judge was shown.
    """

    type_name = "verif"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        model: ChatModel,
        field: str = "ground_truth",
        skip_rules: bool = False,
        ignore_rules: bool = False,
        deadline_s: float = 30.0,
        check_deadline_s: float = 5.0,
        memory_mb: int = 512,
        language: LanguageEnum | str = LanguageEnum.EN,
        truncated: Truncated = "judge",
        name: str = "",
    ) -> None:
        super().__init__(model, name, language=language)
        flag(self.type_name, "skip_rules", skip_rules)
        flag(self.type_name, "ignore_rules", ignore_rules)
        if skip_rules and ignore_rules:
            raise ConfigError(
                "verif: skip_rules gives the rules to the judge, ignore_rules leaves them out; "
                "set one of them"
            )
        number(self.type_name, "deadline_s", deadline_s, 0.1, 600)
        number(self.type_name, "check_deadline_s", check_deadline_s, 0.1, 600)
        integer(self.type_name, "memory_mb", memory_mb, 64, 65536)
        self.field, self.skip_rules, self.ignore_rules = field, skip_rules, ignore_rules
        self.limits = Limits(deadline_s, check_deadline_s, memory_mb)
        self._showing = Showing("final", truncated)
        self._form = ScoreForm(0, 1)
        own = prompt_with(self.type_name, frozenset(("constraints", "query", "response"))).hash
        self.fingerprint = sha256((own + driver_source()).encode()).hexdigest()

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderScore:
        """The score of one response."""
        constraints = self._constraints(fields)
        response = final_text(text_of(fields.get("response")))
        if response is None:
            reason = "the response never ended its thinking"
            return self._candidate_fault(reason, unclosed_think=True)
        shown = self._showing.shown(fields, self.language)
        if blank(response):
            return self._candidate_fault("the response is empty", empty=True)
        return await self._judged(constraints, response.lstrip(), fields, shown or fields, draw)

    def _constraints(self, fields: Mapping[str, Any]) -> Constraints:
        value = get_path(fields, self.field)
        where = self.field
        if value is MISSING or value is None:
            value, where = fields.get("reference"), "reference"
        if value is None:
            raise lacking((self.field, "reference"), fields)
        runs = not (self.skip_rules or self.ignore_rules)
        found = parse_constraints(value, where=where, runs=runs)
        if self.skip_rules:
            found = Constraints((*found.soft, *(rule.text for rule in found.rules)), ())
        elif self.ignore_rules:
            found = replace(found, rules=())
        if not found.soft and not found.rules:
            raise GradingFailure(
                ErrorKind.INVALID_INPUT,
                f"{where}: has no constraint but rules, which ignore_rules leaves out",
            )
        return found

    async def _judged(
        self,
        constraints: Constraints,
        response: str,
        fields: Mapping[str, Any],
        shown: Mapping[str, Any],
        draw: int,
    ) -> GraderScore:
        query = _query(shown)
        if query is None:
            raise lacking(("instruction", "query", "messages", "prompt"), fields)

        async def rules() -> list[Checked]:
            if not constraints.rules:
                return []
            return await check(constraints.rules, _text(query), response, self.limits)

        async def soft() -> Told | None:
            if not constraints.soft:
                return None
            return await self._ask(
                prompt_with(self.type_name, frozenset(("constraints", "query", "response"))),
                {"constraints": _lines(constraints.soft), "query": query, **_seen(shown)},
                self._form,
                draw=draw,
                group=group_in(fields),
            )

        checked, told = await each((rules, soft))
        parts = Parts(
            constraints,
            checked if isinstance(checked, list | GradingFailure) else [],
            told if isinstance(told, Told | GradingFailure) else None,
        )
        return parts.result(self.name, self.score_range)


def _query(shown: Mapping[str, Any]) -> Any:
    """What the response answers; a chat prompt that a file's row kept as JSON text is one again."""
    query = first_given(shown, ("instruction",)) or query_of(shown)
    chat = conversation(query) if isinstance(query, str) and query.startswith("[") else None
    return query if chat is None else asked(turns_of(chat)) or query


def _lines(texts: Sequence[str]) -> str:
    return "\n".join(f"{number}. {text}" for number, text in enumerate(texts, 1))


def _seen(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {"response": shown["response"]}


def _text(query: Any) -> str:
    """A prompt as a function is given it: its text, of a conversation the user's last turn."""
    if isinstance(query, list):
        turns = [turn for turn in query if isinstance(turn, Mapping) and "role" in turn]
        asked = [turn for turn in turns if turn["role"] == "user"] or turns
        if asked:
            return content_text(asked[-1].get("content"))
    return query if isinstance(query, str) else content_text(query)
