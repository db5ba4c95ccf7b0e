"""``adjudge doctor FILE.py``: exit codes, what is printed, and that nothing is run."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from adjudge.cli.main import app

BAD = """
raise SystemExit("this file was run")

async def my_reward(completions, **kwargs):
    rewards = []
    for text in completions:
        try:
            rewards.append(await judge(text))
        except Exception:
            rewards.append(0.0)  # [red]never[/red]
    return rewards
"""


def doctor(path: Path, *more: str) -> Any:
    return CliRunner().invoke(app, ["doctor", str(path), *more], env={"COLUMNS": "80"})


def test_a_finding_is_shown_with_its_line_its_reason_and_two_lines_instead(tmp_path: Path) -> None:
    (file := tmp_path / "my_reward.py").write_text(BAD)
    done = doctor(file)
    assert done.exit_code == 1
    assert "my_reward.py:10  except-judge" in done.stdout
    assert "rewards.append(0.0)" in done.stdout
    assert "GRPO" in done.stdout
    assert done.stdout.count("\n  + ") == 2
    assert "# adjudge: meant" in done.stderr


def test_as_json(tmp_path: Path) -> None:
    (file := tmp_path / "my_reward.py").write_text(BAD)
    done = doctor(file, "--json")
    assert done.exit_code == 1
    (one,) = json.loads(done.stdout)["findings"]
    assert (one["rule"], one["line"], len(one["fix"])) == ("except-judge", 10, 2)


def test_code_that_says_missing_is_fine(tmp_path: Path) -> None:
    (file := tmp_path / "my_reward.py").write_text(BAD.replace("0.0", "None"))
    done = doctor(file)
    assert done.exit_code == 0
    assert "found no line that turns a failure into a number" in done.stdout


def test_what_is_not_python_is_bad_input(tmp_path: Path) -> None:
    (file := tmp_path / "my_reward.py").write_text("x = 1\ndef f(:\n")
    done = doctor(file)
    assert done.exit_code == 2
    assert "my_reward.py:2: is not Python" in done.stderr
    assert doctor(tmp_path / "none.py").exit_code == 2
