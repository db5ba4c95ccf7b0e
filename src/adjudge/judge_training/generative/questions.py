"""What a generative judge is asked about labelled rows: prompts, and the label of each."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from adjudge.errors import ConfigError, GradingFailure
from adjudge.judge_training.data.problems import RowProblem, RowProblems
from adjudge.judge_training.data.rows import Comparison, Rating
from adjudge.judge_training.data.swap import swapped
from adjudge.judge_training.generative.prompt import Mode, grpo_prompt, grpo_template
from adjudge.judge_training.generative.replies import TIE, read_preference, read_rating
from adjudge.prompts import LanguageEnum
from adjudge.rollouts.messages import content_text
from adjudge.verdicts import Unread, Verdict

__all__ = ["Form", "Question", "questions_of"]


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How a judge is asked and how it answers; part of its card.

    ``mode``: one answer is rated, or two compared. ``ties``: a tie is offered, because the data has
    some. ``template`` is the hash of the wording with which the judge was trained.
    """

    mode: Mode
    ties: bool = False
    language: LanguageEnum = LanguageEnum.EN
    template: str = ""

    @classmethod
    def of(cls, mode: Mode, rows: Sequence[Rating | Comparison]) -> Form:
        """The form that ``rows`` need, in today's wording."""
        ties = mode == "pairwise" and any(row.label == TIE for row in rows)
        return cls(mode=mode, ties=ties, template=grpo_template(mode, ties=ties).hash)

    @property
    def verdict(self) -> str:
        """The tag that the verdict stands in: ``score`` or ``better``."""
        return "score" if self.mode == "pointwise" else "better"

    def read(self, reply: str, *, opened: bool = False, cut: bool = False) -> Verdict | Unread:
        """The verdict of a reply; see :mod:`~adjudge.judge_training.generative.replies`."""
        if self.mode == "pointwise":
            return read_rating(reply, opened=opened, cut=cut)
        return read_preference(reply, ties=self.ties, opened=opened, cut=cut)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and the ``label`` that a reply to it is held against.

    ``row``: the place of the row it was made from. A comparison makes two questions, next to each
    other: as given and ``swapped``, whose label is swapped, too. ``answer_lengths``: characters of
    the answers, in the order shown.
    """

    messages: list[dict[str, str]]
    label: int | str
    row: int
    swapped: bool = False
    answer_lengths: tuple[int, ...] = ()
    subset: str | None = None


def questions_of(
    rows: Sequence[Rating | Comparison], form: Form, key: bytes
) -> tuple[list[Question], RowProblems]:
    """The questions about ``rows`` in their order, comparisons in both orders.

    ``key`` (at most 64 bytes) makes the fences' tags, for each row its own; see
    :func:`grpo_prompt`. What cannot be shown to a judge is among the problems. Raises
    :class:`ConfigError` for rows that are not of the form's mode.
    """
    questions: list[Question] = []
    problems = RowProblems()
    for place, row in enumerate(rows):
        try:
            questions += _asked(place, row, form, _row_key(key, place))
        except GradingFailure as failure:
            problems.add(RowProblem(row.where, "messages", str(failure), "text or chat messages"))
    return questions, problems


def _row_key(key: bytes, place: int) -> bytes:
    """A row's key: with one for all, a request that recurs could be known by its tag alone."""
    return blake2b(str(place).encode(), key=key, digest_size=32).digest()


def _asked(place: int, row: Rating | Comparison, form: Form, key: bytes) -> list[Question]:
    wanted = Rating if form.mode == "pointwise" else Comparison
    if not isinstance(row, wanted):
        raise ConfigError(f"{row.where}: a {type(row).__name__.lower()} is not {form.mode}")
    shown: list[tuple[Any, tuple[Any, ...], int | str, bool]]
    if isinstance(row, Rating):
        shown = [(row.messages[:-1], (row.messages[-1:],), row.label, False)]
    else:
        other = swapped(row)
        shown = [
            (row.prompt, (row.a, row.b), row.label, False),
            (row.prompt, (other.a, other.b), other.label, True),
        ]
    return [
        Question(
            messages=[
                dict(one)
                for one in grpo_prompt(
                    form.mode, request, *answers, ties=form.ties, language=form.language, key=key
                ).messages
            ],
            label=label,
            row=place,
            swapped=is_swapped,
            answer_lengths=tuple(map(_length, answers)),
            subset=row.subset,
        )
        for request, answers, label, is_swapped in shown
    ]


def _length(answer: Any) -> int:
    turns = [{"content": answer}] if isinstance(answer, str) else answer
    return sum(len(content_text(turn.get("content"))) for turn in turns)
