"""Asking a task app: one request, its answer or why there is none."""

from __future__ import annotations

import io
import os
from typing import Any

import aiohttp
import msgspec
import yarl
from aiohttp.helpers import get_env_proxy_for_url

from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeAuthError
from adjudge.hosts import is_loopback
from adjudge.judges.transport import checked_url

__all__ = ["app_url", "exchange"]

_CONNECT_S = 10.0
_MAX_ANSWER = 32 << 20
_MAX_PAUSE_S = 60.0
_SHOWN = 200


def app_url(url: str) -> str:
    """``url`` without its trailing slash; raises :class:`ConfigError` for one that cannot be."""
    try:
        return checked_url(url)
    except ConfigError as error:
        raise ConfigError(str(error).replace("base_url", "task_url")) from None


async def exchange(
    method: str, base: str, path: str, key_env: str, body: bytes | None = None
) -> bytes:
    """A successful answer's body; the key, if there is one, is in the variable ``key_env``.

    On a connection of its own: an episode takes long beside that, and nothing is left to close.
    Raises ``GradingFailure``: ``connection``, or by the status, which ``metadata`` has, with
    ``retry_after_s`` for 429 and 503; and :class:`~adjudge.errors.JudgeAuthError`.
    """
    url = yarl.URL(base + path)
    key = os.environ.get(key_env, "").strip()
    headers = {"Content-Type": "application/json", **({"X-API-Key": key} if key else {})}
    data = None if body is None else io.BytesIO(body)  # bytes of a size make aiohttp warn
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(
                method, url, data=data, headers=headers, allow_redirects=False, proxy=_proxy(url)
            ) as response,
        ):
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > _MAX_ANSWER:
                    raise GradingFailure(
                        ErrorKind.SERVER_ERROR,
                        f"task app {base}: the answer is longer than {_MAX_ANSWER >> 20} MiB",
                    )
            if response.status != 200:
                raise _refusal(base, response, bytes(content), key, key_env)
            return bytes(content)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise GradingFailure(
            ErrorKind.CONNECTION, f"task app {base}: no answer ({type(error).__name__})"
        ) from None


def _proxy(url: yarl.URL) -> yarl.URL | None:
    """By ``HTTP_PROXY`` and its kin, never for this machine; ``.netrc`` is not read."""
    if is_loopback(url.host or ""):
        return None
    try:
        return get_env_proxy_for_url(url)[0]
    except LookupError:
        return None


def _refusal(
    base: str, response: aiohttp.ClientResponse, content: bytes, key: str, key_env: str
) -> Exception:
    status = response.status
    if status in (401, 403):
        sent = "refused the key in" if key else "wants a key; set"
        return JudgeAuthError(
            f"task app {base}: {sent} the environment variable {key_env} (HTTP {status})"
        )
    said = _said(content, key)
    metadata: dict[str, Any] = {"status": status}
    if status in (429, 503):
        metadata["retry_after_s"] = _retry_after(response.headers.get("Retry-After", ""))
    return GradingFailure(
        _kind(status), f"task app {base}: HTTP {status}{said and f': {said}'}", metadata
    )


def _kind(status: int) -> ErrorKind:
    if status == 429:
        return ErrorKind.RATE_LIMITED
    if status in (408, 504):
        return ErrorKind.TIMEOUT
    if status >= 500:
        return ErrorKind.SERVER_ERROR
    if status < 400 or status in (404, 405):  # a redirect, or nothing there: no task app
        return ErrorKind.UNSUPPORTED
    return ErrorKind.INVALID_INPUT


def _said(content: bytes, key: str) -> str:
    """An app's own words about an error, without the key, cut and made printable."""
    try:
        data = msgspec.json.decode(content)
    except (ValueError, RecursionError):
        return ""
    for part in ("error", "message", "detail"):
        data = data.get(part, data) if isinstance(data, dict) else data
    text = data if isinstance(data, str) else ""
    text = text.replace(key, "***") if key else text
    return "".join(letter if letter.isprintable() else " " for letter in text[:_SHOWN])


def _retry_after(value: str) -> float:
    """Whole seconds; a date, or anything else, counts as one second."""
    return min(float(value), _MAX_PAUSE_S) if value.isdecimal() and len(value) < 9 else 1.0
