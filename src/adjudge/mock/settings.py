"""What a mock provider is told: plain data that a command line can carry."""

from __future__ import annotations

import os

import msgspec

from adjudge.config import nearest
from adjudge.errors import ConfigError
from adjudge.hosts import is_loopback
from adjudge.mock.behaviour import (
    BEHAVIOURS,
    Behaviour,
    Echo,
    Fixed,
    Length,
    Rubric,
    Scripted,
    read_script,
)
from adjudge.mock.criteria import Criteria

__all__ = ["MockSettings", "make_behaviour"]


class MockSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that ``adjudge mock`` can be told; specs are texts in its command line's form.

    ``port``: 0 picks a free one. ``behaviour``: ``fixed scripted rubric criteria length echo``;
    left out, it follows from ``script`` (a JSONL path) or ``keywords``, else it is ``fixed``, with
    ``reply`` as its text. ``reasoning``: thinking that ``fixed`` sends in its field. ``latency``,
    ``fail``, ``outage``: see :mod:`adjudge.mock.latency` and :mod:`adjudge.mock.faults`.
    ``chunk_delay``: seconds between the events of a stream. ``seed``: makes all draws reproducible
    per request number; left out, one is drawn and reported. ``stream_only``: 400 unless the request
    streams. ``rpm``: requests per minute, a token bucket that starts full with ``rpm`` requests.
    ``require_key``: the *name* of an environment variable with the key that clients must send.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "mock"
    behaviour: str | None = None
    reply: str | None = None
    reasoning: str = ""
    script: str | None = None
    keywords: tuple[str, ...] = ()
    latency: tuple[str, ...] = ()
    chunk_delay: float = 0.0
    fail: tuple[str, ...] = ()
    outage: tuple[str, ...] = ()
    seed: int | None = None
    stream_only: bool = False
    rpm: float | None = None
    require_key: str | None = None

    def arguments(self) -> list[str]:
        """The settings as options of ``adjudge mock``."""
        options: list[str] = []
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if value == field.default and field.name != "port":
                continue
            name = "--" + _OPTIONS.get(field.name, field.name).replace("_", "-")
            if isinstance(value, bool):
                options.append(name)
            elif isinstance(value, list | tuple):
                options += [f"{name}={one}" for one in value]
            else:
                options.append(f"{name}={value}")
        return options

    def checked(self) -> MockSettings:
        """Itself; raises :class:`ConfigError` for what no other part checks."""
        if self.rpm is not None and not 0 < self.rpm <= 1e9:
            raise ConfigError(f"--rpm {self.rpm:g}: must be above 0")
        if not 0 <= self.chunk_delay <= 3600:
            raise ConfigError(f"--chunk-delay {self.chunk_delay:g}: must be seconds, 0 or more")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port {self.port}: must be within 0 and 65535")
        if self.require_key is None and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host}: other machines could use it; give --require-key ENVNAME, the "
                "name of an environment variable with the key that they must send"
            )
        return self

    def key(self) -> str | None:
        """The key that clients must send, from the environment; raises :class:`ConfigError`."""
        if self.require_key is None:
            return None
        found = os.environ.get(self.require_key, "")
        if not found:
            raise ConfigError(
                f"--require-key {self.require_key}: this environment variable is not set"
            )
        return found


_OPTIONS = {"keywords": "keyword"}


def make_behaviour(settings: MockSettings) -> Behaviour:
    """The behaviour that the settings ask for; raises :class:`ConfigError`."""
    name = settings.behaviour or _implied(settings)
    if name not in BEHAVIOURS:
        hint = nearest(name, BEHAVIOURS)
        allowed = ", ".join(BEHAVIOURS)
        raise ConfigError(f"--behaviour {name!r}: unknown{hint} (allowed: {allowed})")
    owners = {"reply": "fixed", "reasoning": "fixed", "script": "scripted", "keywords": "rubric"}
    for field, owner in owners.items():
        if getattr(settings, field) and owner != name:
            option = _OPTIONS.get(field, field)
            raise ConfigError(f"--{option}: belongs to behaviour {owner!r}, not to {name!r}")
    if name == "scripted":
        if settings.script is None:
            raise ConfigError("--behaviour scripted: needs --script FILE")
        return Scripted(read_script(settings.script))
    if name == "rubric":
        if not all(settings.keywords) or not settings.keywords:
            raise ConfigError("--behaviour rubric: needs --keyword WORD, once or more")
        return Rubric(settings.keywords)
    if name == "fixed":
        return Fixed(settings.reply, settings.reasoning)
    if name == "criteria":
        return Criteria()
    return Length() if name == "length" else Echo()


def _implied(settings: MockSettings) -> str:
    if settings.script is not None:
        return "scripted"
    return "rubric" if settings.keywords else "fixed"
