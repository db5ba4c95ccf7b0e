r"""A reward spec as the reward function of ``verl.trainer.main_eval``.

::

    python -m verl.trainer.main_eval data.path=gen.parquet \
        custom_reward_function.path=$(python -m adjudge.trainers.verl_eval) \
        +custom_reward_function.reward_kwargs.spec=held_out.toml \
        +custom_reward_function.reward_kwargs.data=gen.parquet

``main_eval`` knows numbers only. A missing reward is therefore NaN, which makes the mean of its
data source NaN: a mean of the others would pass for one of all. Which are missing, and why, is
logged, and stands in the folder that ``ADJUDGE_RECORD`` names.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from adjudge.errors import ConfigError, RolloutError
from adjudge.intake.columns import is_nothing
from adjudge.rollouts.samples import SampleReader
from adjudge.stats import mean_of_all
from adjudge.trainers.adapter import Adapter
from adjudge.types import Sample

_Key = tuple[str, str, str]
_REFERENCE = {"reference": "reward_model.ground_truth"}


def compute_score(
    data_source: str,
    solution_str: str | None,
    ground_truth: Any,
    extra_info: Any = None,  # noqa: ARG001  (other callers of such functions pass it)
    *,
    spec: str | None = None,
    data: str | None = None,
) -> float:
    """The reward of one response; NaN where it is missing.

    ``spec``: a reward spec's file, by default the one in ``ADJUDGE_SPEC``. ``data``: the file that
    ``main_eval`` reads, where graders find the prompt and all other columns; without it they see
    ``response``, ``reference`` and ``data_source`` only. A response that is ``None`` has no reward.

    A response that several rows of ``data`` have word for word, with the same data source and
    ground truth, gets the mean of its rewards for these prompts: ``main_eval`` does not say which
    row it is about. The mean over the file is the same. Raises :class:`ConfigError` for a spec that
    compares a group's samples and for a response that is not in ``data``, and what an outage or a
    refused key raises.
    """
    return _scores(spec, data).of(str(data_source), solution_str, ground_truth)


def _key(data_source: Any, text: str | None, reference: Any) -> _Key:
    reference = None if is_nothing(reference) else reference  # as a reader of the file has it
    if not isinstance(reference, str):
        reference = json.dumps(_plain(reference), sort_keys=True, default=str)
    return str(data_source), text or "", reference


def _plain(value: Any) -> Any:
    """What a file has, however it was read: pandas makes arrays of lists, and floats of whole
    numbers with a null among them.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and (math.isnan(value) or value.is_integer()):
        return None if math.isnan(value) else int(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


class _Scores(Adapter):
    """What is known of a file's responses; a row's are graded together when one is asked for."""

    trainer = "verl's main_eval"
    call_holds = "one sample"

    def __init__(self, spec: str | None, data: str | None) -> None:
        super().__init__(spec)
        self._samples: dict[_Key, list[Sample]] = defaultdict(list)
        self._rows: dict[str, list[Sample]] = defaultdict(list)
        self._done: dict[int, float | None] = {}
        self._data = data
        for _, found in [] if data is None else SampleReader([Path(data)], _REFERENCE).read():
            if isinstance(found, RolloutError):
                continue  # a null among the responses; it is asked about as None
            source = found.extra.get("data_source")
            self._samples[_key(source, found.response, found.reference)].append(found)
            self._rows[str(found.group)].append(found)

    def of(self, data_source: str, text: str | None, reference: Any) -> float:
        if text is None:
            self.warn("a response is null, so it has no reward")
            return math.nan
        found = mean_of_all(self._rewards(self._about(data_source, text, reference)))
        return math.nan if found is None else found

    def _about(self, data_source: str, text: str, reference: Any) -> list[Sample]:
        """The samples of the file that this may be, or one made of what is known without it."""
        if self._data is None:
            own = {"reference": reference, "data_source": data_source}
            return [Sample(len(self._done), response=text, extra=own)]
        if found := self._samples.get(_key(data_source, text, reference)):
            return found
        raise ConfigError(
            "a response of main_eval's is not in reward_kwargs.data. Give the file of data.path."
        )

    def _rewards(self, samples: Sequence[Sample]) -> list[float | None]:
        together = samples
        if len(samples) == 1:  # the others of its row are asked about next
            together = self._rows.get(str(samples[0].group), samples)
        todo = [one for one in together if one.original_index not in self._done]
        if todo:
            alone = [str(one.original_index) for one in todo]
            rewards = self.score(todo, alone).rewards
            self._done.update(zip((one.original_index for one in todo), rewards, strict=True))
        return [self._done[one.original_index] for one in samples]


_scores = cache(_Scores)
"""One for each process."""


if __name__ == "__main__":
    sys.stdout.write(f"{os.fspath(Path(__file__).resolve())}\n")
