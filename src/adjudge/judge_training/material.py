"""What a run learns from and is validated on: rows read or made, held out, measured, counted."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from adjudge.errors import ConfigError, GradingFailure
from adjudge.judge_training.data import synthetic
from adjudge.judge_training.data.convert import known_preferences
from adjudge.judge_training.data.lengths import LengthReport, fit, length_report
from adjudge.judge_training.data.overlap import duplicates, leakage
from adjudge.judge_training.data.problems import Loaded, RowProblem, RowProblems
from adjudge.judge_training.data.read import read_demonstrations
from adjudge.judge_training.data.rows import (
    Comparison,
    Demonstration,
    Messages,
    Preference,
    Rating,
    answers_of,
    spoken,
)
from adjudge.judge_training.judgefile import JudgeFile
from adjudge.judges.local.conversation import templated, turns_of
from adjudge.judges.local.tokenizers import special_tokens_of

__all__ = [
    "Encoded",
    "Encoder",
    "Material",
    "allowed",
    "demonstrations_of",
    "encoded",
    "from_files",
    "lengths_of",
    "made_up",
    "preferences_of",
    "rows_digest",
]

T = TypeVar("T", Preference, Demonstration, Rating, Comparison)
L = TypeVar("L", Preference, Rating, Comparison)
S = TypeVar("S", Preference, Demonstration)
E = TypeVar("E")


@dataclass
class Material(Generic[T]):
    """``train`` and ``val`` rows, and ``facts`` about where they came from.

    ``bayes_accuracy``: what a judge that knows all but chance would get on ``val``, where the rows
    are synthetic.
    """

    train: list[T]
    val: list[T]
    facts: dict[str, Any] = field(default_factory=dict)
    bayes_accuracy: float | None = None


@dataclass
class Encoded(Generic[E]):
    """Rows as token ids, cut to the maximum length: one list of ids for each side.

    ``truncated`` counts rows that were cut; ``problems`` are
    the rows that cannot be used.
    """

    rows: list[E] = field(default_factory=list)
    ids: list[list[list[int]]] = field(default_factory=list)
    truncated: int = 0
    problems: RowProblems = field(default_factory=RowProblems)

    @property
    def facts(self) -> dict[str, Any]:
        """The counts, as the summary has them."""
        return {
            "rows": len(self.rows),
            "truncated": self.truncated,
            "unusable": self.problems.count,
            "problems": [str(one) for one in self.problems.first],
        }


class Encoder:
    """Conversations as token ids, exactly as a served judge will read them."""

    def __init__(self, tokenizer: Any) -> None:
        self._special = special_tokens_of(tokenizer)
        self._tokenizer = tokenizer
        self._bos = tokenizer.bos_token_id

    def turns(self, messages: Messages) -> Messages:
        """Roles and texts, in which nothing reads as a control token."""
        return [dict(turn) for turn in turns_of(messages, self._special)]

    def __call__(self, messages: Messages) -> list[int]:
        """The ids; raises :class:`GradingFailure` for what the chat template refuses."""
        turns = turns_of(messages, self._special)
        return templated(self._tokenizer, turns, reply=False)

    def asked(self, messages: Messages) -> list[int]:
        """The ids of a question, the judge's turn opened; raises as a call does."""
        return templated(self._tokenizer, turns_of(messages, self._special), reply=True)

    def text(self, messages: Messages) -> list[int]:
        """The ids of what is said, without roles and template."""
        said = "\n".join(turn["content"] for turn in turns_of(messages, self._special))
        ids: list[int] = self._tokenizer(said, add_special_tokens=False).input_ids
        return ids

    def cut(self, ids: list[int], most: int, truncation: str) -> list[int]:
        """``ids`` cut to ``most``; on the left a beginning mark stays, as it does when serving."""
        if len(ids) <= most or truncation == "right":
            return ids[:most]
        kept = [ids[0]] if ids[0] == self._bos else []
        return kept + ids[len(kept) - most :]


def preferences_of(judge: JudgeFile) -> Material[Preference]:
    """The pairs of a Bradley-Terry run; raises :class:`ConfigError` for what cannot be read."""
    made = judge.data.synthetic
    if made is None:
        return from_files(judge, known_preferences)
    return made_up(judge, synthetic.preferences(made.settings()))


def made_up(judge: JudgeFile, whole: synthetic.SyntheticSet[L]) -> Material[L]:
    """Synthetic rows, the last of them held out."""
    made = judge.data.synthetic
    train, val = whole.split(_held_out(len(whole.rows), judge.data.val_fraction))
    dials = made.model_dump() if made else None
    facts: dict[str, Any] = {"synthetic": dials, "train": [], "val": []}
    both = judge.mode == "pairwise"  # as judges are asked
    bayes = val.bayes_accuracy_both_orders if both else val.bayes_accuracy
    return Material(train.rows, val.rows, facts, bayes)


def demonstrations_of(judge: JudgeFile) -> Material[Demonstration]:
    """The conversations of an SFT run; raises :class:`ConfigError` for what cannot be read."""
    made = judge.data.synthetic
    if made is None:
        key = judge.data.multiturn.messages_key
        return from_files(judge, lambda files: read_demonstrations(files, messages_key=key))
    rows = synthetic.demonstrations(made.settings())
    held = _held_out(len(rows), judge.data.val_fraction)
    train, held_out = rows[:-held], rows[-held:]
    # Few texts are good ones, so that they recur.
    seen = {leak.test for leak in leakage(train, held_out, near=None).leaks}
    val = [row for place, row in enumerate(held_out) if place not in seen]
    if not val:
        judge.refuse("data.synthetic.n", "all held-out rows are among the others; raise it")
    facts: dict[str, Any] = {"synthetic": made.model_dump(), "train": [], "val": []}
    facts["val_duplicates"] = {"rows": len(seen), "contradicting": 0}
    return Material(train, val, facts)


def encoded(
    rows: Sequence[S],
    encoder: Encoder,
    judge: JudgeFile,
    part: str,
    problems: RowProblems | None = None,
) -> Encoded[S]:
    """The rows that can be used, as ids cut to ``max_length``.

    Unusable is what the chat template refuses, what calls tools where it answers (judges read its
    text alone), what has nothing of its answer left, and pairs whose sides read the same;
    ``problems`` are those that were found before. Raises :class:`ConfigError`, which shows them,
    for a larger share of them than ``allow_unusable``.
    """
    data = judge.data
    found: Encoded[S] = Encoded(problems=problems or RowProblems())
    for row in rows:
        if _calls_tools(row):
            problem = RowProblem(row.where, "tool_calls", "calls in an answer", "answers in text")
            found.problems.add(problem)
            continue
        try:
            sides = [encoder(side) for side in _sides(row)]
        except GradingFailure as failure:
            problem = RowProblem(
                row.where, "messages", str(failure), "what the chat template takes"
            )
            found.problems.add(problem)
            continue
        if len(sides) == 2 and sides[0] == sides[1]:
            same = "the same tokens as chosen"
            found.problems.add(RowProblem(row.where, "rejected", same, "another answer in text"))
            continue
        if any(len(side) > data.max_length for side in sides):
            fitted = fit([row], data.max_length, encoder, data.truncation)
            found.problems.extend(fitted.problems)
            if not fitted.rows:
                continue
            found.truncated += 1
        found.rows.append(row)
        found.ids.append([encoder.cut(side, data.max_length, data.truncation) for side in sides])
    allowed(Loaded(found.rows, found.problems), judge, part)
    return found


def _calls_tools(row: Preference | Demonstration) -> bool:
    """Whether what is judged, or imitated, is more than its text, which is all that is encoded."""
    answers = answers_of(row)[1] if isinstance(row, Preference) else [row.messages]
    return any("tool_calls" in turn for answer in answers for turn in answer)


def lengths_of(rows: Encoded[Any], encoder: Encoder, judge: JudgeFile) -> LengthReport:
    """How long conversations are as the model reads them, and answers as mere text, in tokens."""
    known = {
        id(side): ids
        for row, sides in zip(rows.rows, rows.ids, strict=True)
        for side, ids in zip(_sides(row), sides, strict=True)
    }

    def measure(messages: Messages) -> list[int]:
        if (ids := known.get(id(messages))) is None:
            return encoder.text(messages)  # a part, which no chat template has to take
        return ids if len(ids) < judge.data.max_length else encoder(messages)  # perhaps cut

    return length_report(rows.rows, measure)


def from_files(judge: JudgeFile, read: Callable[[Sequence[Path]], Loaded[T]]) -> Material[T]:
    """The rows of the files that the run names, without repeated ones, some held out."""
    data = judge.data
    train = allowed(loaded := read(judge.files(data.train)), judge, "data.train")
    problems = loaded.problems
    facts: dict[str, Any] = {"train": _hashed(judge, data.train), "val": _hashed(judge, data.val)}
    if data.deduplicate:
        train, facts["duplicates"] = _distinct(train)
    if data.val:
        val = allowed(held := read(judge.files(data.val)), judge, "data.val")
        problems.extend(held.problems)
        if data.deduplicate:
            val, facts["val_duplicates"] = _distinct(val)
    else:
        train, val = _split(train, data.val_fraction, judge)
    facts["unreadable"] = {
        "rows": problems.count,
        "problems": [str(one) for one in problems.first],
    }
    seen = leakage(train, val, near=None)
    facts["val_seen_in_training"] = len(seen.leaks)
    return Material(train, val, facts)


def _distinct(rows: list[T]) -> tuple[list[T], dict[str, int]]:
    """The first of equal rows, and how many were left out, how many of them contradicting it."""
    found = duplicates(rows, near=None)
    repeated = {one.second for one in found}
    counts = {"rows": len(found), "contradicting": sum(one.contradicts for one in found)}
    return [row for number, row in enumerate(rows) if number not in repeated], counts


def allowed(loaded: Loaded[T], judge: JudgeFile, part: str) -> list[T]:
    """The rows, unless more are unusable than ``allow_unusable``: :class:`ConfigError`."""
    try:
        return loaded.checked(allow=judge.data.allow_unusable)
    except ConfigError as error:
        judge.refuse(part, f"{error}\n(data.allow_unusable is the share that is allowed)")


def _split(rows: list[T], share: float, judge: JudgeFile) -> tuple[list[T], list[T]]:
    """Whole prompts held out, so that no answer to one is on both sides; drawn by the seed."""
    prompts: dict[bytes, list[T]] = defaultdict(list)
    for row in rows:
        prompt, _ = answers_of(row)
        prompts[blake2b(spoken(prompt).encode("utf-8", "replace")).digest()].append(row)
    groups = list(prompts.values())
    if len(groups) < 2:
        judge.refuse("data.val_fraction", "there is one prompt only; give a file data.val")
    random.Random(judge.trainer.seed).shuffle(groups)  # noqa: S311  (no secret)
    wanted = _held_out(len(rows), share)
    # A prompt with more rows than are wanted would leave too few to learn from.
    small = [place for place, group in enumerate(groups) if len(group) <= wanted]
    if not small:
        small = [min(range(len(groups)), key=lambda place: len(groups[place]))]
    taken: set[int] = set()
    val: list[T] = []
    while small and len(val) < wanted and len(taken) < len(groups) - 1:
        taken.add(place := small.pop())
        val += groups[place]
    return [row for at, group in enumerate(groups) if at not in taken for row in group], val


def _held_out(rows: int, share: float) -> int:
    wanted = math.ceil(round(rows * share, 9))  # 7 % of 100 are 7, not 7.000000000000001
    return min(rows - 1, max(1, wanted))


def _sides(row: Preference | Demonstration) -> list[Messages]:
    return [row.chosen, row.rejected] if isinstance(row, Preference) else [row.messages]


def _hashed(judge: JudgeFile, names: list[str]) -> list[dict[str, Any]]:
    """Each file by name, size and SHA-256."""
    found = []
    for name, path in zip(names, judge.files(names), strict=True):
        said = sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                said.update(block)
        size = path.stat().st_size
        found.append(
            {"file": name, "path": str(path.resolve()), "bytes": size, "sha256": said.hexdigest()}
        )
    return found


def rows_digest(rows: Sequence[T]) -> str:
    """SHA-256 over rows in their order, wherever they came from."""
    said = sha256()
    for row in rows:
        said.update(msgspec.json.encode(_content(row), order="deterministic") + b"\n")
    return said.hexdigest()


def _content(row: Preference | Demonstration | Rating | Comparison) -> list[Any]:
    """What a model learns from a row."""
    if isinstance(row, Rating):
        return [row.messages, row.label]
    if isinstance(row, Comparison):
        return [row.prompt, row.a, row.b, row.label]
    return _sides(row)
