"""Judgements to imitate: the reply in its form that gives a row's label, after its reasons."""

from __future__ import annotations

from collections.abc import Sequence

from adjudge.judge_training.data.problems import RowProblem, RowProblems
from adjudge.judge_training.data.rows import Comparison, Demonstration, Rating
from adjudge.judge_training.generative.labelled import Reasons
from adjudge.judge_training.generative.questions import Form, Question
from adjudge.verdicts import Unread

__all__ = ["judgements", "reply_of"]


def reply_of(form: Form, label: int | str, reason: str = "") -> str:
    """The reply that gives ``label``.

    >>> reply_of(Form(mode="pairwise"), "B", "A is wrong.")
    '<think>A is wrong.</think><better>B</better>'
    """
    tag = form.verdict
    return f"<think>{reason.strip()}</think><{tag}>{label}</{tag}>"


def judgements(
    questions: Sequence[Question],
    rows: Sequence[Rating | Comparison],
    form: Form,
    reasons: Reasons,
) -> tuple[list[Demonstration], list[Question], RowProblems]:
    """The conversations that answer ``questions`` about ``rows``, and which questions they answer.

    A comparison whose reasons are known in one order only is shown in that order: with A and B
    exchanged they would be wrong. Reasons with a tag of the form in them are among the problems.
    """
    made: list[Demonstration] = []
    answered: list[Question] = []
    problems = RowProblems()
    for question in questions:
        row = rows[question.row]
        given, swapped = reasons.get(row.where, ("", ""))
        reason = swapped if question.swapped else given
        if reason is None:
            continue
        reply = reply_of(form, question.label, reason)
        if isinstance(read := form.read(reply), Unread):
            allowed = "text without the form's tags"
            problems.add(RowProblem(row.where, "reason", read.why, allowed))
            continue
        said = {"role": "assistant", "content": reply}
        made.append(
            Demonstration(
                messages=[*question.messages, said],
                where=row.where,
                subset=row.subset,
                source_ids=row.source_ids,
            )
        )
        answered.append(question)
    return made, answered, problems
