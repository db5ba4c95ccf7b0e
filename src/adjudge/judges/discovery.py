"""Judges that this machine could ask at once, and what a judge's server really honours.

A local server is asked which models it has (``GET /v1/models``), and so is the server of
``OPENAI_BASE_URL``; nothing is generated, and nothing costs. Keys are named, never shown. What a
server honours is found out by a handful of small calls.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec

from adjudge.errors import ConfigError, Fields, GradingFailure, Metadata
from adjudge.judges.base import Reply
from adjudge.judges.presets import PRESETS
from adjudge.judges.wire.transport import read_url_from_environment

if TYPE_CHECKING:
    from adjudge.judges.models.classifier import ClassifierModel
    from adjudge.judges.models.http import HttpChatModel

LOCAL_SERVERS: Mapping[int, str] = {
    port: name
    for name, preset in PRESETS.items()
    if preset.url_from_env and (port := urlsplit(preset.base_url).port)
}
"""Ports on which servers listen by default, and the judge type that fits."""

_OWNERS = {one.owned_by: name for name, one in PRESETS.items() if one.owned_by}

_MODEL_OF_KEY = {name: one.small_model for name, one in PRESETS.items() if one.small_model}

_NO_CHAT = re.compile(r"(?i)embed|rerank|whisper|tts|dall-e|moderation|image|audio|realtime")
"""Names of models that answer no question."""

_PATIENCE_S, _LOCAL_PATIENCE_S = 3.0, 0.5
_MAX_BYTES = 1 << 20


class FoundJudge(NamedTuple):
    """A ``[judges.NAME]`` table that could be asked, and how it was found, for people."""

    table: Metadata
    reason: str


async def find_judge(ports: Sequence[int] = tuple(LOCAL_SERVERS)) -> FoundJudge | None:
    """The first judge that there is: ``OPENAI_BASE_URL``, a local server, a provider's key.

    Raises :class:`~adjudge.errors.ConfigError` for an address that no spec may have, such as one
    with a password in it.
    """
    if url := read_url_from_environment():
        said = "OPENAI_BASE_URL is set, and its server answers"
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        return await _find_at(url, "openai", _PATIENCE_S, said, key)
    async with asyncio.TaskGroup() as group:
        local = [group.create_task(_find_local(port)) for port in ports]
    if found := next(filter(None, (one.result() for one in local)), None):
        return found
    for name, model in _MODEL_OF_KEY.items():
        variable = PRESETS[name].key_env
        if os.environ.get(variable, "").strip():
            return FoundJudge({"type": name, "model": model}, f"{variable} is set")
    return None


def describe_search(ports: Sequence[int] = tuple(LOCAL_SERVERS)) -> str:
    """Where :func:`find_judge` looks, for people."""
    if os.environ.get("OPENAI_BASE_URL", "").strip():  # the only place then
        return "OPENAI_BASE_URL alone, and its server did not list its models"
    keys = ", ".join(PRESETS[name].key_env for name in _MODEL_OF_KEY)
    return f"OPENAI_BASE_URL, {keys}; local ports {', '.join(map(str, ports))}"


async def _find_local(port: int) -> FoundJudge | None:
    url, kind = f"http://localhost:{port}/v1", LOCAL_SERVERS.get(port, "openai")
    return await _find_at(url, kind, _LOCAL_PATIENCE_S, f"a server answers at localhost:{port}")


async def _find_at(
    url: str, kind: str, seconds: float, reason: str, key: str = ""
) -> FoundJudge | None:
    """The judge at an address: ``kind``, where the server does not say whose its models are."""
    models = await _list_models(url, seconds, key)
    if not models:
        return None
    if owner := models[0].get("owned_by"):
        kind = _OWNERS.get(str(owner), "openai")
    table = {"type": kind, "model": models[0]["id"], "base_url": url}
    if key and kind != "openai":
        table["api_key_env"] = "OPENAI_API_KEY"
    return FoundJudge(table, reason)


async def _list_models(url: str, seconds: float, key: str) -> list[Metadata]:
    """What the server at ``url`` says of its models; nothing where it does not answer so."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limit = aiohttp.ClientTimeout(total=seconds)
    direct = url.startswith("http://localhost")
    try:
        async with (
            aiohttp.ClientSession(timeout=limit, trust_env=not direct) as session,
            session.get(f"{url}/models", headers=headers, allow_redirects=False) as reply,
        ):
            if reply.status != 200:
                return []
            body = b""
            async for part in reply.content.iter_any():
                body += part
                if len(body) > _MAX_BYTES:
                    return []
            said = msgspec.json.decode(body)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError):
        return []
    models = said.get("data") if isinstance(said, dict) else None
    listed = models if isinstance(models, list) else ()
    return sorted((one for one in listed if _has_plain_id(one)), key=_unfitness)


def _unfitness(model: Fields) -> int:
    """A provider lists all its models, in any order: the small ones first, what talks not last."""
    name = model["id"]
    return 0 if name in _MODEL_OF_KEY.values() else 2 if _NO_CHAT.search(name) else 1


def _has_plain_id(model: object) -> bool:
    name = model.get("id") if isinstance(model, dict) else None
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= 200


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


class _Feature(NamedTuple):
    """What is asked for, what its reply shows, and what follows where a format has no field."""

    asked: Fields
    describe: Callable[[Reply], str]
    missing: str = ""


_FEATURES: Mapping[str, _Feature] = {
    "schema": _Feature({"schema": _SCHEMA}, lambda _: "the reply is JSON with its keys"),
    "choices": _Feature(
        {"choices": ("alpha", "omega")},
        lambda _: "the reply is one of the list",
        "replies are checked against the list instead",
    ),
    "logprobs": _Feature(
        {"logprobs": True},
        lambda reply: (
            f"{max(len(token.top) for token in reply.logprobs or ())} alternatives a token"
        ),
        "no expected scores from this API",
    ),
    "streaming": _Feature(
        {},
        lambda reply: f"joined, {'with' if reply.usage else 'without'} usage",
        "this client asks it for whole replies only",
    ),
}


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
    found = [_check_reply(first), FeatureCheck("usage", *_check_usage(first))]
    for name, feature in _FEATURES.items():
        streams = name == "streaming"
        if model.can_stream if streams else name in model.offered_features:
            full = model.variant(features=model.offered_features, stream=streams or model.stream)
            sent = model.stream if streams else name in model.features
            found.append(await _check_feature(name, full, sent, feature))
        else:
            found.append(FeatureCheck(name, "not offered", feature.missing))
    return [*found, await _check_seed(bare)]


async def _check_classifier(model: ClassifierModel) -> list[FeatureCheck]:
    """What a scalar judge's server answers: its route, whether outputs are raw, whose template."""
    found, (reply, again) = await model.variant().inspect_server()
    shown = " and ".join(f"{score:.4g}" for score in found.scores)
    template = {"server": "applied by the server", "here": "applied here; token ids are sent"}
    applied = template.get(found.template)
    no_template = "prompt and response go out as two texts"
    same = again.text == reply.text
    return [
        _check_reply(reply),
        FeatureCheck("usage", *_check_usage(reply)),
        FeatureCheck("route", "yes", found.facts["route"]),
        FeatureCheck(
            "raw output",
            "yes" if found.is_raw else "unclear",
            f"two conversations scored {shown}",
        ),
        FeatureCheck("chat template", "yes" if applied else "not offered", applied or no_template),
        FeatureCheck("repeatable", "yes" if same else "no", "one conversation, asked twice"),
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


async def _check_feature(
    name: str, model: HttpChatModel, sent: bool, feature: _Feature
) -> FeatureCheck:
    try:
        reply = await model.achat(_COLOUR_MESSAGES, **feature.asked)
    except GradingFailure as failure:
        return _failed_check(name, failure, sent)
    return FeatureCheck(name, *_read_feature(name, reply, feature.describe), sent)


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
    how: Metadata = {"seed": 7, "temperature": 1.0, "max_tokens": 64}
    try:
        texts = [(await model.achat(_WORDS_MESSAGES, **how)).text for _ in range(2)]
    except GradingFailure as failure:
        return _failed_check("seed", failure, sent)
    same = texts[0] == texts[1]
    note = f"two replies at temperature 1 {'are the same' if same else 'differ'}"
    return FeatureCheck("seed", "yes" if same else "no", note, sent)
