"""Files of rollouts as samples: read, recognised, and what a sample must have."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from adjudge.datasets.files import FileRow, find_files, read_rows
from adjudge.errors import ConfigError, RolloutError
from adjudge.intake.columns import ReferenceChoice, RewardColumns, describe_value, read_env_reward
from adjudge.intake.conversation import list_messages, looks_like_messages, read_messages
from adjudge.intake.rollouts import (
    RolloutParts,
    ThinkingWatch,
    compute_divergence,
    compute_prompt_key,
    is_plain,
    last_said,
    read_conversation,
    read_rollout,
    sample_of_rollout,
)
from adjudge.messages import last_question
from adjudge.rollouts.columns import (
    RESPONSE_LISTS,
    as_answer,
    fits_field,
    list_columns,
    object_text,
    read_log,
)
from adjudge.rollouts.fields import SAMPLE_FIELDS
from adjudge.rollouts.nested import HEAD_ROWS
from adjudge.rollouts.recognition import FileReading, check_mapping, find_reading
from adjudge.text import encode_exactly, encode_json
from adjudge.types import DATASET_COLUMNS, RecordedColumns, Sample

_MOST_BROKEN = 100_000
"""From here on a file of which 99 % are broken rows is no file of rollouts."""

_DOCUMENT = re.compile(r"\.(json|traj)(\.gz|\.zst)?$", re.IGNORECASE)
_log = logging.getLogger("adjudge")
_REFERENCES = ReferenceChoice(_log.warning, "Name the one to use: -m reference={}")

_PlacedRow = tuple[str, Mapping[str, Any] | RolloutError]
SampleOrError = tuple[str, Sample | RolloutError]
"""``FILE:ROW`` and the sample of a row, or what is wrong with the row."""


def sample_from_row(
    row: Mapping[str, Any],
    index: int,
    *,
    where: str = "",
    references: ReferenceChoice = _REFERENCES,
    texts: bool = True,
) -> Sample:
    """One row as a :class:`~adjudge.Sample`, read from ``where``; raises :class:`RolloutError`.

    A row needs ``messages`` or ``response``, unless it is to have no ``texts``. A ``prompt`` that
    is a conversation, or that a chat template rendered, stands before ``response``;
    ``opening_turns`` says how many of ``messages`` stand before the policy. Other columns stay
    available as extra fields under their own name. A recorded row has ``lost_rollout`` where
    the rollout was lost.
    """
    columns = dict(row)
    take = columns.pop
    messages, prompt = take("messages", None), take("prompt", None)
    response, group = take("response", None), take("group", None)
    opening_turns = take("opening_turns", None)
    if group.__class__ is not str:
        group = _parse_group(group)
    take("index", None)
    lost = take("lost_rollout", None) if "reward_info" in row else None
    is_lost, why = lost is not None, lost or ""
    references.set(columns)
    if "reward_info" in row and isinstance(apart := columns.get(DATASET_COLUMNS), dict):
        columns[DATASET_COLUMNS] = RecordedColumns(apart)
    if "env_reward" in columns:
        columns["env_reward"] = read_env_reward(columns["env_reward"])
        if columns["env_reward"] is None:
            del columns["env_reward"]
    if (messages is None and is_plain(prompt, response)) or not texts:
        return Sample(index, 0, prompt, response, None, columns, is_lost, None, group, where, why)
    rollout = _read_parts(messages, prompt, response, opening_turns)
    if rollout is None and not row.keys().isdisjoint(("messages", "response")):
        raise RolloutError("'messages' or 'response' is null: no response was made")
    if rollout is None:
        raise RolloutError(
            "has neither 'messages' nor 'response'; name the column with --map messages=COLUMN "
            f"(columns: {list_columns(sorted({*row} - {*SAMPLE_FIELDS}))})"
        )
    if "reward_info" not in row:  # a recorded row has all that the policy was shown
        rollout = _add_system(rollout, columns)
    sample = sample_of_rollout(index, 0, rollout, columns)
    sample.group, sample.where, sample.is_lost, sample.problem = group, where, is_lost, why
    return sample


def _read_parts(
    messages: Any, prompt: Any, response: Any, opening_turns: Any
) -> RolloutParts | None:
    """The rollout of a row; ``None`` where it has neither a conversation nor a response."""
    if isinstance(prompt, Mapping):
        prompt = object_text(prompt) or prompt.get("messages") or prompt
    if prompt is not None and not isinstance(prompt, str | list):
        raise RolloutError(f"'prompt' must be text, got {describe_value(prompt)}")
    if messages is None:
        return None if response is None else read_rollout(prompt, _read_response(response))
    turns = list_messages(messages, "messages")
    known = type(opening_turns) is int and 0 <= opening_turns <= len(turns)
    if not known and isinstance(prompt, list) and turns[: len(prompt)] == prompt:
        known, opening_turns = True, len(prompt)
    found = read_conversation(turns, opening_turns if known else None)
    if isinstance(prompt, list):
        found = found._replace(prompt=last_question(read_messages(prompt, "prompt")))
    elif prompt is not None:
        found = found._replace(prompt=prompt)
    if found.response is None:
        if response is None:
            raise RolloutError(
                "messages: have no turn of the assistant: nothing was answered. Where another "
                "column has the answer, name it: -m response=COLUMN"
            )
        answered = read_rollout(turns, _read_response(response))
        return answered._replace(prompt=found.prompt)
    if response is None:
        return found
    response = _read_response(response)
    if isinstance(response, list):
        response = last_said(read_messages(response, "response"))
        if response is None:
            raise RolloutError("response: has no message of the assistant: nothing was answered")
    return found._replace(response=response)


_SYSTEM_COLUMNS = ("system", "system_prompt", "system_message")


def _add_system(rollout: RolloutParts, columns: Mapping[str, Any]) -> RolloutParts:
    """A conversation with the system text that a row has beside it."""
    name = next((one for one in _SYSTEM_COLUMNS if columns.get(one)), None)
    text = None if name is None else columns[name]
    messages, turns = rollout.messages, rollout.opening_turns
    if name is None or not messages or not isinstance(text, str | list):
        return rollout
    if any(one["role"] in ("system", "developer") for one in messages):
        return rollout
    said = read_messages([{"role": "system", "content": text}], name)
    return rollout._replace(
        messages=[*said, *messages], opening_turns=None if turns is None else turns + 1
    )


def _read_response(value: Any) -> str | list[Any]:
    """A response as text or messages; raises :class:`RolloutError` for what is neither."""
    if isinstance(value, Mapping):
        if not fits_field("response", value):
            raise RolloutError(f"response: is an object (found {list_columns(map(str, value))})")
        value = as_answer(value)
        return [dict(value)] if looks_like_messages([value]) else object_text(value) or ""
    if isinstance(value, list) and any(isinstance(one, str | None) for one in value):
        raise RolloutError(
            f"response: must be one text or a list of messages (found a list of {len(value)})"
        )
    if not isinstance(value, str | list):
        raise RolloutError(f"'response' must be text, got {describe_value(value)}")
    return value


def _parse_group(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):  # pandas' "none"
        return None
    if isinstance(value, str | int | float | bool):
        return str(value)
    raise RolloutError(f"'group' must be text or a number, got {describe_value(value)}")


@dataclass(frozen=True)
class BrokenInputRow:
    """A row that is no sample: ``where`` is ``FILE:ROW``."""

    where: str
    message: str


class SampleReader:
    """The samples of rollouts, as often as they are needed.

    ``paths`` are files, folders or patterns, of formats that are recognised by their content
    (:mod:`adjudge.rollouts`); ``mapping`` names where a field comes from instead:
    ``{"messages": "traj", "answer": "info.gold"}``. ``Sample.original_index`` counts samples over
    all files, broken rows included. ``rows``: rollouts in memory in place of files, which with
    ``by_name`` are read by the names of their columns alone. ``broken`` lists the rows that are no
    samples, as far as they were read; with ``strict`` the first of them is raised. ``readings``
    says how each file was read, ``skipped`` why a file that only a folder named was not. ``say``
    hears once of each choice. With ``audited``, rows may have rewards and no texts, and ``logs``
    has the rows of each log of metrics by step.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        mapping: Mapping[str, str] = MappingProxyType({}),
        *,
        rows: Sequence[FileRow] | None = None,
        by_name: bool = False,
        strict: bool = False,
        audited: bool = False,
        say: Callable[[str], None] = _log.warning,
    ) -> None:
        self._paths, self._rows, self._by_name = paths, rows, by_name
        self._mapping, self._strict, self._audited = mapping, strict, audited
        self._named = {str(path) for path in paths}
        self.broken: list[BrokenInputRow] = []
        self.readings: dict[str, FileReading] = {}
        self.skipped: dict[str, str] = {}
        self.logs: dict[str, list[dict[str, float]]] = {}
        self._texts = True
        self._requests: dict[str, Mapping[str, Any]] | None = None
        self._say, self._thinking = say, ThinkingWatch(say)
        self.references = ReferenceChoice(say, "Name the one to use: -m reference={}")
        self._rewards: set[RewardColumns] = set()
        self._own_rewards: set[str] = set()

    def __iter__(self) -> Iterator[Sample]:
        """From the first one on; raises :class:`ConfigError` and :class:`RolloutError`."""
        self.broken.clear()
        for number, (where, sample) in enumerate(self.read(), start=1):
            if not isinstance(sample, RolloutError):
                yield sample
            elif self._strict:
                raise sample
            else:
                self.broken.append(BrokenInputRow(where, str(sample).removeprefix(f"{where}: ")))
                if (count := len(self.broken)) > max(_MOST_BROKEN, 0.99 * number):
                    first = self.broken[0]
                    raise ConfigError(
                        f"{where}: {count:,} of the first {number:,} rows are no samples; the "
                        f"first: {first.where}: {first.message}. Give the file of the rollouts."
                    )

    def read(self) -> Iterator[SampleOrError]:
        """Every row in order: its sample, or what is wrong with it."""
        self.readings.clear()
        self.skipped.clear()
        index = number = 0
        for reading, alone, rows in self._read_files():
            self._texts = reading.texts
            by_name = reading.format is None and reading.nested is None
            for where, record in rows:
                if (
                    by_name
                    and not isinstance(record, RolloutError)
                    and (
                        record.get("response").__class__ is str or RESPONSE_LISTS.isdisjoint(record)
                    )
                ):  # as most rows are
                    made: Iterable[_PlacedRow] = [(where, reading.name_fields(record, record))]
                else:
                    made = self._read_record(where, record, reading, number, alone=alone)
                for at, row in made:
                    yield at, self._as_sample(row, index, at)
                    index += 1
                number += 1
        if self.skipped and not self.readings:
            file, reason = next(iter(self.skipped.items()))
            raise ConfigError(f"{file}: {reason}")

    def read_own_reward(self, sample: Sample) -> tuple[bool, float | None]:
        """:meth:`.FileReading.read_own_reward` of the sample read last; said once a file."""
        file, reading = next(reversed(self.readings.items()))
        own, reward = reading.read_own_reward(sample.extra)
        if own and sample.env_reward is not None and file not in self._own_rewards:
            self._own_rewards.add(file)
            self._say(
                f"{file}: the reward is the column 'reward'; 'env_reward' is beside it. Choose "
                "another column with -m env_reward=COLUMN."
            )
        return own, reward

    def _as_sample(
        self, row: Mapping[str, Any] | RolloutError, index: int, where: str
    ) -> Sample | RolloutError:
        if isinstance(row, RolloutError):
            return row if str(row).startswith(where) else RolloutError(str(row), where=where)
        try:
            refs, texts = self.references, self._texts
            sample = sample_from_row(row, index, where=where, references=refs, texts=texts)
        except RolloutError as error:
            return RolloutError(str(error), where=where)
        if sample.response:
            self._thinking.see(sample.response)
        return sample

    def _read_record(
        self, where: str, record: Any, reading: FileReading, number: int, *, alone: bool
    ) -> Iterator[_PlacedRow]:
        """The rows of a record with their places."""
        if isinstance(record, RolloutError):
            yield where, record
            return
        file = where.rpartition(":")[0]
        made = list(self._convert(file, record, reading, number))
        listed = alone and len(made) > 1 and reading.nested is None
        for element, (place, row) in enumerate(made, start=1):
            # A document's samples are counted as the elements of an array.
            at = f"{file}:{element}" if listed else f"{where}.{place}" if place else where
            yield at, row

    def _convert(
        self, file: str, record: Any, reading: FileReading, number: int
    ) -> Iterator[_PlacedRow]:
        """The rows of a record with their places in it; a request goes with its result."""
        form = reading.format if reading.nested is None else None
        if form is not None and (request_id := form.request_id) is not None:
            if request_id(record) is not None:
                return
            if self._requests is None:
                self._requests = dict(self._read_requests(request_id))
            record = self._requests.get(str(record.get("custom_id")), {}) | record
        try:
            if form is not None and form.join is not None and self._rows is None:
                record = form.join(Path(file), record)
            if record is not None:
                yield from reading.places(record, number)
        except RolloutError as error:
            yield "", error

    def _read_requests(
        self, request_id: Callable[[Mapping[str, Any]], str | None]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for _, rows in self._files():
            for _, record in rows:
                if isinstance(record, RolloutError):
                    continue
                if (name := request_id(record)) is None:
                    break  # a file of something else
                yield name, record

    def _read_files(self) -> Iterator[tuple[FileReading, bool, Iterator[FileRow]]]:
        """How each file is read, whether it is a JSON document of one record, and its records."""
        check_mapping(chain.from_iterable(rows for _, rows in self._files()), self._mapping)
        for file, rows in self._files():
            head = list(islice(rows, HEAD_ROWS))
            reading = self._find_reading(file, head)
            if reading is not None:
                self.readings[file] = reading
                if reading.log:
                    lines = (one for _, one in chain(head, rows) if isinstance(one, dict))
                    found = (row for n, one in enumerate(lines) for row in reading.places(one, n))
                    self.logs[file] = read_log((row for _, row in found), self._say)
                    continue
                kind = reading.rewards._replace(value="")
                if (sentence := reading.rewards.sentence) and kind not in self._rewards:
                    self._rewards.add(kind)
                    self._say(sentence)
                alone = len(head) == 1 and _DOCUMENT.search(file) is not None
                yield reading, alone, reading.join_lines(chain(head, rows))

    def _files(self) -> Iterator[tuple[str, Iterator[FileRow]]]:
        """The name and the rows of each file, or of what is in memory."""
        if self._rows is not None:
            name = self._rows[0][0].rpartition(":")[0] if self._rows else ""
            yield name, iter(self._rows)
            return
        for file in find_files(self._paths):
            yield str(file), self._rows_of(file)

    def _rows_of(self, file: Path) -> Iterator[FileRow]:
        """A file's rows; what of a folder's file cannot be read is a broken row."""
        try:
            yield from read_rows([file])
        except ConfigError as error:
            if str(file) in self._named:
                raise
            yield str(file), RolloutError(str(error).removeprefix(f"{file}: "), where=str(file))

    def _find_reading(self, file: str, head: Sequence[FileRow]) -> FileReading | None:
        """How a file is read; ``None`` where it is skipped."""
        if self._by_name:
            named = {name: path for name, path in self._mapping.items() if name != "rows"}
            return FileReading(mapping=named, nested=self._mapping.get("rows"))
        try:
            records = [record for _, record in head if not isinstance(record, RolloutError)]
            reading = find_reading(records, self._mapping)
            # Beside a folder's rollouts, a table of rewards is perhaps of the same ones.
            whole = reading.log or not any(map(os.path.isdir, self._paths))
            if reading.texts or (self._audited and whole):
                return reading
            problem = (
                f"response: is missing (found {reading.title}). `adjudge audit FILE` checks what "
                "such a file has; give the file with the texts here, or -m response=COLUMN."
            )
        except ConfigError as error:
            problem = str(error)
        if self._rows is not None or file in self._named:
            raise ConfigError(f"{file or 'rollouts'}: {problem}")
        self.skipped[file] = problem
        return None


def compute_rollout_key(sample: Sample) -> str:
    """What was judged, as 32 hexadecimal digits: equal for equal prompt, messages and response.

    Two runs over the same rollouts, and people's labels, are joined by it; references, groups and
    other columns play no part.
    """
    said = [sample.prompt, sample.messages, sample.response]
    return blake2b(encode_json(said, repr), digest_size=16).hexdigest()


class GroupNames:
    """Names each sample's group: its column, else one name per distinct prompt of a step.

    Where no row has a step, all are of one. Conversations that begin alike, in which the user then
    says different things after the same words of the assistant, are of different groups. Generated
    names stand in parentheses, and are never those of a column. With ``split_steps`` a column's
    group is divided, too, where its rows are of several steps.
    """

    def __init__(self, *, split_steps: bool = False) -> None:
        self._prompts: dict[bytes, str] = {}
        self._columns: set[str] = set()
        self._made: set[str] = set()
        self._by_column = self._by_prompt = self._alone = self._diverged = 0
        self._next_said: dict[bytes, bytes] = {}
        self._by_step = False
        self._first_steps: dict[str, int | None] | None = {} if split_steps else None

    def name(self, sample: Sample) -> str:
        """The name of the next sample's group."""
        if sample.group is not None:
            self._by_column += 1
            self._columns.add(sample.group)
            name = f"{sample.group} (column)" if sample.group in self._made else sample.group
            if self._first_steps is not None and (
                self._first_steps.setdefault(name, sample.step) != sample.step
            ):
                return f"{name} (step {sample.step})"
            return name
        key = compute_prompt_key(sample)
        if key is None:
            self._alone += 1
            return self._new("row", sample.original_index)
        self._by_prompt += 1
        if sample.step is not None:
            self._by_step = True
            key = f"{sample.step}\0{key}"
        # Prompts are long, and there may be as many as samples.
        digest = _digest(key)
        if (diverging := compute_divergence(sample)) is not None:
            said, answered = _digest(f"{key}\0{diverging[0]}"), _digest(diverging[1])
            if self._next_said.setdefault(said, answered) != answered:
                self._diverged += 1
                digest = _digest(f"{key}\0{diverging[0]}\0{diverging[1]}")
        if digest not in self._prompts:
            self._prompts[digest] = self._new("prompt", len(self._prompts))
        return self._prompts[digest]

    def _new(self, kind: str, number: int) -> str:
        name = f"({kind} {number})"
        while name in self._columns:
            name = f"({name})"
        self._made.add(name)
        return name

    @property
    def are_prompts(self) -> bool:
        """Whether all names so far are those of prompts."""
        return self._by_prompt > 0 == self._by_column

    @property
    def source(self) -> str:
        """Where the names came from, in words."""
        ways = {
            "column": self._by_column,
            "equal prompts of a step" if self._by_step else "equal prompts": self._by_prompt,
            "no prompt, each alone": self._alone,
        }
        used = {way: count for way, count in ways.items() if count}
        said = list(used) if len(used) == 1 else [f"{way}: {n} rows" for way, n in used.items()]
        if self._diverged:
            said.append(
                f"{self._diverged} rows begin like others and then the user says something else, "
                "so they are groups of their own: name the group with -m group=COLUMN"
            )
        return "; ".join(said)


def _digest(text: str) -> bytes:
    return blake2b(encode_exactly(text), digest_size=16).digest()
