"""How the tables of a user's file are declared and checked, whichever file it is."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from adjudge.config_tables import ConfigFile, ConfigTable
from adjudge.errors import ConfigError


class Oven(ConfigTable):
    degrees: int = Field(default=180, ge=50, le=300)


class Recipe(ConfigFile):
    unnamed: ClassVar[str] = "recipe"

    name: str
    oven: Oven = Oven()
    ovens: dict[str, Oven] = Field(default={})

    def _check(self) -> None:
        if self.name == "raw" and "oven" in self.model_fields_set:
            self.refuse("oven", "is not needed. Leave it out.")


def test_a_file_knows_where_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "bread.toml"
    path.write_text('name = "bread"\n[oven]\ndegrees = 220')
    recipe = Recipe.load(path)
    assert (recipe.oven.degrees, recipe.where, recipe.folder) == (220, str(path), tmp_path)
    plain = Recipe.from_dict({"name": "raw"})
    assert (plain.where, plain.folder, plain.source_folder) == ("recipe", Path(), None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "recipe: name: is required"),
        ({"name": "a", "ovn": {}}, "recipe: ovn: unknown key; did you mean 'oven'?"),
        ({"name": "a", "oven": {"degree": 1}}, "recipe: oven.degree: unknown key; did you mean"),
        ({"name": "a", "ovens": {"big": {"degre": 1}}}, r"ovens.big.degre: .*allowed: degrees\)"),
        ({"name": "a", "oven": {"degrees": 20}}, r"oven.degrees: .* 50 \(found 20\)"),
        ({"name": "a", "oven": {"degrees": "200"}}, r"oven.degrees: .*\(found '200'\)"),
        ({"name": "raw", "oven": {}}, "recipe: oven: is not needed. Leave it out."),
    ],
)
def test_a_complaint_names_file_key_and_remedy(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe.from_dict(data)


def test_every_problem_of_the_tables_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe.from_dict({"oven": {"degrees": 1, "door": "open"}}, where="a.toml")
    lines = str(caught.value).split("\n")
    assert len(lines) == 3
    assert all(line.startswith("a.toml: ") for line in lines)
