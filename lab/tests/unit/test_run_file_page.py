"""docs/run-file.md has every key of a run file with its default, and no other."""

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from adjudge_lab.rl import runfile
from adjudge_lab.rl.runfile import RunFile

PAGE = (Path(__file__).parents[3] / "docs" / "run-file.md").read_text()


def tables_of(model: type[BaseModel], path: str = "") -> dict[str, type[BaseModel]]:
    """The tables of a run file by their dotted names; the file itself has none."""
    found = {path: model}
    for name, field in model.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= tables_of(kind, f"{path}.{name}".lstrip("."))
    return found


TABLES = tables_of(RunFile)


def rows(table: str) -> dict[str, str]:
    """Keys and defaults of the page's section on ``table``."""
    heading = f"\n## `[{table}]`\n" if table else "\n## The file itself\n"
    assert PAGE.count(heading) == 1, heading
    section = re.split(r"\n##+ ", PAGE.split(heading)[1])[0]
    found = re.findall(r"^\| `(\w+)` \|(.*?)\|", section, re.MULTILINE)
    return {key: default.strip() for key, default in found}


@pytest.mark.parametrize("table", TABLES)
def test_every_key_is_there_with_its_default(table: str) -> None:
    own = {
        name: field
        for name, field in TABLES[table].model_fields.items()
        if f"{table}.{name}".lstrip(".") not in TABLES
    }
    shown = rows(table)
    assert sorted(shown) == sorted(own)
    for name, field in own.items():
        assert default_of(shown[name]) == (... if field.is_required() else field.default), name


def default_of(cell: str) -> Any:
    if cell in ("required", ""):
        return ... if cell else None
    return tomllib.loads(f"value = {cell.strip('`')}")["value"]


def test_no_table_is_missing_or_made_up() -> None:
    assert set(re.findall(r"^## `\[(.*?)\]`$", PAGE, re.MULTILINE)) == set(TABLES) - {""}
    classes = {kind for kind in vars(runfile).values() if isinstance(kind, type)}
    own = {kind for kind in classes if kind.__module__ == runfile.__name__ and kind.__doc__}
    assert own <= set(TABLES.values())


def test_what_a_key_allows_is_said() -> None:
    for model in TABLES.values():
        for name, field in model.model_fields.items():
            for choice in choices_of(field.annotation):
                assert f'"{choice}"' in PAGE, f"{name} may be {choice!r}"


def choices_of(annotation: Any) -> list[str]:
    """The names in a ``Literal``, also in a union of them."""
    found = get_args(annotation)
    return [one for one in found if isinstance(one, str)] + [
        choice for one in found if get_args(one) for choice in choices_of(one)
    ]
