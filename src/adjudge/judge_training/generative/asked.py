"""Questions as the model reads them: token ids, none of them cut."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from adjudge.errors import GradingFailure
from adjudge.judge_training.data.problems import Loaded, RowProblem, RowProblems
from adjudge.judge_training.data.rows import Comparison, Rating
from adjudge.judge_training.generative.questions import Question
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.material import Encoded, Encoder, allowed

__all__ = ["asked", "check_tags", "opens_thinking", "prompt_lengths"]


def asked(
    questions: Sequence[Question],
    problems: RowProblems,
    rows: Sequence[Rating | Comparison],
    encoder: Encoder,
    judge: JudgeFile,
    part: str,
) -> Encoded[Question]:
    """The questions that fit ``max_length``, with the ids of their prompts.

    A question that does not fit makes its row unusable, in both orders: cut, it would ask something
    else. ``problems`` are those of rows that make no question. Raises
    :class:`~adjudge.errors.ConfigError` for more of them than ``allow_unusable``.
    """
    most = judge.data.max_length
    found: Encoded[Question] = Encoded(problems=problems)
    ids: list[list[int]] = []
    unusable: dict[int, RowProblem] = {}
    for question in questions:
        where = rows[question.row].where
        try:
            prompt = encoder.asked(question.messages)
        except GradingFailure as failure:
            reason = "what the chat template takes"
            unusable[question.row] = RowProblem(where, "messages", str(failure), reason)
            prompt = []
        if len(prompt) > most:
            shown = f"{len(prompt):,} tokens"
            unusable[question.row] = RowProblem(where, "length", shown, f"at most {most:,}")
        ids.append(prompt)
    for problem in unusable.values():
        found.problems.add(problem)
    for question, prompt in zip(questions, ids, strict=True):
        if question.row not in unusable:
            found.rows.append(question)
            found.ids.append([prompt])
    usable: list[Any] = [rows[place] for place in dict.fromkeys(one.row for one in found.rows)]
    allowed(Loaded(usable, found.problems), judge, part)
    return found


def prompt_lengths(questions: Encoded[Question]) -> dict[str, Any]:
    """How long the prompts are, in tokens."""
    lengths = sorted(len(sides[0]) for sides in questions.ids)
    if not lengths:
        return {"unit": "tokens", "prompts": None}
    middle = lengths[(len(lengths) - 1) // 2]
    found = {"mean": fmean(lengths), "least": lengths[0], "median": middle, "most": lengths[-1]}
    return {"unit": "tokens", "prompts": found}


def opens_thinking(tokenizer: Any) -> bool:
    """Whether the chat template writes ``<think>`` itself where the judge's turn begins."""
    turns = [{"role": "user", "content": "."}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return bool(text.rstrip().endswith("<think>"))


def check_tags(encoder: Encoder, judge: JudgeFile) -> None:
    """Refuse a tokenizer for which a tag of the form is a control token, which no text may hold."""
    said = "<think></think>"
    if encoder.turns([{"role": "user", "content": said}])[0]["content"] != said:
        judge.refuse(
            "model.path",
            "its tokenizer takes <think> for a control token, so no prompt can ask for it and no "
            "reply can be read; begin with a model for which it is text",
        )
