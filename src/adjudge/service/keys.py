"""Who may ask: the key from the environment, compared in constant time."""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Sequence

from adjudge.errors import ConfigError, ErrorKind
from adjudge.hosts import is_loopback, names_loopback
from adjudge.service.reading import Refused
from adjudge.service.settings import KEY_VARIABLE, ServiceSettings

__all__ = ["Gate", "service_key"]


def service_key(settings: ServiceSettings) -> str | None:
    """The key that clients must show, ``None`` when none is set.

    Raises :class:`ConfigError` when other machines could ask and there is no key, and when a
    variable was named that holds none.
    """
    key = os.environ.get(settings.api_key_env, "").strip() or None
    if key is None and settings.api_key_env != KEY_VARIABLE:
        raise ConfigError(
            f"--api-key-env {settings.api_key_env}: that environment variable is not set; it must "
            "hold the key that clients must send"
        )
    if key is None and not is_loopback(settings.host):
        raise ConfigError(
            f"--host {settings.host}: other machines could use your judges; set the environment "
            f"variable {settings.api_key_env} to a key that clients must send, or keep to 127.0.0.1"
        )
    return key


class Gate:
    """Lets requests in by their headers."""

    def __init__(self, key: str | None) -> None:
        self._wanted = None if key is None else key.encode()

    @property
    def asks(self) -> bool:
        """Whether there is a key."""
        return self._wanted is not None

    def check(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Raise :class:`Refused` (401) unless the right key is there, without any detail.

        As ``Bearer KEY``, or as ``Basic`` with the key for a password: trainers' clients make that
        of an address ``http://any:KEY@host`` and can send nothing else.

        Without a key, a web page in a browser of this machine is refused all the same: a page
        from anywhere could spend the user's money by posting here, or read what is here under a
        name of its own that was pointed to this machine.
        """
        if self._wanted is None:
            for name, value in headers:
                if name == b"origin":
                    raise _unauthorised("requests from web pages need a key")
                if name == b"host" and not names_loopback(value.decode("latin-1")):
                    raise _unauthorised("requests to another name than this machine's need a key")
            return
        shown = [_shown(value) for name, value in headers if name == b"authorization"]
        if len(shown) != 1 or not hmac.compare_digest(shown[0], self._wanted):
            raise _unauthorised("no key or a wrong one (Authorization: Bearer …)")


def _shown(value: bytes) -> bytes:
    """The key in a header; that of ``Basic`` is the password, whoever the user."""
    scheme, _, said = value.partition(b" ")
    if scheme.lower() == b"bearer":
        return said.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(said.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return b""


def _unauthorised(message: str) -> Refused:
    return Refused(401, ErrorKind.AUTH, message)
