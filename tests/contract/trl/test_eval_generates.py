"""``adjudge eval ifeval`` of a model that generates here: run by `make test-trl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; run `make test-trl`")

from tests.contract.trl.tiny_policy import SPECIAL, WORDS, new_policy
from typer.testing import CliRunner

from adjudge.cli.main import command_line

ASKED = "dull"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, and prompts of which the last is too long for it."""
    folder = tmp_path_factory.mktemp("work")
    policy = new_policy()
    # Control tokens never are the likeliest: they would leave the response blank.
    policy.model.get_input_embeddings().weight.data[: len(SPECIAL)] = 0
    policy.save(folder / "model")
    prompts = [*WORDS[:6], " ".join(WORDS * 5)]
    rows = [
        {
            "key": key,
            "prompt": text,
            "instruction_id_list": ["punctuation:no_comma", "keywords:existence"],
            "kwargs": [{}, {"keywords": [ASKED]}],
        }
        for key, text in enumerate(prompts)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def evaluated(work: Path, out: str, *arguments: str) -> dict[str, Any]:
    given = ["eval", "ifeval", str(work / "model"), "--max-tokens", "8", "-q"]
    given += ["--data", str(work / "data.jsonl"), "-o", str(work / out), *arguments]
    done = CliRunner().invoke(command_line(), given)
    assert done.exit_code == 0, done.output
    [model] = json.loads((work / out / "summary.json").read_text())["models"]
    assert isinstance(model, dict)
    return model


def rows_of(work: Path, out: str) -> list[dict[str, Any]]:
    lines = (work / out / "responses.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_model_answers_and_is_scored(work: Path) -> None:
    found = evaluated(work, "greedy", "--batch-size", "4")
    assert (found["prompts"], found["failures"]["by_kind"]) == (6, {"too_long": 1})
    assert found["strict"]["by_type"]["punctuation:no_comma"]["value"] == 1.0
    rows = rows_of(work, "greedy")
    # By hand what the accuracy must be.
    share = sum(ASKED in row["response"] for row in rows if "response" in row) / 6
    assert 0 < share < 1
    assert found["strict"]["by_type"]["keywords:existence"]["value"] == pytest.approx(share)
    again = evaluated(work, "greedy", "--batch-size", "2")
    assert (again["generated"]["made"], again["generated"]["kept"]) == (1, 6)
    # The likeliest tokens do not depend on the batch.
    evaluated(work, "alone", "--batch-size", "1", "--dtype", "float32")
    texts = [[row.get("response") for row in rows_of(work, one)] for one in ("greedy", "alone")]
    assert texts[0] == texts[1]


def test_several_samples_differ_and_are_not_made_twice(work: Path) -> None:
    drawn = ("--temperature", "1", "--n-samples")
    first = evaluated(work, "drawn", *drawn, "3")
    assert first["samples"] == [3, 3]
    before = {(r["prompt"], r["sample"]): r.get("response") for r in rows_of(work, "drawn")}
    assert len({text for text in before.values() if text is not None}) > 6
    assert evaluated(work, "drawn", *drawn, "4")["samples"] == [4, 4]
    after = {(r["prompt"], r["sample"]): r.get("response") for r in rows_of(work, "drawn")}
    assert before.items() <= after.items()
