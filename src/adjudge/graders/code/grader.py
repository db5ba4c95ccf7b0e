"""Is the code in a response Python, and does it do what its tests ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from adjudge.engine.sandbox import check_sandbox
from adjudge.errors import LACKED, CandidateLimitExceeded, Cause, ErrorKind, GradingFailure
from adjudge.graders.base import (
    NO_FINAL_TEXT,
    ParametricRule,
    RuleGrader,
    View,
    check_choice,
    check_integer,
    check_number,
    parameter_error,
    text_in_view,
)
from adjudge.graders.code.analysis import parse_python
from adjudge.graders.code.blocks import (
    PRELUDE,
    extract_python,
    extract_solution,
    find_syntax_fault,
)
from adjudge.graders.code.cases import Case, UntrustedTests, called_names, parse_cases
from adjudge.graders.code.running import CaseBudget, CaseOutcome, run_cases
from adjudge.text import shorten_text
from adjudge.types import GraderScore

_MAX_CODE = 1 << 20
_TOO_LONG = f"the response is longer than {_MAX_CODE} characters"
_NO_CODE = "no Python code in the response"
_MAX_OUTCOMES = 50
_MAX_STDERR = 500


@dataclass(eq=False, repr=False)
class SyntaxCheckGrader(ParametricRule):
    r"""1 when all Python code in the response parses, else 0.

    Range [0, 1]. Field: ``response`` (text). Code is what stands in fenced blocks marked as Python;
    without such, in blocks without a language; without any block, the whole text if it parses and
    does more than name things. Comments alone are no code. Nothing is executed. The grammar is that
    of the running interpreter; nesting that it refuses to parse counts as not parsing. Where there
    is no code, ``<think>`` was never closed, or the response has more than 2**20 characters, the
    score is 0 with ``cause = "candidate"`` in metadata.

    ``view``: ``final`` (default) reads what stands
    after the thinking, ``full`` the whole response.

    Raises ``GradingFailure(invalid_input)`` for a response that is not text.

    >>> import asyncio
    >>> response = "```python\nprint('a'\n```"
    >>> asyncio.run(SyntaxCheckGrader().aevaluate(response)).score
    0.0
    """

    type_name = "code_syntax"
    score_range = (0.0, 1.0)

    view: View = "final"

    async def aevaluate(self, response: str) -> GraderScore:
        """Judge one response."""
        text = text_in_view(response, self.view)
        if text is None:
            return self._candidate_fault(NO_FINAL_TEXT, blocks=0)
        if len(text) > _MAX_CODE:
            return self._candidate_fault(_TOO_LONG, blocks=0)
        try:
            found = await extract_python(text)
            sources = [source for source in found if _has_statements(source)]
            faults = [fault for source in sources if (fault := await find_syntax_fault(source))]
        except CandidateLimitExceeded as excess:
            return self._candidate_fault(str(excess), blocks=0)
        if not sources:
            return self._candidate_fault(_NO_CODE, blocks=0)
        reason = faults[0] if faults else "all code parses"
        return self._score(float(not faults), reason, blocks=len(sources), faulty=len(faults))


def _has_statements(source: str) -> bool:
    """Whether there is more than comments."""
    lines = (line.strip() for line in source.splitlines())
    return any(line and not line.startswith("#") for line in lines)


class CodeExecutionGrader(RuleGrader):
    """The share of test cases that the code in the response passes, run in a sandbox.

    Range [0, 1]. Fields: ``response`` (text); ``test_cases``, or ``reference`` where the row has
    no ``test_cases``: a list, ``{"tests": [...], "function": name}``, or ``{"inputs": [...],
    "outputs": [...], "fn_name": name}`` (APPS, TACO, PRIME; programs without ``fn_name``), each
    also as JSON text; ``function`` (optional): the name to call. A case is one of

    - ``stdio``: ``{"input": text, "output": text}``. The code runs as a program; its output must
      be ``output`` up to white space at line ends and around the whole, its exit code 0. Where
      both are nothing but numbers, whole numbers must be equal by value, and a decimal may differ
      by 1e-6 (in proportion below 1) or by half a unit of its last expected digit if that is less.
    - ``function``: ``{"args": [...], "expected": value}``, perhaps ``kwargs`` and ``function``.
      The function, or the method of a class ``Solution``, is called; the returned value must
      equal ``expected`` as JSON, expected floats within ``tolerance``. LiveCodeBench's
      ``{"input": lines, "output": text, "testtype": "functional"}`` has an argument in each line.
    - ``solution``: ``{"input": value, "output": value}`` inside ``{"tests": [...]}``.
      ``solution(input)`` is called; the text of what it returns is compared as a program's output.
    - ``assert``: ``{"test": statements}`` or just the statements. They must not raise. Of a test
      that only defines ``check(candidate)``, ``check`` is called with ``function``.

    Of several fenced blocks the last that defines what the tests call is judged (of programs, the
    last that reads standard input, or else does something), with what it uses of the other blocks;
    a function that a later block defines again is the later one. An example of use does not run.

    A test that fails, crashes, prints without end or runs out of time or memory is not passed;
    code that does not parse passes none. No code, a ``<think>`` that was never closed, and a
    response of more than 2**20 characters are 0 with ``cause = "candidate"``. ``metadata``:
    ``passed``, ``total``, ``outcomes`` (the first 50) and the end of ``stderr``.

    No test runs where the code could reach it. The code gets arguments and gives back values.
    Expected values are compared outside the sandbox; statements that are more than ``assert
    f(literals) == literal`` run in a second sandbox, where the code's names stand for calls to the
    first. What comes back is built anew there from plain values (numbers, text, bytes, lists,
    tuples, dicts, sets, ranges, ``None``, and ``Decimal``, ``Fraction``, dates, ``bytearray``,
    ``deque``, ``Counter``, ``OrderedDict``); other objects are handles with methods, attributes,
    items and iteration, but without a value. A value of a class that derives from a plain one has
    data beside it (the fields of a named tuple), but no methods of its own unless the test names
    its class. What a test gives to the code shows what the call did to it. Python's own names and
    the modules of its library are Python's, whatever the code defines. So patching the interpreter,
    exiting early, printing markers, equalling or answering everything gains nothing, and where a
    function returns an object in place of a value, the test fails. Code can still contain the
    answers, where it knows them, and a test that asks one function of the code about another gets
    the code's answer.

    A test that needs more than that is the row's fault, and the score is missing. Such a test
    passes functions or objects of its own to the code; uses the code's classes in ``isinstance``,
    ``except`` or as bases; computes with or compares the objects of the code's classes; changes in
    place what those hold; computes with an argument that a call changed besides returning a value,
    where that decides the verdict; asks whether two values are the same object; uses what one
    process has alone (files, ``sys.stdout``, mocks, event loops); could run what the code returns
    (``eval``, ``pickle``); or never uses the code. Most are found before anything runs; with
    ``score = "all"`` a test that failed comes before one that turns out to need more. With
    ``untrusted_tests = "allow"`` they run beside the code, which can then fake a pass, and
    ``metadata`` has ``trusted = false``; reports count such scores. ``refuse`` is the default.

    The keys of a case say which it is. ``score``: ``fraction`` (default) or ``all``, which is 1 or
    0 and stops at the first failure. ``function``: the name where row and case give none.
    ``prelude``: statements from which the code gets the names that it uses and lacks; by default
    the imports of LeetCode's judge (``typing``, ``collections``, ``math`` and others), ``""`` for
    none.
    ``deadline_s`` (30): wall-clock seconds for all tests of a sample together, each of which gets
    at most ``test_deadline_s`` (5); waiting for a free processor counts towards neither.
    ``memory_mb`` (512): address space. ``tolerance`` (1e-9), relative and absolute. ``view``:
    ``final`` (default) reads what stands after the thinking, ``full`` the whole response.

    The interpreter is the running one, with the standard library and nothing else; the code can
    start no other process. Raises ``GradingFailure``: ``unsupported`` where there is no sandbox
    (see :func:`adjudge.engine.sandbox.sandbox_available`) and for a test that cannot run apart
    from the code (with ``suspect`` where that was seen only when it ran), ``invalid_input`` without
    test cases, with a broken one, or for a response that is not text.
    """

    type_name = "code_execution"
    score_range = (0.0, 1.0)

    def __init__(
        self,
        score: Literal["fraction", "all"] = "fraction",
        prelude: str | None = None,
        function: str = "",
        deadline_s: float = 30.0,
        test_deadline_s: float = 5.0,
        memory_mb: int = 512,
        tolerance: float = 1e-9,
        view: View = "final",
        untrusted_tests: UntrustedTests = "refuse",
        *,
        name: str = "",
    ) -> None:
        super().__init__(name)
        check_choice(self.type_name, "untrusted_tests", untrusted_tests, UntrustedTests)
        check_choice(self.type_name, "score", score, Literal["fraction", "all"])
        check_choice(self.type_name, "view", view, View)
        check_number(self.type_name, "deadline_s", deadline_s, 0.1, 3600)
        check_number(self.type_name, "test_deadline_s", test_deadline_s, 0.1, 3600)
        check_integer(self.type_name, "memory_mb", memory_mb, 64, 1 << 20)
        check_number(self.type_name, "tolerance", tolerance, 0, 1)
        self.score = score
        self.prelude = PRELUDE if prelude is None else prelude
        if isinstance(parse_python(self.prelude), str):
            raise parameter_error(self.type_name, "prelude", prelude, "Python statements")
        self.function = function
        self.budget = CaseBudget(deadline_s, test_deadline_s, memory_mb, tolerance)
        self.view: View = view
        self.untrusted_tests: UntrustedTests = untrusted_tests

    def check_machine(self) -> None:
        """There is a sandbox."""
        check_sandbox(self.type_name)

    async def aevaluate(
        self, response: str, test_cases: Any = None, reference: Any = None, function: Any = None
    ) -> GraderScore:
        """Judge one response against its row's test cases."""
        given = reference if test_cases is None else test_cases
        if given is None:
            lacked = {LACKED: ["test_cases", "reference"]}
            raise GradingFailure(ErrorKind.INVALID_INPUT, "the sample has no test cases", lacked)
        cases = parse_cases(given, function or self.function, self.untrusted_tests)
        text = text_in_view(response, self.view)
        if text is None:
            return self._none_passed(cases, NO_FINAL_TEXT)
        if len(text) > _MAX_CODE:
            return self._none_passed(cases, _TOO_LONG)
        try:
            source = await extract_solution(text, self.prelude, called_names(cases))
            fault = await find_syntax_fault(source)
        except CandidateLimitExceeded as excess:
            return self._none_passed(cases, str(excess))
        if not source:
            return self._none_passed(cases, _NO_CODE)
        if fault:
            return self._judged([CaseOutcome(False, fault)] * len(cases), fault)
        stop_early = self.score == "all"
        outcomes = await run_cases(
            source,
            cases,
            self.budget,
            stop_early=stop_early,
            untrusted_tests=self.untrusted_tests,
        )
        return self._judged(outcomes)

    def _none_passed(self, cases: Sequence[Case], reason: str) -> GraderScore:
        """Where there was no code to run, by the candidate's doing."""
        outcomes = [CaseOutcome(False, reason)] * len(cases)
        return self._judged(outcomes, reason, cause=str(Cause.CANDIDATE))

    def _judged(
        self, outcomes: list[CaseOutcome], reason: str = "", **metadata: Any
    ) -> GraderScore:
        total, passed = len(outcomes), sum(outcome.passed for outcome in outcomes)
        score = passed / total if self.score == "fraction" else float(passed == total)
        first = next((o for o in outcomes if not o.passed), None)
        reason = reason or f"{passed} of {total} tests passed" + (
            f"; {first.text}" if first else ""
        )
        metadata |= {
            "passed": passed,
            "total": total,
            "outcomes": [shorten_text(outcome.text, 120) for outcome in outcomes[:_MAX_OUTCOMES]],
        }
        if not all(outcome.trusted for outcome in outcomes):
            metadata["trusted"] = False
        stderr = next((outcome.stderr for outcome in outcomes if outcome.stderr), "")
        if stderr:
            metadata["stderr"] = shorten_text(stderr[-_MAX_STDERR:], _MAX_STDERR)
        return self._score(score, reason, **metadata)
