"""VerIF: the share of a prompt's rules that hold, times a judge's verdict on everything else.

A row's constraints are parsed into those that a rule checks and those that a judge reads. Its
checker functions run in the sandbox (:mod:`adjudge.graders.verif_driver`). The two halves make a
score, also where one of them is not known.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from hashlib import sha256
from importlib import resources
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.graders.base import Between, View, text_in_view
from adjudge.graders.code.running import describe_end
from adjudge.graders.code.sandbox import Sandbox, check_sandbox
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
from adjudge.messages import content_text, parse_conversation
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


_OUTPUT_LIMIT = 1 << 18

# One queue for all graders of this kind: the machine bounds programs at a time, not the spec.
_sandbox = Sandbox()


_CHECK_DEADLINE_S = 5.0
_MEMORY_MB = 512


@dataclass(frozen=True)
class RuleResult:
    """What a rule's function found: ``passed``, or ``None`` with the kind and the reason."""

    passed: bool | None
    kind: ErrorKind | None = None
    reason: str = ""


async def run_checks(
    rules: Sequence[RuleConstraint], instruction: str, response: str, deadline_s: float
) -> list[RuleResult]:
    """One outcome per rule, in order.

    The functions share a process as long as it answers: what a process that ended early left open
    runs again in a new one, and the function that was first in it has failed. So each gets
    5 s of its own before it fails for time. Functions of one row can reach each
    other's results; those of other rows run in other processes. Raises
    ``GradingFailure(unsupported)`` where there is no sandbox.
    """
    found: dict[int, RuleResult] = {}
    left_s = deadline_s
    late = f"not run: the sample's {deadline_s:g} s were used up"
    while pending := [place for place in range(len(rules)) if place not in found]:
        if left_s <= 0:
            break
        own_s = min(left_s, _CHECK_DEADLINE_S)
        result = await _sandbox.run(
            driver_source(),
            stdin=_payload(rules, pending, instruction, response),
            deadline_s=own_s,
            memory_mb=_MEMORY_MB,
            output_limit_bytes=_OUTPUT_LIMIT,
        )
        left_s -= result.duration_s
        for place, what, value in _reports(result.stdout):
            if place in pending and place not in found:
                found[place] = _judged(what, value)
        if pending[0] not in found:
            kind = ErrorKind.TIMEOUT if result.timed_out else ErrorKind.INVALID_INPUT
            found[pending[0]] = RuleResult(None, kind, describe_end(result, own_s))
    return [found.get(at, RuleResult(None, ErrorKind.TIMEOUT, late)) for at in range(len(rules))]


@functools.cache
def driver_source() -> str:
    """The program that runs in the sandbox."""
    folder = resources.files("adjudge.graders")
    return folder.joinpath("verif_driver.py").read_text(encoding="utf-8")


def _payload(
    rules: Sequence[RuleConstraint], pending: Sequence[int], instruction: str, response: str
) -> bytes:
    functions = [[place, rules[place].source] for place in pending]
    given = {"instruction": instruction, "response": response, "functions": functions}
    return json.dumps(given).encode()


def _reports(stdout: bytes) -> list[tuple[int, str, Any]]:
    """The driver's lines; what is not one is noise from a function that found the channel."""
    found = []
    for line in stdout.splitlines():
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(report, list) and len(report) == 3 and type(report[0]) is int:
            found.append((report[0], str(report[1]), report[2]))
    return found


def _judged(what: str, value: Any) -> RuleResult:
    if what == "value" and isinstance(value, bool):
        return RuleResult(value)
    if what == "error":
        return RuleResult(None, ErrorKind.INVALID_INPUT, f"raised {shorten_text(value)}")
    return RuleResult(
        None, ErrorKind.INVALID_INPUT, f"returned {shorten_text(value)}, not true or false"
    )


_MOST_SHOWN = 50


@dataclass(frozen=True)
class VerifParts:
    """What came of the two halves, a failure in place of one that has none."""

    constraints: Constraints
    checked: list[RuleResult] | GradingFailure
    told: JudgeOutcome | GradingFailure | None

    def result(self, name: str, score_range: ScoreRange) -> GraderScore:
        """Their product; raises ``GradingFailure`` where one of them is not known."""
        failures = self._failures()
        if failures:
            raise self._failure(failures)
        rule, _ = self._rules()
        llm, _ = self._llm()
        told = self.told if isinstance(self.told, JudgeOutcome) else None
        metadata = {**self._metadata(), **(told.notes if told else {})}
        provenance = told.provenance if told else None
        reason = told.verdict.reason if told else ""
        words = f"{self._words()}{': ' if reason else ''}{reason}"
        return GraderScore(name, rule * llm, words, metadata, score_range, provenance=provenance)

    def _failures(self) -> list[GradingFailure]:
        found = [one for one in (self.checked, self.told) if isinstance(one, GradingFailure)]
        if isinstance(self.checked, list):
            for rule, one in zip(self.constraints.rules, self.checked, strict=True):
                if one.kind is not None:
                    message = f"rule {rule.name!r}: its function {one.reason}"
                    # It read the candidate's text. Its own time is no outage of a judge.
                    marks = {"suspect": True, "local": one.kind is ErrorKind.TIMEOUT}
                    found.append(GradingFailure(one.kind, message, marks))
        return found

    def _failure(self, failures: Sequence[GradingFailure]) -> GradingFailure:
        low = self._rules()[0] * self._llm()[0]
        high = self._rules()[1] * self._llm()[1]
        metadata = {
            **self._metadata(),
            "low": low,
            "high": high,
            "failures": [describe_failure(one) for one in failures[:_MOST_SHOWN]],
        }
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        message = f"{failures[0]}{more}: the score lies in [{low:.4g}, {high:.4g}]"
        answered = [self.told.provenance] if isinstance(self.told, JudgeOutcome) else []
        kinds = {one.kind for one in failures}
        if isinstance(self.checked, GradingFailure) or (len(kinds) == 1 and self._judge_said):
            own = {**metadata, **failures[0].metadata}
            paid = sum_costs(answered, failures)
            return GradingFailure(failures[0].kind, message, own, provenance=paid)
        return join_failures(failures, message, metadata, answered=answered)

    @property
    def _judge_said(self) -> bool:
        return not isinstance(self.told, GradingFailure)

    def _rules(self) -> tuple[float, float]:
        """The lowest and highest that the rules' share can be."""
        if not self.constraints.rules:
            return 1.0, 1.0
        if isinstance(self.checked, GradingFailure):
            return 0.0, 1.0
        n = len(self.checked)
        passed = sum(one.passed is True for one in self.checked)
        return passed / n, (passed + sum(one.passed is None for one in self.checked)) / n

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
            found["rules"] = [{"name": rule.name, "passed": one.passed} for rule, one in pairs]
        if rules[0] == rules[1]:
            found["rule_part"] = rules[0]
        if llm[0] == llm[1]:
            found["llm_part"] = llm[0]
        return found

    def _words(self) -> str:
        said = []
        if isinstance(self.checked, list) and self.checked:
            passed = sum(one.passed is True for one in self.checked)
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
    runs in the sandbox. All ``[llm]`` constraints are one question to the judge. Where one kind is
    absent, its factor is 1. An empty response and an unclosed ``<think>`` are 0, the candidate's
    fault; nothing runs and no judge is asked.

    Raises ``GradingFailure``: ``unsupported`` without a sandbox; ``invalid_input`` for constraints
    that cannot be read, for none, and for a function that raises or returns neither true nor false;
    ``timeout`` for a slow one; and the judge's own. Its metadata has the half that is known, and
    ``low`` and ``high``. Metadata: ``rules``, ``rule_part``, ``llm_part``, ``constraints``.

    Args:
        field: The column of the constraints, a dotted path; where it is lacking, ``reference``.
        skip_rules: The rules go to the judge as text, and no code runs.
        deadline_s: Wall-clock seconds for all functions of a sample; each has 5 s and 512 MB.
    """

    type_name = "verif"
    score_range = (0.0, 1.0)

    field: str = "ground_truth"
    skip_rules: bool = False
    deadline_s: Annotated[float, Between(0.1, 600)] = 30.0
    view: View = dataclass_field(init=False, default="final")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._form = MarkedScoreForm(0, 1)
        self.fingerprint = sha256((_template().hash + driver_source()).encode()).hexdigest()

    def check_machine(self) -> None:
        """What the judge needs is here, and a sandbox where rules are run."""
        super().check_machine()
        if not self.skip_rules:
            check_sandbox(f"{self.type_name} (without skip_rules)")

    async def aevaluate(self, draw: int = 0, **fields: Any) -> GraderScore:
        """The score of one response."""
        constraints = self._constraints(fields)
        response = text_in_view(fields.get("response"), "final")
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

        async def rules() -> list[RuleResult]:
            if not constraints.rules:
                return []
            return await run_checks(constraints.rules, _text(query), response, self.deadline_s)

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
    """A prompt as a function is given it: its text, of a conversation the user's last turn."""
    if isinstance(query, list):
        turns = [turn for turn in query if isinstance(turn, Mapping) and "role" in turn]
        asked = [turn for turn in turns if turn["role"] == "user"] or turns
        if asked:
            return content_text(asked[-1].get("content"))
    return query if isinstance(query, str) else content_text(query)
