"""Raw rows of data files, and the conversations that their columns hold.

Rows are raw columns of JSONL, a JSON array or Parquet. A data set of the Hugging Face hub goes by
name: ``hf:OWNER/NAME[/FOLDER][#SPLIT]``. Columns are checked for conversations that a judge can be
trained on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adjudge.datasets.rows import BrokenRow, ChatMessages, describe_found
from adjudge.errors import ConfigError, RolloutError
from adjudge.messages import content_text
from adjudge.rollouts.rows import check_files, decode_line, parse_row, read_rows

__all__ = [
    "MAX_ARRAY_BYTES",
    "MAX_CHARACTERS",
    "MAX_MESSAGES",
    "MAX_MESSAGE_DEPTH",
    "ROLES",
    "RawColumns",
    "RawRow",
    "check_column_text",
    "check_conversation",
    "check_ends_with_answer",
    "is_on_hub",
    "parse_json_column",
    "read_raw_rows",
    "resolve_data_file",
]


RawColumns = dict[str, Any]
RawRow = tuple[str, "RawColumns | RolloutError"]
"""``FILE:ROW`` and the row's columns, or why there are none."""

MAX_ARRAY_BYTES = 1 << 30
"""A JSON array is read as a whole, unlike JSON lines."""

_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def read_raw_rows(paths: Sequence[Path | str]) -> Iterator[RawRow]:
    """Every row of every file in order; ``ROW`` counts from 1 (a JSONL file's rows are its lines).

    Raises :class:`ConfigError` for a file that is missing, of no known kind, or cannot be read to
    its end.
    """
    files = [Path(path) for path in paths]
    check_files(files)
    for path in files:
        yield from _array_rows(path) if _is_json_array(path) else _file_rows(path)


def _file_rows(path: Path) -> Iterator[RawRow]:
    rows = read_rows([path])
    while True:
        try:
            row = next(rows, None)
        except ConfigError:
            raise
        except (ValueError, OverflowError) as error:
            # A Parquet file whose text is not UTF-8, or whose times no Python object can hold.
            reason = type(error).__name__
            raise ConfigError(f"{path}: cannot be read to its end: {reason}") from error
        if row is None:
            return
        yield row


def _is_json_array(path: Path) -> bool:
    if path.suffix.lower() != ".json":
        return False
    with path.open("rb") as file:
        return decode_line(file.read(1 << 12)).startswith(b"[")


def _array_rows(path: Path) -> Iterator[RawRow]:
    if (size := path.stat().st_size) > MAX_ARRAY_BYTES:
        raise ConfigError(
            f"{path}: a JSON array is read as a whole and must have at most {MAX_ARRAY_BYTES:,} "
            f"bytes (found {size:,}). Write one object per line instead (.jsonl)."
        )
    try:
        items = _array_decoder.decode(decode_line(path.read_bytes()))
    except (msgspec.MsgspecError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{path}: is not a JSON array: {reason}") from None
    for number, item in enumerate(items, start=1):
        yield parse_row(bytes(item), f"{path}:{number}")


_PREFIX = "hf:"
_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}\Z")


def is_on_hub(name: str) -> bool:
    """Whether ``name`` is one of the hub's, not a file's."""
    return name.startswith(_PREFIX)


def resolve_data_file(name: str, beside: Path) -> Path:
    """The file of ``name``: relative to ``beside``, or what the hub has under it, as Parquet.

    ``hf:owner/name`` is the split ``train``, ``hf:owner/name#test`` another; what follows the name
    (``hf:owner/name/some/folder``) is a folder in it. It is fetched once and kept in the cache by
    its content. Raises :class:`ConfigError` for a name that is none,
    for one that cannot be fetched, and where ``datasets`` is not installed.
    """
    if not is_on_hub(name):
        return beside / name
    place, _, split = name.removeprefix(_PREFIX).partition("#")
    parts = place.split("/")
    repository, folder = "/".join(parts[:2]), "/".join(parts[2:])
    if not _NAME.match(repository) or ".." in parts:
        raise ConfigError(f"{name[:200]!r}: must be hf:OWNER/NAME, hf:OWNER/NAME/FOLDER#SPLIT, …")
    try:
        import datasets  # noqa: PLC0415  (heavy)
    except ImportError:
        raise ConfigError(
            f"{name}: fetching a dataset needs the package datasets, which is not installed. Give "
            "a file, or run: pip install 'adjudge[hub]'"
        ) from None
    try:
        found = datasets.load_dataset(repository, data_dir=folder or None, split=split or "train")
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        # Files whose columns differ: the error itself says no more than that there was one.
        why = error.__cause__ or error
        first = (str(why).strip().splitlines() or [type(why).__name__])[0][:300]
        raise ConfigError(
            f"{name}: cannot be fetched: {first} (HF_HUB_OFFLINE=1 forbids fetching; gated "
            "datasets need HF_TOKEN)"
        ) from error
    return _cache_dataset(found, repository, split or "train")


def _cache_dataset(found: Any, repository: str, split: str) -> Path:
    """The rows in the cache, written whole or not at all."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adjudge" / "hub"
    name = f"{repository.replace('/', '--')}-{re.sub(r'[^0-9A-Za-z]', '_', split)}"
    path = cache / f"{name}-{found._fingerprint}.parquet"  # noqa: SLF001  (its public name is none)
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        found.to_parquet(str(part))
        part.rename(path)
    return path


ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 2_000
MAX_CHARACTERS = 4_000_000
"""Characters of one column of one row; about a million tokens."""
MAX_MESSAGE_DEPTH = 32
"""Of lists and objects inside a message (tool calls)."""

_LIST = "a list of chat messages {role, content}, or the JSON text of one"


def parse_json_column(value: str, key: str) -> Any:
    """The JSON that a column holds as text; raises :class:`BrokenRow`."""
    _check_length(len(value), key)
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        kind = "nested too deeply" if isinstance(error, RecursionError) else "that is not JSON"
        raise BrokenRow(key, f"text of {len(value)} characters {kind}", _LIST) from None


def check_conversation(value: Any, key: str) -> ChatMessages:
    """``value`` as chat messages: a list of them, or the JSON text of one.

    Null fields of a message and empty ``tool_calls`` are left out (a Parquet column has every field
    in every message).
    Raises :class:`BrokenRow` for anything a chat template cannot show.
    """
    if isinstance(value, str):
        value = parse_json_column(value, key)
    if not isinstance(value, list) or not value:
        raise BrokenRow(key, describe_found(value), _LIST)
    if len(value) > MAX_MESSAGES:
        raise BrokenRow(key, f"{len(value)} messages", f"at most {MAX_MESSAGES}")
    messages = [_check_message(message, f"{key}[{number}]") for number, message in enumerate(value)]
    _check_length(sum(map(_count_characters, messages)), key)
    return messages


def check_ends_with_answer(messages: ChatMessages, key: str) -> ChatMessages:
    """``messages``, where something is asked and the last turn is the assistant's, with a text."""
    last = messages[-1]
    if last["role"] != "assistant":
        raise BrokenRow(
            f"{key}[-1].role", describe_found(last["role"], label=True), "assistant, who answers"
        )
    if not content_text(last["content"]).strip() and "tool_calls" not in last:
        raise BrokenRow(f"{key}[-1].content", "no text", "an answer")
    if not any(message["role"] == "user" for message in messages):
        raise BrokenRow(key, "no user's message", "a conversation with something asked")
    return messages


def check_column_text(value: Any, key: str) -> str:
    """``value`` as text that is not blank; raises :class:`BrokenRow`."""
    if not isinstance(value, str):
        raise BrokenRow(key, describe_found(value), "text")
    _check_length(len(value), key)
    if not value.strip():
        raise BrokenRow(key, "no text", "text")
    return value


def _check_length(characters: int, key: str) -> None:
    if characters > MAX_CHARACTERS:
        raise BrokenRow(key, f"{characters:,} characters", f"at most {MAX_CHARACTERS:,}")


def _check_message(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BrokenRow(key, describe_found(value), "a chat message {role, content}")
    role = value.get("role")
    if role not in ROLES:
        raise BrokenRow(f"{key}.role", describe_found(role, label=True), ", ".join(ROLES))
    content = value.get("content")
    if isinstance(content, list):
        for number, part in enumerate(content):
            _check_part(part, f"{key}.content[{number}]")
    elif content is None and not value.get("tool_calls"):
        raise BrokenRow(f"{key}.content", "nothing", "text (null only beside tool_calls)")
    elif content is not None and not isinstance(content, str):
        raise BrokenRow(f"{key}.content", describe_found(content), "text, or a list of text parts")
    if _too_deep(value):
        raise BrokenRow(
            key, "deep nesting", f"at most {MAX_MESSAGE_DEPTH} lists and objects in another"
        )
    rest = {name: field for name, field in value.items() if field is not None}
    if not rest.get("tool_calls", True):
        del rest["tool_calls"]
    return rest | {"content": content}


def _check_part(part: Any, key: str) -> None:
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if kind != "text":
        # A judge of texts would never see it, and be trained on a label that depends on it.
        shown = describe_found(kind, label=True) if isinstance(part, dict) else describe_found(part)
        raise BrokenRow(f"{key}.type", shown, "text")
    if not isinstance(part.get("text"), str):
        raise BrokenRow(f"{key}.text", describe_found(part.get("text")), "text")


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_MESSAGE_DEPTH + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _count_characters(value: Any) -> int:
    """Characters of all texts inside ``value``, which is not deep."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_count_characters, value.values())) + sum(map(len, value))
    return sum(map(_count_characters, value)) if isinstance(value, list) else 8
