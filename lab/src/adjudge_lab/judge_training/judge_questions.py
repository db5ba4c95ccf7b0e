"""The questions that a generative judge is trained on, with the replies that it learns from.

Questions are prompts about labelled rows (ratings, or comparisons in both orders) with the label of
each. The key of their fences is drawn once for a run, kept with it, and secret. Replies
to imitate have the form that gives a row's label, after its reasons. The model reads token ids,
none of them cut.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from adjudge.datasets.files import read_rows
from adjudge.datasets.rows import (
    BrokenRow,
    Comparison,
    Demonstration,
    LoadedRows,
    Preference,
    Rating,
    RowProblem,
    RowProblems,
    split_answers,
)
from adjudge.errors import ConfigError, GradingFailure, RolloutError, RunFolderError
from adjudge.graders.llm.trained_judge_card import (
    TIE_VERDICT,
    JudgementForm,
    JudgeMode,
    judge_prompt_template,
)
from adjudge.judge_evaluation.benchmarks.items import flip_verdict
from adjudge.messages import content_text
from adjudge.verdicts import UnreadableReply
from adjudge_lab import synthetic
from adjudge_lab.judge_training.dataset import (
    ConversationEncoder,
    EncodedRows,
    JudgeDataset,
    check_unusable_rows,
    length_statistics,
    load_dataset_files,
    synthetic_dataset,
)
from adjudge_lab.judge_training.judge_file import JudgeFile
from adjudge_lab.judge_training.row_files import (
    holds_preferences,
    read_comparisons,
    read_preferences,
    read_ratings,
)
from adjudge_lab.synthetic import gold_explanation


def swap_answers(comparison: Comparison) -> Comparison:
    """The same comparison with the answers in the other order; a tie stays a tie."""
    return msgspec.structs.replace(
        comparison, a=comparison.b, b=comparison.a, label=flip_verdict(comparison.label)
    )


def preferences_as_comparisons(
    preferences: Sequence[Preference], seed: int
) -> LoadedRows[Comparison]:
    """Each preference as a comparison; in half of the rows, drawn by ``seed``, A is the better.

    Sides that are not one answer in text to the same conversation (several turns, tool calls) are
    problems: a comparison has no place for them.
    """
    half = len(preferences) // 2
    places = ["A"] * (len(preferences) - half) + ["B"] * half
    random.Random(seed).shuffle(places)  # noqa: S311  (no secret)
    rows: list[Comparison] = []
    problems = RowProblems()
    for preference, place in zip(preferences, places, strict=True):
        try:
            row = _comparison(preference)
        except BrokenRow as problem:
            problems.add(problem.problem_at(preference.where))
        else:
            rows.append(row if place == "A" else swap_answers(row))
    return LoadedRows(rows, problems)


def _comparison(preference: Preference) -> Comparison:
    prompt, sides = split_answers(preference)
    for key, side in zip(("chosen", "rejected"), sides, strict=True):
        if len(side) != 1 or "tool_calls" in side[0]:
            kind = "tool calls" if len(side) == 1 else f"{len(side)} messages"
            raise BrokenRow(key, f"{kind} after what both sides share", "one answer in text")
    better, worse = (content_text(side[0]["content"]) for side in sides)
    return Comparison(
        prompt=prompt,
        a=better,
        b=worse,
        label="A",
        where=preference.where,
        subset=preference.subset,
    )


FENCE_KEY_FILE = ".fence_key"
"""Its file in the run's folder; only its owner may read it."""

_FENCE_KEY_BYTES = 32


def load_fence_key(folder: Path) -> bytes:
    """The run's key, made if it is missing; a resumed run asks with the same key.

    Who knows it could write an answer that closes its own fence. Raises
    :class:`~adjudge.errors.RunFolderError` for a file that holds no key.
    """
    path = folder / FENCE_KEY_FILE
    if path.exists():
        key = path.read_bytes()
        if len(key) != _FENCE_KEY_BYTES:
            raise RunFolderError(
                f"{path}: must hold a key of {_FENCE_KEY_BYTES} bytes (found {len(key)}). Give "
                "another output folder with -o."
            )
        return key
    key = secrets.token_bytes(_FENCE_KEY_BYTES)
    part = folder / f"{FENCE_KEY_FILE}.part"
    part.unlink(missing_ok=True)
    file = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.write(file, key)
    finally:
        os.close(file)
    os.replace(part, path)  # noqa: PTH105  (atomic)
    return key


class JudgeQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and the ``label`` that a reply to it is held against.

    ``row``: the place of the row it was made from. A comparison makes two questions, next to each
    other: as given and swapped, with the label swapped, too. ``answer_lengths``: characters of
    the answers, in the order shown.
    """

    messages: list[dict[str, str]]
    label: int | str
    row: int
    swapped: bool = False
    answer_lengths: tuple[int, ...] = ()
    subset: str | None = None


def make_questions(
    rows: Sequence[Rating | Comparison], form: JudgementForm, key: bytes
) -> tuple[list[JudgeQuestion], RowProblems]:
    """The questions about ``rows`` in their order, comparisons in both orders.

    ``key`` (at most 64 bytes) makes the fences' tags, for each row its own; see
    :func:`judge_messages`. What cannot be shown to a judge is among the problems. Raises
    :class:`ConfigError` for rows that are not of the form's mode.
    """
    questions: list[JudgeQuestion] = []
    problems = RowProblems()
    for place, row in enumerate(rows):
        try:
            questions += _row_questions(place, row, form, _row_key(key, place))
        except GradingFailure as failure:
            problems.add(RowProblem(row.where, "messages", str(failure), "text or chat messages"))
    return questions, problems


def judge_form(mode: JudgeMode, rows: Sequence[Rating | Comparison]) -> JudgementForm:
    """The form that ``rows`` need, in today's wording."""
    ties = mode == "pairwise" and any(row.label == TIE_VERDICT for row in rows)
    return JudgementForm(mode=mode, ties=ties, template=judge_prompt_template(mode, ties=ties).hash)


def judge_messages(
    form: JudgementForm, request: Any, answers: Sequence[Any], key: bytes
) -> Sequence[Any]:
    """The question about one answer or two, each a text or the messages that answer."""
    names = ("response",) if form.mode == "pointwise" else ("response_a", "response_b")
    given = dict(zip(("request", *names), (request, *answers), strict=True))
    template = judge_prompt_template(form.mode, ties=form.ties)
    values = {name: _shown_value(value) for name, value in given.items()}
    return template.render(values, key=key).messages


def _shown_value(value: Any) -> Any:
    """One message that says something as its text."""
    only = value[0] if isinstance(value, list) and len(value) == 1 else {}
    says = isinstance(only.get("content"), str) and not only.get("tool_calls")
    return only["content"] if says else value


def _row_key(key: bytes, place: int) -> bytes:
    """A row's key: with one for all, a request that recurs could be known by its tag alone."""
    return blake2b(str(place).encode(), key=key, digest_size=32).digest()


def _row_questions(
    place: int, row: Rating | Comparison, form: JudgementForm, key: bytes
) -> list[JudgeQuestion]:
    wanted = Rating if form.mode == "pointwise" else Comparison
    if not isinstance(row, wanted):
        raise ConfigError(
            f"{row.where}: a {type(row).__name__.lower()} cannot be used in mode {form.mode!r}"
        )
    shown: list[tuple[Any, tuple[Any, ...], int | str, bool]]
    if isinstance(row, Rating):
        shown = [(row.messages[:-1], (row.messages[-1:],), row.label, False)]
    else:
        other = swap_answers(row)
        shown = [
            (row.prompt, (row.a, row.b), row.label, False),
            (row.prompt, (other.a, other.b), other.label, True),
        ]
    return [
        JudgeQuestion(
            messages=[dict(one) for one in judge_messages(form, request, answers, key)],
            label=label,
            row=place,
            swapped=is_swapped,
            answer_lengths=tuple(map(_answer_length, answers)),
            subset=row.subset,
        )
        for request, answers, label, is_swapped in shown
    ]


def _answer_length(answer: Any) -> int:
    turns = [{"content": answer}] if isinstance(answer, str) else answer
    return sum(len(content_text(turn.get("content"))) for turn in turns)


ReasonsByRow = Mapping[str, tuple[str | None, str | None]]
"""By ``where`` of a row: the reasons for its label, and those with A and B swapped, where known."""


@dataclass
class LabelledDataset:
    """Rows to train on and held-out ones, the form in which they are asked, and known reasons."""

    material: JudgeDataset[Any]
    form: JudgementForm
    reasons: ReasonsByRow = field(default_factory=dict)


def load_labelled(judge: JudgeFile, *, reasons: bool = False) -> LabelledDataset:
    """The rows of a run with a ``mode``; ``reasons``: also why, for those who learn to say it.

    Files hold ratings or comparisons by their usual columns, preferences (comparisons are made of
    them), or what :mod:`~adjudge.datasets.published` knows; reasons are in the columns
    ``reason`` and ``reason_swapped``; those of preferences, which have no A and B, are written as
    if ``chosen`` was A. Raises :class:`~adjudge.errors.ConfigError`.
    """
    mode: JudgeMode = judge.mode or "pointwise"
    made = judge.data.synthetic
    if made is not None:
        make: Any = (
            synthetic.synthetic_ratings if mode == "pointwise" else synthetic.synthetic_comparisons
        )
        material: JudgeDataset[Any] = synthetic_dataset(judge, make(made))
        # A label that goes to a place belongs to the order in which it was given.
        both = not made.position_bias
        why: ReasonsByRow = (
            {row.where: _explain_labels(row, both) for row in _all_rows(material)}
            if reasons
            else {}
        )
    else:
        read = (
            read_ratings if mode == "pointwise" else partial(_read_comparisons, judge.trainer.seed)
        )
        material = load_dataset_files(judge, read)
        why = _reasons(judge, {row.where: row for row in _all_rows(material)}) if reasons else {}
    return LabelledDataset(material, judge_form(mode, _all_rows(material)), why)


def _all_rows(material: JudgeDataset[Any]) -> list[Any]:
    return [*material.train, *material.val]


def _read_comparisons(seed: int, files: Sequence[Path]) -> LoadedRows[Comparison]:
    if not holds_preferences(files):
        return read_comparisons(files)
    return read_preferences(files).and_then(
        lambda preferences: preferences_as_comparisons(preferences, seed)
    )


def _reasons(judge: JudgeFile, rows: Mapping[str, Rating | Comparison]) -> ReasonsByRow:
    found: dict[str, tuple[str | None, str | None]] = {}
    for files in (judge.files(judge.data.train), judge.files(judge.data.val)):
        placed = judge.mode == "pairwise" and bool(files) and holds_preferences(files)
        for where, row in read_rows(files):
            if isinstance(row, RolloutError) or not isinstance(row.get("reason"), str):
                continue
            swapped = row.get("reason_swapped")
            both = (row["reason"], swapped if isinstance(swapped, str) else None)
            # Half of the preferences were given the better answer as B.
            turned = placed and where in rows and rows[where].label == "B"
            found[where] = (both[1], both[0]) if turned else both
    return found


def _explain_labels(row: Rating | Comparison, both: bool) -> tuple[str, str | None]:
    """What the gold function counts in a synthetic row's answers."""
    _, answers = split_answers(row)
    said = [gold_explanation(row.subset or "", turns[0]["content"]) for turns in answers]
    if len(said) == 1:
        return said[0], None
    return f"A: {said[0]} B: {said[1]}", f"A: {said[1]} B: {said[0]}" if both else None


def make_reply(form: JudgementForm, label: int | str, reason: str = "") -> str:
    """The reply that gives ``label``.

    >>> make_reply(JudgementForm(mode="pairwise"), "B", "A is wrong.")
    '<think>A is wrong.</think><better>B</better>'
    """
    tag = form.verdict
    return f"<think>{reason.strip()}</think><{tag}>{label}</{tag}>"


def make_demonstrations(
    questions: Sequence[JudgeQuestion],
    rows: Sequence[Rating | Comparison],
    form: JudgementForm,
    reasons: ReasonsByRow,
) -> tuple[list[Demonstration], list[JudgeQuestion], RowProblems]:
    """The conversations that answer ``questions`` about ``rows``, and which questions they answer.

    A comparison with reasons for one order only is shown in that order: with A and B
    exchanged they would be wrong. Reasons with a tag of the form in them are among the problems.
    """
    made: list[Demonstration] = []
    answered: list[JudgeQuestion] = []
    problems = RowProblems()
    for question in questions:
        row = rows[question.row]
        given, swapped = reasons.get(row.where, ("", ""))
        reason = swapped if question.swapped else given
        if reason is None:
            continue
        reply = make_reply(form, question.label, reason)
        if isinstance(read := form.read(reply), UnreadableReply):
            allowed = "text without the form's tags"
            problems.add(RowProblem(row.where, "reason", read.why, allowed))
            continue
        said = {"role": "assistant", "content": reply}
        made.append(
            Demonstration(
                messages=[*question.messages, said],
                where=row.where,
                subset=row.subset,
            )
        )
        answered.append(question)
    return made, answered, problems


def tokenize_prompts(
    questions: Sequence[JudgeQuestion],
    problems: RowProblems,
    rows: Sequence[Rating | Comparison],
    encoder: ConversationEncoder,
    judge: JudgeFile,
    part: str,
) -> EncodedRows[JudgeQuestion]:
    """The questions that fit ``max_length``, with the ids of their prompts.

    A question that does not fit makes its row unusable, in both orders: cut, it would ask something
    else. ``problems`` are those of rows that make no question. Raises
    :class:`~adjudge.errors.ConfigError` for more of them than ``allow_unusable``.
    """
    most = judge.data.max_length
    found: EncodedRows[JudgeQuestion] = EncodedRows(problems=problems)
    ids: list[list[int]] = []
    unusable: dict[int, RowProblem] = {}
    for question in questions:
        where = rows[question.row].where
        try:
            prompt = encoder.prompt_ids(question.messages)
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
    check_unusable_rows(LoadedRows(usable, found.problems), judge, part)
    return found


def prompt_lengths(questions: EncodedRows[JudgeQuestion]) -> dict[str, Any]:
    """How long the prompts are, in tokens."""
    found = length_statistics([len(sides[0]) for sides in questions.ids])
    return {"unit": "tokens", "prompts": found}


def check_form_tags(encoder: ConversationEncoder, judge: JudgeFile) -> None:
    """Refuse a tokenizer for which a tag of the form is a control token, which no text may hold."""
    said = "<think></think>"
    if encoder.clean_messages([{"role": "user", "content": said}])[0]["content"] != said:
        judge.refuse(
            "model.path",
            "its tokenizer treats <think> as a control token, so no prompt can ask for it and no "
            "reply can be read. Use a model for which it is text.",
        )
