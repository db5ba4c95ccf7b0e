"""Which texts are addresses, and which hosts are this machine."""

from __future__ import annotations

import functools
import ipaddress
import re

_HOST = re.compile(
    r"(?:\[(?P<ip6>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?"
)


def is_address(text: str) -> bool:
    """Whether ``text`` begins with ``http://`` or ``https://``, in any case."""
    return text.lower().startswith(("http://", "https://"))


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine: ``localhost`` or a loopback address."""
    address = parse_ip(host)
    return host == "localhost" if address is None else address.is_loopback


def is_loopback_header(header: str) -> bool:
    """Whether a ``Host`` header names this machine, by any port: a tunnel's is not the server's.

    A web page elsewhere whose name was pointed to this machine has another. The whole header must
    be ``host`` or ``host:port`` (RFC 9110, section 7.2); anything else names no machine.

    >>> is_loopback_header("[::1]:80"), is_loopback_header("127.0.0.1.example.org")
    (True, False)
    >>> is_loopback_header("localhost:80@example.org")
    False
    """
    found = _HOST.fullmatch(header)
    return found is not None and is_loopback((found["ip6"] or found["name"]).lower())


@functools.lru_cache(maxsize=1024)  # names come from whoever asks
def parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that ``host`` is; ``None`` for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
