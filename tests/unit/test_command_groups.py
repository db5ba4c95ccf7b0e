"""Verbs of verbs (`adjudge rubric …`, `adjudge study …`) complain like the others."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from adjudge.cli.main import command_line


@pytest.mark.parametrize(
    "arguments",
    [
        ["rubric", "lint", "NONE.json"],
        ["study", "swap", "NONE.jsonl", "--judges", "NONE.toml", "OTHER.toml"],
    ],
)
def test_a_missing_file_is_one_message(arguments: list[str], tmp_path: Path) -> None:
    there = [str(tmp_path / one) if one.isupper() or "." in one else one for one in arguments]
    found = CliRunner().invoke(command_line(), there)
    assert found.exit_code == 2, found.output
    assert "NONE" in found.output
    assert "Traceback" not in found.output
