"""What a command took of its rollouts, and what it passed over: the same words in all commands."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from adjudge.rollouts.columns import NAMES, fits_field
from adjudge.rollouts.samples import GroupNames, SampleReader
from adjudge.types import Sample

_LOOKED_AT = 100
"""Samples in which columns of numbers are looked for where there is no reward."""

_SHOWN = 6
_FEW = 20
"""Fewer samples may have one reward; a column with one value of more is a fact of the run."""

_FIELDS = ("messages", "response", "prompt", "reference", "reward")
_TAKEN = frozenset({"reference", "env_reward"})

_NO_SCORES = frozenset(
    {
        *("step", "index", "idx", "epoch", "trial", "sample", "sample_idx", "seed", "temperature"),
        *("task_id", "doc_id", "example_id", "rollout_id", "seqlen", "prompt_len", "num_turns"),
        *("entropy", "loss", "duration", "tokens", "turns", "time", "timestamp", "level"),
        *("remove_sample", "parallel_tool_calls", "is_truncated", "truncated"),
        *("advantage", "advantages", "id"),
    }
)
_NO_SCORE_ENDS = (
    *("_id", "_ids", "_idx", "_index", "_version", "_ms", "_s", "_cost", "_len", "_length"),
    *("_tokens", "_time", "_seconds", "_duration", "_count", "_turns", "_calls"),
)
RUN_FOLDER = "run folder"
"""What :attr:`InputReport.formats` counts a run folder as; its samples are not counted."""


@lru_cache(maxsize=1024)
def may_be_score(name: str) -> bool:
    """Whether a column of numbers may be a score by its name: neither an id nor a count."""
    return (
        name not in _NO_SCORES
        and not name.startswith(("_", "judge/"))
        and not name.endswith(_NO_SCORE_ENDS)
    )


def _shorten(names: Sequence[str], most: int = _SHOWN) -> str:
    """The first of some names, and how many there are more."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class InputReport:
    """What files were read as, counted while they are read.

    :meth:`add` counts each sample and names its group; :meth:`add_files` follows once a reader is
    done; :meth:`hear` keeps what a reader says. ``formats``: how many files were read as what;
    ``pairs``: how many of them hold pairs.
    """

    def __init__(self, *, split_steps: bool = False) -> None:
        self.formats: Counter[str] = Counter()
        self.samples = self.pairs = self._textless = self._logs = 0
        self._groups = GroupNames(split_steps=split_steps)
        self._broken = 0
        self._first_broken = ""
        self._skipped: dict[str, str] = {}
        self._have = dict.fromkeys(_FIELDS, 0)
        self._columns: dict[str, dict[str, None]] = {name: {} for name in (*_FIELDS, "group")}
        self._others: dict[str, None] = {}
        self._numbers: dict[str, set[Any]] = {}
        self._other_groups: dict[str, set[tuple[str, str]]] = {}
        self._heard: dict[str, None] = {}

    def hear(self, note: str) -> None:
        """Keep a sentence of the reader for :attr:`notes`, once."""
        self._heard[note] = None

    def add(self, sample: Sample, *, own_reward: bool = False) -> str:
        """Count the next sample.

        Args:
            sample: as a reader gives it.
            own_reward: its reward is the column ``reward``, with the environment's beside it.

        Returns:
            The name of its group.
        """
        have, extra = self._have, sample.extra
        self.samples += 1
        self._textless += sample.response is None
        have["messages"] += sample.messages is not None
        have["prompt"] += bool(sample.prompt)
        have["reference"] += sample.reference is not None
        if own_reward:
            have["reward"] += extra.get("reward") is not None
            self._columns["reward"]["reward"] = None
        elif "env_reward" in extra:
            have["reward"] += 1
        have["response"] += bool(sample.response) or sample.ending != "empty"
        group = self._groups.name(sample)
        if self.samples <= _LOOKED_AT:
            self._look_at(extra, group)
        return group

    def _look_at(self, extra: Mapping[str, Any], group: str) -> None:
        for name, value in islice(extra.items(), 100):
            if name in _TAKEN:
                continue
            self._others[name] = None
            if name in NAMES["group"]:
                self._other_groups.setdefault(name, set()).add((group, str(value)))
            parts = value.items() if isinstance(value, Mapping) else ()
            for path, part in ((name, value), *((f"{name}.{key}", one) for key, one in parts)):
                if part is not None and len(self._numbers) < 1000:
                    fits = fits_field("env_reward", part)
                    self._numbers.setdefault(path, set()).add(part if fits else None)

    def add_files(self, reader: SampleReader) -> None:
        """Count the files of a reader that has read them, its broken rows and what it skipped."""
        for reading in reader.readings.values():
            self.formats[reading.title] += 1
            self.pairs += bool(reading.format and reading.format.pairs)
            for field, column in {**reading.guessed, **reading.mapping}.items():
                self._columns.get(field.removeprefix("env_"), {})[column] = None
                if column == "instruction" and "input" in self._others:  # Alpaca's, both together
                    self._columns["prompt"]["input"] = None
            if "reference" not in reading.mapping:
                self._columns["reference"] |= reader.references.chosen
        self._logs += len(reader.logs)
        self._broken += len(reader.broken)
        if reader.broken and not self._first_broken:
            self._first_broken = f"{reader.broken[0].where}: {reader.broken[0].message}"
        self._skipped |= reader.skipped

    @property
    def title(self) -> str:
        """What the files are."""
        hint = " (`adjudge eval judge` tests a judge on pairs)" if self.pairs else ""
        return ", ".join(self.formats) + hint

    @property
    def group_source(self) -> str:
        """Where the names of groups came from, in words."""
        return self._groups.source

    @property
    def groups_are_prompts(self) -> bool:
        """Whether groups are rows of equal prompts alone: no column says them."""
        return self._groups.are_prompts

    @property
    def score_columns(self) -> list[str]:
        """Columns of numbers that may be the reward where none was found."""
        if self._have["reward"] or not self.samples:
            return []
        taken = self._taken
        return [
            path
            for path, values in self._numbers.items()
            if None not in values and (len(values) > 1 or self.samples < _FEW)
            if path not in taken and all(map(may_be_score, path.split(".")))
        ]

    @property
    def _unread_group(self) -> str | None:
        """A column with a usual name whose groups are smaller than those of equal prompts."""
        looked_at = min(self.samples, _LOOKED_AT) if self.groups_are_prompts else 0
        for name, pairs in self._other_groups.items():
            groups, values = ({pair[n] for pair in pairs} for n in (0, 1))
            if len(groups) < len(pairs) and len(values) < looked_at:  # else an id of each sample
                return name
        return None

    def lines(self) -> Iterator[tuple[str, str]]:
        """What each field was taken from, and what was passed over, in a few words."""
        for field in _FIELDS if self.samples else ():
            if field != "messages" or self._have[field]:
                yield field, self._describe(field)
        if self.samples:
            columns = ", ".join(self._columns["group"])
            named = f"column {columns}" if columns else "as the file says"
            yield "group", self.group_source.replace("column", named, 1)
        if others := self._list_others():
            yield "other columns", others
        if self._broken:
            yield "broken rows", f"{self._broken:,}; {self._first_broken}"
        if self._skipped:
            yield "skipped files", f"{_shorten([*self._skipped], 3)}, without rollouts"

    @property
    def _taken(self) -> set[str]:
        return {name for columns in self._columns.values() for name in columns}

    def _list_others(self) -> str:
        taken = self._taken
        return _shorten([name for name in self._others if name not in taken])

    def _describe(self, field: str) -> str:
        columns = ", ".join(self._columns[field])
        parts = [f"from {columns}"] if columns else []
        lacking = self.samples - self._have[field]
        if lacking == self.samples:
            return "none"
        parts += [f"{lacking:,} of {self.samples:,} samples have none"] if lacking else []
        return "; ".join(parts) or "in all samples"

    @property
    def notes(self) -> list[str]:
        """What a user must know before anything is made of these samples."""
        notes = list(self._heard)
        if self._textless:
            notes.append(
                "the file has rewards and no texts, so that no check of texts can be made. Next "
                "time, record prompt, response, group and step beside each reward."
            )
        if self._logs and not self.samples:
            notes.append(
                "a log has means of steps, so that no check of rewards or texts can be made. Next "
                "time, record the rollouts: trainer.rollout_data_dir in verl, log_completions in "
                "TRL, else JSON lines with prompt, response, reward, group and step."
            )
        empty = self.samples - self._have["response"] - self._textless
        if 2 * empty > self.samples:
            notes.append(
                f"{empty:,} of {self.samples:,} responses are empty. If the text is in "
                "another column, name it: -m response=COLUMN, or -m messages=COLUMN."
            )
        if self.samples and not (self._have["prompt"] or self._textless):
            notes.append(
                "no prompt in this file: graders that ask about a question will see none. "
                "If a column has it, name it: -m prompt=COLUMN"
            )
        if column := self._unread_group:
            notes.append(
                f"rows with an equal prompt are one group, and the column {column}, which tells "
                f"them apart, was not read. To group by it: -m group={shlex.quote(column)}"
            )
        scores = self.score_columns
        if scores and not any(note.startswith("reward:") for note in self._heard):
            column = scores[0] if len(scores) == 1 else "COLUMN"
            notes.append(
                "no reward column was found. Columns of numbers that may be one: "
                f"{_shorten(scores)}. Choose with -m {shlex.quote(f'env_reward={column}')}"
            )
        return notes

    def as_json(self) -> dict[str, Any]:
        """The same facts for programs."""
        return {
            "samples": self.samples,
            "have": self._have,
            "columns": {name: list(columns) for name, columns in self._columns.items()},
            "group": self.group_source,
            "notes": self.notes,
        }
