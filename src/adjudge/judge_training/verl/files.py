"""What verl reads for a judge's training: rows that our readers took, as Parquet."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import ConfigError
from adjudge.judge_training.data.problems import Loaded, RowProblem, RowProblems
from adjudge.judge_training.data.rows import Comparison, Demonstration, Rating
from adjudge.judge_training.generative.asked import asked, check_tags
from adjudge.judge_training.generative.demonstrating import judgements
from adjudge.judge_training.generative.fence_key import fence_key
from adjudge.judge_training.generative.labelled import Labelled, labelled_of
from adjudge.judge_training.generative.questions import Form, Question, questions_of
from adjudge.judge_training.generative.rewarding import baselines_of
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judge_training.material import (
    Encoder,
    Material,
    allowed,
    demonstrations_of,
    encoded,
    rows_digest,
)
from adjudge.judges.local.conversation import turns_of
from adjudge.training.verl.data import write_rows

__all__ = ["SOURCE", "JudgeFiles", "tokenizer_of", "write_judge_files"]

SOURCE = "judge"
"""verl's ``data_source`` of all our rows, which names its validation metrics."""

_ROLES = ("user", "assistant", "tool")


@dataclass(frozen=True)
class JudgeFiles:
    """What a run of verl reads: ``train`` and ``validation``, with as many rows.

    ``first`` is the first row of training. ``form``: how the judge is asked, if it is. ``facts``:
    what was read, as the summary and the card have it; ``baselines``: what judges earn in GRPO that
    look at no answer; ``trained_ids``: the source ids of all rows, held-out ones too; ``tokens``:
    those of a batch in SFT, in the mean; ``bayes_accuracy``: the best that can be expected on
    held-out rows that were made up.
    """

    train: Path
    validation: Path
    train_rows: int
    val_rows: int
    first: dict[str, Any] = field(default_factory=dict)
    form: Form | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    baselines: dict[str, Any] = field(default_factory=dict)
    trained_ids: tuple[str, ...] = ()
    tokens: float | None = None
    bayes_accuracy: float | None = None


def tokenizer_of(judge: JudgeFile) -> Any:
    """The base model's tokenizer; raises :class:`~adjudge.errors.ConfigError` without one."""
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415  (heavy)
    except ImportError:
        raise ConfigError(
            "backend = 'verl' needs transformers, which verl brings: pip install verl==0.6.1"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(judge.base)
    except (OSError, ValueError, KeyError) as error:
        first = (str(error).strip().splitlines() or [""])[0][:300]
        judge.refuse("model.path", f"{judge.base} has no tokenizer: {first}")
    if not tokenizer.chat_template:
        judge.refuse("model.path", f"{judge.base} has no chat template")
    return tokenizer


def write_judge_files(judge: JudgeFile, folder: Path, tokenizer: Any | None) -> JudgeFiles:
    """Write ``train.parquet`` and ``validation.parquet`` into ``folder``.

    Without a ``tokenizer`` (a plan on a machine that has none) nothing is measured: what is too
    long, and what the chat template refuses, is found when the run begins. Raises
    :class:`~adjudge.errors.ConfigError` for rows that cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoder = None if tokenizer is None else Encoder(tokenizer)
    if judge.mode is not None and encoder is not None:
        check_tags(encoder, judge)
    if judge.method == "grpo":
        return _asking(judge, folder, encoder)
    return _imitating(judge, folder, encoder)


class _Part:
    """One file's rows, what verl reads of them, and how many were unusable."""

    def __init__(self, name: str, judge: JudgeFile) -> None:
        self.name, self.judge = f"data.{name}", judge
        self.rows: list[Any] = []
        self.written: list[dict[str, Any]] = []
        self.problems = RowProblems()
        self.counts: dict[str, Any] = {}
        self.tokens: int | None = None

    def check(self) -> None:
        """Refuse more unusable rows than the file allows."""
        allowed(Loaded(self.rows, self.problems), self.judge, self.name)

    def facts(self, name: str) -> dict[str, Any]:
        """As the summary has them."""
        counts = {"rows": len(self.rows), "truncated": 0, **self.counts}
        problems = {
            "unusable": self.problems.count,
            "problems": [str(one) for one in self.problems.first],
        }
        return {f"{name}_rows": {**counts, **problems}, f"{name}_sha256": rows_digest(self.rows)}


def _asking(judge: JudgeFile, folder: Path, encoder: Encoder | None) -> JudgeFiles:
    """Questions, both orders of a comparison next to each other."""
    labelled, key = labelled_of(judge), fence_key(folder)
    train = list(labelled.material.train)
    random.Random(judge.trainer.seed).shuffle(train)  # noqa: S311  (no secret)
    parts, baselines = {}, {}
    for name, rows in (("train", train), ("val", labelled.material.val)):
        part = parts[name] = _Part(name, judge)
        questions = _questions(rows, labelled, key, encoder, part)
        part.rows = [rows[place] for place in dict.fromkeys(one.row for one in questions)]
        part.check()
        part.written = [_row(place, one, encoder) for place, one in enumerate(questions)]
        part.counts = {"questions": len(questions)}
        if questions:
            baselines[name] = msgspec.to_builtins(baselines_of(questions, labelled.form))
    return _files(folder, parts, labelled.material, labelled.form, baselines)


def _questions(
    rows: Sequence[Rating | Comparison],
    labelled: Labelled,
    key: bytes,
    encoder: Encoder | None,
    part: _Part,
) -> list[Question]:
    questions, problems = questions_of(rows, labelled.form, key)
    if encoder is None:
        part.problems = problems
        return questions
    found = asked(questions, problems, rows, encoder, part.judge, part.name)
    part.problems = found.problems
    return found.rows


def _row(place: int, question: Question, encoder: Encoder | None) -> dict[str, Any]:
    turns = turns_of(question.messages, ()) if encoder is None else encoder.turns(question.messages)
    return {
        "prompt": turns,
        "data_source": SOURCE,
        "reward_model": {"style": "rule", "ground_truth": question.label},
        "extra_info": {
            "index": place,
            "row": question.row,
            "swapped": question.swapped,
            "answer_lengths": list(question.answer_lengths),
            "subset": question.subset or "",
        },
    }


def _imitating(judge: JudgeFile, folder: Path, encoder: Encoder | None) -> JudgeFiles:
    """Conversations; with a ``mode`` those are questions with the replies that are wanted."""
    labelled = None if judge.mode is None else labelled_of(judge, reasons=True)
    material = demonstrations_of(judge) if labelled is None else labelled.material
    key, whole = judge.data.multiturn.messages_key, judge
    if labelled is not None:  # cut, a judgement would teach not to give a verdict
        uncut = judge.data.model_copy(update={"truncation": "error"})
        whole = judge.model_copy(update={"data": uncut})
    parts = {}
    given: dict[str, list[Any]] = {"train": material.train, "val": material.val}
    for name, rows in given.items():
        part = parts[name] = _Part(name, judge)
        if labelled is not None:
            secret = fence_key(folder)
            questions = _questions(rows, labelled, secret, encoder, part)
            rows, _, problems = judgements(questions, rows, labelled.form, labelled.reasons)  # noqa: PLW2901
            part.problems.extend(problems)
        part.rows = _taken(rows, part.problems)
        part.check()
        if encoder is None:
            turns = [turns_of(row.messages, ()) for row in part.rows]
        else:
            found = encoded(part.rows, encoder, whole, part.name, part.problems)
            part.rows, part.counts = found.rows, {"truncated": found.truncated}
            part.problems = found.problems
            part.tokens = sum(len(side) for sides in found.ids for side in sides)
            turns = [encoder.turns(row.messages) for row in part.rows]
        part.written = [{key: one} for one in turns]
    return _files(folder, parts, material, labelled.form if labelled else None)


def _taken(rows: Sequence[Demonstration], problems: RowProblems) -> list[Demonstration]:
    """Those rows that verl's own reader takes: it stops at the first that begins otherwise."""
    usable = []
    for row in rows:
        roles = [str(turn.get("role")) for turn in row.messages]
        rest = roles[1:] if roles[0] == "system" else roles
        if rest[:2] == ["user", "assistant"] and all(role in _ROLES for role in rest):
            usable.append(row)
            continue
        found = f"turns of {', '.join(roles[:4])[:60]}"
        wanted = "perhaps a system message, then user and assistant, for verl"
        problems.add(RowProblem(row.where, "messages", found, wanted))
    return usable


def _files(
    folder: Path,
    parts: dict[str, _Part],
    material: Material[Any],
    form: Form | None,
    baselines: dict[str, Any] | None = None,
) -> JudgeFiles:
    train, val = parts["train"], parts["val"]
    paths = folder / "train.parquet", folder / "validation.parquet"
    for path, part in zip(paths, (train, val), strict=True):
        write_rows(path, iter(part.written))
    share = train.judge.data.train_batch_size / max(1, len(train.written))
    ids = {one for row in (*train.rows, *val.rows) for one in row.source_ids}
    return JudgeFiles(
        *paths,
        len(train.written),
        len(val.written),
        first=train.written[0],
        form=form,
        facts={**material.facts, **train.facts("train"), **val.facts("val")},
        baselines=baselines or {},
        trained_ids=tuple(sorted(ids)),
        tokens=None if train.tokens is None else share * train.tokens,
        bayes_accuracy=material.bayes_accuracy,
    )
