"""Where metrics go, whatever is installed: the rules that hold for every library."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.errors import ConfigError
from adjudge_lab.rl import sinks
from adjudge_lab.rl.sinks import open_sink


class Library:
    """Stands for one of the libraries; keeps what it was told."""

    hint = "look --here"

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float]]] = []
        self.closed = 0
        self.breaks_at: int | None = None

    def log(self, step: int, row: Mapping[str, float]) -> None:
        if step == self.breaks_at:
            raise RuntimeError("no space\nleft")
        self.told.append((step, dict(row)))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(sinks, "TensorBoardSink", lambda folder, *, label, config: made)
    return made


def opened(folder: Path, to: str = "tensorboard") -> Any:
    return open_sink(to, folder, label="tiny", config={})


def test_a_resumed_run_begins_with_the_rows_of_its_file(library: Library, tmp_path: Path) -> None:
    """Up to the first that is not whole; a step that is there is not logged again."""
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "x": 1.0}\n{"step": 2, "x": null}\n{"step": 3, "x"')
    sink = opened(tmp_path)
    sink.log(2, {"x": 9.0})
    sink.log(3, {"x": 3.0})
    assert library.told == [(1, {"x": 1.0}), (2, {}), (3, {"x": 3.0})]


@pytest.mark.parametrize("line", ['{"x": 1.0}', '{"step": "2"}', "[1]", "\udcff"])
def test_a_file_with_another_row_in_it(library: Library, tmp_path: Path, line: str) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n', errors="surrogateescape")
    opened(tmp_path)
    assert library.told == [(1, {})]


def test_a_failure_is_said_once_and_the_run_goes_on(
    library: Library, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library.breaks_at = 2
    sink = opened(tmp_path)
    for step in range(1, 5):
        sink.log(step, {"x": 1.0})
    sink.close()
    assert [step for step, _ in library.told] == [1]
    assert caplog.messages == [
        "metrics are no longer sent to tensorboard: RuntimeError: no space left"
    ]


def test_none_needs_nothing(tmp_path: Path) -> None:
    sink = opened(tmp_path, "none")
    sink.log(1, {"x": 1.0})
    sink.close()
    assert list(tmp_path.iterdir()) == []


def test_auto_is_nothing_where_trackio_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda name: None)
    opened(tmp_path, "auto").log(1, {"x": 1.0})


def failing(error: Exception) -> Callable[..., Any]:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    return fails


def test_auto_goes_on_without_a_trackio_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sinks, "find_spec", lambda name: object())
    monkeypatch.setattr(sinks, "_import_trackio", failing(OSError("disk full")))
    with caplog.at_level(logging.WARNING):
        opened(tmp_path, "auto")
    assert caplog.messages == ["metrics are not sent to trackio: OSError: disk full"]


@pytest.mark.parametrize(
    ("to", "install"),
    [
        ("trackio", "pip install trackio"),
        ("tensorboard", "pip install tensorboard"),
        ("wandb", "pip install wandb"),
    ],
)
def test_a_named_library_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, install: str
) -> None:
    monkeypatch.setitem(sys.modules, to, None)
    monkeypatch.delitem(sys.modules, f"{to}.summary", raising=False)
    with pytest.raises(ConfigError) as failure:
        opened(tmp_path, to)
    assert f"'{to}' is not installed. Run: {install}" in str(failure.value)


def test_a_named_library_that_does_not_start(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "TensorBoardSink", failing(ValueError("why")))
    with refuses("logging.to"):
        opened(tmp_path)


def test_a_run_keeps_its_mark(tmp_path: Path) -> None:
    first = sinks._identity(tmp_path / "new")
    assert len(first) == 8
    assert sinks._identity(tmp_path / "new") == first != sinks._identity(tmp_path / "other")
