"""IFEval's 25 instruction types by id, which of them a response follows, and the grader.

After Zhou et al. (2023), "Instruction-Following Evaluation for Large Language Models", and the
behaviour of its published checkers. Different on purpose: a keyword, marker or section splitter
is plain text (the reference compiles it as a pattern; for the words of the published prompts both
are the same), and what the reference draws at random is refused, but for ``letter_frequency``:
there any character is counted.

A response follows an instruction strictly, or in any of eight looser readings.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Literal

from pydantic import ValidationError

from adjudge.engine.processes import get_pool
from adjudge.engine.worker import WorkerPhase, enter_phase
from adjudge.errors import CandidateLimitExceeded, ErrorKind, GradingFailure
from adjudge.graders.base import NO_FINAL_TEXT, ParametricRule, is_nan, require_text, view_text
from adjudge.graders.instructions import checks
from adjudge.graders.instructions.checks import REPAIRED, plain_text
from adjudge.text import final_text, shorten_text
from adjudge.types import GraderScore

InstructionCheck = Callable[[str], bool]
"""Whether a response follows one instruction."""

_MAX_INSTRUCTIONS = 1000


INSTRUCTIONS: Mapping[str, Callable[..., bool]] = {
    "keywords:existence": checks.keyword_existence,
    "keywords:frequency": checks.keyword_frequency,
    "keywords:forbidden_words": checks.forbidden_words,
    "keywords:letter_frequency": checks.letter_frequency,
    "language:response_language": checks.response_language,
    "length_constraints:number_sentences": checks.number_sentences,
    "length_constraints:number_paragraphs": checks.number_paragraphs,
    "length_constraints:number_words": checks.number_words,
    "length_constraints:nth_paragraph_first_word": checks.nth_paragraph_first_word,
    "detectable_content:number_placeholders": checks.placeholders,
    "detectable_content:postscript": checks.postscript,
    "detectable_format:number_bullet_lists": checks.bullet_lists,
    "detectable_format:constrained_response": checks.constrained_response,
    "detectable_format:number_highlighted_sections": checks.highlighted_sections,
    "detectable_format:multiple_sections": checks.sections,
    "detectable_format:json_format": checks.json_format,
    "detectable_format:title": checks.title,
    "combination:two_responses": checks.two_responses,
    "combination:repeat_prompt": checks.repeat_prompt,
    "startend:end_checker": checks.ending,
    "startend:quotation": checks.quotation,
    "change_case:capital_word_frequency": checks.capital_word_frequency,
    "change_case:english_capital": checks.english_capital,
    "change_case:english_lowercase": checks.english_lowercase,
    "punctuation:no_comma": checks.no_comma,
}
"""The check of each type that the published prompts use, by id (``category:type``)."""


def parse_instructions(
    instruction_id_list: Any, kwargs: Any, *, repaired: bool = False
) -> list[tuple[str, InstructionCheck]]:
    """A sample's instructions, each id with its published or ``repaired`` check.

    ``kwargs`` has one mapping for each id. Arguments of ``None`` or NaN and those that the type
    does not take are left out, since tables give every row all columns. What is missing or cannot
    be used is ``GradingFailure(invalid_input)`` naming the instruction and the key.

    >>> [(name, check)] = parse_instructions(["punctuation:no_comma"], [{}])
    >>> check("Yes and no.")
    True
    """
    ids = _list_of("instruction_id_list", instruction_id_list)
    given = _list_of("kwargs", kwargs)
    if len(ids) != len(given):
        raise _refused(f"kwargs has {len(given)} entries for {len(ids)} instructions")
    pairs = zip(ids, given, strict=True)
    return [(name, _check(name, values, repaired)) for name, values in pairs]


@cache
def list_arguments(name: str) -> tuple[str, ...]:
    """The arguments of the type ``name``."""
    return tuple(inspect.signature(INSTRUCTIONS[name]).parameters)[1:]


def _check(name: Any, values: Any, repaired: bool) -> InstructionCheck:
    check = INSTRUCTIONS.get(name) if isinstance(name, str) else None
    if check is None:
        known = ", ".join(INSTRUCTIONS)
        raise _refused(f"unknown instruction {shorten_text(name)!r} (known: {known})")
    if not isinstance(values, Mapping):
        raise _refused(f"{name}: kwargs must be an object, got {type(values).__name__}")
    taken = {key: _read(name, key, values.get(key)) for key in list_arguments(name)}
    if taken.get("nth_paragraph", 0) > taken.get("num_paragraphs", 0):
        raise _refused(f"{name}: nth_paragraph must be at most num_paragraphs")
    check = REPAIRED.get(check, check) if repaired else check
    return partial(check, **taken) if taken else check


def _read(name: str, key: str, value: Any) -> Any:
    if value is None or is_nan(value):
        raise _refused(f"{name}: {key} is missing")
    try:
        return checks.argument_adapter(key).validate_python(value)
    except ValidationError as error:
        reason = f"{error.errors()[0]['msg']} (found {type(value).__name__})"
        raise _refused(f"{name}: {key}: {reason}") from None


def _list_of(column: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or len(value) > _MAX_INSTRUCTIONS:
        found = len(value) if isinstance(value, list | tuple) else type(value).__name__
        raise _refused(f"{column} must be a list of at most {_MAX_INSTRUCTIONS}, got {found}")
    return value


def _refused(message: str) -> GradingFailure:
    return GradingFailure(ErrorKind.INVALID_INPUT, message)


ReadingMode = Literal["strict", "loose"]
"""``strict``: the response as it is. ``loose``: any of :func:`iter_readings`."""


def iter_readings(response: str) -> Iterator[str]:
    """The response and its looser readings, equal ones once.

    Without asterisks; without its first line, its last, or both; and these without asterisks.
    """
    seen = {response}
    yield response
    for text in _shorter(response):
        for reading in (text.replace("*", ""), text):
            if reading not in seen:
                seen.add(reading)
                yield reading


def _shorter(response: str) -> Iterator[str]:
    yield response
    _, _, rest = response.partition("\n")
    yield rest.strip()
    yield response.rpartition("\n")[0].strip()
    yield rest.rpartition("\n")[0].strip()


def follows(response: str, asked: Sequence[InstructionCheck], reading: ReadingMode) -> list[bool]:
    """Whether the response follows each instruction; a blank response follows none.

    Raises what a check raises: ``ConfigError`` without the language detection.
    """
    strict = [not _blank(response) and check(response) for check in asked]
    return strict if reading == "strict" else loose_results(response, asked, strict)


def loose_results(
    response: str, asked: Sequence[InstructionCheck], strict: Sequence[bool]
) -> list[bool]:
    """The loose answers, where ``strict`` are the strict ones: those followed stay followed."""
    if all(strict):
        return list(strict)
    _, *others = iter_readings(response)
    texts = [text for text in others if not _blank(text)]
    return [ok or any(map(check, texts)) for ok, check in zip(strict, asked, strict=True)]


def follows_json(payload: str) -> list[bool]:
    """:func:`follows` for a worker process: all that it needs as JSON text."""
    enter_phase(WorkerPhase.REFERENCE)
    names, kwargs, repaired, response, reading = json.loads(payload)
    parsed = parse_instructions(names, kwargs, repaired=repaired)
    asked = [check for _, check in parsed]
    # What a check takes per character is ours to bound: only the length is left.
    enter_phase(WorkerPhase.CANDIDATE)
    return follows(response, asked, reading)


def _blank(text: str) -> bool:
    return not text or text.isspace()


ScoreLevel = Literal["instruction", "prompt"]


@dataclass(eq=False, repr=False)
class IFEvalGrader(ParametricRule):
    """The share of a prompt's verifiable instructions that the response follows.

    Fields: ``response``, ``instruction_id_list`` (ids of IFEval's 25 types) and ``kwargs`` (their
    arguments), as in IFEval's own files. Source: Zhou et al. (2023) and the behaviour of its
    published checkers, faults included; what is random there is fixed here. A blank response and an
    unclosed ``<think>`` follow nothing. No instruction: 1 with ``evaluable = false``.

    A response of more than 20,000 characters that takes longer than 20 processor seconds is 0 with
    ``cause = "candidate"``. Metadata: ``instructions``, ``followed``. Raises
    ``GradingFailure(invalid_input)`` for an unknown instruction and an unusable argument, and
    ``unsupported`` for a language without the extra ``full``.

    Args:
        level: ``instruction``: the share followed; ``prompt``: 1 when all are followed, else 0.
        reading: ``strict``: the response as it is; ``loose``: also without asterisks, first line,
            last line.

    >>> grader = IFEvalGrader()
    >>> ids = ["punctuation:no_comma", "startend:quotation"]
    >>> grader.evaluate("So be it.", ids, [{}, {}]).score
    0.5
    """

    type_name = "ifeval"
    score_range = (0.0, 1.0)

    _INLINE_CHARS = 20_000
    _DEADLINE_S = 20.0
    _repaired: ClassVar[bool] = False

    level: ScoreLevel = "instruction"
    reading: ReadingMode = "strict"

    def evaluate(self, response: str, instruction_id_list: Any, kwargs: Any) -> GraderScore:
        """Judge one response."""
        asked = parse_instructions(instruction_id_list, kwargs, repaired=self._repaired)
        return self._judged(asked, self._judged_text(require_text(response)))

    async def aevaluate(self, response: str, instruction_id_list: Any, kwargs: Any) -> GraderScore:
        """Judge one response; a long one in a worker process, since a loop may wait for it."""
        asked = parse_instructions(instruction_id_list, kwargs, repaired=self._repaired)
        text = self._judged_text(require_text(response))
        if text is None or not asked or len(text) <= self._INLINE_CHARS:
            return self._judged(asked, text)
        names = [name for name, _ in asked]
        pairs = zip(names, kwargs, strict=True)
        own = [{key: row.get(key) for key in list_arguments(name)} for name, row in pairs]
        payload = json.dumps([names, own, self._repaired, text, self.reading], default=int)
        try:
            followed = await get_pool().call(
                "adjudge.graders.instructions.grader:follows_json",
                payload,
                deadline_s=self._DEADLINE_S,
            )
        except CandidateLimitExceeded as excess:
            nothing = [False] * len(asked)
            return self._candidate_fault(str(excess), instructions=names, followed=nothing)
        return self._judged(asked, text, followed)

    def _judged_text(self, response: str) -> str | None:
        """What is judged; white space that stood between thinking and answer belongs to neither."""
        text = final_text(response)
        return text if text is None or text == response else text.lstrip()

    def _judged(
        self,
        asked: list[tuple[str, InstructionCheck]],
        text: str | None,
        followed: list[bool] | None = None,
    ) -> GraderScore:
        names = [name for name, _ in asked]
        if not asked:
            return self._not_applicable(1.0, "no instructions", instructions=[], followed=[])
        if text is None:
            nothing = [False] * len(names)
            return self._score(0.0, NO_FINAL_TEXT, instructions=names, followed=nothing)
        followed = followed or follows(text, [check for _, check in asked], self.reading)
        missed = [name for name, ok in zip(names, followed, strict=True) if not ok]
        score = sum(followed) / len(names) if self.level == "instruction" else float(not missed)
        reason = f"not followed: {', '.join(missed)}" if missed else f"all {len(names)} followed"
        return self._score(score, reason, instructions=names, followed=followed)


@dataclass(eq=False, repr=False)
class RepairedIFEvalGrader(IFEvalGrader):
    """The share of a prompt's verifiable instructions that a reader would say are followed.

    Fields, parameters and failures are those of ``ifeval``, which equals the published checkers and
    keeps their faults: a policy can farm some, and others leave a followed instruction unpaid. Use
    ``ifeval`` for numbers to publish and this grader for rewards. Letters are composed, quotation
    marks are plain, and an end token behind the text is left out; ``results/ifeval.md`` has the
    differences.

    >>> ids = ["detectable_format:number_highlighted_sections", "keywords:existence"]
    >>> kwargs = [{"num_highlights": 1}, {"keywords": ["art"]}]
    >>> RepairedIFEvalGrader().evaluate("2*3*4 is a smart start.", ids, kwargs).score
    0.0
    """

    type_name = "ifeval_repaired"
    _repaired: ClassVar[bool] = True

    def _judged_text(self, response: str) -> str | None:
        text = view_text(response, "final")
        return None if text is None else plain_text(text).strip()
