"""Options of a command that are the fields of a table of settings: declared and typed there.

This is apart from :mod:`adjudge.cli.options`, which imports judges: the mock needs none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from adjudge.config_tables import CheckedTable

Command = Callable[..., None]


def settings_options(
    default: CheckedTable,
    texts: Mapping[str, str],
    names: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
) -> Callable[[Command], Command]:
    """Give a command an option for each field in ``texts``, in place of its ``settings``.

    ``default`` has the values of options that are left out, and the other fields. ``texts``: what
    the help says of each, in its order. A field of several values is an option that can be
    repeated; ``names``: options that are not called as their fields are;
    ``groups``: the groups of the help that options are in.
    """
    fields = type(default).model_fields
    options = [
        _option(
            name,
            fields[name],
            getattr(default, name),
            (names or {}).get(name, name),
            text,
            (groups or {}).get(name),
        )
        for name, text in texts.items()
    ]

    def add(command: Command) -> Command:
        @wraps(command)
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in texts}
            for name, value in values.items():
                if isinstance(getattr(default, name), tuple):
                    values[name] = tuple(value or ())
            command(settings=type(default)(**{**default.model_dump(), **values}), **given)

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for one in signature.parameters.values():
            parameters += options if one.name == "settings" else [one]
        keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        run.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in keywords}
        return run

    return add


def _option(
    name: str, field: FieldInfo, value: Any, option_name: str, text: str, group: str | None
) -> inspect.Parameter:
    several = isinstance(value, tuple)
    option = typer.Option("--" + option_name.replace("_", "-"), help=text, rich_help_panel=group)
    kind: Any = list[str] | None if several else field.annotation
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if several else value,
        annotation=Annotated[kind, option],
    )
