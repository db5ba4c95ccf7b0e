"""The rows that verl reads: a run's prompts in the order in which they are trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError
from adjudge.training.planning.foreseen import single_turn_task
from adjudge.training.runfile import RunFile
from adjudge.training.runfile.template import chat_template
from adjudge.training.scaffold.message import scaffolded, system_message
from adjudge.training.scaffold.rows import rubrics_of
from adjudge.training.tasks import training_seeds

__all__ = ["VerlRows", "write_rows"]

_TRUTHS = ("reference", "ground_truth")


class VerlRows:
    """What verl is given to train on and to validate with, for a run of single turns.

    ``train`` has the prompts of all steps one after another, so that verl, without shuffling,
    takes the order that ``training.seed`` means; ``validation`` has the held-out ones. A row is
    ``prompt`` (chat messages), ``data_source``, ``reward_model`` (``ground_truth``: the column
    ``reference``, else ``ground_truth``) and ``extra_info`` (``index`` and all other columns).
    Raises :class:`~adjudge.errors.ConfigError`.
    """

    def __init__(self, run: RunFile) -> None:
        self._run, self._task = run, single_turn_task(run)
        held_out, size = run.evaluation.held_out, self._task.size
        if size is not None and run.evaluation.seeds is None:
            held_out = [seed for seed in held_out if seed < size]
        if size is not None and (beyond := [seed for seed in held_out if seed >= size]):
            run.refuse("evaluation.seeds", f"has {beyond[0]}; the dataset has {size} rows, from 0")
        self.held_out = held_out
        self.count = prompts_per_step(run) * (
            run.training.steps + int(run.training.pipeline_async_enabled)  # one batch ahead
        )
        seeds = training_seeds(self._task, held_out, run.training.seed)
        self.seeds = list(islice(seeds, self.count))
        self._begun = {seed: self._task.begin(seed) for seed in sorted({*self.seeds, *held_out})}
        self._template = _tokens_of(chat_template(run) or "")

    @property
    def train(self) -> Iterator[dict[str, Any]]:
        """A row for each prompt of each step."""
        return map(self._row, self.seeds)

    @property
    def validation(self) -> Iterator[dict[str, Any]]:
        """A row for each held-out beginning."""
        return map(self._row, self.held_out)

    @property
    def prompt_tokens(self) -> int:
        """Room for the longest prompt: a token per two bytes, and the chat template's own."""
        return self._rounded(max(_room(one.messages) for one in self._begun.values()))

    @property
    def shown_tokens(self) -> int:
        """Room for the longest prompt with all of its rubrics; without a scaffold the same."""
        scaffold = self._run.rollout.scaffold
        if scaffold is None:
            return self.prompt_tokens
        rooms = []
        for episode in (self._begun[seed] for seed in set(self.seeds)):
            text = system_message(rubrics_of(episode.columns), scaffold)
            rooms.append(_room(scaffolded(episode.messages, text)))
        return max(self.prompt_tokens, self._rounded(max(rooms)))

    def _rounded(self, room: int) -> int:
        return max(512, 64 * math.ceil((room + self._template) / 64))

    def _row(self, seed: int) -> dict[str, Any]:
        episode = self._begun[seed]
        columns = {name: value for name, value in episode.columns.items() if name != "reference"}
        # Whatever stands in reward_model is what graders get under both names.
        truth = next((episode.columns[name] for name in _TRUTHS if name in episode.columns), None)
        return {
            "prompt": episode.messages,
            "data_source": self._run.env_name,
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {**columns, "index": seed},
        }


def prompts_per_step(run: RunFile) -> int:
    """Prompts behind one update, each answered ``group_size`` times."""
    return run.training.rollouts_per_step // run.training.group_size


def write_rows(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """A Parquet file of ``rows``; raises :class:`~adjudge.errors.ConfigError`."""
    try:
        import pyarrow as pa  # noqa: PLC0415  (heavy)
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigError(
            "backend = 'verl' needs pyarrow for its data: pip install 'adjudge[parquet]'"
        ) from None
    try:
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    except (
        pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError,
        UnicodeEncodeError,
    ) as error:  # fmt: skip
        raise ConfigError(
            f"{path.name}: the dataset's columns do not fit a table, {error}; verl reads one type "
            "a column"
        ) from None


def _room(messages: Sequence[Mapping[str, Any]]) -> int:
    return 64 + sum(16 + _bytes(message.get("content")) // 2 for message in messages)


def _tokens_of(text: str) -> int:
    return _bytes(text) // 2


def _bytes(content: Any) -> int:
    if isinstance(content, str):
        return len(content.encode(errors="surrogatepass"))
    if isinstance(content, Sequence):
        return sum(_bytes(part.get("text") if isinstance(part, dict) else part) for part in content)
    return 0
