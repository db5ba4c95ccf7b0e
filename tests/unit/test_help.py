"""``--help`` of every command: a sentence, an example that parses, options in groups."""

from typing import Annotated

import pytest
import typer
from tests.unit.helpers.help_pages import check_help_page
from typer.testing import CliRunner

from adjudge.cli.help import JUDGE_CALLS, CommandHelp
from adjudge.cli.main import CORE_COMMANDS, CORE_GROUPS


@pytest.mark.parametrize("name", ["", *CORE_COMMANDS, *CORE_GROUPS])
def test_a_help_page_is_a_sentence_an_example_and_one_screen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_help_page(name.replace(".", " "), monkeypatch)


def _many(
    name: str,
    a: int = 1,
    b: int = 1,
    c: int = 1,
    d: int = 1,
    e: int = 1,
    f: int = 1,
    g: Annotated[float, typer.Option(min=0, max=1, help="Of calls.", rich_help_panel="Calls")] = 0,
    h: Annotated[int, typer.Option(min=2, help="Rows [default: all].")] = 2,
    record: str = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Do something.

    Example: many one --g 0.5

    More about it.
    """


def _page(command: object) -> str:
    program = typer.Typer(rich_markup_mode=None, add_completion=False)
    program.command(cls=CommandHelp)(command)  # type: ignore[type-var]
    return CliRunner().invoke(program, ["--help"], prog_name="many", env={"COLUMNS": "80"}).output


def test_many_options_stand_in_groups_of_one_width() -> None:
    page = _page(_many)
    assert page.startswith("Do something.\n\nExample:\n  many one --g 0.5\n\nUsage: many [OPTIONS]")
    headings = [line for line in page.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings == [
        "Example:",
        "Arguments:",
        "Options:",
        "Calls:",
        f"{JUDGE_CALLS}:",
        "Output:",
    ]
    assert "  --g X          Of calls. [default: 0]\n" in page  # no bounds: the error has them
    assert "  --h N          Rows [default: all].\n" in page  # and no default said twice
    assert page.index("--json") < page.index("--help")


def test_few_options_stand_in_one_group() -> None:
    def few(a: Annotated[bool, typer.Option("--json")] = False) -> None:
        """Do something."""

    page = _page(few)
    assert page.count(":\n") == 1
    assert "Options:\n" in page
