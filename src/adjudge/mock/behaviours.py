"""How the mock answers when nothing goes wrong, and the settings that a command line can carry.

=============  ===================================================================================
``fixed``      one text; the shipped one is ``{"score": 1, "reason": "mock"}``
``scripted``   the rows of a JSONL file, by a substring of the last user message or in order
``rubric``     a score that counts the given keywords in the last user message
``criteria``   whether each numbered criterion's "quoted" words occur in the response
``length``     a score that grows with the length of the last user message: a biased judge
``echo``       the last user message itself
=============  ===================================================================================

A text of the user's (``fixed`` with one, ``scripted``, ``echo``) is sent as it stands. The others
keep to a JSON schema or a list of choices when the request has one, as constrained decoding does,
or when the prompt states one (:mod:`adjudge.mock.stated_forms`).
"""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import suggest_name
from adjudge.errors import ConfigError
from adjudge.hosts import is_loopback
from adjudge.mock.http import ChatRequest, last_text
from adjudge.mock.stated_forms import read_form

_MAX_DEPTH = 32
_MAX_NODES = 10_000
_GOOD = frozenset({"met", "yes", "true", "pass", "passed", "good", "correct"})
"""Words that schemas list first, although ``share`` goes from the worst to the best."""


def minimal_instance(schema: Mapping[str, Any], share: float = 1.0, text: str = "mock") -> Any:
    """An instance of ``schema`` with its required properties (all, when none are required).

    ``share`` in [0, 1] places numbers between ``minimum`` and ``maximum`` and picks from ``enum``;
    ``text`` fills strings. Known: const, enum, type, properties, items, ranges, lengths, ``$ref``
    within the document, and the first branch of anyOf, oneOf and allOf. Patterns and formats are
    not; what goes beyond 32 levels or 10,000 parts is
    cut with ``null``.
    """
    return _InstanceMaker(schema, share, text).make(schema, 0)


class _InstanceMaker:
    def __init__(self, root: Mapping[str, Any], share: float, text: str) -> None:
        self._root = root
        self._share = share
        self._text = text
        self._left = _MAX_NODES

    def make(self, schema: Any, depth: int) -> Any:
        self._left -= 1  # references multiply: depth alone bounds nothing
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or self._left < 0:
            return None
        if "const" in schema:
            return schema["const"]
        options = schema.get("enum")
        if isinstance(options, list) and options:
            return _pick(options, self._share)
        if "$ref" in schema:
            return self.make(self._resolved(schema["$ref"]), depth + 1)
        for word in ("anyOf", "oneOf", "allOf"):
            branches = schema.get(word)
            if isinstance(branches, list) and branches:
                return self.make(branches[0], depth + 1)
        return self._typed(schema, depth)

    def _resolved(self, reference: Any) -> Any:
        here: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        for part in reference[1:].strip("/").split("/") if len(reference) > 1 else ():
            name = part.replace("~1", "/").replace("~0", "~")
            here = here.get(name) if isinstance(here, Mapping) else None
        return here

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = kind[0] if kind else None
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, depth)
        if kind == "array":
            items = schema.get("items", {})
            name, values = _find_label(items)
            count = _as_size(schema.get("minItems"), len(values))
            made = [self.make(items, depth + 1) for _ in range(min(count, 100))]
            for one, value in zip(made, values, strict=False):
                one[name] = value
            return made
        if kind == "boolean":
            return self._share >= 0.5
        if kind in {"integer", "number"}:
            return self._number(schema, kind == "integer")
        return self._string(schema) if kind == "string" else None

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return {}
        required = schema.get("required")
        names = required if isinstance(required, list) else list(properties)
        places = [*range(1, len(names) + 1)]
        if len(names) > 1 and all(_enum(properties.get(name)) == places for name in names):
            return dict(zip(names, places, strict=True))
        return {str(name): self.make(properties.get(name, {}), depth + 1) for name in names}

    def _number(self, schema: Mapping[str, Any], whole: bool) -> float:
        low, high = _as_number(schema.get("minimum")), _as_number(schema.get("maximum"))
        step = 1.0 if whole else 1e-3
        if low is None and (above := _as_number(schema.get("exclusiveMinimum"))) is not None:
            low = above + step
        if high is None and (below := _as_number(schema.get("exclusiveMaximum"))) is not None:
            high = below - step
        if low is None:
            low = 0.0 if high is None else min(0.0, high)
        if high is None:
            high = max(1.0, low)
        value = low + self._share * (high - low)
        if not whole:
            return round(value, 3) if low <= round(value, 3) <= high else value
        return max(math.ceil(low), min(math.floor(high), round(value)))

    def _string(self, schema: Mapping[str, Any]) -> str:
        shortest = min(_as_size(schema.get("minLength"), 0), 10_000)
        longest = _as_size(schema.get("maxLength"), max(len(self._text), shortest))
        return self._text.ljust(shortest, ".")[: max(longest, shortest)]


def _pick(options: Sequence[Any], share: float) -> Any:
    """The option at ``share`` of the way from the worst to the best."""
    words = [str(one).casefold() for one in options if one != "N/A"]
    if words and words[0] in _GOOD and words[-1] not in _GOOD:
        options = [one for one in options if one != "N/A"][::-1]
    return options[round(share * (len(options) - 1))]


def _enum(schema: Any) -> list[Any]:
    listed = schema.get("enum") if isinstance(schema, Mapping) else None
    return listed if isinstance(listed, list) else []


def _find_label(items: Any) -> tuple[str, list[Any]]:
    """The first property of a list's objects that has a list of integers, which tell them apart."""
    properties = items.get("properties") if isinstance(items, Mapping) else None
    for name, described in properties.items() if isinstance(properties, Mapping) else ():
        if (listed := _enum(described)) and all(type(one) is int for one in listed):
            return str(name), listed
    return "", []


def _as_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_size(value: Any, default: int) -> int:
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
    )


BEHAVIOURS = ("fixed", "scripted", "rubric", "criteria", "length", "echo")

DEFAULT_REPLY = '{"score": 1, "reason": "mock"}'

PROSE_REPLY = "On the whole this answer is good, I would say, though it could be better in places."
"""What a server that drops schemas replies."""


class MockAnswer(msgspec.Struct, frozen=True, gc=False):
    """A reply before it has a wire format.

    ``finish`` is ``stop``, ``length``, ``content_filter`` or ``refusal``.
    """

    text: str
    reasoning: str = ""
    finish: str = "stop"


class Behaviour(ABC):
    """Decides the reply to a request."""

    @abstractmethod
    def answer(self, request: ChatRequest) -> MockAnswer:
        """The reply."""


class FixedBehaviour(Behaviour):
    """One text; without one of the user's the default, which keeps to what is asked for."""

    def __init__(self, text: str | None = None, reasoning: str = "") -> None:
        self._text, self._reasoning = text, reasoning

    def answer(self, request: ChatRequest) -> MockAnswer:
        """The text."""
        text = _format_verdict(request, 1.0, 1, "mock") if self._text is None else self._text
        return MockAnswer(text, self._reasoning)


class KeywordBehaviour(Behaviour):
    """Score: how many of the keywords occur in the last user message, capitals ignored."""

    def __init__(self, keywords: Sequence[str]) -> None:
        self._keywords = [(word, word.casefold()) for word in keywords]

    def answer(self, request: ChatRequest) -> MockAnswer:
        """The count, and which were found."""
        found = self._find(last_text(request.messages))
        total = len(self._keywords)
        reason = f"{len(found)} of {total} keywords: {', '.join(found)}".rstrip(": ")
        worth = [len(self._find(text)) for text in _shown_responses(request)]
        return MockAnswer(_format_verdict(request, len(found) / total, len(found), reason, worth))

    def _find(self, text: str) -> list[str]:
        folded_text = text.casefold()
        return [word for word, folded in self._keywords if folded in folded_text]


class LengthBehaviour(Behaviour):
    """Score: 1 + 9 · n / (n + 1000) for n characters of the last user message, 1 to 10."""

    def answer(self, request: ChatRequest) -> MockAnswer:
        """The score; longer is always better."""
        n = len(last_text(request.messages))
        share = n / (n + 1000)
        worth = [*map(len, _shown_responses(request))]
        score = round(1 + 9 * share, 3)
        return MockAnswer(_format_verdict(request, share, score, f"{n} characters", worth))


class EchoBehaviour(Behaviour):
    """The last user message: shows whether replies reach the request they belong to."""

    def answer(self, request: ChatRequest) -> MockAnswer:
        """What was said."""
        return MockAnswer(last_text(request.messages))


class ScriptedBehaviour(Behaviour):
    """Rows of a script: keyed ones where their substring occurs, the others in order, again and
    again.
    """

    def __init__(self, rows: Sequence[ScriptRow]) -> None:
        self._keyed = [(row.when, row.to_answer()) for row in rows if row.when is not None]
        self._ordered = [row.to_answer() for row in rows if row.when is None]
        self._next = 0

    def answer(self, request: ChatRequest) -> MockAnswer:
        """The first keyed row that fits, else the next ordered one, else the default reply."""
        if self._keyed:
            text = last_text(request.messages)
            for key, answer in self._keyed:
                if key in text:
                    return answer
        if not self._ordered:
            return MockAnswer(DEFAULT_REPLY)
        self._next += 1
        return self._ordered[(self._next - 1) % len(self._ordered)]


class ScriptRow(msgspec.Struct, forbid_unknown_fields=True):
    """One row of a script; a ``reply`` that is not text is sent as JSON."""

    reply: Any
    when: str | None = None
    reasoning: str = ""
    finish: str = "stop"

    def to_answer(self) -> MockAnswer:
        """The row as an answer."""
        reply = self.reply
        text = reply if isinstance(reply, str) else msgspec.json.encode(reply).decode()
        return MockAnswer(text, self.reasoning, self.finish)


def read_script(path: Path | str) -> list[ScriptRow]:
    """A JSONL script: each line a text, or ``{"reply", "when", "reasoning", "finish"}``.

    Raises :class:`ConfigError` naming the line.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--script {path}: the file cannot be read: {error.strerror}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=str | ScriptRow)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}:{number}: {error}") from error
        rows.append(ScriptRow(row) if isinstance(row, str) else row)
        if rows[-1].finish not in {"stop", "length", "content_filter", "refusal"}:
            raise ConfigError(
                f"{path}:{number}: finish: unknown finish reason (found {rows[-1].finish!r}; "
                "allowed: stop, length, content_filter, refusal)"
            )
    if not rows:
        raise ConfigError(f"--script {path}: the file has no rows")
    return rows


_SHOWN = re.compile(r"<response_(\w{1,2})-(\w+)>\n(.*?)\n</response_\1-\2>", re.DOTALL)


def _shown_responses(request: ChatRequest) -> list[str]:
    """The responses that a prompt shows side by side."""
    return [text for _, _, text in _SHOWN.findall(last_text(request.messages))]


def _compare(instance: dict[str, Any], worth: Sequence[float]) -> None:
    """Let a verdict on responses side by side go by their worth."""
    places = instance.get("places")
    if isinstance(places, dict) and len(places) == len(worth):
        ranks = [1 + sum(other > own for other in worth) for own in worth]
        instance["places"] = dict(zip(places, ranks, strict=True))
    elif "better" in instance and len(worth) == 2 and worth[0] != worth[1]:
        instance["better"] = "A" if worth[0] > worth[1] else "B"


def _format_verdict(
    request: ChatRequest, share: float, score: float, reason: str, worth: Sequence[float] = ()
) -> str:
    """The verdict in the form that was asked for; ``worth``: of responses side by side."""
    if request.choices:
        return _choose(request.choices, share, score)
    schema = request.schema
    if request.block is not None:
        criteria = [number for number, _ in _find_criteria(request)]
        schema = read_form(request.block[1], last_text(request.messages), criteria)
    if schema is None:
        return f'{{"score": {score:g}, "reason": {msgspec.json.encode(reason).decode()}}}'
    instance = minimal_instance(schema, share, reason)
    if isinstance(instance, dict):
        _place_score(instance, schema, score)
        _compare(instance, worth)
    return _in_block(request, msgspec.json.encode(instance).decode())


def _in_block(request: ChatRequest, verdict: str) -> str:
    name = request.block[0] if request.block is not None else ""
    return f"<{name}>\n{verdict}\n</{name}>" if name else verdict


def _choose(choices: Sequence[str], share: float, score: float) -> str:
    exact = f"{score:g}"
    counts = "0" in choices  # on a scale that begins elsewhere a count is no place
    return exact if counts and exact in choices else str(_pick(choices, share))


def _place_score(instance: dict[str, Any], schema: dict[str, Any], score: float) -> None:
    """Put the very score into a numeric ``score`` property, where its range allows it."""
    properties = schema.get("properties")
    described = properties.get("score") if isinstance(properties, dict) else None
    if "score" not in instance or not isinstance(described, dict):
        return
    kind = described.get("type")
    listed = described.get("enum")
    if kind == "number" and isinstance(listed, list) and score in listed:
        instance["score"] = score  # a scale in small steps
        return
    low = described.get("minimum", -math.inf)
    high = described.get("maximum", math.inf)
    plain = set(described) <= {"type", "minimum", "maximum", "description", "title"}
    bounded = isinstance(low, int | float) and isinstance(high, int | float)
    if not plain or not bounded or kind not in {"integer", "number"} or not low <= score <= high:
        return
    if kind == "number" or float(score).is_integer():
        instance["score"] = int(score) if kind == "integer" else score


_NUMBERED = re.compile(r"^(\d{1,4})\. (.*)$", re.MULTILINE)
_QUOTED = re.compile(r'"([^"\n]{1,200})"')
_WORK = re.compile(r"\n</(response|trajectory)-([^>]*)>")


class CriteriaBehaviour(Behaviour):
    """Marks for the numbered criteria of a rubric, which the spec has or the sample brought.

    MET where all that a criterion quotes ("…") occurs between the fences of the response, or of the
    trajectory, capitals ignored; UNMET otherwise, also where it quotes nothing. What is asked
    otherwise has no verdict.
    """

    def answer(self, request: ChatRequest) -> MockAnswer:
        """A verdict for each number of ``sample_criteria``, else of the system's message."""
        text = last_text(request.messages)
        # The work's block is the last that is closed.
        response = "".join(_fenced_text(text, *one) for one in _WORK.findall(text)[-1:]).casefold()
        given = _find_criteria(request) if response else []
        marks = {number: _mark_criterion(text, response) for number, text in given}
        return MockAnswer(_in_block(request, msgspec.json.encode(marks).decode()))


def _find_criteria(request: ChatRequest) -> list[tuple[str, str]]:
    """The numbers and texts of a rubric's criteria. Its block is the first there is."""
    text = last_text(request.messages)
    tag = text.partition("<sample_criteria-")[2].partition(">")[0]
    criteria = _fenced_text(text, "sample_criteria", tag)
    return _NUMBERED.findall(criteria or last_text(request.messages, "system"))


def _fenced_text(text: str, name: str, tag: str) -> str:
    """What stands between the fences with ``tag``; nothing without them."""
    return text.partition(f"<{name}-{tag}>\n")[2].rpartition(f"\n</{name}-{tag}>")[0]


def _mark_criterion(criterion: str, response: str) -> dict[str, str]:
    wanted = _QUOTED.findall(criterion)
    lacking = [words for words in wanted if words.casefold() not in response]
    met = bool(wanted) and not lacking
    reason = f"{len(wanted) - len(lacking)} of {len(wanted)} quotes occur"
    return {"reason": reason, "verdict": "MET" if met else "UNMET"}


class MockSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that ``adjudge mock`` can be told; specs are texts in its command line's form.

    ``port``: 0 picks a free one. ``behaviour``: ``fixed scripted rubric criteria length echo``;
    left out, it follows from ``script`` (a JSONL path) or ``keywords``, else it is ``fixed``, with
    ``reply`` as its text. ``reasoning``: thinking that ``fixed`` sends in its field. ``latency``,
    ``fail``, ``outage``: see :mod:`adjudge.mock.faults`.
    ``seed``: makes all draws reproducible
    per request number; left out, one is drawn and reported. ``stream_only``: 400 unless the request
    streams. ``rpm``: requests per minute, a token bucket that starts full with ``rpm`` requests.
    ``require_key``: the *name* of an environment variable with the key that clients must send.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "mock"
    behaviour: str | None = None
    reply: str | None = None
    reasoning: str = ""
    script: str | None = None
    keywords: tuple[str, ...] = ()
    latency: tuple[str, ...] = ()
    fail: tuple[str, ...] = ()
    outage: tuple[str, ...] = ()
    seed: int | None = None
    stream_only: bool = False
    rpm: float | None = None
    require_key: str | None = None

    def checked(self) -> MockSettings:
        """Itself; raises :class:`ConfigError` for what no other part checks."""
        if self.rpm is not None and not 0 < self.rpm <= 1e9:
            raise ConfigError(f"--rpm {self.rpm:g}: must be above 0 and at most 1e+09")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port {self.port}: must be from 0 to 65535")
        if self.require_key is None and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host}: other machines could use the mock without a key. Give "
                "--require-key ENVNAME, the environment variable with the key that they must send."
            )
        return self

    def key(self) -> str | None:
        """The key that clients must send, from the environment; raises :class:`ConfigError`."""
        if self.require_key is None:
            return None
        found = os.environ.get(self.require_key, "")
        if not found:
            raise ConfigError(
                f"--require-key {self.require_key}: this environment variable is not set. Set it "
                "to the key that clients must send."
            )
        return found


OPTION_NAMES = {"keywords": "keyword"}
"""Options that are not called as their fields are."""


def make_behaviour(settings: MockSettings) -> Behaviour:
    """The behaviour that the settings ask for; raises :class:`ConfigError`."""
    name = settings.behaviour or _implied_behaviour(settings)
    if name not in BEHAVIOURS:
        hint = suggest_name(name, BEHAVIOURS)
        allowed = ", ".join(BEHAVIOURS)
        raise ConfigError(
            f"--behaviour {name!r}: the behaviour is unknown{hint} (allowed: {allowed})"
        )
    owners = {"reply": "fixed", "reasoning": "fixed", "script": "scripted", "keywords": "rubric"}
    for field, owner in owners.items():
        if getattr(settings, field) and owner != name:
            option = OPTION_NAMES.get(field, field)
            raise ConfigError(f"--{option}: needs --behaviour {owner} (found --behaviour {name})")
    if name == "scripted":
        if settings.script is None:
            raise ConfigError("--behaviour scripted: the script is missing. Give --script FILE.")
        return ScriptedBehaviour(read_script(settings.script))
    if name == "rubric":
        if not all(settings.keywords) or not settings.keywords:
            raise ConfigError(
                "--behaviour rubric: a keyword is missing or empty. Give --keyword WORD, once or "
                "more."
            )
        return KeywordBehaviour(settings.keywords)
    if name == "fixed":
        return FixedBehaviour(settings.reply, settings.reasoning)
    if name == "criteria":
        return CriteriaBehaviour()
    return LengthBehaviour() if name == "length" else EchoBehaviour()


def _implied_behaviour(settings: MockSettings) -> str:
    if settings.script is not None:
        return "scripted"
    return "rubric" if settings.keywords else "fixed"
