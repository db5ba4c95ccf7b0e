"""Data sets by their name on the hub: what is asked for, kept, and refused."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adjudge.datasets.sources import resolve_data_file
from adjudge.errors import ConfigError
from adjudge_lab.judge_training.judge_file import JudgeFile


class Rows:
    """What ``datasets`` gives, as far as it is looked at."""

    _fingerprint = "0123abcd"

    def to_parquet(self, path: str) -> None:
        Path(path).write_bytes(b"rows")


class Broken(Exception):
    """What ``datasets`` raises where files of one set do not fit together: no ``OSError``."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []

    def load_dataset(name: str, *, data_dir: str | None, split: str) -> Rows:
        found.append((name, data_dir, split))
        if name.endswith("/gone"):
            raise FileNotFoundError("Dataset 'them/gone' doesn't exist on the Hub")
        if name.endswith("/mixed"):
            raise Broken("An error occurred") from TypeError("Couldn't cast array of type")
        return Rows()

    faked = SimpleNamespace(
        load_dataset=load_dataset, exceptions=SimpleNamespace(DatasetsError=Broken)
    )
    monkeypatch.setitem(sys.modules, "datasets", faked)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return found


def test_a_name_is_fetched_and_kept_by_its_content(asked: list[Any], tmp_path: Path) -> None:
    path = resolve_data_file("hf:them/pairs/train_rm/bt#val", Path("here"))
    assert asked == [("them/pairs", "train_rm/bt", "val")]
    assert path == tmp_path / "adjudge/hub/them--pairs-val-0123abcd.parquet"
    assert path.read_bytes() == b"rows"
    path.write_bytes(b"kept")
    assert resolve_data_file("hf:them/pairs/train_rm/bt#val", Path()).read_bytes() == b"kept"
    assert resolve_data_file("hf:them/pairs", Path()).name == "them--pairs-train-0123abcd.parquet"


@pytest.mark.parametrize("name", ["hf:pairs", "hf:them/../x", "hf:", "hf:a/b/../../c", "hf:a b/c"])
def test_what_is_no_name_is_not_asked_for(asked: list[Any], name: str) -> None:
    with pytest.raises(ConfigError, match="must be hf:OWNER/NAME"):
        resolve_data_file(name, Path())
    assert asked == []


def test_what_cannot_be_fetched_is_told(asked: list[Any]) -> None:
    with pytest.raises(ConfigError, match="hf:them/gone: cannot be fetched: .*doesn't exist"):
        resolve_data_file("hf:them/gone", Path())
    assert len(asked) == 1
    with pytest.raises(ConfigError, match="hf:them/mixed: cannot be fetched: Couldn't cast"):
        resolve_data_file("hf:them/mixed", Path())


def test_only_names_need_the_hub(tmp_path: Path) -> None:
    def needs(path: str, train: list[str]) -> bool:
        file = {"method": "sft", "model": {"path": path}, "data": {"train": train}}
        return JudgeFile.from_dict(file, folder=tmp_path, environ={}).needs_hub

    (tmp_path / "model").mkdir()
    assert not needs("tiny", ["a.jsonl"])
    assert not needs("model", ["a.jsonl"])
    assert needs("Qwen/Qwen3-8B", ["a.jsonl"])
    assert needs("tiny", ["hf:them/pairs"])
