"""Which strings a tokenizer takes for structure: of one that is loaded, or as its files say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.prompts.control_tokens import control_tokens_in

__all__ = ["LOADING", "control_tokens_of", "read_control_tokens", "special_tokens_of"]

LOADING = threading.Lock()
"""Held while transformers loads something.

The library is not made for threads: its names come into being as they are asked for, and while a
model is loaded all modules of the process are made without weights.
"""

_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tekken.json")
_NAMED = ("additional_special_tokens", "extra_special_tokens", "special_tokens")

_Added = Iterator[tuple[str, bool]]
"""Tokens, and whether each is special."""


def special_tokens_of(tokenizer: Any) -> frozenset[str]:
    """The special tokens of a tokenizer of transformers."""
    return control_tokens_in((token, True) for token, special in _added_to(tokenizer) if special)


def control_tokens_of(tokenizer: Any) -> frozenset[str]:
    """Its special tokens, and those that were added beside them (``<think>``, ``<tool_call>``)."""
    return control_tokens_in(_added_to(tokenizer))


def _added_to(tokenizer: Any) -> _Added:
    for token in tokenizer.added_tokens_decoder.values():
        yield str(token), bool(token.special)
    for text in tokenizer.all_special_tokens:
        yield str(text), True


@lru_cache(maxsize=64)
def read_control_tokens(place: str) -> frozenset[str]:
    """The control tokens of a tokenizer, read once.

    ``place``: a folder with ``tokenizer.json`` or a file like it, which are read as JSON; or what
    else transformers can load, a name for example. Raises :class:`~adjudge.errors.ConfigError`.
    """
    path = Path(place)
    files = [file for name in _FILES if (file := path / name).is_file()]
    if path.is_file():
        files = [path]
    if not files:
        return control_tokens_of(_loaded(place))
    found = control_tokens_in(added for file in files for added in _written_in(file))
    if not found:
        raise ConfigError(f"tokenizer: {place} names no special or added tokens")
    return found


def _written_in(file: Path) -> _Added:
    """What ``tokenizer.json`` and the files beside it say, in the forms of several versions."""
    try:
        said = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"tokenizer: {file}: cannot be read as JSON: {error}") from None
    if not isinstance(said, dict):
        raise ConfigError(f"tokenizer: {file}: is no JSON object")
    for key in ("added_tokens", "added_tokens_decoder"):
        for token in _members(said.get(key)):
            if isinstance(token, dict) and (text := _text(token)):
                yield text, bool(token.get("special"))
    for key, value in said.items():
        named = _members(value) if key in _NAMED else [value] * key.endswith("_token")
        for token in named:
            if text := _text(token):
                yield text, True


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _text(token: Any) -> str:
    """A token's text; ``""`` for what is none (``add_bos_token = true``)."""
    if isinstance(token, dict):
        token = token.get("content", token.get("token_str"))
    return token if isinstance(token, str) else ""


def _loaded(place: str) -> Any:
    with LOADING:
        return _load(place)


def _load(place: str) -> Any:
    try:
        import transformers  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            f"tokenizer: {place} is neither a tokenizer.json nor a folder that has one; to load a "
            "tokenizer by name, pip install transformers"
        ) from None
    try:
        return transformers.AutoTokenizer.from_pretrained(place)
    except Exception as error:  # whatever its files are like
        first = (str(error).strip().splitlines() or [""])[0][:300]
        raise ConfigError(f"tokenizer: {place}: cannot be loaded: {first}") from error
