"""Which column is a row's reward, what is said of the others, and where a sample is from."""

from __future__ import annotations

import json
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses
from tests.rows import write_jsonl

from adjudge.audit.report import make_audit
from adjudge.errors import RolloutError
from adjudge.rollouts.samples import SampleReader

PAIR = {"prompt": "p", "response": "r"}
TRL = {"step": 1, "prompt": "p", "completion": "r", "advantage": 0.5}
SWIFT = {"gen_step": 1, "prompt": "p", "completion": "r", "advantages": 0.5}
SLIME = {**PAIR, "group_index": 0, "label": "l", "status": "completed"}
VERL = {"input": "p", "output": "r", "step": 1, "gts": None}


def read(path: Path, *rows: dict[str, Any], **mapping: str) -> list[Any]:
    """The samples of rows; what is no sample as its error."""
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        write_jsonl(path, rows)
    return [sample for _, sample in SampleReader([path], mapping).read()]


REWARDS: dict[str, tuple[dict[str, Any], float | None, str]] = {
    # A column named reward is taken, whatever stands beside it.
    "trl": ({**TRL, "reward": 0.5, "year": 2020, "sample_id": 7}, 0.5, ""),
    "trl, one function": ({**TRL, "accuracy_reward": 0.5}, 0.5, ""),
    "trl, a number of the data": ({**TRL, "accuracy_reward": 0.5, "year": 2020}, 0.5, "year"),
    "trl, two functions": ({**TRL, "a_reward": 0.5, "b_reward": 1}, None, "a_reward b_reward"),
    "trl, two of no name": ({**TRL, "right": 0.5, "brief": 1}, None, "right brief"),
    "swift": ({**SWIFT, "reward": 0.5, "ORM": 1.0}, 0.5, ""),
    "slime": ({**SLIME, "reward": {"score": 0.5, "pred": "x"}}, 0.5, ""),
    "slime, two": ({**SLIME, "reward": {"fmt": 1, "acc": 0}}, None, "reward.fmt reward.acc"),
    "verl": ({**VERL, "score": 0.5, "reward": 0.5, "acc": True}, 0.5, ""),
    "reward and score": ({**PAIR, "reward": 0.5, "score": 1.0}, 0.5, "score"),
    "parts beside a reward": ({**PAIR, "reward": 0.5, "a_reward": 1, "b_reward": 0}, 0.5, ""),
    "one in another name": ({**PAIR, "total_reward": 0.5}, 0.5, ""),
    "one in another name and a verdict": (
        {**PAIR, "Final Reward": 0.5, "success": True},
        0.5,
        "success",
    ),
    "several in other names": ({**PAIR, "a_reward": 1, "b_reward": 0}, None, "a_reward b_reward"),
    "what a group's rewards are": ({**PAIR, "reward_std": 0.1, "score": 0.5}, 0.5, ""),
    "an object": ({**PAIR, "reward": {"fmt": 1, "acc": 0}}, None, "reward.fmt reward.acc"),
    "a list of one": ({**PAIR, "reward": [0.5]}, None, "reward.0"),
    "a list and a number": ({**PAIR, "reward": [0, 0.5], "score": 1}, None, "'reward' score"),
    "of a run of our own": ({**PAIR, "reward": 1, "reward_info": {}, "score": 0}, None, ""),
    # A text that is a number or a truth value is one.
    "a number as text": ({**PAIR, "reward": " 0.5 "}, 0.5, ""),
    "true of pandas": ({**PAIR, "correct": "True"}, 1.0, ""),
    "a usual name of evaluations": ({**PAIR, "is_correct": True}, 1.0, ""),
    "a verdict by another name": (
        {**PAIR, "follow_all_instructions": True, "toxic": False},
        1.0,
        "",
    ),
    "a filter's verdict": ({**PAIR, "passed_moderation": True}, None, ""),
    "two verdicts": ({**PAIR, "base_passed": True, "all_passed": False}, None, "base_passed"),
    "counts of verdicts": ({**PAIR, "num_passed": 3, "passed_tests": "all"}, None, ""),
    "yes": ({**PAIR, "success": "yes"}, 1.0, ""),
    "a verdict in words": ({**PAIR, "correct": "B", "outcome": "won"}, None, ""),
    "of ten": ({**PAIR, "score": "7/10"}, None, "'score'"),
    "nan as text": ({**PAIR, "reward": "NaN"}, None, ""),
}


@pytest.mark.parametrize("name", REWARDS)
def test_which_column_is_the_reward(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row, reward, said = REWARDS[name]
    with caplog.at_level(logging.WARNING, logger="adjudge"):
        samples = read(tmp_path / "rollouts.jsonl", row, row)
    assert [one.env_reward for one in samples] == [reward] * 2
    lines = [line for line in caplog.messages if line.startswith("reward: ")]
    assert len(lines) == bool(said)
    assert all(column in "".join(lines) for column in said.split())


def test_a_reward_that_the_user_names_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    for value, column, reward in (
        ({"score": 0.5, "acc": 1}, "reward.score", 0.5),
        ([0.5], "reward.0", 0.5),
        ("yes", "reward", 1.0),
        ("7/10", "reward", None),
        ([0.5], "reward", None),
        ({"score": 0.5}, "reward", None),
    ):
        [sample] = read(path, {**PAIR, "reward": value}, env_reward=column)
        if reward is None:
            assert isinstance(sample, RolloutError), value
        else:
            assert sample.env_reward == reward
    [*_, word] = read(path, *[{**PAIR, "reward": 1}] * 3, {**PAIR, "reward": "N/A"})
    assert (word.response, word.env_reward) == ("r", None)


def test_numbers_of_parquet_are_those_of_json(tmp_path: Path) -> None:
    rows = [
        {**PAIR, "response": f"r{n}", "reward": Decimal(n) / 4, "info": {"id": Decimal(10**17 + n)}}
        for n in range(4)
    ]
    decimal = tmp_path / "decimal.parquet"
    samples = read(decimal, *rows)
    assert [one.extra["reward"] for one in samples] == [0.0, 0.25, 0.5, 0.75]
    assert [one.extra["info"]["id"] for one in samples] == [10**17 + n for n in range(4)]
    assert make_audit([decimal]).mean_reward == 0.375


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl", "json"])
def test_nan_is_no_null_in_an_audit(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rollouts.{suffix}"
    rewards = [0.0, float("nan"), None, *[0.5, 1.0] * 20]
    rows = [
        {"prompt": "p", "response": f"r {n}", "reward": r, "x": float("nan")}
        for n, r in enumerate(rewards)
    ]
    if suffix == "csv":
        lines = [f"p,r {n},{'' if r is None else r}" for n, r in enumerate(rewards)]
        path.write_text("\n".join(["prompt,response,reward", *lines]))
    elif suffix == "json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        read(path, *rows)
    found = {one.name: finding for one, finding in make_audit([path]).findings}
    assert found["not_finite"].affected == 1
    assert "null in the dump 1)" in found["missing"].sentence


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    columns = {"prompt": ["p"], "response": ["r"], "reward": [1.0], "score": [0.0]}
    table = pyarrow.table(columns).rename_columns(["prompt", "response", "reward", "reward"])
    path = tmp_path / "twice.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    with refuses("reward"):
        list(SampleReader([path], {}).read())


SAMPLES = [{**SLIME, "reward": n} for n in range(2)]
DPO = {"prompt": "p", "chosen": "c", "rejected": "r"}
ARENA = {"prompt": "p", "response_a": "c", "response_b": "r", "winner": "model_a"}
PLACES: dict[str, tuple[str, Any, list[str]]] = {
    "lines": ("a.jsonl", [PAIR, PAIR], ["1", "2"]),
    "an array": ("a.json", [PAIR, PAIR], ["1", "2"]),
    "responses of a row": ("a.jsonl", [PAIR | {"response": None, "responses": ["x", "y"]}] * 2,
                           ["1.0", "1.1", "2.0", "2.1"]),
    "both sides": ("a.jsonl", [DPO], ["1.chosen", "1.rejected"]),
    "sides of other names": ("a.jsonl", [ARENA], ["1.response_a", "1.response_b"]),
    "documents in lines": ("a.jsonl", [{"rollout_id": 1, "samples": SAMPLES}] * 2,
                           ["1.0", "1.1", "2.0", "2.1"]),
    "a document": ("a.json", {"rollout_id": 1, "samples": SAMPLES}, ["1", "2"]),
    "a document with one that failed": (
        "a.json", {"rollout_id": 1, "samples": [SAMPLES[0] | {"status": "failed"}, *SAMPLES]},
        ["1", "2", "3"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("indent", [None, 1])
def test_every_sample_has_its_own_place(name: str, indent: int | None, tmp_path: Path) -> None:
    file, content, places = PLACES[name]
    path = tmp_path / file
    if file.endswith(".jsonl"):
        write_jsonl(path, content)
    else:
        path.write_text(json.dumps(content, indent=indent))
    found = list(SampleReader([path], {}).read())
    assert [where for where, _ in found] == [f"{path}:{place}" for place in places]
    assert all(str(getattr(one, "where", "")) == where for where, one in found)


def test_pairs_keep_their_other_columns(tmp_path: Path) -> None:
    beside = {"problem_id": 7, "category": "maths", "chosen_confidence": 0.9, "reference": "4"}
    for pair in (DPO, ARENA, {"instruction": "p", "models": [], "completions": [
        {"response": text, "overall_score": score} for text, score in (("c", 1), ("r", 0))
    ]}):  # fmt: skip
        better, worse = read(tmp_path / "pairs.jsonl", pair | beside)
        for side, text, reward in ((better, "c", 1.0), (worse, "r", 0.0)):
            assert (side.response, side.env_reward, side.reference) == (text, reward, "4")
            known = {"env_reward", "reference"}
            extra = {name: one for name, one in side.extra.items() if name not in known}
            assert extra == {name: beside[name] for name in beside if name not in known}
