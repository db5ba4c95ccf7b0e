"""What `benchmarks/size.py` counts, and what its check says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from benchmarks import size

MODULE = '''\
"""A docstring,
# of two lines."""

TEXT = """One

# three"""  # a comment


def answer() -> int:
    """Say it."""
    # Why it is this.
    return 42
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two folders that have a room of one name, with a script in one of them."""
    for folder, text in (("tests", MODULE), ("lab/tests", "A = 1\n"), ("empty", "")):
        (tmp_path / folder / "unit" / "helpers").mkdir(parents=True)
        (tmp_path / folder / "unit" / "helpers" / "some.py").write_text(text)
    (tmp_path / "tests" / "unit" / "helpers" / "page.js").write_text("let a = 1;\n\nshow(a);\n")
    return tmp_path


def test_a_line_of_code_is_no_docstring_and_no_comment(checkout: Path) -> None:
    """The lines of a text count, whatever they hold."""
    measured = size.measure(checkout / "tests")["unit.helpers"]
    assert (measured.files, measured.code, measured.statements) == (1, 5, 3)
    assert measured.documentation == 4


def refusals(*modules: str) -> list[int]:
    """How many refusals each of some modules has."""
    return size.count_refusals(
        [size.read_refusals(list(ast.walk(ast.parse(module)))) for module in modules]
    )


def test_a_helper_saves_no_refusal() -> None:
    """Three checks are three, written out or as three calls of a function."""
    inline = "def read(a, b, c):\n" + "".join(
        f"    if {name}:\n        raise ConfigError('no')\n" for name in "abc"
    )
    helper = "def check_value(one):\n    if one:\n        raise ConfigError('no')\n"
    maker = "def wrong(one) -> ConfigError:\n    return ConfigError(one)\n"
    assert refusals(inline) == [3]
    assert refusals(helper, "check_value(a), check_value(b), check_value(c)") == [0, 3]
    assert refusals(f"{maker}def read(a):\n    raise wrong(a)\n") == [1]


def test_keys_of_tables_are_counted_once() -> None:
    """A key of two tables is one; a private attribute and a constant of the class are none."""
    tables = (
        "class ConfigTable(BaseModel): ...\n"
        "class Base(ConfigTable):\n    path: str\n    _where: str\n    no: ClassVar[str] = ''\n"
        "class Derived(Base):\n    path: str\n    steps: int = 1\n"
        "class Record(Struct):\n    other: int\n"
    )
    assert size.find_table_keys([list(ast.walk(ast.parse(tables)))]) == {"path", "steps"}


def test_the_check_fails_above_a_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A measure below its ceiling is named, too, and a measure without a ceiling is shown."""
    ceilings = tmp_path / "size.toml"
    monkeypatch.setattr(size, "CEILINGS", ceilings)
    monkeypatch.setattr(size, "take_measures", lambda: {"code": 1005, "web": 7, "files": 3})
    ceilings.write_text("[ceilings]\ncode = 1000\nweb = 9\n")
    with pytest.raises(SystemExit) as stopped:
        size.main(["--check"])
    said = capsys.readouterr().out
    assert stopped.value.code == 1
    assert "code: is 5 above the ceiling 1,000" in said
    assert "web: the ceiling can be lowered to 7" in said
    ceilings.write_text("[ceilings]\ncode = 1005\nweb = 7\n")
    with pytest.raises(SystemExit) as stopped:
        size.main(["--check"])
    assert stopped.value.code == 0
