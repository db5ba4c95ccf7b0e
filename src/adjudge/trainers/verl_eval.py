r"""A reward spec as the reward function of ``verl.trainer.main_eval``.

::

    python -m verl.trainer.main_eval data.path=gen.parquet \
        custom_reward_function.path=$(python -m adjudge.trainers.verl_eval) \
        +custom_reward_function.reward_kwargs.spec=held_out.toml \
        +custom_reward_function.reward_kwargs.data=gen.parquet \
        +custom_reward_function.reward_kwargs.scores_to=scores.jsonl

``main_eval`` knows numbers only. A missing reward is therefore NaN, which makes the mean of its
data source NaN: a mean of the others would pass for one of all. Which are missing, and why, is in
``scores_to``; ``python -m adjudge.trainers.verl_eval --summary scores.jsonl`` has the means of the
others with their counts.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from adjudge.datasets.files import read_rows
from adjudge.errors import ConfigError, ErrorKind, RolloutError
from adjudge.intake.columns import is_nothing
from adjudge.rollouts.samples import SampleReader
from adjudge.trainers.adapter import Adapter
from adjudge.types import GraderError, RewardResult, Sample

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
    scores_to: str | None = None,
) -> float:
    """The reward of one response; NaN where it is missing.

    ``spec``: a reward spec's file, by default the one in ``ADJUDGE_SPEC``. ``data``: the file that
    ``main_eval`` reads, where graders find the prompt and all other columns; without it they see
    ``response``, ``reference`` and ``data_source`` only. ``scores_to``: a file that each response's
    score, or the kind and message of what failed, is appended to: a new file for each evaluation.

    A response that several rows of ``data`` have word for word, with the same data source and
    ground truth, gets the mean of its rewards for these prompts: ``main_eval`` does not say which
    row it is about. The mean over the file is the same. Raises :class:`ConfigError` for a spec that
    compares a group's samples and for a response that is not in ``data``, and what an outage or a
    refused key raises.
    """
    scores = _scores(spec, data, scores_to)
    return scores.of(str(data_source), solution_str, ground_truth)


@cache
def _scores(spec: str | None, data: str | None, scores_to: str | None) -> _Scores:
    """One for each process."""
    return _Scores(spec, data, scores_to)


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

    def __init__(self, spec: str | None, data: str | None, scores_to: str | None) -> None:
        super().__init__(spec)
        self._samples: dict[_Key, list[Sample]] = defaultdict(list)
        self._rows: dict[str, list[Sample]] = defaultdict(list)
        self._done: dict[int, RewardResult] = {}
        self._data, self._scores_to = data, scores_to
        for _, found in [] if data is None else SampleReader([Path(data)], _REFERENCE).read():
            if isinstance(found, RolloutError):
                continue  # a null among the responses; it is asked about as None
            source = found.extra.get("data_source")
            self._samples[_key(source, found.response, found.reference)].append(found)
            self._rows[str(found.group)].append(found)

    def of(self, data_source: str, text: str | None, reference: Any) -> float:
        if text is None:
            gone = GraderError("response", ErrorKind.INVALID_INPUT, "no response was made")
            self._write(data_source, Sample(), RewardResult(0, 0, None, missing=gone))
            return math.nan
        samples = self._about(data_source, text, reference)
        results = self._graded(samples)
        for sample, result in zip(samples, results, strict=True):
            self._write(data_source, sample, result)
        values = [result.score for result in results if result.score is not None]
        return fmean(values) if len(values) == len(results) else math.nan

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

    def _graded(self, samples: Sequence[Sample]) -> list[RewardResult]:
        together = samples
        if len(samples) == 1:  # the others of its row are asked about next
            together = self._rows.get(str(samples[0].group), samples)
        todo = [one for one in together if one.original_index not in self._done]
        if todo:
            alone = [str(one.original_index) for one in todo]
            scored = self.score(todo, alone)
            self._done.update((one.original_index, one) for one in scored.results)
        return [self._done[one.original_index] for one in samples]

    def _write(self, source: str, sample: Sample, result: RewardResult) -> None:
        if self._scores_to is None:
            return
        gone = result.missing
        line = {"data_source": source, "row": sample.group, "sample": sample.extra.get("sample")}
        line |= {"score": result.score}
        line |= {} if gone is None else {"missing": gone.kind.value, "message": gone.error}
        with Path(self._scores_to).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")  # one write; processes append side by side


def summarise_scores(path: Path) -> dict[str, dict[str, Any]]:
    """By data source: ``responses``, ``missing`` by kind, and ``mean`` of the others.

    ``mean`` is, as ``main_eval``'s, the mean over rows of the mean over samples; ``None`` of
    nothing. Of several lines about one response the last holds.
    """
    last: dict[str, dict[Any, dict[str, Any]]] = defaultdict(dict)
    for number, (_, line) in enumerate(read_rows([path])):
        if isinstance(line, RolloutError):
            continue  # cut off by a crash
        where = (line.get("row"), line.get("sample"))
        key = where if line.get("row") is not None else (None, number)
        last[str(line.get("data_source"))][key] = line
    return {source: _summarise_source(lines) for source, lines in last.items()}


def _summarise_source(lines: Mapping[Any, Mapping[str, Any]]) -> dict[str, Any]:
    rows: dict[Any, list[float]] = defaultdict(list)
    for (row, number), line in lines.items():
        if line["score"] is not None:
            rows[number if row is None else row].append(line["score"])
    return {
        "responses": len(lines),
        "missing": dict(Counter(one["missing"] for one in lines.values() if "missing" in one)),
        "mean": fmean(map(fmean, rows.values())) if rows else None,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print this file's path, or with ``--summary FILE`` what the file of scores comes to."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        sys.stdout.write(f"{os.fspath(Path(__file__).resolve())}\n")
    elif len(given) == 2 and given[0] == "--summary":
        sys.stdout.write(json.dumps(summarise_scores(Path(given[1])), indent=2) + "\n")
    else:
        raise SystemExit("usage: python -m adjudge.trainers.verl_eval [--summary SCORES.jsonl]")


if __name__ == "__main__":
    main()
