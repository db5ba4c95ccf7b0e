"""``adjudge graders``: the list by family, and a type's docstring as text."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from adjudge.cli.main import command_line
from adjudge.graders.base import BaseGrader
from adjudge.graders.registry import SHIPPED

PROGRAM = command_line()


def run(*words: str, width: int) -> str:
    found = CliRunner().invoke(PROGRAM, ["graders", *words], env={"COLUMNS": str(width)})
    assert found.exit_code == 0, found.output
    assert all(len(line) <= width for line in found.stdout.splitlines())
    return found.stdout


def test_every_type_is_text_and_fits() -> None:
    for name in SHIPPED:
        text = run(name, width=60)
        assert not re.search(r"(?<!`)``(?!`)", text)
        assert not re.search(r":[a-z]+:`", text)


@pytest.mark.parametrize("width", [60, 80])
def test_the_list_names_all_types_once_with_their_summaries(width: int) -> None:
    text = run(width=width)
    starts = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert all(starts.count(name) == 1 for name in SHIPPED)
    assert "``" not in text
    # A summary goes on under itself.
    at = text.index("what it answers")
    later = [line for line in text.splitlines() if line.startswith(" ") and line.strip()]
    assert all(line.find(line.strip()) == at for line in later)


def test_one_type_has_what_its_parameters_mean_and_its_judges_prompt() -> None:
    text = run("tool_call_match", width=200)
    assert re.search(r"\* metric_type \(.*\): recall, precision or f1\.", text)
    assert "Args:" not in text
    assert "prompt" not in text
    assert "{reply_form}\n=====" in run("relevance", width=80)
    repaired = json.loads(run("ifeval_repaired", "--json", width=10_000))["ifeval_repaired"]
    assert "share followed" in repaired["parameters"][0]["meaning"]  # as its base class says


class OwnGrader(BaseGrader):
    async def aevaluate(self, prompt: str, response: str) -> float:
        return float(len(prompt + response))


def test_a_class_of_ones_own_has_its_own_text_and_fields() -> None:
    text = run(f"{__name__}:OwnGrader", width=80)
    assert "Derive" not in text  # its base class's docstring is not about it
    assert "Fields: prompt, response" in text
    assert "score_range" in text  # which a spec may set


def test_an_answer_is_tried_by_each_type() -> None:
    said = json.loads(
        run("answer", "--try", r"[4,\infty)", r"\boxed{x \ge 4}", "--json", width=200)
    )
    assert said["text"] == {"answer": r"x\ge 4", "reference": r"[4,\infty)"}
    assert said["MATH_EXPRESSIONS"]["decision"] == "equal_value"
    assert (said["ANY"]["decision"], said["ANY"]["score"]) == ("differs", 0.0)
    assert said["BOOLEAN"]["score"] is None
    assert "equal_value" in run("answer", "--try", "5", "5.0", width=80)
    assert CliRunner().invoke(PROGRAM, ["graders", "bleu", "--try", "5", "5"]).exit_code != 0
