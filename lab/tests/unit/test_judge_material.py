"""What judges learn from: rows that are left out, and what is held against the run."""

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from adjudge.datasets.rows import Demonstration, Preference
from adjudge.errors import ConfigError
from adjudge.graders.llm.trained_judge_card import ScoreNormalisation
from adjudge.stats.predictions import IsotonicFit, ScoreCalibration
from adjudge_lab.judge_training import supervised
from adjudge_lab.judge_training.calibration import calibrate_scores
from adjudge_lab.judge_training.dataset import EncodedRows, encode_rows, load_preferences
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.judge_training.judge_questions import load_labelled
from adjudge_lab.judge_training.methods import JudgementMethod

USER = {"role": "user", "content": "Which is larger, 2 or 3?"}


def talk(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def judge_of(folder: Path, method: str, mode: str | None = None, **data: Any) -> JudgeFile:
    sizes = {"train_batch_size": 2, "micro_batch_size": 1}
    tables: dict[str, Any] = {"method": method, "data": {**sizes, **data}}
    if mode is not None:
        tables["mode"] = mode
    return JudgeFile.from_dict(tables, folder=folder, environ={})


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.name


class Words:
    """A tokenizer and encoder of one id a word, whose template adds nothing."""

    def clean_messages(self, messages: Any) -> Any:
        return messages

    def text_ids(self, messages: Any) -> list[int]:
        return [len(word) for turn in messages for word in turn["content"].split()]

    def __call__(self, messages: Any) -> list[int]:
        return self.text_ids(messages)

    def prompt_ids(self, messages: Any) -> list[int]:
        return self.text_ids(messages)

    def truncate(self, ids: list[int], most: int, _: str) -> list[int]:
        return ids[:most]

    def apply_chat_template(self, _: Any, **__: Any) -> str:
        return "judge: "


def test_repeated_held_out_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    def pairs(name: str) -> list[dict[str, Any]]:
        asked = [f"{name} {number}?" for number in range(3)]
        return [{"chosen": talk(q, "yes"), "rejected": talk(q, "no")} for q in asked]

    train = write(tmp_path / "train.jsonl", pairs("Is it"))
    held = pairs("Was it")
    val = write(tmp_path / "val.jsonl", [*held, held[0], held[0]])
    found = load_preferences(judge_of(tmp_path, "bradley_terry", train=train, val=val))
    assert len(found.val) == 3
    assert found.facts["val_duplicates"] == {"rows": 2, "contradicting": 0}


@pytest.mark.parametrize("sizes", [[95, 1, 1, 1, 1, 1], [40, 60], [5] * 20, [1] * 100])
def test_prompts_are_held_out_whole_and_no_more_than_wanted(
    sizes: list[int], tmp_path: Path
) -> None:
    rows = [
        {"chosen": talk(f"{prompt}?", f"yes {n}"), "rejected": talk(f"{prompt}?", f"no {n}")}
        for prompt, size in enumerate(sizes)
        for n in range(size)
    ]
    train = write(tmp_path / "train.jsonl", rows)
    for seed in range(6):
        judge = judge_of(tmp_path, "bradley_terry", train=train, val_fraction=0.07)
        found = load_preferences(judge.with_seed(seed))
        prompts = [{row.chosen[0]["content"] for row in part} for part in (found.train, found.val)]
        assert not prompts[0] & prompts[1]
        assert len(found.train) + len(found.val) == 100
        # Seven are wanted; of prompts that all have more the smallest is taken.
        wanted = 5 if 95 in sizes else {60: 40, 5: 10, 1: 7}[sizes[-1]]
        assert len(found.val) == wanted


def compared(number: int, **more: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": f"Which is larger, {number} or 3?"}]
    return {"prompt": asked, "a": "three", "b": "it is the other", "label": "A", **more}


def test_reasons_that_cannot_be_shown_refuse_the_run(tmp_path: Path) -> None:
    rows = [compared(number, reason="A is right.", reason_swapped="B is.") for number in range(8)]
    rows[2]["reason"] = "so <better>A</better>"
    train = write(tmp_path / "train.jsonl", rows)
    val = write(tmp_path / "val.jsonl", [compared(number, reason="A.") for number in (11, 12)])

    def made(**data: Any) -> JudgementMethod:
        judge = judge_of(tmp_path, "sft", "pairwise", train=train, val=val, **data)
        method = JudgementMethod(judge, tmp_path)
        method.tokenizer = Words()
        encoder: Any = Words()
        method.encode(encoder)
        return method

    with pytest.raises(ConfigError, match=r"(?s)data\.train: 15 of 16 .*train\.jsonl:3: reason"):
        made()
    data = made(allow_unusable=0.1).data()
    assert data["train_rows"] | {"problems": []} == {
        "rows": 8, "prompts": 15, "truncated": 0, "unusable": 1, "problems": [],
    }  # fmt: skip
    assert (data["val_rows"]["rows"], data["val_rows"]["prompts"]) == (2, 2)


def test_reasons_of_preferences_follow_their_answers(tmp_path: Path) -> None:
    rows = [
        {
            "chosen": talk(f"{number}?", "yes"),
            "rejected": talk(f"{number}?", "no"),
            "reason": "A is right.",
            "reason_swapped": "B is right.",
        }
        for number in range(8)
    ]
    for row in rows[:4]:
        del row["reason_swapped"]
    judge = judge_of(tmp_path, "sft", "pairwise", train=write(tmp_path / "pairs.jsonl", rows))
    found = load_labelled(judge, reasons=True)
    material = [*found.material.train, *found.material.val]
    assert {row.label for row in material} == {"A", "B"}
    for row in material:
        given, swapped = found.reasons[row.where]
        better, other = (given, swapped) if row.label == "A" else (swapped, given)
        assert better == "A is right."
        assert other in (None, "B is right.")
    assert sum(None in pair for pair in found.reasons.values()) == 4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_outputs_that_are_no_numbers_are_no_metrics_and_the_worst_choice(
    bad: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = [(1.0, 0.5), (bad, bad)]
    monkeypatch.setattr(supervised, "score_pairs", lambda *_: scores)
    rows = [Preference(chosen=talk("q", one), rejected=talk("q", "no")) for one in ("yes", "sure")]
    val: EncodedRows[Preference] = EncodedRows(rows, [[[1], [2]], [[1], [2]]])
    side = supervised._BradleyTerrySide(val, judge_of(tmp_path, "bradley_terry", train="f.jsonl"))
    trainer: Any = MagicMock(is_fsdp_enabled=True)
    assert side.validate(trainer) == {"eval_choice": -1.0}
    scores[1] = (0.0, 3e38)
    found = side.validate(trainer)
    assert found["eval_accuracy"] == 0.5
    assert -1.0 < found["eval_choice"] < 0.5


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (ScoreNormalisation, {"levels": [], "scores": []}),
        (ScoreNormalisation, {"levels": [0.0, 1.0], "scores": [1.0]}),
        (ScoreNormalisation, {"levels": [0.0, 1.0], "scores": [1.0, 0.0]}),
        (IsotonicFit, {"at": [], "values": []}),
        (IsotonicFit, {"at": [0.0, 1.0], "values": [1.0, 0.5]}),
        (ScoreCalibration, {"temperature": 0.0}),
        (ScoreCalibration, {"temperature": -2.0}),
    ],
)
def test_a_card_whose_numbers_cannot_be_is_broken(kind: type[Any], broken: dict[str, Any]) -> None:
    whole = (
        msgspec.to_builtins(calibrate_scores([(1.0, 0.0)] * 3)) if kind is ScoreCalibration else {}
    )
    text = msgspec.json.encode({**whole, **broken})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=kind)


def test_answers_that_call_tools_are_unusable(tmp_path: Path) -> None:
    """Only their text would be encoded: a judge would learn that saying nothing is better."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
    asked, answer = talk("q", "no no")
    found = {"role": "tool", "content": "42"}
    encoder: Any = Words()
    judge = judge_of(tmp_path, "bradley_terry", train="f.jsonl", allow_unusable=0.5)
    shared = Preference(chosen=[asked, call, found, answer], rejected=[asked, call, found, USER])
    pairs = [Preference(chosen=[asked, call], rejected=[asked, answer]), shared]
    kept = encode_rows(pairs, encoder, judge, "data.train")
    assert (kept.rows, kept.problems.count) == ([shared], 1)
    talks = [
        Demonstration(messages=one) for one in (pairs[0].chosen, shared.chosen, pairs[0].rejected)
    ]
    kept_talks = encode_rows(
        talks, encoder, judge_of(tmp_path, "sft", train="f", allow_unusable=0.9), "t"
    )
    assert kept_talks.rows == talks[2:]
