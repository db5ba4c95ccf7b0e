"""IFEval's 25 instruction types by id, their repaired checks, and the graders.

After Zhou et al. (2023), "Instruction-Following Evaluation for Large Language Models", and the
behaviour of its published checkers. Different on purpose: a keyword, marker or section splitter
is plain text (the reference compiles it as a pattern; for the words of the published prompts both
are the same), and what the reference draws at random is refused, but for ``letter_frequency``:
there any character is counted.

The published checks see too much, which training finds, or too little. Those that are repaired
are here; they take the text that :func:`plain_text` makes of a response. ``results/ifeval.md`` has
the differences.

A response follows an instruction strictly, or in any of eight looser readings.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, ClassVar, Literal

from pydantic import ValidationError

from adjudge.engine.processes import get_pool
from adjudge.engine.worker import WorkerPhase, enter_phase
from adjudge.errors import CandidateLimitExceeded, InvalidInput
from adjudge.graders import ifeval_checks as checks
from adjudge.graders.base import NO_FINAL_TEXT, ParametricRule, is_nan, require_text, view_text
from adjudge.text import SPACELESS, compose_letters, final_text, shorten_text, split_words
from adjudge.types import GraderScore

InstructionCheck = Callable[[str], bool]
"""Whether a response follows one instruction."""

_MAX_INSTRUCTIONS = 1000


_PLAIN_QUOTES = str.maketrans("‘’“”„‟", '\'\'""""')
_LETTER = f"[^\\W_{SPACELESS}]"
_GAP = r"[^\S\n]"
_MARKS = " \t\n#*_>~`\"'()[]-+•"
"""Of Markdown, quotation marks and brackets: what may stand around words at an edge."""


def plain_text(response: str) -> str:
    """``response`` with composed letters, plain line ends and plain quotation marks."""
    return compose_letters(response).replace("\r\n", "\n").translate(_PLAIN_QUOTES)


@lru_cache(maxsize=4096)
def _word(text: str) -> re.Pattern[str]:
    """``text`` as words of their own, in any case; white space in it may be a line's end."""
    text = plain_text(text)
    words = r"\s++".join(map(re.escape, text.split()))
    before = f"(?<!{_LETTER})" if re.match(rf"\s*{_LETTER}", text) else ""
    behind = f"(?!{_LETTER})" if re.search(rf"{_LETTER}\s*$", text) else ""
    return re.compile(f"{before}{words}{behind}", re.IGNORECASE)


def _keyword_existence(response: str, keywords: tuple[str, ...]) -> bool:
    return all(_word(keyword).search(response) for keyword in keywords)


def _keyword_frequency(response: str, keyword: str, frequency: int, relation: bool) -> bool:
    return checks.holds(sum(1 for _ in _word(keyword).finditer(response)), frequency, relation)


def _forbidden_words(response: str, forbidden_words: tuple[str, ...]) -> bool:
    return not any(_word(word).search(response) for word in forbidden_words)


_JOINT = re.compile(r"(?<=\w)['-](?=\w)|(?<=\d)[.,](?=\d)")


def _number_words(response: str, num_words: int, relation: bool) -> bool:
    words = split_words(_JOINT.sub("", response))
    return checks.holds(sum(any(map(str.isalnum, word)) for word in words), num_words, relation)


# Of Chinese and Japanese, Arabic and Urdu, Hindi, Amharic, Burmese, Khmer.
_SENTENCE_END = re.compile("[。！？｡؟۔।॥።။។]+[」』）)\"']*")


def _number_sentences(response: str, num_sentences: int, relation: bool) -> bool:
    return checks.number_sentences(_SENTENCE_END.sub("! ", response), num_sentences, relation)


_DIVIDER = re.compile(r"(?<!\S)\*{3}(?!\S)")
_BLANK_LINES = re.compile(rf"\n(?:{_GAP}*\n)+")


def _number_paragraphs(response: str, num_paragraphs: int) -> bool:
    parts = checks.filled_parts(_DIVIDER.split(response))
    return parts is not None and len(parts) == num_paragraphs


def _nth_paragraph_first_word(
    response: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    paragraphs = list(filter(str.strip, _BLANK_LINES.split(response)))
    if len(paragraphs) != num_paragraphs:
        return False
    return bool(_word(first_word).match(paragraphs[nth_paragraph - 1].lstrip(_MARKS)))


_FILLED_PLACEHOLDER = re.compile(r"\[(?=[^\[\]\n]*[^\W\d_])[^\[\]\n]{2,}\](?!\()")
_BULLET = re.compile(rf"^{_GAP}*[*+•-]{_GAP}+\S", re.MULTILINE)
_BESIDE_STAR = "a-zA-Z0-9\u00c0-\u052f*\\\\"
_MARKED_HIGHLIGHT = re.compile(
    rf"(?<![{_BESIDE_STAR}])(\*{{1,3}})(?![\s*])[^\n*]++(?<!\s)\1(?![{_BESIDE_STAR}])"
)
_TITLE_LINE = re.compile(r"^[\s#*_>\"']*<<[^<>\n]*\w[^<>\n]*>>[\s*_\"'.]*$")
_TITLE = re.compile(r"(?<![\w<])<<(?=\S)[^<>\n]*\w[^<>\n]*(?<=\S)>>(?![\w>])")


def _placeholders(response: str, num_placeholders: int) -> bool:
    return len(_FILLED_PLACEHOLDER.findall(response)) >= num_placeholders


def _bullet_lists(response: str, num_bullets: int) -> bool:
    return len(_BULLET.findall(response)) == num_bullets


def _highlighted_sections(response: str, num_highlights: int) -> bool:
    return len(_MARKED_HIGHLIGHT.findall(response)) >= num_highlights


def _title(response: str) -> bool:
    lines = (line for line in response.split("\n") if "<<" in line)
    return any(_TITLE_LINE.search(line) or _TITLE.search(line) for line in lines)


def _sections(response: str, section_spliter: str, num_sections: int) -> bool:
    mark = rf"^[^\w\n]*{re.escape(section_spliter)}{_GAP}*(\d+)"
    return len(set(re.findall(mark, response, re.MULTILINE | re.IGNORECASE))) >= num_sections


def _postscript(response: str, postscript_marker: str) -> bool:
    mark = checks.POSTSCRIPTS.get(postscript_marker, re.escape(postscript_marker))
    return bool(re.search(rf"^[^\w\n]*{mark}[\W_]*\w", response, re.MULTILINE | re.IGNORECASE))


def _constrained_response(response: str) -> bool:
    return sum(answer in response for answer in checks.ANSWERS) == 1


def _json_format(response: str) -> bool:
    return checks.json_format(response) and checks.unfenced(response)[:1] in ("{", "[")


def _two_responses(response: str) -> bool:
    parts = checks.filled_parts(re.split(r"(?<!\*)\*{6}(?!\*)", response)) or []
    return len(parts) == 2 and split_words(parts[0]) != split_words(parts[1])


def _repeat_prompt(response: str, prompt_to_repeat: str) -> bool:
    wanted = split_words(plain_text(prompt_to_repeat))
    return split_words(response)[: len(wanted)] == wanted


def _ending(response: str, end_phrase: str) -> bool:
    text, wanted = response.rstrip(_MARKS), end_phrase.rstrip(_MARKS)
    if not wanted:
        return checks.ending(response, end_phrase)
    return any(found.end() == len(text) for found in _word(wanted).finditer(text))


def _no_comma(response: str) -> bool:
    return not any(sign in response for sign in ",，、،﹐︐")


_SHORT = 50
"""Characters in which the detection takes much English for other languages."""
_SCRIPTS = {"ja": "[\u3040-\u30ff]", "ko": "[\uac00-\ud7a3]", "zh": "[\u4e00-\u9fff]"}


def _detect_language(response: str) -> str | None:
    """The language, by its script where that is one language's own; capitals as small letters."""
    signs = {code: len(re.findall(script, response)) for code, script in _SCRIPTS.items()}
    if sum(signs.values()) * 2 <= sum(map(str.isalpha, response)):
        return checks.detect_language(response.lower() if response.isupper() else response)
    return "ja" if signs["ja"] * 10 > signs["zh"] else max(signs, key=signs.__getitem__)


def _response_language(response: str, language: str) -> bool:
    found = _detect_language(response)
    return found is None or found.partition("-")[0] == language.partition("-")[0]


def _is_english(response: str) -> bool:
    short = response.isascii() and len(response) < _SHORT
    return short or _detect_language(response) in ("en", None)


def _english_capital(response: str) -> bool:
    return response.isupper() and _is_english(response)


def _english_lowercase(response: str) -> bool:
    return response.islower() and _is_english(response)


_Check = Callable[..., bool]
INSTRUCTIONS: Mapping[str, tuple[_Check, _Check]] = {
    "keywords:existence": (checks.keyword_existence, _keyword_existence),
    "keywords:frequency": (checks.keyword_frequency, _keyword_frequency),
    "keywords:forbidden_words": (checks.forbidden_words, _forbidden_words),
    "keywords:letter_frequency": (checks.letter_frequency, checks.letter_frequency),
    "language:response_language": (checks.response_language, _response_language),
    "length_constraints:number_sentences": (checks.number_sentences, _number_sentences),
    "length_constraints:number_paragraphs": (checks.number_paragraphs, _number_paragraphs),
    "length_constraints:number_words": (checks.number_words, _number_words),
    "length_constraints:nth_paragraph_first_word": (
        checks.nth_paragraph_first_word,
        _nth_paragraph_first_word,
    ),
    "detectable_content:number_placeholders": (checks.placeholders, _placeholders),
    "detectable_content:postscript": (checks.postscript, _postscript),
    "detectable_format:number_bullet_lists": (checks.bullet_lists, _bullet_lists),
    "detectable_format:constrained_response": (checks.constrained_response, _constrained_response),
    "detectable_format:number_highlighted_sections": (
        checks.highlighted_sections,
        _highlighted_sections,
    ),
    "detectable_format:multiple_sections": (checks.sections, _sections),
    "detectable_format:json_format": (checks.json_format, _json_format),
    "detectable_format:title": (checks.title, _title),
    "combination:two_responses": (checks.two_responses, _two_responses),
    "combination:repeat_prompt": (checks.repeat_prompt, _repeat_prompt),
    "startend:end_checker": (checks.ending, _ending),
    "startend:quotation": (checks.quotation, checks.quotation),
    "change_case:capital_word_frequency": (
        checks.capital_word_frequency,
        checks.capital_word_frequency,
    ),
    "change_case:english_capital": (checks.english_capital, _english_capital),
    "change_case:english_lowercase": (checks.english_lowercase, _english_lowercase),
    "punctuation:no_comma": (checks.no_comma, _no_comma),
}
"""The published and the repaired check of each type that the published prompts use, by its id."""


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
        raise InvalidInput(f"kwargs has {len(given)} entries for {len(ids)} instructions")
    pairs = zip(ids, given, strict=True)
    return [(name, _check(name, values, repaired)) for name, values in pairs]


@cache
def list_arguments(name: str) -> tuple[str, ...]:
    """The arguments of the type ``name``."""
    return tuple(inspect.signature(INSTRUCTIONS[name][0]).parameters)[1:]


def _check(name: Any, values: Any, repaired: bool) -> InstructionCheck:
    both = INSTRUCTIONS.get(name) if isinstance(name, str) else None
    if both is None:
        known = ", ".join(INSTRUCTIONS)
        raise InvalidInput(f"unknown instruction {shorten_text(name)!r} (known: {known})")
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{name}: kwargs must be an object, got {type(values).__name__}")
    taken = {key: _read(name, key, values.get(key)) for key in list_arguments(name)}
    if taken.get("nth_paragraph", 0) > taken.get("num_paragraphs", 0):
        raise InvalidInput(f"{name}: nth_paragraph must be at most num_paragraphs")
    check = both[repaired]
    return partial(check, **taken) if taken else check


def _read(name: str, key: str, value: Any) -> Any:
    if value is None or is_nan(value):
        raise InvalidInput(f"{name}: {key} is missing")
    try:
        return checks.argument_adapter(key).validate_python(value)
    except ValidationError as error:
        reason = f"{error.errors()[0]['msg']} (found {type(value).__name__})"
        raise InvalidInput(f"{name}: {key}: {reason}") from None


def _list_of(column: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or len(value) > _MAX_INSTRUCTIONS:
        found = len(value) if isinstance(value, list | tuple) else type(value).__name__
        raise InvalidInput(f"{column} must be a list of at most {_MAX_INSTRUCTIONS}, got {found}")
    return value


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
    texts = [response] if reading == "strict" else iter_readings(response)
    filled = [text for text in texts if text.strip()]
    return [any(map(check, filled)) for check in asked]


def follows_json(payload: str) -> list[bool]:
    """:func:`follows` for a worker process: all that it needs as JSON text."""
    enter_phase(WorkerPhase.REFERENCE)
    names, kwargs, repaired, response, reading = json.loads(payload)
    parsed = parse_instructions(names, kwargs, repaired=repaired)
    asked = [check for _, check in parsed]
    # What a check takes per character is ours to bound: only the length is left.
    enter_phase(WorkerPhase.CANDIDATE)
    return follows(response, asked, reading)


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
                "adjudge.graders.ifeval:follows_json",
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
