"""What a judge's server really honours, found out by a handful of small calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from adjudge.errors import ConfigError, GradingFailure
from adjudge.judges.base import Reply
from adjudge.judges.models.http import HttpChatModel

FeatureStatus = Literal["yes", "no", "unclear", "failed", "not offered"]

_COLOUR_MESSAGES = [{"role": "user", "content": "Name a colour. Answer with one word."}]
_WORDS_MESSAGES = [{"role": "user", "content": "Write eight random words."}]
_SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer"}},
    "required": ["score"],
    "additionalProperties": False,
}


class FeatureCheck(msgspec.Struct, frozen=True):
    """Whether a server honours one thing, and what its reply showed.

    ``honoured``: ``yes``; ``no`` (asked for and evidently not there); ``unclear`` (the reply was
    cut by its length limit before it could show); ``failed`` (the call failed: ``note`` has kind
    and message); ``not offered`` (this kind of server has no field for it).
    ``sent``: whether calls with this judge ask for it, ``None`` where that is not a setting.
    """

    feature: str
    honoured: FeatureStatus
    note: str = ""
    sent: bool | None = None


_ASKED: Mapping[str, tuple[dict[str, Any], Callable[[Reply], str], str]] = {
    "schema": ({"schema": _SCHEMA}, lambda _: "the reply is JSON with its keys", ""),
    "choices": (
        {"choices": ("alpha", "omega")},
        lambda _: "the reply is one of the list",
        "replies are checked against the list instead",
    ),
    "logprobs": (
        {"logprobs": True},
        lambda reply: (
            f"{max(len(token.top) for token in reply.logprobs or ())} alternatives a token"
        ),
        "no expected scores from this API",
    ),
}
"""What is asked for, what its reply shows, and what follows where a format has no field for it."""


async def check_judge_features(model: HttpChatModel) -> list[FeatureCheck]:
    """Seven small calls to a judge with a server; one where the first fails.

    Everything is asked for once, also what this kind of server is not sent by default, so that the
    table's ``features`` can be set to what is true. No cache answers.
    """
    from adjudge.judges.models.classifier import ClassifierModel  # noqa: PLC0415  (few judges)

    try:
        if isinstance(model, ClassifierModel):
            return await _check_classifier(model)
        bare = model.variant(features=model.features, stream=model.stream)
        first = await bare.achat(_COLOUR_MESSAGES)
    except GradingFailure as failure:
        return [_failed_check("reply", failure)]
    except ConfigError as error:  # a server in a child process that cannot be started
        return [FeatureCheck("reply", "failed", str(error))]
    full = model.variant(features=model.offered_features, stream=model.stream)
    found = [_check_reply(first), FeatureCheck("usage", *_check_usage(first))]
    for feature, (asked, describe, missing) in _ASKED.items():
        if feature in model.offered_features:
            sent = feature in model.features
            found.append(await _check_feature(feature, full, sent, describe, asked))
        else:
            found.append(FeatureCheck(feature, "not offered", missing))
    if model.can_stream:
        streaming = model.variant(features=model.offered_features, stream=True)
        found.append(await _check_feature("streaming", streaming, model.stream, _describe_stream))
    else:
        asks_whole = "this client asks it for whole replies only"
        found.append(FeatureCheck("streaming", "not offered", asks_whole))
    return [*found, await _check_seed(bare)]


async def _check_classifier(model: Any) -> list[FeatureCheck]:
    """What a scalar judge's server answers: its route, whether outputs are raw, whose template."""
    found, (reply, again) = await model.variant().inspect_server()
    shown = " and ".join(f"{score:.4g}" for score in found.scores)
    template = {"server": "applied by the server", "here": "applied here; token ids are sent"}
    return [
        _check_reply(reply),
        FeatureCheck("usage", *_check_usage(reply)),
        FeatureCheck("route", "yes", found.facts["route"]),
        FeatureCheck(
            "raw output",
            "yes" if found.is_raw else "unclear",
            f"two conversations scored {shown}",
        ),
        FeatureCheck(
            "chat template",
            "yes" if found.template in template else "not offered",
            template.get(found.template, "prompt and response go out as two texts"),
        ),
        FeatureCheck(
            "repeatable",
            "yes" if again.text == reply.text else "no",
            "one conversation, asked twice",
        ),
    ]


def _failed_check(feature: str, failure: GradingFailure, sent: bool | None = None) -> FeatureCheck:
    return FeatureCheck(feature, "failed", f"{failure.kind}: {failure}", sent)


def _check_reply(reply: Reply) -> FeatureCheck:
    took = f"{reply.provenance.latency_s:.2f} s" if reply.provenance.latency_s is not None else ""
    thinking = "thinks" if reply.reasoning else ""
    says = f"says it is {reply.model}" if reply.model else "does not say what model it is"
    note = ", ".join(part for part in (says, took, thinking) if part)
    if not reply.text:
        return FeatureCheck("reply", "no", f"{note}; the reply has no text ({reply.finish_reason})")
    return FeatureCheck("reply", "yes", note)


def _check_usage(reply: Reply) -> tuple[FeatureStatus, str]:
    usage = reply.usage
    if usage is None:
        return "no", "tokens are not counted, so costs are assumed"
    return "yes", f"{usage.input_tokens} tokens in, {usage.output_tokens} out"


def _describe_stream(reply: Reply) -> str:
    return f"joined, {'with' if reply.usage else 'without'} usage"


async def _check_feature(
    feature: str,
    model: HttpChatModel,
    sent: bool,
    describe: Callable[[Reply], str],
    asked: Mapping[str, Any] = {},
) -> FeatureCheck:
    """A call for one feature with the arguments ``asked``; ``describe`` words the reply."""
    try:
        reply = await model.achat(_COLOUR_MESSAGES, **asked)
    except GradingFailure as failure:
        return _failed_check(feature, failure, sent)
    return FeatureCheck(feature, *_read_feature(feature, reply, describe), sent)


def _read_feature(
    feature: str, reply: Reply, describe: Callable[[Reply], str]
) -> tuple[FeatureStatus, str]:
    if feature in reply.ignored:
        return "no", "the reply does not have it: dropped silently"
    if feature in ("schema", "choices") and reply.finish_reason == "length":
        # A cut reply shows at most that the form was not kept: an object begins with a brace.
        if feature == "schema" and not reply.text.lstrip().startswith("{"):
            return "no", "the reply is no JSON: dropped silently"
        return "unclear", "the reply was cut: raise max_tokens"
    if not reply.text and feature != "logprobs":
        return "no", f"the reply has no text ({reply.finish_reason})"
    return "yes", describe(reply)


async def _check_seed(model: HttpChatModel) -> FeatureCheck:
    if model.kind == "anthropic":
        return FeatureCheck("seed", "not offered")
    sent = "seed" in model.sampling
    how: dict[str, Any] = {"seed": 7, "temperature": 1.0, "max_tokens": 64}
    try:
        texts = [(await model.achat(_WORDS_MESSAGES, **how)).text for _ in range(2)]
    except GradingFailure as failure:
        return _failed_check("seed", failure, sent)
    same = texts[0] == texts[1]
    note = f"two replies at temperature 1 {'are the same' if same else 'differ'}"
    return FeatureCheck("seed", "yes" if same else "no", note, sent)
