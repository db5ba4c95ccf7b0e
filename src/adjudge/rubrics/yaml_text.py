"""YAML as plain data: no tags, no anchors, no aliases, no key twice.

``yaml.safe_load`` builds no objects, but an alias may repeat a part until it fills the memory,
a tag may make it fail in ways of its own, and of a key that stands twice it keeps the last.
"""

from __future__ import annotations

from typing import Any

from adjudge.errors import ConfigError

__all__ = ["read_yaml"]

_MAX_DEPTH = 20


def read_yaml(text: str) -> Any:
    """The document's data; raises :class:`ConfigError` naming the line.

    >>> read_yaml("criteria: [Names a dose, Is brief]")
    {'criteria': ['Names a dose', 'Is brief']}
    """
    import yaml  # noqa: PLC0415  (rubrics are rarely YAML)

    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            _check_event(event)
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:  # before the parser, which is quadratic in it, goes on
                raise ConfigError("is nested too deeply")
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _check_keys(node)
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ConfigError(f"is not valid YAML: {' '.join(str(error).split())[:300]}") from None
    except ValueError as error:  # a date or number that is none, such as 2024-13-45
        raise ConfigError(f"is not valid YAML: {str(error)[:100]}; put it in quotes") from None


def _check_event(event: Any) -> None:
    if getattr(event, "anchor", None) is not None:
        raise ConfigError(f"line {event.start_mark.line + 1}: anchors and aliases are not read")
    if getattr(event, "tag", None) is not None:
        raise ConfigError(f"line {event.start_mark.line + 1}: tags such as !!str are not read")


def _check_keys(node: Any) -> None:
    """Refuse keys that stand twice, anywhere below ``node``."""
    pending = [node]
    while pending:
        here = pending.pop()
        value = getattr(here, "value", None)
        if not isinstance(value, list):
            continue
        keys: set[str] = set()
        for child in value:
            if not isinstance(child, tuple):
                pending.append(child)
                continue
            key, inside = child
            if isinstance(key.value, str) and key.value in keys:
                line = key.start_mark.line + 1
                raise ConfigError(f"line {line}: {key.value[:40]!r} stands twice in one table")
            keys.add(str(key.value) if isinstance(key.value, str) else "")
            pending.append(inside)
