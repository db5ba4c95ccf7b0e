"""What a judge's server really honours, found out by a handful of small calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from adjudge.errors import ConfigError, GradingFailure
from adjudge.judges.base import ALL_FEATURES, PRESETS, ChatModel, Reply
from adjudge.judges.table import ClassifierTable, EmbeddedTable, JudgeTable, ServerTable

FeatureStatus = Literal["yes", "no", "unclear", "failed", "not offered"]

_CHOICES = ("alpha", "omega")
_COLOUR_MESSAGES = [{"role": "user", "content": "Name a colour. Answer with one word."}]
_WORDS_MESSAGES = [{"role": "user", "content": "Write eight random words."}]
_SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "integer"}},
    "required": ["score"],
    "additionalProperties": False,
}
_TOKENS = 64

ModelBuilder = Callable[[JudgeTable], ChatModel]


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


async def check_judge_features(table: JudgeTable, build: ModelBuilder) -> list[FeatureCheck]:
    """Seven small calls to a judge with a server; one where the first fails.

    ``build`` makes the chat model of a table. Everything is asked for once, also what this kind of
    server is not sent by default, so that the table's ``features`` can be set to what is true.
    """
    bare = table.model_copy(update={"cache": None, "cache_sampled": False})
    if isinstance(table, ClassifierTable):
        return await _check_classifier(build(bare))
    if not isinstance(table, ServerTable | EmbeddedTable):
        raise TypeError("unreachable: a judge with a server")
    everything = bare.model_copy(update={"features": sorted(ALL_FEATURES)})
    sent = PRESETS[table.type].features if table.features is None else frozenset(table.features)
    model, full = build(bare), build(everything)
    try:
        first = await model.achat(_COLOUR_MESSAGES)
    except GradingFailure as failure:
        return [_failed_check("reply", failure)]
    except ConfigError as error:  # a server in a child process that cannot be started
        return [FeatureCheck("reply", "failed", str(error))]
    has_list = PRESETS[table.type].choices_field is not None
    is_anthropic = table.type == "anthropic"
    keys = table.read_given()
    whole_only = is_anthropic or "wire" in keys
    streaming = full if whole_only else build(everything.model_copy(update={"stream": True}))
    return [
        _check_reply(first),
        FeatureCheck("usage", *_check_usage(first)),
        await _check_feature(
            "schema",
            full,
            sent="schema" in sent,
            describe=lambda _: "the reply is JSON with its keys",
            schema=_SCHEMA,
        ),
        await _check_feature(
            "choices",
            full,
            sent="choices" in sent,
            missing="" if has_list else "replies are checked against the list instead",
            describe=lambda _: "the reply is one of the list",
            choices=_CHOICES,
        ),
        await _check_feature(
            "logprobs",
            full,
            sent="logprobs" in sent,
            missing="no expected scores from this API" if is_anthropic else "",
            describe=_describe_logprobs,
            logprobs=True,
        ),
        await _check_feature(
            "streaming",
            streaming,
            sent=bool(keys.get("stream")),
            missing="this client asks it for whole replies only" if whole_only else "",
            describe=lambda reply: f"joined, {'with' if reply.usage else 'without'} usage",
        ),
        await _check_seed(model, table),
    ]


async def _check_classifier(model: ChatModel) -> list[FeatureCheck]:
    """What a scalar judge's server answers: its route, whether outputs are raw, whose template."""
    from adjudge.judges.models.classifier import ClassifierModel  # noqa: PLC0415  (few judges)

    if not isinstance(model, ClassifierModel):
        raise TypeError("unreachable: a table of type classifier")
    try:
        found, (reply, again) = await model.inspect_server()
    except GradingFailure as failure:
        return [_failed_check("reply", failure)]
    except ConfigError as error:
        return [FeatureCheck("reply", "failed", str(error))]
    shown = " and ".join(f"{score:.4g}" for score in found.scores)
    raw = f"two conversations scored {shown}"
    template = {"server": "applied by the server", "here": "applied here; token ids are sent"}
    pair = "prompt and response go out as two texts"
    return [
        _check_reply(reply),
        FeatureCheck("usage", *_check_usage(reply)),
        FeatureCheck("route", "yes", found.facts["route"]),
        FeatureCheck("raw output", "yes" if found.is_raw else "unclear", raw),
        FeatureCheck(
            "chat template",
            "yes" if found.template in template else "not offered",
            template.get(found.template, pair),
        ),
        FeatureCheck(
            "repeatable",
            "yes" if again.text == reply.text else "no",
            "one conversation, asked twice",
        ),
    ]


def _describe_logprobs(reply: Reply) -> str:
    return f"{max(len(token.top) for token in reply.logprobs or ())} alternatives a token"


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


async def _check_feature(
    feature: str,
    model: ChatModel,
    *,
    sent: bool,
    describe: Callable[[Reply], str],
    missing: str = "",
    **asked: Any,
) -> FeatureCheck:
    """A call for one feature; ``describe`` words the reply, ``missing`` why there is no such field.

    ``asked`` are the call's arguments.
    """
    if missing:
        return FeatureCheck(feature, "not offered", missing)
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


async def _check_seed(model: ChatModel, table: ServerTable | EmbeddedTable) -> FeatureCheck:
    if table.type == "anthropic":
        return FeatureCheck("seed", "not offered")
    sent = table.seed is not None
    try:
        texts = [
            (await model.achat(_WORDS_MESSAGES, seed=7, temperature=1.0, max_tokens=_TOKENS)).text
            for _ in range(2)
        ]
    except GradingFailure as failure:
        return _failed_check("seed", failure, sent)
    if texts[0] == texts[1]:
        return FeatureCheck("seed", "yes", "two replies at temperature 1 are the same", sent)
    return FeatureCheck("seed", "no", "two replies at temperature 1 differ", sent)
