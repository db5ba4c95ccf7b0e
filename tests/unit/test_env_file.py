"""`--env-file`: what a line means, and that no complaint shows a value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from adjudge.cli.options import load_env_file
from adjudge.errors import ConfigError

SECRET = "s3cret-value"


def read_env_file(file: Path) -> dict[str, str]:
    """What a file sets where nothing is set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", {})
        load_env_file(file)
        return dict(os.environ)


def written(folder: Path, text: str) -> Path:
    file = folder / ".env"
    file.write_bytes(text.encode())
    return file


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("KEY=plain", "plain"),
        ("export KEY=plain", "plain"),
        ("export\tKEY = spaced out ", "spaced out"),
        ("KEY=", ""),
        ("KEY= # nothing", ""),
        ("KEY=#a", "#a"),
        ("KEY=a#b", "a#b"),
        ("KEY=  'a'", "a"),
        ("KEY=a #b", "a"),
        ("KEY=a=b", "a=b"),
        ("KEY=${HOME}$(id)`id`", "${HOME}$(id)`id`"),
        ("KEY='a #b\\n' # c", "a #b\\n"),
        ('KEY="a #b"', "a #b"),
        (r'KEY="a\n\"b\"\\n\$"', 'a\n"b"\\n\\$'),
        ("KEY='it\"s'", 'it"s'),
        ("KEY=it's", "it's"),
        ("KEY=ü", "ü"),
        ("\ufeffKEY=marked\r", "marked"),
    ],
)
def test_a_line(tmp_path: Path, line: str, value: str) -> None:
    assert read_env_file(written(tmp_path, f"{line}\n")) == {"KEY": value}


def test_a_file(tmp_path: Path) -> None:
    text = "# keys\n\nA=1\r\n  B='2'\n  # C=3\nA=4"
    assert read_env_file(written(tmp_path, text)) == {"A": "4", "B": "2"}


@pytest.mark.parametrize(
    "line",
    [
        SECRET,
        f"1KEY={SECRET}",
        f"MY KEY={SECRET}",
        f"={SECRET}",
        f"KEY: {SECRET}",
        f'KEY="{SECRET}',
        f"KEY='{SECRET}' more",
        f'KEY="{SECRET}\\"',
        f"KEY={SECRET}\0",
        f"exportKEY {SECRET}",
    ],
)
def test_a_complaint_names_file_and_line_and_no_value(tmp_path: Path, line: str) -> None:
    file = written(tmp_path, f"# one\n{line}\nB=2\n")
    with pytest.raises(ConfigError) as failure:
        read_env_file(file)
    assert str(failure.value).startswith(f"{file}:2: ")
    assert SECRET not in f"{failure.value!r}{failure.value.__cause__!r}"


def test_a_file_that_is_not_text_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_env_file(file)
    file.write_bytes(b"KEY=\xff" + SECRET.encode())
    with pytest.raises(ConfigError) as failure:
        read_env_file(file)
    assert str(failure.value) == f"{file}: is not UTF-8 text"
    assert failure.value.__cause__ is None


def test_what_is_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADJUDGE_T_A", "ADJUDGE_T_B", "ADJUDGE_T_C"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "before")  # so that it is put back
    monkeypatch.setenv("ADJUDGE_T_B", "")
    monkeypatch.delenv("ADJUDGE_T_C")
    file = written(tmp_path, "ADJUDGE_T_A=1\nADJUDGE_T_B=2\nADJUDGE_T_C=3\n")
    assert load_env_file(file) == ["ADJUDGE_T_C"]
    assert [os.environ[f"ADJUDGE_T_{one}"] for one in "ABC"] == ["before", "", "3"]


def test_nothing_is_set_from_a_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADJUDGE_T_A", raising=False)
    with pytest.raises(ConfigError):
        load_env_file(written(tmp_path, "ADJUDGE_T_A=1\nbroken\n"))
    assert "ADJUDGE_T_A" not in os.environ


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = written(tmp_path_factory.getbasetemp(), text)
    try:
        found = read_env_file(file)
    except ConfigError:
        return
    assert all("\0" not in value and name.isidentifier() for name, value in found.items())
