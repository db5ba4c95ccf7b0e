"""Judges that this machine could ask at once: by the environment's keys, and local servers.

A local server is asked which models it has (``GET /v1/models``), and so is the server of
``OPENAI_BASE_URL``; nothing is generated, and nothing costs. Keys are named, never shown.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec

from adjudge.judges.base import PRESETS
from adjudge.judges.wire.transport import read_url_from_environment

LOCAL_SERVERS: Mapping[int, str] = {
    port: name
    for name, preset in PRESETS.items()
    if preset.url_from_env and (port := urlsplit(preset.base_url).port)
}
"""Ports on which servers listen by default, and the judge type that fits."""

_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "library": "ollama"}
"""What servers say of who owns a model, and their judge type; ``library`` is Ollama's."""

_MODEL_OF_KEY = {name: one.small_model for name, one in PRESETS.items() if one.small_model}

_NO_CHAT = re.compile(r"(?i)embed|rerank|whisper|tts|dall-e|moderation|image|audio|realtime")
"""Names of models that answer no question."""

_PATIENCE_S, _LOCAL_PATIENCE_S = 3.0, 0.5
_MAX_BYTES = 1 << 20


class FoundJudge(NamedTuple):
    """A ``[judges.NAME]`` table that could be asked, and how it was found, for people."""

    table: dict[str, Any]
    reason: str


async def find_judge(ports: Sequence[int] = tuple(LOCAL_SERVERS)) -> FoundJudge | None:
    """The first judge that there is: ``OPENAI_BASE_URL``, a local server, a provider's key.

    Raises :class:`~adjudge.errors.ConfigError` for an address that no spec may have, such as one
    with a password in it.
    """
    if url := read_url_from_environment():
        return await _find_at_url(url)
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


async def _find_at_url(url: str) -> FoundJudge | None:
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    models = await _list_models(url, _PATIENCE_S, key=key)
    if not models:
        return None
    kind = _server_type(models[0], "openai")
    table = {"type": kind, "model": models[0]["id"], "base_url": url}
    if key and kind != "openai":
        table["api_key_env"] = "OPENAI_API_KEY"
    return FoundJudge(table, "OPENAI_BASE_URL is set, and its server answers")


async def _find_local(port: int) -> FoundJudge | None:
    url = f"http://localhost:{port}/v1"
    models = await _list_models(url, _LOCAL_PATIENCE_S)
    if not models:
        return None
    kind = _server_type(models[0], LOCAL_SERVERS.get(port, "openai"))
    table = {"type": kind, "model": models[0]["id"], "base_url": url}
    return FoundJudge(table, f"a server answers at localhost:{port}")


def _server_type(model: Mapping[str, Any], default: str) -> str:
    """The judge type of a server, which says whose its models are."""
    owner = model.get("owned_by")
    return _OWNERS.get(str(owner), "openai") if owner else default


async def _list_models(url: str, seconds: float, key: str = "") -> list[dict[str, Any]]:
    """What the server at ``url`` says of its models; nothing where it does not answer so."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limit = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit, trust_env=not _is_local(url)) as session,
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
    named = [one for one in models if _has_plain_id(one)] if isinstance(models, list) else []
    return sorted(named, key=_unfitness)


def _unfitness(model: Mapping[str, Any]) -> int:
    """A provider lists all its models, in any order: the small ones first, what talks not last."""
    name = model["id"]
    return 0 if name in _MODEL_OF_KEY.values() else 2 if _NO_CHAT.search(name) else 1


def _is_local(url: str) -> bool:
    return url.startswith("http://localhost")


def _has_plain_id(model: Any) -> bool:
    name = model.get("id") if isinstance(model, dict) else None
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= 200
