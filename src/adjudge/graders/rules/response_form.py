"""Graders of the form of a response: its tags, its length, repeated n-grams, its language."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal, cast

from pydantic import Field, StringConstraints

from adjudge.config_tables import check_setting
from adjudge.errors import ConfigError, InvalidInput
from adjudge.graders.base import (
    NO_FINAL_TEXT,
    ParametricRule,
    final_response,
    read_count,
    require_package,
    require_text,
)
from adjudge.graders.rules.json_validation import InvalidJson, decode_strict_json
from adjudge.text import shorten_text, split_words, strip_end_tokens
from adjudge.types import GraderScore, Role, ScoreRange

_TagName = Annotated[str, StringConstraints(pattern=r"^[\w-]*\w[\w-]*$")]
_TagNames = Annotated[list[_TagName], Field(min_length=1)]


@dataclass(eq=False, repr=False)
class ReasoningFormatGrader(ParametricRule):
    """1 when the response is the wanted tagged blocks in order, else 0.

    Field: ``response``, thinking included; a token that ends the turn does not count. An empty
    response and an empty last block score 0. Each tag occurs once, in order, with only white space
    between blocks; ``ReasoningFormatGrader`` of py-openjudge 0.2.4 only looks for each pair of
    tags.

    Args:
        tags: The blocks in order; by default ``["think", "answer"]``.

    >>> ReasoningFormatGrader().evaluate("<think>2+2</think><answer>4</answer>").score
    1.0
    >>> ReasoningFormatGrader().evaluate("<think>2+2</think> so 4").reason
    'no <answer>'
    """

    type_name = "reasoning_format"
    score_range = (0.0, 1.0)

    tags: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tags = ["think", "answer"] if self.tags is None else self.tags
        check_setting(_TagNames, self._tags, "tags")

    def evaluate(self, response: str) -> GraderScore:
        """Judge one response."""
        fault = self._fault(strip_end_tokens(require_text(response)).strip())
        return self._score(0.0 if fault else 1.0, fault or "all tags in place")

    def _fault(self, text: str) -> str:
        """The first departure from the form, or ''."""
        for mark in [f"<{end}{tag}>" for tag in self._tags for end in ("", "/")]:
            if (count := text.count(mark)) != 1:
                return f"{mark} stands there {count} times" if count else f"no {mark}"
        block: str | None = ""
        for tag in self._tags:
            block, text = _take(text, tag)
            if block is None:
                return f"<{tag}> does not come next"
        if _says_nothing(block or ""):
            return f"<{self._tags[-1]}> is empty"
        return "text after the last tag" if text else ""


@dataclass(eq=False, repr=False)
class ReasoningToolCallFormatGrader(ParametricRule):
    """1 when the response is thinking and then either an answer or valid tool calls, else 0.

    Field: ``response``, thinking included; a token that ends the turn does not count. The form is
    ``<think>…</think>`` and then one ``<answer>…</answer>`` or one or more
    ``<tool_call>…</tool_call>``, with only white space between them. A call is a JSON object with a
    ``name`` and ``arguments`` (an object, or JSON text of one). An empty answer scores 0. Source:
    ``ReasoningToolCallFormatGrader`` of py-openjudge 0.2.4, which leaves the types of the two
    members open. Metadata: ``tool_calls``, how many valid calls were read.

    >>> grader = ReasoningToolCallFormatGrader()
    >>> call = '<tool_call>{"name": "search", "arguments": {"q": "x"}}</tool_call>'
    >>> grader.evaluate(f"<think>look it up</think>{call}").score
    1.0
    """

    type_name = "reasoning_tool_call_format"
    score_range = (0.0, 1.0)

    def evaluate(self, response: str) -> GraderScore:
        """Judge one response."""
        fault, calls = self._read(strip_end_tokens(require_text(response)).strip())
        if fault:
            return self._score(0.0, fault, tool_calls=calls)
        return self._score(1.0, f"{calls} tool calls" if calls else "an answer", tool_calls=calls)

    def _read(self, text: str) -> tuple[str, int]:
        """What is wrong with the response ('' for nothing), and the number of its calls."""
        thinking, rest = _take(text, "think")
        if thinking is None:
            return "does not start with a closed <think>", 0
        if _TOOL_FORM_TAG.search(thinking):
            return "a tag inside <think>", 0
        answer, after = _take(rest, "answer")
        if answer is None:
            return _read_calls(rest)
        if _TOOL_FORM_TAG.search(answer):
            return "a tag inside <answer>", 0
        if _says_nothing(answer):
            return "<answer> is empty", 0
        return ("text after </answer>" if after else ""), 0


_TOOL_FORM_TAG = re.compile("</?(?:think|answer|tool_call)>")


def _read_calls(text: str) -> tuple[str, int]:
    opening, closing = "<tool_call>", "</tool_call>"
    *blocks, last = text.split(closing)
    for calls, block in enumerate(blocks):
        body = block.lstrip()
        if not body.startswith(opening):
            return "text outside <tool_call>", calls
        fault = _call_fault(body[len(opening) :])
        if fault:
            return f"tool call {calls + 1}: {fault}", calls
    if not blocks:
        return "no closed <answer> or <tool_call>", 0
    return ("text after </tool_call>" if last.strip() else ""), len(blocks)


def _says_nothing(text: str) -> bool:
    """Whether there is nothing to see: white space and invisible characters at most."""
    return not any(sign.isprintable() and not sign.isspace() for sign in text)


def _take(text: str, tag: str) -> tuple[str | None, str]:
    """The content of the block that ``text`` starts with, or ``None``, and what follows it."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    close = text.find(closing) if text.startswith(opening) else -1
    if close < 0:
        return None, text
    return text[len(opening) : close], text[close + len(closing) :].strip()


def _call_fault(body: str) -> str:
    try:
        call = decode_strict_json(body)
        if not isinstance(call, dict) or not {"name", "arguments"} <= call.keys():
            return "not an object with name and arguments"
        arguments = call["arguments"]
        if isinstance(arguments, str):
            arguments = decode_strict_json(arguments)
    except InvalidJson as fault:
        return str(fault)
    if not isinstance(call["name"], str) or not call["name"]:
        return "name is not a text"
    return "" if isinstance(arguments, dict) else "arguments are not an object"


def _length(response: Any, unit: str) -> int:
    text = require_text(response)
    return len(split_words(text)) if unit == "words" else len(text)


@dataclass(eq=False, repr=False)
class LengthPenaltyGrader(ParametricRule):
    """A penalty that grows with every unit outside the allowed lengths.

    Field: ``response``, thinking included. With length L: −(min_length − L) · penalty_rate below
    ``min_length``, −(L − max_length) · penalty_rate above ``max_length``, else 0. Source:
    ``LengthPenaltyGrader`` of py-openjudge 0.2.4. Metadata: ``length``.

    Args:
        min_length: The shortest allowed length.
        max_length: The longest allowed length.
        penalty_rate: Penalty per unit.
        unit: ``chars`` or ``words``; in scripts without spaces a character is a word.

    >>> LengthPenaltyGrader(max_length=20, penalty_rate=0.1).evaluate("x" * 25).score
    -0.5
    """

    type_name = "length_penalty"
    score_range = cast("ScoreRange", (None, 0.0))
    role = Role.PENALTY

    min_length: Annotated[int, Field(ge=0, le=10**9)] = 10
    max_length: Annotated[int, Field(ge=0, le=10**9)] = 1000
    penalty_rate: Annotated[float, Field(ge=0, le=1e6)] = 0.01
    unit: Literal["chars", "words"] = "chars"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least = Annotated[int, Field(ge=self.min_length)]
        check_setting(at_least, self.max_length, "max_length")

    def evaluate(self, response: str) -> GraderScore:
        """Penalise one response."""
        length = _length(response, self.unit)
        excess = max(self.min_length - length, length - self.max_length, 0)
        penalty = -excess * self.penalty_rate or 0.0
        reason = f"{length} {self.unit}, allowed {self.min_length} to {self.max_length}"
        return self._score(penalty, reason, length=length)


@dataclass(eq=False, repr=False)
class SoftOverlongPunishmentGrader(ParametricRule):
    """0 up to a length, falling in a straight line to −1 at the maximum length, then −1.

    Fields: ``response_length`` (the policy's tokens) for ``tokens``, else ``response``, thinking
    included. With length L: 0 for L ≤ max_length − cache_length; ((max_length − cache_length) − L)
    / cache_length up to max_length; −1 beyond. Source: DAPO (Yu et al. 2025, arXiv 2503.14476, eq.
    13) with the paper's lengths. Metadata: ``length``.

    Args:
        max_length: The length from which the penalty is −1, in ``unit``.
        cache_length: How far below it the penalty begins, from 1 to ``max_length``.
        unit: ``tokens``, ``chars`` or ``words``.

    >>> grader = SoftOverlongPunishmentGrader(max_length=100, cache_length=20)
    >>> [grader.evaluate(response_length=n).score for n in (80, 90, 100, 500)]
    [0.0, -0.5, -1.0, -1.0]
    """

    type_name = "soft_overlong"
    score_range = (-1.0, 0.0)
    role = Role.PENALTY

    max_length: Annotated[int, Field(ge=1, le=10**9)] = 20480
    cache_length: int = 4096
    unit: Literal["tokens", "chars", "words"] = "tokens"

    def __post_init__(self) -> None:
        super().__post_init__()
        within = Annotated[int, Field(ge=1, le=self.max_length)]
        check_setting(within, self.cache_length, "cache_length")

    def evaluate(self, response: str | None = None, response_length: Any = None) -> GraderScore:
        """Penalise one response."""
        if self.unit == "tokens":
            if (length := read_count(response_length)) is None:
                message = (
                    "unit = 'tokens' needs the field response_length (a whole number of tokens), "
                    f"got {response_length!r}; unit = 'chars' or 'words' measures the response"
                )
                raise InvalidInput(message)
        else:
            length = _length(response, self.unit)
        over = length - (self.max_length - self.cache_length)
        penalty = -min(over, self.cache_length) / self.cache_length if over > 0 else 0.0
        return self._score(penalty, f"{length} of {self.max_length} {self.unit}", length=length)


@dataclass(eq=False, repr=False)
class NgramRepetitionPenaltyGrader(ParametricRule):
    """A penalty on the share of n-grams that repeat an earlier one.

    Field: ``response``, thinking included. With rate = 1 − distinct n-grams / all n-grams, the
    score is 0.3 − rate where rate > 0.3, else 0.

    Tokens are lower-cased words, characters of scripts without spaces, and single signs. Fewer than
    ``n`` tokens: 0 with ``evaluable = false``. Source: ``NgramRepetitionPenaltyGrader`` of
    py-openjudge 0.2.4 with other tokens and without its soft penalty. Metadata: ``rate``,
    ``ngrams``.

    Args:
        n: Tokens of an n-gram, from 1 to 100.

    >>> NgramRepetitionPenaltyGrader(n=1).evaluate("no no no no").score
    -0.45
    """

    type_name = "ngram_repetition"
    score_range = (-0.7, 0.0)
    role = Role.PENALTY

    n: Annotated[int, Field(ge=1, le=100)] = 3

    def evaluate(self, response: str) -> GraderScore:
        """Penalise one response."""
        tokens = split_words(require_text(response), signs=True)
        ngrams = len(tokens) - self.n + 1
        if ngrams < 1:
            return self._not_applicable(0.0, f"{len(tokens)} tokens, fewer than {self.n}")
        shifted = [islice(tokens, start, None) for start in range(self.n)]
        rate = 1 - len(set(zip(*shifted, strict=False))) / ngrams
        reason = f"{rate:.1%} of {ngrams} {self.n}-grams repeat an earlier one"
        penalty = -max(0.0, rate - 0.3) or 0.0
        return self._score(penalty, reason, rate=rate, ngrams=ngrams)


_MARKUP = re.compile(r"(?im)</?[a-z][\w.:-]{0,40}\s{0,4}/?>|\\[a-z]+|^ *(?:```|~~~)\w*")
_LANGUAGE_CHARS, _MIN_LETTERS = 10_000, 10
_NO_LANGUAGE = "zxx"  # ISO 639-2 for "no linguistic content"; a class of the model


@dataclass(eq=False, repr=False)
class LanguageGrader(ParametricRule):
    """1 when the response is in the wanted language, else 0.

    Fields: ``response`` (its first 10,000 characters) and, where none is configured, ``language``
    (an ISO 639 code). Source: py3langid, a naive Bayes model of 140 languages inside its package.
    Needs the extra ``language``. Tags, LaTeX commands and marks of code blocks do not count.

    A text with fewer than ten letters is nothing to judge: 1 with ``evaluable =
    false``. A text without letters, with one letter repeated, or in no language that the model sees
    is 0 with ``evaluable = false``. A response with nothing to see is 0 with ``cause =
    "candidate"``. Metadata: ``found`` (the likeliest code), ``probability`` (of the wanted one).

    Args:
        language: The wanted code, such as ``en``; ``zh-Hans`` is ``zh``. It wins over the row's.
    """

    type_name = "language"
    score_range = (0.0, 1.0)

    language: str | None = None

    def __post_init__(self) -> None:
        require_package(self.type_name, "py3langid", "language")
        super().__post_init__()
        if self.language is not None:
            self.language = _code(self.language)
            if self.language not in (known := _known_languages()):
                raise ConfigError(
                    f"language: language is not known (found {self.language!r}; "
                    f"allowed: {', '.join(sorted(known))})"
                )

    def evaluate(self, response: str, language: Any = None) -> GraderScore:
        """Judge one response."""
        if (wanted := self.language or _code(language)) not in _known_languages():
            message = "no language, neither configured nor in the row"
            if language is not None:
                message = f"unknown language code {shorten_text(language)!r}"
            raise InvalidInput(message)
        text = final_response(response)
        if text is None:
            return self._score(0.0, NO_FINAL_TEXT)
        text = _MARKUP.sub(" ", text[:_LANGUAGE_CHARS])
        if _says_nothing(text):
            return self._candidate_fault("the response says nothing")
        letters = [sign for sign in text.lower() if sign.isalpha()]
        if len(letters) < _MIN_LETTERS:
            return self._not_applicable(float(bool(letters)), f"{len(letters)} letters are too few")
        ranking = _identifier().rank(text)
        (found, best), worst = ranking[0], ranking[-1][1]
        if found == _NO_LANGUAGE or best == worst or len(set(letters)) == 1:
            return self._not_applicable(0.0, "no language seen")
        odds = _weighted(dict(ranking), wanted)
        found, probability = max(odds, key=odds.__getitem__), min(odds[wanted], 1.0)
        reason = f"{found}, wanted {wanted} (probability {probability:.2f})"
        return self._score(float(found == wanted), reason, found=found, probability=probability)


_MACROLANGUAGES = {"ar": ("ary", "arz"), "no": ("nn",), "uz": ("uzs",), "zh": ("wuu", "yue")}
_CODES = (
    "ar be bg bn cs da de el en es et fa fi fr he hi hr hu hy id it ja ka kk ko lt lv mk ml mr "
    "ms nl no pl pt ro ru si sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh"
)
_WIDELY_WRITTEN = frozenset(_CODES.split())


def _weighted(odds: dict[str, float], wanted: str) -> dict[str, float]:
    """The probabilities where not every language is as likely before the text is read."""
    parts = _MACROLANGUAGES.get(wanted, ())
    odds[wanted] += sum(odds.pop(part) for part in parts)
    for code in odds.keys() - _WIDELY_WRITTEN:
        odds[code] /= 2 if code == wanted else 10
    total = sum(odds.values())
    return {code: one / total for code, one in odds.items()}


def _code(language: Any) -> str:
    """The primary part of a language code, '' for what is not text."""
    if not isinstance(language, str):
        return ""
    return language.strip().lower().replace("_", "-").partition("-")[0]


@cache
def _known_languages() -> frozenset[str]:
    return frozenset(_identifier().labels) - {_NO_LANGUAGE}


@cache
def _identifier() -> Any:
    """The shared model; it is only read, so any thread may ask it."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415  (optional)

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
