"""Extensions by ``module:name`` and by entry point: found, and plain about what is wrong."""

import pickle
import sys
from pathlib import Path

import pytest
from tests.refusals import refuses
from tests.unit.helpers.packages import Packages

import adjudge
from adjudge import extensions
from adjudge.errors import ConfigError
from adjudge.extensions import (
    EXTENSION_GROUPS,
    check_extension_name,
    find_entry_points,
    load_extension,
)
from adjudge.graders.registry import build_grader, load_grader_class

CODE = """
from adjudge import BaseGrader, GraderScore

class Polite(BaseGrader):
    "Whether the answer says please."
    async def aevaluate(self, response: str) -> GraderScore:
        return GraderScore(name=self.name, score=float("please" in response))

class Outer:
    class Inner:
        pass

NUMBER = 7
"""
GRADERS = "adjudge.graders"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    """No other package is installed."""
    found = Packages(tmp_path, CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(extensions, "entry_points", found.entry_points)
    for name in ("manners", "other", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return found


def test_an_installed_name(packages: Packages) -> None:
    packages.install("manners", {"polite": "manners:Polite"}, group=GRADERS)
    assert list(find_entry_points(GRADERS)) == ["polite"]
    check_extension_name(GRADERS, "polite", where="x")
    assert "manners" not in sys.modules, "a list or a check imports no package"
    assert load_extension(GRADERS, "polite", where="x").__name__ == "Polite"
    assert load_grader_class("polite").__name__ == "Polite"


@pytest.mark.parametrize("name", ["Polite", "Outer.Inner", "NUMBER"])
def test_a_name_in_a_module(packages: Packages, name: str) -> None:
    packages.install("manners", {})
    found = load_extension(GRADERS, f"manners:{name}", where="x")
    assert getattr(found, "__name__", "7") == {"NUMBER": "7"}.get(name, name.rpartition(".")[2])


def test_a_shipped_name_cannot_be_replaced(packages: Packages) -> None:
    packages.install("manners", {"similarity": "manners:Polite"}, group=GRADERS)
    assert load_grader_class("similarity").__module__.startswith("adjudge.")


def test_an_unknown_name_lists_what_there_is(packages: Packages) -> None:
    packages.install("manners", {"polite": "manners:Polite"}, group=GRADERS)
    shipped = {"similarity": "adjudge.graders.rules.similarity:SimilarityGrader"}
    with pytest.raises(ConfigError) as caught:
        load_extension(GRADERS, "polit", where="r.toml: graders.p: type", shipped=shipped)
    assert str(caught.value) == (
        "r.toml: graders.p: type: the grader is unknown; did you mean 'polite'? "
        "(found 'polit'; allowed: similarity, polite, module:name of your own)"
    )


@pytest.mark.parametrize("group", EXTENSION_GROUPS)
def test_each_group_says_what_it_has(packages: Packages, group: str) -> None:
    with pytest.raises(ConfigError, match=f"x: the {EXTENSION_GROUPS[group]} is unknown"):
        check_extension_name(group, "nothing", where="x")


def test_two_packages_with_one_name(packages: Packages) -> None:
    packages.install("manners", {"polite": "manners:Polite"}, group=GRADERS)
    packages.install("other", {"polite": "other:Polite"}, group=GRADERS)
    with pytest.raises(ConfigError) as caught:
        load_extension(GRADERS, "polite", where="x")
    assert "x: 'polite' is in two packages (found " in str(caught.value)
    assert "manners 1.5 (manners:Polite)" in str(caught.value)
    assert "other 1.5 (other:Polite)" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "\nimport no_such_module",
            "ModuleNotFoundError: No module named 'no_such_module' (broken.py:2)",
        ),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines (broken.py:1)"),
        ("raise SystemExit(3)", "SystemExit: 3 (broken.py:1)"),
    ],
)
def test_a_module_that_cannot_be_imported(packages: Packages, code: str, why: str) -> None:
    packages.install("broken", {"polite": "broken:Polite"}, code, GRADERS)
    with pytest.raises(ConfigError) as caught:
        load_extension(GRADERS, "polite", where="x")
    first, second = str(caught.value).splitlines()
    assert first == (
        "x: 'polite' cannot be loaded from broken 1.5 (adjudge.graders: broken:Polite): " + why
    )
    assert second.startswith("Install that package again or remove it.")
    with pytest.raises(ConfigError) as caught:
        load_extension(GRADERS, "broken:Polite", where="x")
    assert str(caught.value) == f"x: 'broken:Polite' cannot be imported: {why}"


def test_a_module_that_is_another_one(packages: Packages) -> None:
    packages.install("broken", {"polite": "broken:Polite"}, "", GRADERS)
    with refuses("x"):
        load_extension(GRADERS, "polite", where="x")
    with refuses("x"):
        load_extension(GRADERS, "statistics:Polite", where="x")
    with refuses("x"):
        load_extension(GRADERS, "manners.Polite", where="x")


def test_what_is_no_grader(packages: Packages) -> None:
    packages.install("manners", {"seven": "manners:NUMBER"}, group=GRADERS)
    with refuses("type"):
        load_grader_class("seven")


@pytest.mark.parametrize("word", ["def", "async def"])
def test_a_function_is_a_grader(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = f"rule_{len(word)}"
    code = f"{word} right(response, reference):\n    return 5.0 * (response == reference)\n"
    (tmp_path / f"{module}.py").write_text(code)
    grader = {"name": "own", "type": f"{module}:right", "score_range": [0, 5]}
    rows = [{"prompt": "7 * 8?", "response": text, "reference": "56"} for text in ("56", "54")]
    run = adjudge.grade(rows, {"graders": [grader]})
    assert run.rewards == [1.0, 0.0]
    made = build_grader(f"{module}:right", "own", {}, where="x")
    assert pickle.loads(pickle.dumps(made)).func is made.func
    with refuses("spec.graders.own.strict"):
        adjudge.grade(rows, {"graders": [grader | {"strict": True}]})
