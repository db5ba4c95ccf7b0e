"""How the tables of a user's file are declared and checked: one class a table, one a file.

A key that is not declared is refused with the nearest one, a value must have the type of its key,
and every complaint names file, key, what was found and what is allowed.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    PrivateAttr,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)

from adjudge.config import load_toml, unknown_key
from adjudge.errors import ConfigError, Fields, Metadata

UNNAMED = "<>"
"""What the tag of a union's alternative begins with: messages have no name for it."""

_Model = TypeVar("_Model", bound=BaseModel)


class ConfigTable(BaseModel):
    """A table: fields are its keys, and their types and limits say what is allowed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def table_for(cls, data: Fields) -> type[ConfigTable]:  # noqa: ARG003  (its own)
        """The class that reads ``data``: this one, where a key does not choose another."""
        return cls


class CheckedTable(ConfigTable):
    """A table that code makes, too: a wrong value is a :class:`ConfigError` there as well."""

    def __init__(self, **given: object) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise ConfigError(_explain_all(type(self), error, given)) from None

    # As a table in another one it is read like any: its problems are problems of the whole file.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


class ConfigFile(ConfigTable):
    """A whole file, which knows where it came from; derive, and check the rest in ``_check``.

    ``unnamed`` is what messages call data that are from no file, ``keeps_references`` whether texts
    with ``${NAME}`` remember it (see :func:`~adjudge.config.load_toml`).
    """

    unnamed: ClassVar[str] = "file"
    keeps_references: ClassVar[bool] = False

    _where: str = PrivateAttr(default="")
    _folder: Path | None = PrivateAttr(default=None)

    @classmethod
    def load(cls, path: Path | str, **options: object) -> Self:
        """The file at ``path``; raises :class:`ConfigError` naming file, key and remedy.

        ``options`` are those of the class's own :meth:`from_dict`.
        """
        path = Path(path)
        data = load_toml(path, keep_references=cls.keeps_references)
        return cls.from_dict(data, where=str(path), folder=path.parent, **options)

    @classmethod
    def from_dict(cls, data: Fields, *, where: str = "", folder: Path | None = None) -> Self:
        """The same from plain data; ``where`` opens every complaint.

        Relative paths start at ``folder`` (default: the working directory). Raises
        :class:`ConfigError`.
        """
        file = cls.read_tables(data, where, folder)
        file._check()  # noqa: SLF001  (its own)
        return file

    @classmethod
    def read_tables(cls, data: Fields, where: str, folder: Path | None) -> Self:
        """The file with its tables checked one by one, not yet whether they go together."""
        file = validate_model(cls, dict(data), where or cls.unnamed)
        file._where, file._folder = where, folder  # noqa: SLF001  (its own)
        return file

    def _check(self) -> None:
        """Raise :class:`ConfigError` where the tables do not go together."""

    @property
    def where(self) -> str:
        """What opens every message about it: its path, as a rule."""
        return self._where or self.unnamed

    @property
    def folder(self) -> Path:
        """What its relative paths start from."""
        return self._folder or Path()

    @property
    def source_folder(self) -> Path | None:
        """As :attr:`folder`; ``None`` for plain data, which is from no file."""
        return self._folder

    def refuse(self, key: str, message: str) -> NoReturn:
        """Raise :class:`ConfigError` about one key of the file."""
        raise ConfigError(f"{self.where}: {key}: {message}")

    def refuse_first(self, *checks: Iterable[tuple[str, str]]) -> None:
        """Raise :class:`ConfigError` for the first key that checks find, with what is wrong."""
        for key, message in chain.from_iterable(checks):
            self.refuse(key, message)


def validate_model(model: type[_Model], data: Metadata, where: str) -> _Model:
    """``data`` as ``model``; raises one :class:`ConfigError` that lists every problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain_all(model, error, data, f"{where}: ")) from None


def check_setting(kind: object, value: object, key: str) -> object:
    """``value`` as one of the type ``kind``; raises :class:`ConfigError` about ``key``.

    What pydantic has no schema for is not checked.
    """
    try:
        adapter = _adapter(kind)
    except PydanticUserError:
        return value
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        with suppress(TypeError, ValueError):  # as JSON: text names an enum, a list a tuple
            return adapter.validate_json(json.dumps(value, allow_nan=False), strict=True)
        reason = error.errors()[0]["msg"].replace("Input should", "must", 1)
        raise ConfigError(f"{key}: {reason} (found {repr(value)[:80]})") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[object]:
    config = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
    return TypeAdapter(kind, config=config)


def _explain_all(
    model: type[BaseModel], error: ValidationError, data: object, before: str = ""
) -> str:
    """Every problem on a line of its own."""
    return "\n".join(
        f"{before}{explain_problem(model, problem, data)}" for problem in error.errors()
    )


def explain_problem(model: type[BaseModel], problem: Fields, data: object) -> str:
    """One of pydantic's ``problem``: its key, what is wrong, what was found or is allowed."""
    parts = map(str, problem["loc"])
    location = [part for part in parts if not part.startswith((UNNAMED, "[key]"))]
    key = ".".join(location) or "the file"
    if problem["type"] == "extra_forbidden":
        known = _keys_at(model, problem["loc"][:-1], data)
        return f"{key}: {unknown_key(location[-1], sorted(known))}"
    if problem["type"] == "missing":
        return f"{key}: is required"
    message = problem["msg"].removeprefix("Value error, ")
    complaint = f"{key}: {message[:1].lower()}{message[1:]}"
    if isinstance(problem["input"], dict):  # a whole table says nothing, and may hold a key
        return complaint
    if " (found " in complaint:
        return complaint
    cause, stop, remedy = complaint.partition(". ")
    return f"{cause} (found {repr(problem['input'])[:80]}){stop}{remedy}"


def _keys_at(model: type[BaseModel], location: Sequence[int | str], data: object) -> list[str]:
    """The keys that the table at ``location`` of ``data`` may have."""
    here = model
    names = False  # whether the next part is a name of the user's, not a key
    for part in location:
        if issubclass(here, ConfigTable) and not names and isinstance(data, Mapping):
            here = here.table_for(data)
        if isinstance(data, Mapping):  # a part may name an alternative of a type
            data = data.get(part, data)
        elif isinstance(data, list) and isinstance(part, int):
            data = data[part]
        if isinstance(part, int) or names or part.startswith(UNNAMED):
            names = False
            continue
        field = here.model_fields.get(part)
        inner = _model_in(field.annotation) if field else None
        if field is None or inner is None:
            return []
        here = inner
        names = typing.get_origin(field.annotation) is dict
    if issubclass(here, ConfigTable) and isinstance(data, Mapping):
        here = here.table_for(data)
    return [field.alias or name for name, field in here.model_fields.items()]


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _model_in(argument)) is not None:
            return found
    return None
