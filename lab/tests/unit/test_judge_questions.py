"""Questions to generative judges: both orders, labels, what is refused, and their order."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge.datasets.rows import Comparison, Rating
from adjudge.errors import ConfigError, RunFolderError
from adjudge.graders.llm.trained_judge_prompts import JudgementForm
from adjudge.verdicts import UnreadableReply, Verdict
from adjudge_lab.judge_training.grpo import count_grpo_steps, grpo_question_order
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.judge_training.judge_questions import (
    FENCE_KEY_FILE,
    JudgeQuestion,
    judge_form,
    load_fence_key,
    load_labelled,
    make_demonstrations,
    make_questions,
    make_reply,
)
from adjudge_lab.synthetic import (
    SyntheticSettings,
    gold_explanation,
    gold_score,
    synthetic_comparisons,
    synthetic_ratings,
)

SECRET = b"k" * 32
ASKED = [{"role": "user", "content": "Which is larger, 2 or 3?"}]


def compared(label: Any = "A", **given_: Any) -> Comparison:
    return Comparison(prompt=ASKED, a="three", b="it is two", label=label, **given_)


def rated(label: int = 3, text: str = "three") -> Rating:
    return Rating(messages=[*ASKED, {"role": "assistant", "content": text}], label=label)


def test_a_comparison_is_asked_in_both_orders_next_to_each_other() -> None:
    rows = [compared("A"), compared("B")]
    form = judge_form("pairwise", rows)
    questions, problems = make_questions(rows, form, SECRET)
    assert not problems
    assert [(one.row, one.swapped, one.label) for one in questions] == [
        (0, False, "A"), (0, True, "B"), (1, False, "B"), (1, True, "A"),
    ]  # fmt: skip
    first, second = (one.messages[-1]["content"] for one in questions[:2])
    assert first.index("three") < first.index("it is two")
    assert second.index("it is two") < second.index("three")
    assert [one.answer_lengths for one in questions[:2]] == [(5, 9), (9, 5)]


def test_a_tie_is_offered_only_where_the_data_has_one() -> None:
    without, with_one = (
        judge_form("pairwise", [compared()]),
        judge_form("pairwise", [compared("tie")]),
    )
    assert (without.ties, with_one.ties) == (False, True)
    assert without.template != with_one.template
    assert not judge_form("pointwise", [rated()]).ties
    [_, swapped], _ = make_questions([compared("tie")], with_one, SECRET)
    assert swapped.label == "tie"


def test_the_same_key_asks_the_same_and_another_one_does_not() -> None:
    form = judge_form("pointwise", [rated()])
    one, again, other = (
        make_questions([rated()], form, key)[0] for key in (SECRET, SECRET, b"x" * 32)
    )
    assert one[0].messages == again[0].messages != other[0].messages


def test_a_request_that_recurs_has_another_tag_in_each_row() -> None:
    rows = [rated(), rated()]
    (first, second), _ = make_questions(rows, judge_form("pointwise", rows), SECRET)
    assert first.messages != second.messages
    assert first.messages[0] == second.messages[0]


def test_rows_of_the_other_mode_are_refused() -> None:
    with pytest.raises(ConfigError, match="a rating cannot be used in mode 'pairwise'"):
        make_questions([rated()], JudgementForm(mode="pairwise"), SECRET)
    with pytest.raises(ConfigError, match="a comparison cannot be used in mode 'pointwise'"):
        make_questions([compared()], JudgementForm(mode="pointwise"), SECRET)


@given(
    rows=st.integers(2, 30),
    size=st.integers(1, 6),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_no_batch_parts_the_orders_of_a_comparison(
    rows: int, size: int, epochs: int, seed: int
) -> None:
    questions = [
        JudgeQuestion(messages=[], label="A", row=row, swapped=swapped)
        for row in range(rows)
        for swapped in (False, True)
    ]
    order = grpo_question_order(questions, size=2 * size, epochs=epochs, seed=seed)
    assert len(order) == epochs * (2 * rows // (2 * size)) * 2 * size
    for start in range(0, len(order), 2 * size):
        batch = [
            (questions[at].row, questions[at].swapped) for at in order[start : start + 2 * size]
        ]
        assert len(set(batch)) == 2 * size
        assert all((row, not swapped) in batch for row, swapped in batch)
    assert order == grpo_question_order(questions, size=2 * size, epochs=epochs, seed=seed)


def file(**given_: Any) -> JudgeFile:
    tables = {"mode": "pairwise", "data": {"synthetic": {"n": 20}, "train_batch_size": 8}, **given_}
    return JudgeFile.from_dict({"method": "grpo", **tables}, environ={})


def test_steps_are_whole_batches_and_one_at_least() -> None:
    judge = file(trainer={"total_epochs": 3})
    assert count_grpo_steps(judge, 36) == 12
    with pytest.raises(
        ConfigError,
        match=r"train_batch_size: must be at most the number of prompts, .*: 6 .found 8",
    ):
        count_grpo_steps(judge, 6)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"data": {"synthetic": {"n": 9}, "train_batch_size": 7}}, "must be even"),
        (
            {"data": {"synthetic": {"n": 9}, "train_batch_size": 8, "micro_batch_size": 12}},
            r"micro_batch_size: must divide .* = 32 \(found 12\)",
        ),
        ({"mode": "pointwise", "data": {"synthetic": {"n": 9, "ties": 0.5}}}, "synthetic.ties"),
    ],
)
def test_batches_that_do_not_fit_are_refused(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        file(**given_)


def test_the_key_is_made_once_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    key = load_fence_key(tmp_path)
    assert (len(key), load_fence_key(tmp_path)) == (32, key)
    assert stat.S_IMODE((tmp_path / FENCE_KEY_FILE).stat().st_mode) == 0o600
    (tmp_path / FENCE_KEY_FILE).write_bytes(b"short")
    with pytest.raises(RunFolderError, match="of 32 bytes .found 5"):
        load_fence_key(tmp_path)


def test_reasons_say_what_the_gold_function_counts() -> None:
    for row in synthetic_ratings(SyntheticSettings(n=60, seed=3)).rows:
        text = row.messages[-1]["content"]
        reason = gold_explanation(row.subset or "", text)
        assert reason.endswith(f": {gold_score(row.subset or '', text)}.")
        points = [int(part.split()[-1]) for part in reason.split(":")[0].split(",")[1:]]
        assert sum(points) == row.label


@pytest.mark.parametrize("mode", ["pointwise", "pairwise"])
def test_judgements_read_as_their_labels(mode: Any) -> None:
    ties = {"ties": 0.3} if mode == "pairwise" else {}
    judge = file(
        method="sft", mode=mode, data={"synthetic": {"n": 30, **ties}, "micro_batch_size": 1}
    )
    found = load_labelled(judge, reasons=True)
    rows = found.material.train
    questions, _ = make_questions(rows, found.form, SECRET)
    made, answered, problems = make_demonstrations(questions, rows, found.form, found.reasons)
    assert not problems
    assert answered == questions
    for row, question in zip(made, questions, strict=True):
        read = found.form.read(row.messages[-1]["content"])
        assert isinstance(read, Verdict)
        assert read.value == question.label
        assert row.messages[:-1] == question.messages
        assert "<think></think>" not in row.messages[-1]["content"]


def test_swapped_reasons_are_about_the_swapped_answers() -> None:
    rows = synthetic_comparisons(SyntheticSettings(n=5)).rows
    judge = file(method="sft", data={"synthetic": {"n": 6}, "micro_batch_size": 1})
    given_, swapped = load_labelled(judge, reasons=True).reasons["synthetic:1"]
    assert swapped is not None
    first, second = (
        gold_explanation(rows[0].subset or "", text) for text in (rows[0].a, rows[0].b)
    )
    assert given_ == f"A: {first} B: {second}"
    assert swapped == f"A: {second} B: {first}"


def test_reasons_known_in_one_order_are_shown_in_that_one() -> None:
    rows = [compared(where="f:1"), compared(where="f:2"), compared(where="f:3")]
    form = judge_form("pairwise", rows)
    questions, _ = make_questions(rows, form, SECRET)
    known: dict[str, tuple[str, str | None]] = {
        "f:1": ("A counts.", None),
        "f:2": ("so <better>A</better>", "fine"),
    }
    made, answered, problems = make_demonstrations(questions, rows, form, known)
    assert [(one.row, one.swapped) for one in answered] == [
        (0, False), (1, True), (2, False), (2, True),
    ]  # fmt: skip
    assert made[0].messages[-1]["content"] == make_reply(form, "A", "A counts.")
    assert len(problems) == 1
    assert "f:2" in str(problems)
    assert isinstance(form.read("<better>A</better>"), UnreadableReply)


def test_files_are_read_by_their_shape(tmp_path: Path) -> None:
    def read(mode: str, rows: list[dict[str, Any]]) -> Any:
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        data = {"train": "rows.jsonl", "train_batch_size": 8, "val_fraction": 0.3}
        judge = JudgeFile.from_dict(
            {"method": "grpo", "mode": mode, "data": data}, folder=tmp_path, environ={}
        )
        return load_labelled(judge, reasons=True)

    questions = [f"Question {number}?" for number in range(10)]
    found = read("pointwise", [{"prompt": q, "response": "yes", "label": 2} for q in questions])
    assert {row.label for row in found.material.train} == {2}
    helpful = [{"prompt": q, "response": "yes", "helpfulness": 3} for q in questions]
    assert {row.label for row in read("pointwise", helpful).material.train} == {3}
    compared_ = [
        {"prompt": q, "a": "yes", "b": "no", "label": "tie", "reason": "same"} for q in questions
    ]
    found = read("pairwise", compared_)
    assert found.form.ties
    assert set(found.reasons.values()) == {("same", None)}
    turns = [
        {
            side: [{"role": "user", "content": q}, {"role": "assistant", "content": f"{side} {q}"}]
            for side in ("chosen", "rejected")
        }
        for q in questions
    ]
    material = read("pairwise", turns).material
    rows = [*material.train, *material.val]
    assert sorted(row.label for row in rows) == ["A"] * 5 + ["B"] * 5
    assert all((row.a if row.label == "A" else row.b).startswith("chosen") for row in rows)
