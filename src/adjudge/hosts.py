"""Which hosts are this machine."""

from __future__ import annotations

import functools
import ipaddress

__all__ = ["ip_of", "is_loopback", "names_loopback"]


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine: ``localhost`` or a loopback address."""
    address = ip_of(host)
    return host == "localhost" if address is None else address.is_loopback


def names_loopback(header: str) -> bool:
    """Whether a ``Host`` header names this machine, by any port: a tunnel's is not the server's.

    A web page elsewhere whose name was pointed to this machine has another.

    >>> names_loopback("[::1]:80"), names_loopback("127.0.0.1.example.org")
    (True, False)
    """
    host = header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
    return is_loopback(host.lower())


@functools.lru_cache(maxsize=1024)  # names come from whoever asks
def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that ``host`` is; ``None`` for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
