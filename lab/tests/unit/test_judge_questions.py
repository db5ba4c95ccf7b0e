"""Questions to generative judges: both orders, labels, what is refused, and their order."""

import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from adjudge.datasets.rows import Comparison, Rating
from adjudge.errors import ConfigError, RunFolderError
from adjudge.graders.llm.trained_judge_card import JudgementForm
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
    synthetic_ratings,
)

SECRET = b"k" * 32
ASKED = [{"role": "user", "content": "Which is larger, 2 or 3?"}]


def compared(label: Any = "A", **given_: Any) -> Comparison:
    return Comparison(prompt=ASKED, a="three", b="it is two", label=label, **given_)


def rated(label: int = 3, text: str = "three") -> Rating:
    return Rating(messages=[*ASKED, {"role": "assistant", "content": text}], label=label)


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
