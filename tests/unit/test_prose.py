"""The words of the documentation, by the linter that holds them."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_documentation_has_no_refused_word() -> None:
    linter = runpy.run_path(str(ROOT / ".ci" / "prose.py"))
    faults = [
        f"{page.relative_to(ROOT)}:{line}: {what}"
        for page in linter["list_pages"]()
        for line, what in linter["find_faults"](page.read_text(encoding="utf-8"))
    ]
    assert faults == []
    assert [line for line, _ in linter["find_faults"]("# Page\n\nIt simply works.\n")] == [3]
