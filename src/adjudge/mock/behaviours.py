"""How the mock answers when nothing goes wrong, and the settings that a command line can carry.

=============  ===================================================================================
``fixed``      one text; the shipped one is ``{"score": 1, "reason": "mock"}``
``scripted``   the rows of a JSONL file, by a substring of the last user message or in order
``rubric``     a score that counts the given keywords in the last user message
``criteria``   whether each numbered criterion's "quoted" words occur in the response
``length``     a score that grows with the length of the last user message: a biased judge
``echo``       the last user message itself
=============  ===================================================================================

A text of the user's (``fixed`` with one, ``scripted``, ``echo``) is sent unchanged. The other
behaviours keep to a JSON schema or a list of choices when the request has one, as constrained
decoding does, or when the prompt states one (:mod:`adjudge.mock.forms`).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec

from adjudge.config import suggest_name
from adjudge.config_tables import CheckedTable
from adjudge.errors import ConfigError
from adjudge.mock.forms import Schema, fenced_text, find_criteria, make_instance, pick
from adjudge.mock.wire import ChatRequest, Finish, MockAnswer

DEFAULT_REPLY = '{"score": 1, "reason": "mock"}'

PROSE_REPLY = "On the whole this answer is good, I would say, though it could be better in places."
"""What a server that drops schemas replies."""


Behaviour = Callable[[ChatRequest], MockAnswer]
"""Decides the reply to a request."""


class MockSettings(CheckedTable):
    """The settings of ``adjudge mock``; specs are texts in its command line's form.

    ``port``: 0 picks a free one. ``behaviour``: ``fixed scripted rubric criteria length echo``;
    left out, it follows from ``script`` (a JSONL path) or ``keywords``, else it is ``fixed``, with
    ``reply`` as its text. ``latency``, ``fail``: see :mod:`adjudge.mock.responder`.
    ``seed``: makes all draws reproducible per request number; left out, one is drawn and reported.
    ``require_key``: the *name* of an environment variable with the key that clients must send.
    """

    port: int = 0
    behaviour: str | None = None
    reply: str | None = None
    script: str | None = None
    keywords: tuple[str, ...] = ()
    latency: tuple[str, ...] = ()
    fail: tuple[str, ...] = ()
    seed: int | None = None
    require_key: str | None = None

    def key(self) -> str:
        """The key that clients must send; empty when none is required."""
        if self.require_key is None:
            return ""
        if not (key := os.environ.get(self.require_key)):
            raise ConfigError(
                f"--require-key {self.require_key}: this environment variable is not set. Set it "
                "to the key that clients must send."
            )
        return key


OPTION_NAMES = {"keywords": "keyword"}
"""Options that are not called as their fields are."""


def make_behaviour(settings: MockSettings) -> Behaviour:
    """The behaviour that the settings ask for; raises :class:`ConfigError`."""
    implied = "scripted" if settings.script else "rubric" if settings.keywords else "fixed"
    name = settings.behaviour or implied
    allowed = [*BEHAVIOURS, "scripted"]
    if name not in allowed:
        hint = suggest_name(name, allowed)
        raise ConfigError(
            f"--behaviour {name!r}: the behaviour is unknown{hint} (allowed: {', '.join(allowed)})"
        )
    owners = {"reply": "fixed", "script": "scripted", "keywords": "rubric"}
    for field, owner in owners.items():
        option, given = OPTION_NAMES.get(field, field), getattr(settings, field)
        needed = owner == name and field in {"script", "keywords"}
        if (given and owner != name) or (needed and not (given and all(given))):
            raise ConfigError(
                f"--behaviour {name}: --{option} goes with --behaviour {owner}, and a script or "
                f"keywords must not be empty (found --{option} {given!r})"
            )
    if name == "scripted":
        return read_script(settings.script or "")
    return partial(BEHAVIOURS[name], settings)


def _answer_fixed(settings: MockSettings, request: ChatRequest) -> MockAnswer:
    """One text; without one of the user's the default, which keeps to what is asked for."""
    text = settings.reply
    if text is None:
        text = _format_verdict(request, 1.0, 1, "mock")
    return MockAnswer(text)


def _answer_rubric(settings: MockSettings, request: ChatRequest) -> MockAnswer:
    """Score: how many of the keywords occur in the last user message, capitals ignored."""

    def find(text: str) -> list[str]:
        return [word for word in settings.keywords if word.casefold() in text.casefold()]

    found, total = find(request.user), len(settings.keywords)
    reason = f"{len(found)} of {total} keywords: {', '.join(found)}".rstrip(": ")
    worth = [len(find(text)) for text in _shown_responses(request)]
    return MockAnswer(_format_verdict(request, len(found) / total, len(found), reason, worth))


def _answer_length(_settings: MockSettings, request: ChatRequest) -> MockAnswer:
    """Score: 1 + 9 · n / (n + 1000) for n characters of the last user message, 1 to 10."""
    n = len(request.user)
    share = n / (n + 1000)
    worth = [*map(len, _shown_responses(request))]
    score = round(1 + 9 * share, 3)
    return MockAnswer(_format_verdict(request, share, score, f"{n} characters", worth))


_QUOTED = re.compile(r'"([^"\n]{1,200})"')
_WORK = re.compile(r"\n</(response|trajectory)-([^>]*)>")


def _answer_criteria(_settings: MockSettings, request: ChatRequest) -> MockAnswer:
    """Marks for the numbered criteria of a rubric, which the spec has or the sample brought.

    MET where all that a criterion quotes ("…") occurs between the fences of the response, or of the
    trajectory, capitals ignored; UNMET otherwise, also where it quotes nothing. What is asked
    otherwise has no verdict.
    """
    # The work's block is the last that is closed.
    fences = _WORK.findall(request.user)[-1:]
    response = "".join(fenced_text(request.user, *one) for one in fences).casefold()
    marks = {}
    for number, criterion in find_criteria(request.user, request.system) if response else ():
        wanted = _QUOTED.findall(criterion)
        found = sum(words.casefold() in response for words in wanted)
        met = "MET" if 0 < found == len(wanted) else "UNMET"
        marks[number] = {"reason": f"{found} of {len(wanted)} quotes occur", "verdict": met}
    return MockAnswer(_in_block(request, msgspec.json.encode(marks).decode()))


def _answer_echo(_settings: MockSettings, request: ChatRequest) -> MockAnswer:
    """The last user message: shows whether replies reach the request they belong to."""
    return MockAnswer(request.user)


class _ScriptRow(msgspec.Struct, forbid_unknown_fields=True):
    """One row of a script."""

    reply: Any
    when: str | None = None
    reasoning: str = ""
    finish: Finish = "stop"

    @property
    def answer(self) -> MockAnswer:
        """The reply, which is sent as JSON where it is no text."""
        said = self.reply
        text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
        return MockAnswer(text, self.reasoning, self.finish)


def read_script(path: str) -> Behaviour:
    """Of a JSONL script, each line a text, or ``{"reply", "when", "reasoning", "finish"}``.

    The first keyed row whose text occurs is the reply, else the next of the others in a cycle.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--script {path}: cannot be read: {error.strerror}") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = msgspec.json.decode(line, type=str | _ScriptRow) if line.strip() else None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}:{number}: {error}") from error
        rows += [_ScriptRow(row) if isinstance(row, str) else row] if row is not None else []
    if not rows:
        raise ConfigError(f"--script {path}: the file has no rows")
    keyed = [(row.when, row.answer) for row in rows if row.when is not None]
    ordered = [row.answer for row in rows if row.when is None]
    others = cycle(ordered or [MockAnswer(DEFAULT_REPLY)])
    return lambda request: (
        next((a for key, a in keyed if key in request.user), None) or next(others)
    )


BEHAVIOURS: dict[str, Callable[[MockSettings, ChatRequest], MockAnswer]] = {
    "fixed": _answer_fixed,
    "rubric": _answer_rubric,
    "criteria": _answer_criteria,
    "length": _answer_length,
    "echo": _answer_echo,
}

_SHOWN = re.compile(r"<response_(\w{1,2})-(\w+)>\n(.*?)\n</response_\1-\2>", re.DOTALL)


def _shown_responses(request: ChatRequest) -> list[str]:
    """The responses that a prompt shows side by side."""
    return [text for _, _, text in _SHOWN.findall(request.user)]


def _format_verdict(
    request: ChatRequest, share: float, score: float, reason: str, worth: Sequence[float] = ()
) -> str:
    """The verdict in the form that was asked for; ``worth``: of responses side by side."""
    if request.choices:
        exact = f"{score:g}"
        # On a scale that begins elsewhere a count is no place.
        if "0" in request.choices and exact in request.choices:
            return exact
        return str(pick(request.choices, share))
    if request.schema is None:
        return f'{{"score": {score:g}, "reason": {msgspec.json.encode(reason).decode()}}}'
    instance = make_instance(request.schema, share, reason)
    if isinstance(instance, dict):
        _place_score(instance, request.schema, score)
        _compare(instance, worth)
    return _in_block(request, msgspec.json.encode(instance).decode())


def _in_block(request: ChatRequest, verdict: str) -> str:
    return f"<{request.block}>\n{verdict}\n</{request.block}>" if request.block else verdict


def _place_score(instance: dict[str, Any], schema: Schema, score: float) -> None:
    """Put the very score into a numeric ``score`` property, where its range allows it."""
    described = (schema.properties or {}).get("score")
    if described is None or "score" not in instance:
        return
    low = -math.inf if described.minimum is None else described.minimum
    high = math.inf if described.maximum is None else described.maximum
    allowed = low <= score <= high
    if allowed and described.type == "number" and score in (described.enum or (score,)):
        instance["score"] = score
    if allowed and described.type == "integer" and not described.enum:
        instance["score"] = round(score)


def _compare(instance: dict[str, Any], worth: Sequence[float]) -> None:
    """Let a verdict on responses side by side go by their worth."""
    places = instance.get("places")
    if isinstance(places, dict) and len(places) == len(worth):
        ranks = [1 + sum(other > own for other in worth) for own in worth]
        instance["places"] = dict(zip(places, ranks, strict=True))
    elif "better" in instance and len(worth) == 2 and worth[0] != worth[1]:
        instance["better"] = "A" if worth[0] > worth[1] else "B"
