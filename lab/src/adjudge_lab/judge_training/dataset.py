"""The training and validation data of a run: read or synthesized, held out, measured, encoded.

Rows are measured and encoded as token ids; length reports say how long they are, which answer is
longer, and what a maximum length does to them.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from adjudge.datasets.files import hash_content
from adjudge.datasets.rows import (
    ChatMessages,
    Comparison,
    Demonstration,
    LoadedRows,
    Preference,
    Rating,
    RowProblem,
    RowProblems,
    render_transcript,
    split_answers,
)
from adjudge.errors import ConfigError, GradingFailure
from adjudge.judges.models.local_loading import (
    apply_chat_template,
    convert_to_turns,
    get_special_tokens,
)
from adjudge.text import encode_exactly
from adjudge_lab import synthetic
from adjudge_lab.judge_training.judge_file import JudgeFile, Truncation
from adjudge_lab.judge_training.row_files import (
    drop_repeated_rows,
    read_demonstrations,
    read_preferences,
    rows_seen_in,
)

EncodeMessages = Callable[[ChatMessages], Sequence[Hashable]]
"""A conversation as what a model counts: the ids that ``apply_chat_template`` gives, say."""


_TrainingRow = Demonstration | Preference | Rating


class LengthStatistics(msgspec.Struct, frozen=True):
    """Of ``count`` texts: mean, extremes and nearest-rank quantiles, in the report's unit."""

    count: int
    mean: float
    shortest: int
    median: int
    p90: int
    p99: int
    longest: int


class LengthReport(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of whole conversations and of answers alone; ``None`` where there are none.

    For preferences ``chosen`` and ``rejected`` are apart; ``longer_chosen`` is the share of pairs
    with the longer answer chosen, of those with answers of unequal length (0.5: length tells
    nothing). ``unit`` is ``tokens`` or ``characters``.
    """

    unit: str
    conversations: LengthStatistics | None
    answers: LengthStatistics | None
    chosen: LengthStatistics | None = None
    rejected: LengthStatistics | None = None
    equally_long: int = 0
    longer_chosen: float | None = None


def measure_lengths(
    rows: Iterable[_TrainingRow], encode: EncodeMessages | None = None
) -> LengthReport:
    """Statistics of ``rows``; without ``encode`` in characters, roles included."""
    measure = encode or render_transcript
    whole: list[int] = []
    answers: list[int] = []
    pairs: list[tuple[int, int]] = []
    for row in rows:
        _, sides = split_answers(row)
        whole += (len(measure(side)) for side in _row_sides(row))
        lengths = [len(measure(side)) for side in sides]
        answers += lengths
        if len(lengths) == 2:
            pairs.append((lengths[0], lengths[1]))
    unequal = [(chosen, rejected) for chosen, rejected in pairs if chosen != rejected]
    longer = sum(chosen > rejected for chosen, rejected in unequal)
    return LengthReport(
        unit="characters" if encode is None else "tokens",
        conversations=length_statistics(whole),
        answers=length_statistics(answers),
        chosen=length_statistics([chosen for chosen, _ in pairs]),
        rejected=length_statistics([rejected for _, rejected in pairs]),
        equally_long=len(pairs) - len(unequal),
        longer_chosen=longer / len(unequal) if unequal else None,
    )


def find_cut_problem(
    row: _TrainingRow,
    sides: Sequence[Sequence[Hashable]],
    most: int,
    encode: EncodeMessages,
    truncation: Truncation,
) -> RowProblem | None:
    """Why a row of which a side is longer than ``most`` cannot be trained on, if so.

    That is when nothing of its answer is left, when both sides of a preference become equal, and,
    with ``truncation = "error"``, when it is cut at all.
    """
    cut = [list(side[:most] if truncation == "right" else side[-most:]) for side in sides]
    reason = ""
    if truncation == "error":
        reason = 'too long (truncation = "error")'
    elif len(cut) == 2 and cut[0] == cut[1]:
        reason = "cut, both sides are equal"
    elif truncation == "right":
        prompt, _ = split_answers(row)
        empty = encode([*prompt, {"role": "assistant", "content": ""}])
        if any(len(side) > most and common_prefix(empty, side) >= most for side in sides):
            reason = "cut, nothing of an answer is left"
    if not reason:
        return None
    shown = f"{max(map(len, sides)):,} tokens: {reason}"
    wanted = f"what is left of {most:,} (max_length) must tell answers"
    return RowProblem(row.where, "length", shown, wanted)


def common_prefix(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """How many items both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _row_sides(row: _TrainingRow) -> list[ChatMessages]:
    return [row.chosen, row.rejected] if isinstance(row, Preference) else [row.messages]


def length_statistics(values: list[int]) -> LengthStatistics | None:
    """Of lengths; ``None`` of none."""
    if not values:
        return None
    ranked = sorted(values)

    def quantile(percent: int) -> int:
        return ranked[-(-percent * len(ranked) // 100) - 1]

    return LengthStatistics(
        len(ranked),
        sum(ranked) / len(ranked),
        ranked[0],
        quantile(50),
        quantile(90),
        quantile(99),
        ranked[-1],
    )


_T = TypeVar("_T", Preference, Demonstration, Rating, Comparison)
_L = TypeVar("_L", Preference, Rating, Comparison)
_S = TypeVar("_S", Preference, Demonstration)
_E = TypeVar("_E")


@dataclass
class JudgeDataset(Generic[_T]):
    """``train`` and ``val`` rows, and ``facts`` about where they came from.

    ``bayes_accuracy``: what a judge that knows all but chance would get on ``val``, where the rows
    are synthetic.
    """

    train: list[_T]
    val: list[_T]
    facts: dict[str, Any] = field(default_factory=dict)
    bayes_accuracy: float | None = None


@dataclass
class EncodedRows(LoadedRows[_E]):
    """Rows as token ids, cut to the maximum length: one list of ids for each side.

    ``truncated`` counts rows that were cut; ``problems`` are
    the rows that cannot be used.
    """

    rows: list[_E] = field(default_factory=list)
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


class ConversationEncoder:
    """Conversations as token ids, exactly as a served judge will read them."""

    def __init__(self, tokenizer: Any) -> None:
        self._special = get_special_tokens(tokenizer)
        self._tokenizer = tokenizer
        self._bos = tokenizer.bos_token_id

    def clean_messages(self, messages: ChatMessages) -> ChatMessages:
        """Roles and texts, in which nothing reads as a control token."""
        return [dict(turn) for turn in convert_to_turns(messages, self._special)]

    def __call__(self, messages: ChatMessages) -> list[int]:
        """The ids; raises :class:`GradingFailure` for what the chat template refuses."""
        turns = convert_to_turns(messages, self._special)
        return apply_chat_template(self._tokenizer, turns, reply=False)

    def prompt_ids(self, messages: ChatMessages) -> list[int]:
        """The ids of a question, the judge's turn opened; raises as a call does."""
        return apply_chat_template(
            self._tokenizer, convert_to_turns(messages, self._special), reply=True
        )

    def text_ids(self, messages: ChatMessages) -> list[int]:
        """The ids of what is said, without roles and template."""
        said = "\n".join(turn["content"] for turn in convert_to_turns(messages, self._special))
        ids: list[int] = self._tokenizer(said, add_special_tokens=False).input_ids
        return ids

    def truncate(self, ids: list[int], most: int, truncation: str) -> list[int]:
        """``ids`` cut to ``most``; on the left a beginning mark stays, as it does when serving."""
        if len(ids) <= most or truncation == "right":
            return ids[:most]
        kept = [ids[0]] if ids[0] == self._bos else []
        return kept + ids[len(kept) - most :]


def load_preferences(judge: JudgeFile) -> JudgeDataset[Preference]:
    """The pairs of a Bradley-Terry run; raises :class:`ConfigError` for what cannot be read."""
    made = judge.data.synthetic
    if made is None:
        return load_dataset_files(judge, read_preferences)
    return synthetic_dataset(judge, synthetic.synthetic_preferences(made))


def synthetic_dataset(judge: JudgeFile, whole: synthetic.SyntheticSet[_L]) -> JudgeDataset[_L]:
    """Synthetic rows, the last of them held out."""
    made = judge.data.synthetic
    train, val = whole.split(_held_out_count(len(whole.rows), judge.data.val_fraction))
    dials = made.model_dump() if made else None
    facts: dict[str, Any] = {"synthetic": dials, "train": [], "val": []}
    both = judge.mode == "pairwise"  # as judges are asked
    bayes = val.bayes_accuracy_both_orders if both else val.bayes_accuracy
    return JudgeDataset(train.rows, val.rows, facts, bayes)


def load_demonstrations(judge: JudgeFile) -> JudgeDataset[Demonstration]:
    """The conversations of an SFT run; raises :class:`ConfigError` for what cannot be read."""
    made = judge.data.synthetic
    if made is None:
        key = judge.data.multiturn.messages_key
        return load_dataset_files(judge, lambda files: read_demonstrations(files, messages_key=key))
    rows = synthetic.synthetic_demonstrations(made)
    held = _held_out_count(len(rows), judge.data.val_fraction)
    train, held_out = rows[:-held], rows[-held:]
    # Few texts are good ones, so that they recur.
    seen = rows_seen_in(train, held_out)
    val = [row for place, row in enumerate(held_out) if place not in seen]
    if not val:
        judge.refuse("data.synthetic.n", "every held-out row is also a training row. Raise it.")
    facts: dict[str, Any] = {"synthetic": made.model_dump(), "train": [], "val": []}
    facts["val_duplicates"] = {"rows": len(seen), "contradicting": 0}
    return JudgeDataset(train, val, facts)


def encode_rows(
    rows: Sequence[_S],
    encoder: ConversationEncoder,
    judge: JudgeFile,
    part: str,
    problems: RowProblems | None = None,
) -> EncodedRows[_S]:
    """The rows that can be used, as ids cut to ``max_length``.

    Unusable is what the chat template refuses, what calls tools where it answers (judges read its
    text alone), what has nothing of its answer left, and pairs with sides that read the same;
    ``problems`` are those that were found before. Raises :class:`ConfigError`, which shows them,
    for a larger share of them than ``allow_unusable``.
    """
    data = judge.data
    found: EncodedRows[_S] = EncodedRows(problems=problems or RowProblems())
    for row in rows:
        if _has_tool_calls(row):
            problem = RowProblem(row.where, "tool_calls", "calls in an answer", "answers in text")
            found.problems.add(problem)
            continue
        try:
            sides = [encoder(side) for side in _row_sides(row)]
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
            unusable = find_cut_problem(row, sides, data.max_length, encoder, data.truncation)
            if unusable is not None:
                found.problems.add(unusable)
                continue
            found.truncated += 1
        found.rows.append(row)
        found.ids.append(
            [encoder.truncate(side, data.max_length, data.truncation) for side in sides]
        )
    check_unusable_rows(found, judge, part)
    return found


def _has_tool_calls(row: Preference | Demonstration) -> bool:
    """Whether what is judged, or imitated, is more than its text, which is all that is encoded."""
    answers = split_answers(row)[1] if isinstance(row, Preference) else [row.messages]
    return any("tool_calls" in turn for answer in answers for turn in answer)


def token_lengths(
    rows: EncodedRows[Any], encoder: ConversationEncoder, judge: JudgeFile
) -> LengthReport:
    """How long conversations are as the model reads them, and answers as mere text, in tokens."""
    known = {
        id(side): ids
        for row, sides in zip(rows.rows, rows.ids, strict=True)
        for side, ids in zip(_row_sides(row), sides, strict=True)
    }

    def measure(messages: ChatMessages) -> list[int]:
        if (ids := known.get(id(messages))) is None:
            return encoder.text_ids(messages)  # a part, which no chat template has to take
        return ids if len(ids) < judge.data.max_length else encoder(messages)  # perhaps cut

    return measure_lengths(rows.rows, measure)


def load_dataset_files(
    judge: JudgeFile, read: Callable[[Sequence[Path]], LoadedRows[_T]]
) -> JudgeDataset[_T]:
    """The rows of the files that the run names, without repeated ones, some held out."""
    data = judge.data
    train = check_unusable_rows(loaded := read(judge.files(data.train)), judge, "data.train")
    problems = loaded.problems
    facts: dict[str, Any] = {
        "train": _hash_files(judge, data.train),
        "val": _hash_files(judge, data.val),
    }
    train, facts["duplicates"] = drop_repeated_rows(train)
    if data.val:
        val = check_unusable_rows(held := read(judge.files(data.val)), judge, "data.val")
        problems.extend(held.problems)
        val, facts["val_duplicates"] = drop_repeated_rows(val)
    else:
        train, val = _hold_out_prompts(train, data.val_fraction, judge)
    facts["unreadable"] = {
        "rows": problems.count,
        "problems": [str(one) for one in problems.first],
    }
    facts["val_seen_in_training"] = len(rows_seen_in(train, val))
    return JudgeDataset(train, val, facts)


def check_unusable_rows(loaded: LoadedRows[_T], judge: JudgeFile, part: str) -> list[_T]:
    """The rows, unless more are unusable than ``allow_unusable``: :class:`ConfigError`."""
    try:
        return loaded.require_usable(allow=judge.data.allow_unusable)
    except ConfigError as error:
        judge.refuse(
            part, f"{error}\nSet data.allow_unusable to the share of unusable rows that is allowed."
        )


def _hold_out_prompts(rows: list[_T], share: float, judge: JudgeFile) -> tuple[list[_T], list[_T]]:
    """Whole prompts held out, so that no answer to one is on both sides; drawn by the seed."""
    prompts: dict[bytes, list[_T]] = defaultdict(list)
    for row in rows:
        prompt, _ = split_answers(row)
        prompts[blake2b(encode_exactly(render_transcript(prompt))).digest()].append(row)
    groups = list(prompts.values())
    if len(groups) < 2:
        judge.refuse("data.val_fraction", "there is only one prompt. Give a file data.val.")
    random.Random(judge.trainer.seed).shuffle(groups)  # noqa: S311  (no secret)
    wanted = _held_out_count(len(rows), share)
    # A prompt with more rows than are wanted would leave too few to learn from.
    small = [place for place, group in enumerate(groups) if len(group) <= wanted]
    if not small:
        small = [min(range(len(groups)), key=lambda place: len(groups[place]))]
    taken: set[int] = set()
    val: list[_T] = []
    while small and len(val) < wanted and len(taken) < len(groups) - 1:
        taken.add(place := small.pop())
        val += groups[place]
    return [row for at, group in enumerate(groups) if at not in taken for row in group], val


def _held_out_count(rows: int, share: float) -> int:
    wanted = math.ceil(round(rows * share, 9))  # 7 % of 100 are 7, not 7.000000000000001
    return min(rows - 1, max(1, wanted))


def _hash_files(judge: JudgeFile, names: list[str]) -> list[dict[str, Any]]:
    """Each file by name, size and SHA-256."""
    found = []
    for name, path in zip(names, judge.files(names), strict=True):
        found.append({"file": name, "path": str(path.resolve())} | hash_content(path))
    return found


def digest_rows(rows: Sequence[_T]) -> str:
    """SHA-256 over rows in their order, wherever they came from."""
    said = sha256()
    for row in rows:
        said.update(msgspec.json.encode(_row_content(row), order="deterministic") + b"\n")
    return said.hexdigest()


def _row_content(row: Preference | Demonstration | Rating | Comparison) -> list[Any]:
    """What a model learns from a row."""
    if isinstance(row, Rating):
        return [row.messages, row.label]
    if isinstance(row, Comparison):
        return [row.prompt, row.a, row.b, row.label]
    return _row_sides(row)
