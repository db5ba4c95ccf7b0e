"""The pages of the documentation, done as their readers would.

Those of docs/start run in ``test_install_lines.py``.
"""

from pathlib import Path

import pytest
from tests.unit.helpers.doc_pages import find_pages, run_page

PAGES = find_pages()


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name != "start"], ids=lambda page: page.stem
)
def test_the_page_works(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    run_page(page, folder)


@pytest.mark.parametrize(
    ("text", "works"),
    [
        ("```sh\necho a; echo b 12 s\n```\n```text\na\nb … s\n```\n", True),
        ("```sh\nseq 5\n```\n```text\n1\n…\n5\n```\n", True),
        ("```sh\necho a\n```\n```text\nb\n```\n", False),
        ("```sh\nfalse\n```\n", False),
        ("```sh\nexit 3\n# exit 3\n```\n", True),
        ("<!-- not run: it would fail -->\n```sh\nfalse\n```\n", True),
        ('```python title="one.py"\nx = 1\n```\n```sh\npython one.py\n```\n', True),
        ("<!-- setup\nexport WORD=kept\n-->\n```sh\necho $WORD\n```\n```text\nkept\n```\n", True),
        ("```python\nassert False\n```\n", False),
        ("```pycon\n>>> 1 + 1\n2\n```\n", True),
        ("```pycon\n>>> 1 + 1\n3\n```\n", False),
    ],
)
def test_a_page_that_is_wrong_is_seen(text: str, works: bool, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    page = tmp_path / "page.md"
    page.write_text(text)
    if works:
        run_page(page, folder)
        return
    with pytest.raises(AssertionError, match=r"page\.md:1|page\.md:4"):
        run_page(page, folder)
