"""What a judge service says about itself, asked before anything is judged."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request

import msgspec

from adjudge.errors import ConfigError
from adjudge.hosts import is_loopback
from adjudge.judges.transport import checked_url

__all__ = ["ServiceInfo", "refuse_groups", "service_info"]

_MAX_BYTES = 1 << 20
_PAUSE_S = 0.5
_TIMEOUT_S = 5.0


class ServiceInfo(msgspec.Struct, frozen=True):
    """``GET /health`` of a judge service, as far as clients need it.

    ``compares_groups`` says what in its spec needs a whole group, ``None`` when nothing does;
    ``graders`` are the names in its ``detailed_scores``.
    """

    model_loaded: bool = True
    model_version: str = ""
    compares_groups: str | None = None
    graders: list[str] = []
    group_timeout_s: float = 300.0
    deadline_s: float = 60.0


_decoder = msgspec.json.Decoder(ServiceInfo)


def service_info(url: str, *, patience_s: float = 0.0) -> ServiceInfo | None:
    """What the service at ``url`` says; ``None`` where nothing answers as a judge service does.

    One that still loads does not know everything yet, and counts as no answer. Asked again for
    ``patience_s``, since a service may just be starting. Blocks; needs no key.
    Raises :class:`~adjudge.errors.ConfigError` for an address that cannot be used.
    """
    url = checked_url(url)
    until = time.monotonic() + patience_s
    while (found := _asked(f"{url}/health")) is None and time.monotonic() < until:
        time.sleep(_PAUSE_S)
    return found


def refuse_groups(url: str, info: ServiceInfo | None) -> None:
    """Raise :class:`~adjudge.errors.ConfigError` if its spec needs groups, for who has none.

    A service that does not answer now, or says nothing of it, is taken for one that needs none.
    """
    if info is not None and info.compares_groups is not None:
        raise ConfigError(
            f"{url}: the service's spec compares groups ({info.compares_groups}), and here each "
            "answer is sent by itself; give the spec's file in place of the address (TRL, verl "
            "0.6.1), or train with the V1 trainer of verl 0.9.1, where JudgeRewardLoopManager "
            "sends groups"
        )


def _asked(address: str) -> ServiceInfo | None:
    host = urllib.parse.urlsplit(address).hostname or ""
    proxies = (
        urllib.request.ProxyHandler({}) if is_loopback(host) else urllib.request.ProxyHandler()
    )
    opener = urllib.request.build_opener(proxies)
    try:
        with opener.open(address, timeout=_TIMEOUT_S) as response:
            found = _decoder.decode(response.read(_MAX_BYTES))
    except (OSError, http.client.HTTPException, ValueError):  # also of what is no such JSON
        return None
    return found if found.model_loaded else None
