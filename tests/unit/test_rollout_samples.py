"""Every self-made dump under tests/data/rollouts is read without a flag, up to rewards."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adjudge.cli.main import app
from adjudge.datasets.files import find_files
from adjudge.judges import discovery
from adjudge.rollouts.formats.recognition import FORMATS
from adjudge.rollouts.samples import SampleReader

DUMPS = Path(__file__).parents[1] / "data" / "rollouts"
FILES = find_files([DUMPS])


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_BASE_URL", *(f"{one.upper()}_API_KEY" for one in discovery._MODEL_OF_KEY)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(discovery.find_judge, "__defaults__", ((),))


def test_there_is_a_dump_of_every_format() -> None:
    read = set()
    for file in FILES:
        reader = SampleReader([file], {})
        list(reader.read())
        read |= {one.format.name for one in reader.readings.values() if one.format}
    assert {one.name for one in FORMATS} - read == set()
    assert len(FORMATS) >= 22


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(DUMPS)))
def test_the_first_spec_grades_it(file: Path) -> None:
    done = CliRunner().invoke(app, ["init", str(file), "--json"], catch_exceptions=False)
    if done.exit_code:
        assert "no usable row" in done.output, done.output  # a dump of failures only
        return
    command = shlex.split(json.loads(done.stdout)["command"])[1:]
    assert "--map" not in command
    done = CliRunner().invoke(app, [*command, "--json", "-o", "out"], catch_exceptions=False)
    assert done.exit_code in (0, 2), done.output  # 2: failed samples are broken rows
    assert json.loads(done.stdout[done.stdout.index("{") :])
