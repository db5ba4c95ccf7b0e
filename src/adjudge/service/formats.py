"""The formats in which trainers ask a reward over HTTP, each at its own path.

A format of yours derives from :class:`Format`. ``adjudge serve reward.toml --format module:Class``
adds it.

OpenRLHF's remote reward: ``--reward.remote_url http://HOST:8888/get_reward``. Version 0.11 sends
one rollout per request, asks again five times a second apart, and then goes on without a reward,
which ends the training step with an error. It has no way to leave one out. Its texts are decoded
with their special tokens, out of which the completions are cut.

slime's remote reward model: ``--rm-type remote_rm --rm-url http://HOST:8888/slime``. Its client
asks again ten times with growing pauses and then raises, which ends the run. A reward that is left
out does not exist there: a sample with ``remove_sample`` still counts in its group.

LLaMA-Factory's reward API, for PPO: ``reward_model_type: api`` and
``reward_model: http://HOST:8888/llamafactory``. Its client neither asks again nor looks at the
status: an answer without ``scores`` ends the run with ``KeyError: 'scores'``.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from adjudge.extensions import load_extension
from adjudge.intake.columns import is_nothing
from adjudge.intake.rollouts import read_rollout
from adjudge.service.requests import REQUEST_FAULTS, RequestRefused, decode_body, invalid_request
from adjudge.text import PAD_TOKENS, encode_json, strip_end_tokens
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse

ScoreFunction = Callable[[Sequence[JudgeRequest]], Awaitable[list[JudgeResponse]]]
"""Judges requests: one response each, in order; a score that is a number, or an error."""


MAX_ITEMS = 1024
"""The most samples in one request of a list format."""


class Format(ABC):
    """One trainer's request and response at ``path``; stateless.

    A failed judge is an error of the whole request, which the trainers' clients ask again or raise:
    503, and 422 where asking again cannot help. There is never a number in its place.
    """

    path: str

    async def answer(self, body: bytes, score: ScoreFunction) -> bytes:
        """The JSON body; raises what :meth:`requests` and ``score`` raise."""
        requests = decode_body(self.requests, body)
        if len(requests) > MAX_ITEMS:
            raise invalid_request(f"{len(requests)} samples in one request, at most {MAX_ITEMS}")
        responses = await score(requests) if requests else []
        failure = find_failure(responses)
        said = self.reply(body, responses) if failure is None else self.failed(body, failure)
        return encode_json(said)

    @abstractmethod
    def requests(self, body: bytes) -> list[JudgeRequest]:
        """What is to be judged, perhaps nothing; what msgspec raises has the right status."""

    @abstractmethod
    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:
        """The answer when every sample has a score."""

    def failed(self, body: bytes, failure: ErrorInfo) -> Any:  # noqa: ARG002  (hook)
        """The answer when one has none; by default there is none but :class:`RequestRefused`."""
        status = 422 if failure.kind in REQUEST_FAULTS or failure.local else 503
        wait = 1.0 if status == 503 and failure.passing else None
        marks = failure.failure_metadata
        raise RequestRefused(status, failure.kind, failure.message, wait, marks)


def rollout_request(prompt: Any, completion: Any, answer: Any, **more: Any) -> JudgeRequest:
    """A request about a prompt and its completion, texts or messages, as all doors read them.

    ``answer``: a label as it was sent, whatever the dataset had; an empty text or list is
    none. Raises :class:`~adjudge.errors.RolloutError` for what cannot be read.
    """
    said, response, messages, opening_turns = read_rollout(prompt, completion)
    answer = None if is_nothing(answer) else answer
    if messages is not None:  # of which the first are the prompt's
        more["metadata"] = {**(more.get("metadata") or {}), "opening_turns": opening_turns}
    return JudgeRequest(said, response or "", answer, messages=messages, **more)


def find_failure(responses: Sequence[JudgeResponse]) -> ErrorInfo | None:
    """Why there is not a score of each; the first failure, and how many there are."""
    failures = [one.error for one in responses if one.error is not None]
    if not failures:
        return None
    # Where any may pass by itself, asking the whole request again makes sense.
    first = next((one for one in failures if one.passing), failures[0])
    if len(responses) == 1:
        return first
    message = f"{len(failures)} of {len(responses)} failed, first: {first.message}"
    return msgspec.structs.replace(first, message=message)


_BEGIN_TOKENS = (
    *("</s>", "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|im_end|>"),
    *("<BOS_TOKEN>", "[BOS]", "<｜begin▁of▁sentence｜>"),
)
_BEGINS = re.compile("|".join(map(re.escape, (*PAD_TOKENS, *_BEGIN_TOKENS))))
_SHOWN = re.compile(r"\S")
_ANCHOR = 64  # characters that show a shortened prompt's end
_TRIES = 16


def extract_completion(query: str, prompt: str) -> str | None:
    r"""What follows ``prompt`` in ``query``; ``None`` where it cannot be told for certain.

    Decoding may have put a token before the prompt, normalised it, changed its white space, or
    kept only its end (a prompt longer than the policy takes). Never looks for the prompt further
    in, where the policy may have repeated it.

    >>> extract_completion("<s>2 + 2?\n4</s>", "2 + 2?\n")
    '4'
    """
    composed = unicodedata.normalize("NFC", prompt), unicodedata.normalize("NFKC", prompt)
    forms = dict.fromkeys([prompt, *composed])
    places = [(start, form) for start in _starts(query) for form in forms]
    for start, form in places:
        if query.startswith(form, start):
            return strip_end_tokens(query[start + len(form) :])
    for start, form in places:
        end = _loose_end(query, start, form)
        end = _shortened_end(query, start, form) if end is None else end
        if end is not None:
            return strip_end_tokens(query[end:])
    return None


def _starts(query: str) -> Iterable[int]:
    """Where the prompt may begin: at once, after one special token, after all of them."""
    ends = [0]
    while (token := _BEGINS.match(query, ends[-1])) is not None:
        ends.append(token.end())
    return dict.fromkeys([*ends[:2], ends[-1]])


def _loose_end(query: str, start: int, prompt: str) -> int | None:
    """Where the prompt ends when white space does not count."""
    wanted = "".join(prompt.split())
    if not wanted or not "".join(query[start:].split()).startswith(wanted):
        return None
    shown = _SHOWN.finditer(query, start)
    return next(place.end() for number, place in enumerate(shown, 1) if number == len(wanted))


def _shortened_end(query: str, start: int, prompt: str) -> int | None:
    """Where the prompt ends when only its end is there; ``None`` also where that is in doubt."""
    if len(prompt) <= _ANCHOR:
        return None
    anchor, stop, ends = prompt[-_ANCHOR:], start + len(prompt), list[int]()
    at = query.find(anchor, start, stop)
    while at >= 0 and len(ends) < _TRIES:
        ends.append(at + _ANCHOR)
        at = query.find(anchor, at + 1, stop)
    found = [end for end in ends if prompt.endswith(query[start:end])]
    return found[0] if at < 0 and len(found) == 1 else None


class _OpenRLHFRequest(msgspec.Struct):
    """``query`` is prompt and completion as decoded tokens, special ones included."""

    query: list[str]
    prompts: list[str]
    labels: list[Any] | None = None


class OpenRLHF(Format):
    """``{"query": […], "prompts": […], "labels": […]}`` to ``{"rewards": […], "scores": […]}``."""

    path = "/get_reward"

    def requests(self, body: bytes) -> list[JudgeRequest]:
        """The completions cut out of the texts; what cannot be cut is refused, never guessed."""
        asked = msgspec.json.decode(body, type=_OpenRLHFRequest)
        n = len(asked.query)
        prompts, labels = asked.prompts, asked.labels or [None] * n
        if len(prompts) != n or len(labels) != n:
            raise invalid_request(
                "query, prompts, labels: must have the same length "
                f"(found {n}, {len(prompts)}, {len(labels)})"
            )
        requests = []
        for place, (query, prompt) in enumerate(zip(asked.query, prompts, strict=True)):
            completion = extract_completion(query, prompt)
            if completion is None:
                raise invalid_request(
                    f"query[{place}]: does not begin with its prompt, so the completion cannot be "
                    "cut out. Send in prompts the text that was tokenised"
                )
            requests.append(rollout_request(prompt, completion, labels[place]))
        return requests

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:  # noqa: ARG002  (hook)
        """Rewards, and the same as scores, which dynamic filtering reads."""
        rewards = [one.score for one in responses]
        return {"rewards": rewards, "scores": rewards, "extra_logs": {}}


class _SlimeSample(msgspec.Struct):
    """One rollout; ``prompt`` is text, or chat messages where no template was applied."""

    response: str
    prompt: str | list[dict[str, Any]] = ""
    label: Any = None


class Slime(Format):
    """``{"prompt", "response", "label"}`` to a number; a list of them to a list of numbers.

    slime itself sends single samples; the list is for a ``--group-rm`` function of one's own.
    """

    path = "/slime"

    def requests(self, body: bytes) -> list[JudgeRequest]:
        """One, or those of a group."""
        asked: _SlimeSample | list[_SlimeSample]
        asked = msgspec.json.decode(body, type=_SlimeSample | list[_SlimeSample])
        return [
            rollout_request(one.prompt, one.response, one.label)
            for one in (asked if isinstance(asked, list) else [asked])
        ]

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:
        """A number for an object, a list for a list."""
        rewards = [self._reward(one) for one in responses]
        return rewards if body.lstrip()[:1] == b"[" else rewards[0]

    def _reward(self, response: JudgeResponse) -> Any:
        return response.score


class SlimeWithParts(Slime):
    """The same with an object for a number, for ``--reward-key score``: with the graders'."""

    path = "/slime/parts"

    def _reward(self, response: JudgeResponse) -> Any:
        return {**(response.detailed_scores or {}), "score": response.score}


class _LlamaFactoryRequest(msgspec.Struct):
    """``messages`` are whole texts, prompt and completion as decoded tokens."""

    messages: list[str]


class LlamaFactory(Format):
    """``{"model": …, "messages": [text, …]}`` to ``{"scores": […]}``.

    The texts say nowhere where the prompt ends, and a policy may write any marker itself, so each
    is judged whole: as ``completion``, without a ``prompt``.
    """

    path = "/llamafactory"

    def requests(self, body: bytes) -> list[JudgeRequest]:
        """The whole texts."""
        asked = msgspec.json.decode(body, type=_LlamaFactoryRequest)
        return [JudgeRequest(None, strip_end_tokens(text)) for text in asked.messages]

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:  # noqa: ARG002  (hook)
        """Scores in the texts' order."""
        return {"model": "model", "scores": [one.score for one in responses]}


_SHIPPED = {
    "openrlhf": "adjudge.service.formats:OpenRLHF",
    "slime": "adjudge.service.formats:Slime",
    "slime-parts": "adjudge.service.formats:SlimeWithParts",
    "llamafactory": "adjudge.service.formats:LlamaFactory",
    "nemo-gym": "adjudge.service.nemo_gym:NemoGym",
    "nemo-gym-session": "adjudge.service.nemo_gym:NemoGymSession",
    "nemo-gym-metrics": "adjudge.service.nemo_gym:NemoGymMetrics",
    "nemo-gym-marked": "adjudge.service.nemo_gym:NemoGymMarked",
}
FORMAT_GROUP = "adjudge.service_formats"
"""The entry-point group of formats that packages bring."""


def load_formats(names: Sequence[str]) -> tuple[Format, ...]:
    """The shipped formats, but for paths that others take: those that are named.

    ``names``: ``module:Class``, a package's name for one, or a shipped one's.

    Raises :class:`ConfigError` for what cannot be imported or is no format.
    """
    named = [_load_format(name) for name in names]
    found = {one.path: one for one in map(_load_format, reversed(_SHIPPED))}  # the first of a path
    for one in named:
        found.pop(one.path, None)
    return (*found.values(), *named)


def _load_format(name: str) -> Format:
    members = ("path", "requests", "reply", "answer")
    where = f"--format {name}"
    found: type[Format] = load_extension(
        FORMAT_GROUP, name, where=where, shipped=_SHIPPED, methods=members
    )
    return found()
