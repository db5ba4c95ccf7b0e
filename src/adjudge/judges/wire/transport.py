"""Bytes over the network, by aiohttp: pooled connections, TLS, proxies, cancellation.

The endpoint owns time, limits and retries; here a request is sent exactly once and read to its end.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import ssl
import urllib.request
from collections.abc import Mapping
from typing import Any

import aiohttp
import yarl
from aiohttp.connector import Connection

from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.hosts import is_loopback, parse_ip
from adjudge.judges.base import HttpRequest, HttpResponse

CONNECT_TIMEOUT_S = 10.0
"""For one TCP connection (and TLS handshake); the only time limit that is not the endpoint's."""

MAX_BODY_BYTES = 16 << 20
"""The longest response, decompressed, that is read."""

_BEFORE_SENDING = (
    TimeoutError,  # of connecting: no other time limit is set
    aiohttp.ClientConnectorError,  # refused, name not found, proxy, TLS
    aiohttp.ClientHttpProxyError,
)
"""Errors of getting a connection: the request never left."""

_LARGE_REQUEST = 1 << 20
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}\Z")
_OWN_HEADERS = frozenset(
    {"authorization", "connection", "content-encoding", "content-length", "content-type", "host",
     "transfer-encoding"}
)  # fmt: skip
"""Headers that only the request itself may set: another value would change what a server reads."""

_REDACTED = b"[redacted]"
_SHORTEST_SECRET = 8
"""What is shorter may be a word of a reply, and is not taken out of one."""

_KEEP_ALIVE_S = 15.0
_DNS_CACHE_S = 300


class _Connector(aiohttp.TCPConnector):
    """A pool that gives out no connection on which something arrived while nothing was asked.

    A duplicated or late response would otherwise wait there and be the answer to the next request.
    """

    async def connect(self, *asked: Any, **options: Any) -> Connection:
        """A connection for a request, from the pool or a new one."""
        while True:
            connection = await super().connect(*asked, **options)
            if connection.protocol is None or not connection.protocol.should_close:
                return connection
            connection.close()


class AiohttpTransport:
    """A pool of keep-alive connections, of the event loop that sends.

    No limit of its own on connections (``Endpoint`` limits calls), no cookies, no redirects, so
    that no key follows one. TLS verifies against the system's store, or against the certificates
    of ``ca_file`` alone. ``headers``: the variables of further headers, read at every request; a
    server that repeats a value does not get it past here. Proxies are those of
    ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY``, read once per address, and none for this
    machine's own addresses; ``.netrc`` is not read. A connection on which something arrived unasked
    is not used again, so that no reply reaches another request.

    >>> transport = AiohttpTransport()
    """

    def __init__(
        self,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        ca_file: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._context = None if ca_file is None else load_authority(ca_file)
        self._variables = dict(headers or {})
        self._max_body_bytes = max_body_bytes
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._targets: dict[tuple[str, str], tuple[yarl.URL, yarl.URL | None]] = {}

    async def post(self, base_url: str, request: HttpRequest) -> HttpResponse:
        """The whole response, whatever its status.

        Raises ``GradingFailure``: ``connection`` when there is no response (name not found,
        refused, reset or closed before the headers, TLS, proxy), ``server_error`` for one longer
        than ``max_body_bytes``. ``metadata["sent"]`` is false where there was no connection to send
        the request on, so that nobody can bill it. A body that ends early comes back with ``cut``.
        Cancelling closes the connection, since what was asked for would otherwise arrive on it.
        """
        if self._session is None or self._loop is not asyncio.get_running_loop():
            self._session, self._loop = self._open_session(), asyncio.get_running_loop()
        target = self._targets.get((base_url, request.path))
        if target is None:
            target = self._target(base_url, request.path)
        url, proxy = target
        body = request.body
        own = read_headers(self._variables) if self._variables else {}
        try:
            response = await self._session.post(
                url,
                data=body if len(body) < _LARGE_REQUEST else io.BytesIO(body),
                headers=_add_headers(request.headers, own) if own else request.headers,
                allow_redirects=False,
                proxy=proxy,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _connection_failure(error, base_url) from None
        try:
            content, cut = await self._read(response)
        except BaseException:
            response.close()
            raise
        headers = {name.lower(): value for name, value in response.headers.items()}
        for value in own.values():
            if len(value) >= _SHORTEST_SECRET:
                content = content.replace(value.encode(), _REDACTED)
                headers = {
                    name: said.replace(value, _REDACTED.decode()) for name, said in headers.items()
                }
        return HttpResponse(status=response.status, headers=headers, body=content, cut=cut)

    async def _read(self, response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
        """The body, and whether it ended too early."""
        stream = response.content
        chunks: list[bytes] = []
        size, cut = 0, False
        while not stream.at_eof():
            try:
                chunk = await stream.readany()
            except (aiohttp.ClientError, OSError, ValueError):
                cut = True
                response.close()
                break
            size += len(chunk)
            if size > self._max_body_bytes:
                raise GradingFailure(
                    ErrorKind.SERVER_ERROR,
                    f"the response is longer than {self._max_body_bytes} bytes",
                    {"status": response.status, "headers": {}},
                )
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks), cut

    def _open_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_Connector(
                limit=0,
                ttl_dns_cache=_DNS_CACHE_S,
                keepalive_timeout=_KEEP_ALIVE_S,
                ssl=True if self._context is None else self._context,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            auto_decompress=True,
            raise_for_status=False,
            trust_env=False,  # aiohttp would ask two threads for it, for every request
        )

    def _target(self, base_url: str, path: str) -> tuple[yarl.URL, yarl.URL | None]:
        """Where a request goes, and through which proxy."""
        url = yarl.URL(base_url.rstrip("/") + path)
        proxy = _proxy_for(url)
        if len(self._targets) < 1024:  # addresses come from configuration, so there are few
            self._targets[base_url, path] = url, proxy
        return url, proxy

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def load_authority(path: str) -> ssl.SSLContext:
    """What verifies a server by the certificates of a PEM file, and by no others."""
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:  # an SSLError, too, where there is no certificate in it
        why = "has no certificate" if isinstance(error, ssl.SSLError) else f"{error.strerror}"
        raise ConfigError(
            f"ca_file: cannot be used: {why} (found {path!r:.200}). Give a PEM file with the "
            "certificate authority of the judge's server."
        ) from None


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """``headers``, the variable of each header by its name; no value is shown, it may be secret."""
    for name, variable in headers.items():
        if not _HEADER_NAME.match(name) or name.lower() in _OWN_HEADERS:
            listed = ", ".join(sorted(_OWN_HEADERS))
            raise ConfigError(
                f"headers: must have names of headers that a request may add (found {name!r:.60}; "
                f"not allowed: {listed}). A key belongs into the variable of api_key_env."
            )
        if not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", str(variable)):
            raise ConfigError(
                f"headers.{name}: must be the name of an environment variable, in capital letters, "
                "digits and '_' (what was found is not shown, since it may be the value itself)"
            )
    return dict(headers)


def _add_headers(headers: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    replaced = {name.lower() for name in own}
    kept = {name: value for name, value in headers.items() if name.lower() not in replaced}
    return kept | dict(own)


def read_headers(variables: Mapping[str, str]) -> dict[str, str]:
    """The values of these variables by header; ``GradingFailure(auth)`` where one lacks."""
    found = {}
    for name, variable in variables.items():
        value = os.environ.get(variable, "").strip()
        if not value or not value.isascii() or not value.isprintable():
            problem = "has characters that no header has" if value else "is not set"
            raise GradingFailure(
                ErrorKind.AUTH,
                f"headers.{name}: the environment variable {variable} {problem}",
                {"sent": False, "variable": variable},
            )
        found[name] = value
    return found


def _proxy_for(url: yarl.URL) -> yarl.URL | None:
    host = url.host or ""
    proxy = urllib.request.getproxies().get(url.scheme)
    if not proxy or is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{url.port}"):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    return yarl.URL(proxy)


def normalize_url(url: str) -> str:
    """A base URL without its trailing slash; raises ``ConfigError`` for one that cannot be used.

    Only http and https; no user, password, query or fragment; no link-local address, where cloud
    machines serve their own credentials.

    >>> normalize_url("http://localhost:8000/v1/")
    'http://localhost:8000/v1'
    """
    try:
        parsed = yarl.URL(url)
    except (ValueError, TypeError):
        url, parsed = "", yarl.URL()
    address = parse_ip(parsed.host or "")
    rules = {
        "be http:// or https:// with a host": parsed.scheme in ("http", "https") and parsed.host,
        "have no user or password (a key belongs into the variable of api_key_env)": (
            parsed.user is None and parsed.password is None
        ),
        "have printable characters only": url.strip().isprintable(),
        "have no query and no fragment": not parsed.query_string and not parsed.fragment,
        "be no link-local address": address is None or not address.is_link_local,
    }
    if broken := [rule for rule, holds in rules.items() if not holds]:
        parts = f"{parsed.scheme}://{parsed.host or ''}{parsed.path}"[:120]  # nothing secret
        shown = parts if url.isprintable() else "not shown"
        raise ConfigError(f"base_url: must {broken[0]} (found {shown!r})")
    return url.strip().rstrip("/")


def read_url_from_environment() -> str | None:
    """The address in ``OPENAI_BASE_URL``; ``None`` where that is not set, or blank."""
    url = os.environ.get("OPENAI_BASE_URL", "").strip()
    if not url:
        return None
    try:
        return normalize_url(url)
    except ConfigError as error:
        raise ConfigError(str(error).replace("base_url:", "OPENAI_BASE_URL:", 1)) from None


_CAUSES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    ((aiohttp.ServerTimeoutError, TimeoutError), "connecting timed out"),
    ((aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError), "TLS failed ({})"),
    (aiohttp.ClientConnectorDNSError, "the host name was not found"),
    ((aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError),
     "the proxy could not be used"),
    (aiohttp.ServerDisconnectedError, "the server closed the connection without a response"),
    (aiohttp.ClientResponseError, "the response was no HTTP"),
    (Exception, "the connection broke ({})"),
)  # fmt: skip
"""What an error means, the first that fits, with the place for its name."""


def _connection_failure(error: Exception, base_url: str) -> GradingFailure:
    """``connection``, in words that name address and cause and quote nothing of the request.

    ``sent`` in the metadata is false where nothing was sent, since nobody listens there.
    """
    why = next(words for kinds, words in _CAUSES if isinstance(error, kinds))
    if why is _CAUSES[-1][1] and isinstance(error, aiohttp.ClientConnectorError):
        why = f"connecting failed ({error.os_error.strerror or type(error.os_error).__name__})"
        if isinstance(error.os_error, ConnectionRefusedError):
            why = "connection refused; is the server running?"
    metadata = {"sent": False} if isinstance(error, _BEFORE_SENDING) else {}
    said = f"no response from {base_url}: {why.format(type(error).__name__)}"
    return GradingFailure(ErrorKind.CONNECTION, said, metadata)
