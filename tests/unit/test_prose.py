"""The words of the documentation, and the linter that holds them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_house import RIDDLES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def linter() -> Any:
    """``.ci/prose.py`` as a module."""
    spec = importlib.util.spec_from_file_location("prose_linter", ROOT / ".ci" / "prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "text",
    [
        "An outage is outlasted, then stops the run.",
        "A judge that failed has said nothing.",
        "prompt: the card's is none",
        "--data goes with no file; give one of the two.",
        "The file, which is no table, is refused.",
        "Others are ignored in silence.",
        "It simply works.",
        "Send it, e.g. by mail.",
        "The the score is missing.",
        "See [here](other.md).",
        "It works!",
        "## What a score is.",
        " ".join(f"word{n}" for n in range(51)) + ".",
    ],
)
def test_refused_words_are_found(linter: Any, text: str) -> None:
    assert [line for line, _ in linter.find_faults(f"# Page\n\n{text}\n")] == [3]


@pytest.mark.parametrize(
    "text",
    [
        "A failed judge call yields no score.",
        "`simply` and ``a `e.g.` b`` are code.",
        "```text\nsimply\n```",
        "<!-- simply\nsimply -->",
        "| `points` | `points` |",
        "There is no key, and that is no longer so.",
        "All in all it said that that is so.",
    ],
)
def test_plain_words_pass(linter: Any, text: str) -> None:
    assert list(linter.find_faults(f"{text}\n")) == []


def test_the_documentation_has_no_refused_word(linter: Any) -> None:
    pages = linter.list_pages()
    assert len(pages) > 80
    faults = [
        f"{page.relative_to(ROOT)}:{line}: {what}"
        for page in pages
        for line, what in linter.find_faults(page.read_text(encoding="utf-8"))
    ]
    assert faults == []


def test_no_heading_is_a_riddle(linter: Any) -> None:
    headings = [
        (page.name, words)
        for page in linter.list_pages()
        for words in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert [one for one in headings if one[1].lower() in RIDDLES] == []
