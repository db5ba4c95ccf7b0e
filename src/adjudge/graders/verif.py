"""VerIF: the share of a prompt's rules that hold, times a judge's verdict on everything else.

A row's constraints are parsed into those that a rule checks and those that a judge reads. Its
checker functions run in the sandbox. The two halves make a score, also where one of them is not
known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field as dataclass_field
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from adjudge.errors import ErrorKind, GradingFailure, InvalidInput
from adjudge.graders.base import View, final_response
from adjudge.graders.code.cases import Case
from adjudge.graders.code.grader import CaseOutcome, run_cases
from adjudge.graders.code.sandbox import check_sandbox
from adjudge.graders.code.values import encode_tree
from adjudge.graders.llm.judge_grader import JudgeGrader, JudgeOutcome, get_group_name
from adjudge.graders.llm.question import (
    conversation_query,
    extract_query,
    first_present,
    missing_field_failure,
    read_turns,
)
from adjudge.graders.llm.reply_forms import ScoreForm
from adjudge.graders.llm.shipped_graders import trim_shipped_prompt
from adjudge.judges.asking import ask_all, describe_failure, join_failures, sum_costs
from adjudge.messages import content_text, last_question, parse_conversation
from adjudge.text import shorten_text
from adjudge.types import MISSING, GraderScore, get_path

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
        raise InvalidInput(f"{at}: {fault['msg']} (found {found})") from None
    functions = [None] * len(row.checkers) if row.functions is None else row.functions
    if len(functions) != len(row.checkers):
        raise InvalidInput(
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
            raise InvalidInput(
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


def _rule_failure(rule: str, outcome: CaseOutcome) -> GradingFailure:
    """Its function read the candidate's text; the time it takes is no outage of a judge."""
    kind = outcome.failure or ErrorKind.BUG
    message = f"rule {rule!r}: its function has no answer: {outcome.text}"
    return GradingFailure(kind, message, {"suspect": True, "local": kind is ErrorKind.TIMEOUT})


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
        self._form = ScoreForm(0, 1, takes_brackets=True)
        shown = frozenset(("constraints", "query", "response"))
        self._template = trim_shipped_prompt("verif", shown)
        self.fingerprint = sha256((self._template.hash + _PROGRAM).encode()).hexdigest()

    def check_machine(self) -> None:
        """What the judge needs is here, and a sandbox where rules are run."""
        super().check_machine()
        if not self.skip_rules:
            check_sandbox(f"{self.type_name} (without skip_rules)")

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderScore:
        """The score of one response."""
        constraints = self._constraints(fields)
        response = final_response(fields.get("response")) or ""
        shown = self._showing.render(fields) or fields
        if why := self._showing.find_unsaid(fields["response"]):
            return self._unsaid(why)
        query = _query(shown)
        if query is None:
            raise missing_field_failure(("instruction", "query", "messages", "prompt"), fields)

        async def rules() -> list[CaseOutcome]:
            if not constraints.rules:
                return []
            return await run_checks(constraints.rules, _text(query), response.lstrip())

        async def soft() -> JudgeOutcome | None:
            if not constraints.soft:
                return None
            return await self._ask(
                self._template,
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

        halves: tuple[Callable[[], Awaitable[Any]], ...] = (rules, soft)
        found, failed = await ask_all(lambda half: half(), halves)
        checked, judged = map((found | failed).__getitem__, halves)
        return self.combine_parts(constraints, checked, judged)

    def combine_parts(
        self,
        constraints: Constraints,
        checked: list[CaseOutcome] | GradingFailure,
        judged: JudgeOutcome | GradingFailure | None,
    ) -> GraderScore:
        """The product of the two halves; a failure stands in for one that has none.

        Raises ``GradingFailure`` where one of them is not known, with what is known as metadata.
        """
        metadata: dict[str, Any] = {"constraints": len(constraints.soft)}
        failures = [one for one in (checked, judged) if isinstance(one, GradingFailure)]
        said: list[str] = []
        rules = llm = (1.0, 1.0)  # the lowest and the highest that they can be
        if isinstance(checked, GradingFailure):
            rules = (0.0, 1.0)
        else:
            named = list(zip((rule.name for rule in constraints.rules), checked, strict=True))
            failures += [_rule_failure(rule, one) for rule, one in named if one.failure]
            metadata["rules"] = [
                {"name": rule, "passed": None if one.failure else one.passed} for rule, one in named
            ]
            if checked:
                passed, n = sum(one.passed for one in checked), len(checked)
                said.append(f"{passed} of {n} rules hold")
                rules = passed / n, (passed + sum(one.failure is not None for one in checked)) / n
        if isinstance(judged, GradingFailure):
            llm = (0.0, 1.0)
        elif judged is not None:
            llm = (float(judged.verdict.value),) * 2
            said.append(f"judge {llm[0]:g}")
        for part, (low, high) in (("rule_part", rules), ("llm_part", llm)):
            metadata |= {part: low} if low == high else {}
        answered = judged if isinstance(judged, JudgeOutcome) else None
        if failures:
            first, low, high = failures[0], rules[0] * llm[0], rules[1] * llm[1]
            more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            message = f"{first}{more}: the score lies in [{low:.4g}, {high:.4g}]"
            shown = [describe_failure(one) for one in failures[:_MOST_SHOWN]]
            metadata |= {"low": low, "high": high, "failures": shown}
            costs = [answered.provenance] if answered else []
            of_rules = len({one.kind for one in failures}) == 1 and judged is answered
            if not isinstance(checked, GradingFailure) and not of_rules:
                raise join_failures(failures, message, metadata, answered=costs)
            metadata, paid = {**metadata, **first.metadata}, sum_costs(costs, failures)
            raise GradingFailure(first.kind, message, metadata, provenance=paid)
        reason, provenance = ", ".join(said), None
        if answered:
            metadata, provenance = metadata | answered.notes, answered.provenance
            reason += f": {answered.verdict.reason}" if answered.verdict.reason else ""
        return self._result(rules[0] * llm[0], reason, metadata, provenance)

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


def _query(shown: Mapping[str, Any]) -> Any:
    """What the response answers; a chat prompt that a file's row kept as JSON text is one again."""
    query = first_present(shown, ("instruction",)) or extract_query(shown)
    chat = parse_conversation(query) if isinstance(query, str) and query.startswith("[") else None
    return query if chat is None else conversation_query(read_turns(chat)) or query


def _text(query: Any) -> str:
    """A prompt as a function is given it: its text, of a conversation the last question."""
    chat = parse_conversation(query) if isinstance(query, list) else None
    return (last_question(chat) if chat else None) or content_text(query)
