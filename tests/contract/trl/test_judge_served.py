"""Judges' folders with the models of transformers in them, served and graded by.

Run by `make test-trl`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed; run `make test-trl`")
pytest.importorskip("uvicorn", reason="uvicorn is not installed here; run `make test-trl`")

import msgspec
import torch
import transformers

from adjudge.datasets.rows import Comparison, Rating
from adjudge.graders.llm.trained_judge_card import JudgeCard, card_prompt, read_card
from adjudge.judges.models.local import LocalScalarModel
from adjudge.service.server import start_service
from adjudge_lab.judge_training.calibration import calibrate_scores, fit_normalisation
from adjudge_lab.judge_training.judge_questions import judge_form, make_questions
from adjudge_lab.judge_training.run import reward_spec_of_card
from adjudge_lab.rl.tiny import build_tiny_model, build_tiny_tokenizer

QUESTION = "What is the capital of Peru?"
ANSWERS = ["Lima.", "It is Quito.", "Sure, the capital of Peru is Lima, on the coast.", "No idea"]
KEYS = (b"1", b"2", b"3")
RATED = "<think>Seen.</think>\n<score>3</score>"
PREFERRED = "<think>Seen.</think>\n<better>A</better>"


def finish(folder: Path, model: Any, tokenizer: Any, **more: Any) -> Path:
    """A judge's folder: model, tokenizer, card, and the spec that asks it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    given: dict[str, Any] = {
        "adjudge": "0", "mode": None, "label": "tiny", "created": "", "base": {}, "data": {},
        "config": {}, "validation": {}, "max_length": 4096,
    }  # fmt: skip
    card = JudgeCard(**(given | more))
    (folder / "judge.json").write_bytes(msgspec.json.encode(card))
    spec = reward_spec_of_card(card)
    assert spec is not None
    (folder / "reward.toml").write_text(spec)
    return folder


def learn(prompts: Sequence[Any], reply: str) -> tuple[Any, Any]:
    """A model that answers ``prompts`` and their like with ``reply``."""
    tokenizer = build_tiny_tokenizer(
        [turn["content"] for one in prompts for turn in one] + [reply] * 9
    )
    model = build_tiny_model(tokenizer, seed=0, hidden=64)
    said = tokenizer(reply + "<|im_end|>", add_special_tokens=False).input_ids
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    while len(losses) < 400:
        turns = prompts[len(losses) % len(prompts)]
        asked = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        ids, labels = torch.tensor([asked + said]), torch.tensor([[-100] * len(asked) + said])
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        if max(losses[-len(prompts) :]) < 0.01:
            return model, tokenizer
    raise AssertionError(f"not learned: {losses[-len(prompts) :]}")


@pytest.fixture(scope="module")
def rating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    turn = {"role": "user", "content": QUESTION}
    rows = [
        Rating(messages=[turn, {"role": "assistant", "content": text}], label=3) for text in ANSWERS
    ]
    form = judge_form("pointwise", rows)
    questions = [one.messages for key in KEYS for one in make_questions(rows, form, key)[0]]
    return finish(
        tmp_path_factory.mktemp("rating"), *learn(questions, RATED), kind="generative",
        method="grpo", mode="pointwise", prompt=card_prompt(form),
        config={"grpo": {"max_response_length": 64}},
    )  # fmt: skip


@pytest.fixture(scope="module")
def preferring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        Comparison(prompt=[{"role": "user", "content": QUESTION}], a=a, b=b, label="A")
        for a, b in itertools.pairwise(ANSWERS)
    ]
    form = judge_form("pairwise", rows)
    questions = [one.messages for key in KEYS for one in make_questions(rows, form, key)[0]]
    return finish(
        tmp_path_factory.mktemp("preferring"), *learn(questions, PREFERRED), kind="generative",
        method="grpo", mode="pairwise", prompt=card_prompt(form),
        config={"grpo": {"max_response_length": 64}},
    )  # fmt: skip


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scalar judge of random weights, which tell answers apart as well as any."""
    folder = tmp_path_factory.mktemp("scoring")
    tokenizer = build_tiny_tokenizer([QUESTION, *ANSWERS])
    config = build_tiny_model(tokenizer, seed=1, hidden=64).config
    config.num_labels = 1
    model = transformers.Qwen3ForSequenceClassification(config)
    rng = random.Random(0)
    pairs = [(rng.gauss(1, 2), 0.0) for _ in range(100)]
    return finish(
        folder, model, tokenizer, kind="scalar", method="bradley_terry",
        normalisation=fit_normalisation([-1 + n / 50 for n in range(101)]),
        calibration=calibrate_scores(pairs),
    )  # fmt: skip


def post(url: str, sent: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        url, json.dumps(sent).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answered:
            return answered.status, json.load(answered)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def graded(folder: Path, rows: list[dict[str, Any]], where: Path) -> list[dict[str, Any]]:
    """``adjudge grade`` by the spec in a judge's folder."""
    (where / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    subprocess.run(
        [sys.executable, "-m", "adjudge", "grade", str(where / "rollouts.jsonl"), "--spec",
         str(folder / "reward.toml"), "-o", str(where / "out"), "-q"],
        check=True, capture_output=True,
    )  # fmt: skip
    lines = (where / "out" / "rewards.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_service_asks_a_rating_judge_by_its_folder(rating: Path) -> None:
    items = [{"prompt": QUESTION, "completion": text} for text in (*ANSWERS, "")]
    with start_service(str(rating)) as url:
        status, found = post(f"{url}/judge", items[0])
        assert status == 200, found
        assert found["score"] == 0.75
        status, found = post(f"{url}/batch_judge", {"requests": items})
    assert status == 200, found
    assert [one["score"] for one in found["responses"]] == [0.75] * len(ANSWERS) + [0.0]


def test_what_a_rating_judge_writes_in_no_form_is_missing(rating: Path, tmp_path: Path) -> None:
    """Cut while it thinks, its reply has no verdict, and the reward is not 0."""
    text = (rating / "reward.toml").read_text().replace("max_tokens = 64", "max_tokens = 6")
    spec = tmp_path / "reward.toml"
    spec.write_text(text.replace('model = "."', f'model = "{rating}"'))
    with start_service(str(spec)) as url:
        status, found = post(f"{url}/judge", {"prompt": QUESTION, "completion": "Lima."})
    assert status >= 500
    assert "score" not in found
    assert found["error"]["kind"] == "truncated"


def test_rewards_of_a_group_come_from_a_comparing_judge(preferring: Path, tmp_path: Path) -> None:
    """One that always says A tells nothing apart: all share the middle."""
    rows = [{"prompt": QUESTION, "response": text, "group": "g"} for text in ANSWERS[:3]]
    found = graded(preferring, rows, tmp_path)
    assert [row["reward"] for row in found] == [0.5, 0.5, 0.5]


def test_grading_by_a_scalar_folder_gives_ranks(scoring: Path, tmp_path: Path) -> None:
    rows = [{"prompt": QUESTION, "response": text} for text in ANSWERS]
    found = graded(scoring, rows, tmp_path)
    normalise = read_card(scoring).normalisation
    assert normalise is not None
    raw = asyncio.run(scored(scoring, ANSWERS, batch_size=1))
    assert len(set(raw)) == len(ANSWERS)
    assert [row["reward"] for row in found] == pytest.approx([normalise(x) for x in raw], abs=1e-5)


async def scored(folder: Path, answers: list[str], *, batch_size: int) -> list[float]:
    """Their scores; asked at once, so that batches fill."""
    model = LocalScalarModel(folder, batch_size=batch_size)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(model.ascore(QUESTION, text)) for text in answers]
    await model.aclose()
    return [task.result() for task in tasks]


def test_batches_give_the_scores_of_one_by_one(scoring: Path) -> None:
    rng = random.Random(5)
    answers = [" ".join(rng.choices(ANSWERS, k=rng.randint(1, 12))) for _ in range(24)]
    alone = asyncio.run(scored(scoring, answers, batch_size=1))
    together = asyncio.run(scored(scoring, answers, batch_size=8))
    assert together == pytest.approx(alone, abs=1e-5)
    assert len({round(one, 4) for one in alone}) > 12
