"""VerIF: the share of a prompt's rules that hold, times a judge's verdict on everything else.

A row's constraints are parsed into those that a rule checks and those that a judge reads. Its
checker functions run in the sandbox. The two halves make a score, also where one of them is not
known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from adjudge.errors import ErrorKind, GradingFailure, Metadata
from adjudge.graders.base import View, final_response
from adjudge.graders.code.cases import Case
from adjudge.graders.code.execution import CaseOutcome, run_cases
from adjudge.graders.code.sandbox import check_sandbox
from adjudge.graders.code.values import encode_tree
from adjudge.graders.llm.candidate_view import (
    conversation_query,
    extract_query,
    first_present,
    get_group_name,
    is_blank,
    missing_field_failure,
    read_turns,
)
from adjudge.graders.llm.judge_grader import JudgeGrader, JudgeOutcome
from adjudge.graders.llm.reply_forms import MarkedScoreForm
from adjudge.graders.llm.shipped_graders import trim_shipped_prompt
from adjudge.judges.asking import ask_all, describe_failure, join_failures, sum_costs
from adjudge.messages import content_text, last_question, parse_conversation
from adjudge.prompts import PromptTemplate
from adjudge.text import shorten_text
from adjudge.types import MISSING, GraderScore, ScoreRange, get_path

_MOST_SOURCE = 20_000
_Checker = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, max_length=4_000, pattern=r"^(?i:\[llm\]|\[rule\])\s*\S"
    ),
]


@dataclass(frozen=True)
class RuleConstraint:
    """A constraint that a function checks: its name, its text, the function's source."""

    name: str
    text: str
    source: str = ""


@dataclass(frozen=True)
class Constraints:
    """What one row demands: ``soft`` texts for a judge, ``rules`` for the sandbox."""

    soft: tuple[str, ...]
    rules: tuple[RuleConstraint, ...]


def parse_constraints(value: Any, *, where: str, runs: bool) -> Constraints:
    """The constraints of ``value``: a mapping ``{checkers, functions}``, or its JSON text.

    ``checkers`` are texts ``[llm] Name: text`` or ``[rule] Name: text``; ``functions`` has one
    for each checker, and those of ``[llm]`` are never looked at. With ``runs`` every rule needs its
    function. Raises ``GradingFailure(invalid_input)`` that names ``where`` and what is wrong.

    >>> found = parse_constraints({"checkers": ["[llm] Tone: polite"]}, where="x", runs=False)
    >>> found.soft
    ('Tone: polite',)
    """
    try:
        read = _Row.model_validate_json if isinstance(value, str) else _Row.model_validate
        row = read(value)
    except ValidationError as error:
        fault = error.errors()[0]
        at = ".".join(map(str, (where, *fault["loc"])))
        found = shorten_text(repr(fault["input"]), 60)
        raise _invalid(f"{at}: {fault['msg']} (found {found})") from None
    functions = [None] * len(row.checkers) if row.functions is None else row.functions
    if len(functions) != len(row.checkers):
        raise _invalid(
            f"{where}.functions: must have one for each of {len(row.checkers)} checkers "
            f"(found {len(functions)})"
        )
    soft, rules = [], []
    for place, (checker, source) in enumerate(zip(row.checkers, functions, strict=True)):
        kind, _, text = checker.partition("]")
        text = " ".join(text.split())
        if kind.lower() == "[llm":
            soft.append(text)
            continue
        if runs and not (isinstance(source, str) and 0 < len(source.strip()) <= _MOST_SOURCE):
            raise _invalid(
                f"{where}.functions.{place}: must be Python source that defines "
                f"check_following(instruction, response), of at most {_MOST_SOURCE} characters "
                f"(found {type(source).__name__}; skip_rules = true asks the judge)"
            )
        name = shorten_text(text.partition(":")[0].strip(), 60)
        rules.append(RuleConstraint(name, text, source if runs else ""))
    return Constraints(tuple(soft), tuple(rules))


class _Row(BaseModel):
    """A row's constraints as they are written; only functions of rules are looked at."""

    checkers: list[_Checker] = Field(min_length=1, max_length=200)
    functions: list[Any] | None = None


def _invalid(message: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, message)


_PROGRAM = """
def check(place):
    checker = {"__name__": "candidate"}
    exec(compile(SOURCES[place], "checker", "exec"), checker)
    answer = checker["check_following"](INSTRUCTION, RESPONSE)
    if not isinstance(answer, bool):
        raise TypeError(f"returned {type(answer).__name__}, not true or false")
    return answer
"""


async def run_checks(
    rules: Sequence[RuleConstraint], instruction: str, response: str, deadline_s: float = 30.0
) -> list[CaseOutcome]:
    """One outcome per rule, in order.

    Each is a call that is expected to return true, of a program that has all functions of the row.
    They can reach each other's results; those of other rows run in other processes. Raises
    ``GradingFailure(unsupported)`` where there is no sandbox.
    """
    sources = [rule.source for rule in rules]
    given = f"INSTRUCTION, RESPONSE, SOURCES = {(instruction, response, sources)!r}"
    calls = [["check", encode_tree([place]), encode_tree({})] for place in range(len(rules))]
    return await run_cases(
        given + _PROGRAM,
        [Case("exact", [call], encode_tree([True])) for call in calls],
        deadline_s,
        stop_early=False,
        untrusted_tests="refuse",
    )


_MOST_SHOWN = 50


@dataclass(frozen=True)
class VerifParts:
    """What came of the two halves, a failure in place of one that has none."""

    constraints: Constraints
    checked: list[CaseOutcome] | GradingFailure
    told: JudgeOutcome | GradingFailure | None

    def result(self, name: str, score_range: ScoreRange) -> GraderScore:
        """Their product; raises ``GradingFailure`` where one of them is not known."""
        (rules, most), (llm, highest) = self._rules(), self._llm()
        metadata = self._metadata()
        if failures := self._failures():
            raise self._failure(failures, metadata, rules * llm, most * highest)
        reason, provenance = self._words(), None
        if isinstance(self.told, JudgeOutcome):
            metadata |= self.told.notes
            provenance, said = self.told.provenance, self.told.verdict.reason
            reason += f": {said}" if said else ""
        return GraderScore(name, rules * llm, reason, metadata, score_range, provenance=provenance)

    def _failures(self) -> list[GradingFailure]:
        found = [one for one in (self.checked, self.told) if isinstance(one, GradingFailure)]
        if isinstance(self.checked, list):
            for rule, one in zip(self.constraints.rules, self.checked, strict=True):
                if one.failure is not None:
                    message = f"rule {rule.name!r}: its function has no answer: {one.text}"
                    # It read the candidate's text. Its own time is no outage of a judge.
                    marks = {"suspect": True, "local": one.failure is ErrorKind.TIMEOUT}
                    found.append(GradingFailure(one.failure, message, marks))
        return found

    def _failure(
        self, failures: Sequence[GradingFailure], metadata: Metadata, low: float, high: float
    ) -> GradingFailure:
        metadata |= {"low": low, "high": high}
        metadata["failures"] = [describe_failure(one) for one in failures[:_MOST_SHOWN]]
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        message = f"{failures[0]}{more}: the score lies in [{low:.4g}, {high:.4g}]"
        answered = [self.told.provenance] if isinstance(self.told, JudgeOutcome) else []
        of_rules = not isinstance(self.told, GradingFailure)
        kinds = {one.kind for one in failures}
        if isinstance(self.checked, GradingFailure) or (len(kinds) == 1 and of_rules):
            own = {**metadata, **failures[0].metadata}
            paid = sum_costs(answered, failures)
            return GradingFailure(failures[0].kind, message, own, provenance=paid)
        return join_failures(failures, message, metadata, answered=answered)

    def _rules(self) -> tuple[float, float]:
        """The lowest and highest that the rules' share can be."""
        if not self.constraints.rules:
            return 1.0, 1.0
        if isinstance(self.checked, GradingFailure):
            return 0.0, 1.0
        n = len(self.checked)
        passed = sum(one.passed for one in self.checked)
        return passed / n, (passed + sum(one.failure is not None for one in self.checked)) / n

    def _llm(self) -> tuple[float, float]:
        """The lowest and highest that the judge's verdict can be."""
        if self.told is None:
            return 1.0, 1.0
        if isinstance(self.told, GradingFailure):
            return 0.0, 1.0
        value = float(self.told.verdict.value)
        return value, value

    def _metadata(self) -> dict[str, Any]:
        rules, llm = self._rules(), self._llm()
        found: dict[str, Any] = {"constraints": len(self.constraints.soft)}
        if isinstance(self.checked, list):
            pairs = zip(self.constraints.rules, self.checked, strict=True)
            found["rules"] = [
                {"name": rule.name, "passed": one.passed if one.failure is None else None}
                for rule, one in pairs
            ]
        if rules[0] == rules[1]:
            found["rule_part"] = rules[0]
        if llm[0] == llm[1]:
            found["llm_part"] = llm[0]
        return found

    def _words(self) -> str:
        said = []
        if isinstance(self.checked, list) and self.checked:
            passed = sum(one.passed for one in self.checked)
            said.append(f"{passed} of {len(self.checked)} rules hold")
        if self.told is not None:
            said.append(f"judge {self._llm()[0]:g}")
        return ", ".join(said)


@dataclass(eq=False, repr=False, kw_only=True)
class VerIFGrader(JudgeGrader):
    """The share of a prompt's rules that hold, times a judge's 0 or 1 for its other constraints.

    Fields: ``response``, the column ``field`` with ``{"checkers": ["[llm] Name: text", "[rule]
    Name: text"], "functions": ["", source]}`` (an object or JSON text), and the prompt:
    ``instruction``, ``query``, the conversation before the response, or ``prompt``. Source: VerIF
    (arXiv 2506.09942), score = mean(rules) · llm.

    Each ``[rule]`` is the function ``check_following(instruction, response)`` in its source; it
    runs in the sandbox, all of a sample for 30 s at most, each for 5 s with 512 MB. All ``[llm]``
    constraints are one question to the judge. Where one kind is absent, its factor is 1. An empty
    response and an unclosed ``<think>`` are 0, the candidate's fault; nothing runs and no judge is
    asked.

    Raises ``GradingFailure``: ``unsupported`` without a sandbox; ``invalid_input`` for constraints
    that cannot be read, for none, and for a function that raises or returns neither true nor false;
    ``timeout`` for a slow one; and the judge's own. Its metadata has the half that is known, and
    ``low`` and ``high``. Metadata: ``rules``, ``rule_part``, ``llm_part``, ``constraints``.

    Args:
        field: The column of the constraints, a dotted path; where it is lacking, ``reference``.
        skip_rules: The rules go to the judge as text, and no code runs.
    """

    type_name = "verif"
    score_range = (0.0, 1.0)

    field: str = "ground_truth"
    skip_rules: bool = False
    view: View = dataclass_field(init=False, default="final")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._form = MarkedScoreForm(0, 1)
        self.fingerprint = sha256((_template().hash + _PROGRAM).encode()).hexdigest()

    def check_machine(self) -> None:
        """What the judge needs is here, and a sandbox where rules are run."""
        super().check_machine()
        if not self.skip_rules:
            check_sandbox(f"{self.type_name} (without skip_rules)")

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderScore:
        """The score of one response."""
        constraints = self._constraints(fields)
        response = final_response(fields.get("response"))
        if response is None:
            reason = "the response never ended its thinking"
            return self._candidate_fault(reason, unclosed_think=True)
        shown = self._showing.render(fields)
        if is_blank(response):
            return self._candidate_fault("the response is empty", empty=True)
        return await self._judged(constraints, response.lstrip(), fields, shown or fields, draw)

    def _constraints(self, fields: Mapping[str, Any]) -> Constraints:
        value = get_path(fields, self.field)
        where = self.field
        if value is MISSING or value is None:
            value, where = fields.get("reference"), "reference"
        if value is None:
            raise missing_field_failure((self.field, "reference"), fields)
        found = parse_constraints(value, where=where, runs=not self.skip_rules)
        if self.skip_rules:
            found = Constraints((*found.soft, *(rule.text for rule in found.rules)), ())
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
            raise missing_field_failure(("instruction", "query", "messages", "prompt"), fields)

        async def rules() -> list[CaseOutcome]:
            if not constraints.rules:
                return []
            return await run_checks(constraints.rules, _text(query), response)

        async def soft() -> JudgeOutcome | None:
            if not constraints.soft:
                return None
            return await self._ask(
                _template(),
                {
                    "constraints": "\n".join(
                        f"{number}. {text}" for number, text in enumerate(constraints.soft, 1)
                    ),
                    "query": query,
                    "response": shown["response"],
                },
                self._form,
                draw=draw,
                group=get_group_name(fields),
            )

        checked, told = await ask_all((rules, soft))
        parts = VerifParts(
            constraints,
            checked if isinstance(checked, list | GradingFailure) else [],
            told if isinstance(told, JudgeOutcome | GradingFailure) else None,
        )
        return parts.result(self.name, self.score_range)


def _template() -> PromptTemplate:
    return trim_shipped_prompt("verif", frozenset(("constraints", "query", "response")))


def _query(shown: Mapping[str, Any]) -> Any:
    """What the response answers; a chat prompt that a file's row kept as JSON text is one again."""
    query = first_present(shown, ("instruction",)) or extract_query(shown)
    chat = parse_conversation(query) if isinstance(query, str) and query.startswith("[") else None
    return query if chat is None else conversation_query(read_turns(chat)) or query


def _text(query: Any) -> str:
    """A prompt as a function is given it: its text, of a conversation the last question."""
    chat = parse_conversation(query) if isinstance(query, list) else None
    return (last_question(chat) if chat else None) or content_text(query)
