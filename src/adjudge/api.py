"""The functions that most programs need: grade rollouts, and make a reward function of a spec."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from adjudge.datasets.files import FileRow
from adjudge.engine.loop import run_blocking
from adjudge.errors import (
    ConfigError,
    Fields,
    JudgeAuthError,
    JudgeUnavailable,
    Metadata,
    RolloutError,
)
from adjudge.graders.base import BaseGrader
from adjudge.graders.registry import is_grader, name_grader
from adjudge.hosts import is_address
from adjudge.intake.columns import without_arrays
from adjudge.rewards.spec import RewardSpec
from adjudge.rollouts.samples import GroupNames, sample_from_row
from adjudge.runs.grading import grade_rollouts
from adjudge.runs.job import MOST_DRAWS, GradedRun, GradingJob
from adjudge.types import Sample

if TYPE_CHECKING:
    from adjudge.trainers.scoring import ScorerResult

_log = logging.getLogger("adjudge")

AnySpec = RewardSpec | Fields | Path | str | Callable[..., object] | BaseGrader
"""A reward spec, the tables of one, its file, or the address of a judge service; or one grader: its
table, a function, a class or object of :class:`~adjudge.BaseGrader`, another callable object."""


def grade(
    rollouts: Path | str | Iterable[object],
    spec: AnySpec,
    *,
    mapping: Mapping[str, str] | None = None,
    output: Path | str | None = None,
    strict: bool = False,
    progress: bool = True,
    record: Path | str | None = None,
    replay: Path | str | None = None,
    budget_usd: float | None = None,
    wait_for_judge: float = 0.0,
    draws: int = 1,
    keep_transcripts: int | None = None,
    step: int | None = None,
) -> GradedRun:
    """Grade rollouts with a reward spec: ``adjudge grade`` as a function.

    ``rollouts``: files, folders or patterns, in any format that ``adjudge grade`` reads; or
    mappings or :class:`Sample` objects in memory: a list, a Hugging Face dataset, a table of
    pandas, Polars or Arrow. ``spec``: a :class:`RewardSpec`, the same as a mapping, or its file;
    or one grader, as a function, a class or an object.
    Fields and columns are those of ``adjudge grade``; ``mapping`` names the column of a field:
    ``{"messages": "traj"}``.

    The other options are those of the command. ``output`` is a run folder: the same call with the
    same folder resumes an interrupted run; without it nothing is written. With ``draws`` of 2 or
    more each judge is asked so often, and ``summary["noise"]`` says what its noise is. A row that
    is no sample is in ``broken`` of the result; with ``strict`` the first one raises
    ``RolloutError``.

    It blocks until all is graded, and works inside a running event loop too (a notebook), because
    all asynchronous work is on adjudge's own loop. Raises ``ConfigError``, ``RolloutError``,
    ``RunFolderError``, ``JudgeUnavailable``, ``JudgeAuthError`` and, under policy ``raise``,
    ``MissingRewardError``. A failed judge call raises nothing: its reward is missing.

    >>> import adjudge
    >>> judge = {"type": "scripted", "script": '{"reason": "clear", "score": 4}'}
    >>> grader = {"name": "good", "type": "llm", "template": "From 1 to 5, how good? {response}"}
    >>> spec = {"graders": [grader | {"score_range": [1, 5]}], "judges": {"main": judge}}
    >>> run = adjudge.grade([{"prompt": "Why?", "response": "Because."}], spec)
    >>> run.rewards, run.rows[0].scores
    ([0.75], {'good': 4.0})
    """
    if not 1 <= draws <= MOST_DRAWS:
        raise ConfigError(f"draws: must be between 1 and {MOST_DRAWS} (found {draws})")
    paths, rows, by_name = _split_input(rollouts)
    loaded = _load_spec(_read_spec(spec))
    job = GradingJob(
        paths=paths,
        rows=rows,
        by_name=by_name,
        spec=loaded if step is None else loaded.at_step(step),
        folder=None if output is None else Path(output),
        mapping=dict(mapping or {}),
        strict=strict,
        show_progress=progress,
        budget_usd=budget_usd,
        startup_patience_s=wait_for_judge,
        draws=draws,
        keep_transcripts=keep_transcripts,
    )
    job.use_cassette(record=_path(record), replay=_path(replay))
    with _note_how_to_resume(job.folder):
        run = grade_rollouts(job)
    if run.broken:
        _log.warning(
            "%d rows are no samples and have no row in the result; see .broken", len(run.broken)
        )
    return run


@contextmanager
def _note_how_to_resume(folder: Path | None) -> Iterator[None]:
    """What is raised where grading is stopped says how to go on; a traceback shows the note."""
    try:
        yield
    except (KeyboardInterrupt, JudgeUnavailable, JudgeAuthError) as stopped:
        if folder is None:
            stopped.add_note("adjudge: nothing is kept; with output=… the same call would resume")
        else:
            stopped.add_note(f"adjudge: to resume, call again with output={str(folder)!r}")
        raise


def make_reward(spec: AnySpec, *, trainer: str | None = None, **options: Any) -> Any:
    """A reward spec, or one grader, as a reward function.

    Without ``trainer`` it is a :class:`~adjudge.api.SpecReward`: prompts and completions in, a
    list of rewards out, ``None`` for a missing one. With ``trainer`` it is what that trainer takes:
    ``"trl"`` or another of :data:`~adjudge.trainers.SHIPPED_TRAINERS` (with the ``options`` of its
    ``make_reward``), an adapter of an installed package by its name (entry points
    ``adjudge.trainers``), or ``module:function`` of your own, which gets the spec and the
    ``options``. Raises ``ConfigError``.

    >>> import adjudge
    >>> reward = adjudge.make_reward({"graders": [{"name": "right", "type": "string_match"}]})
    >>> reward(["2 + 2?", "2 + 2?"], ["4", "5"], reference=["4", "4"])
    [1.0, 0.0]
    """
    spec = _read_spec(spec)
    if trainer is not None:
        from adjudge.trainers import make_trainer_reward  # noqa: PLC0415  (grading needs no trainer)

        return make_trainer_reward(spec, trainer, **options)
    if options:
        raise ConfigError(f"make_reward: {', '.join(options)}: need trainer=…. Give one.")
    return SpecReward(spec)


def _read_spec(given: AnySpec) -> RewardSpec | Path | str:
    """The spec of tables or of one grader; a spec, or what names its file, as it is."""
    if isinstance(given, Mapping):
        if "type" in given and "graders" not in given:  # the table of one grader
            given = {"graders": [{"name": name_grader(given["type"]), **given}]}
        return RewardSpec.from_dict(given)
    if isinstance(given, RewardSpec | Path | str) or not is_grader(given):
        return cast("RewardSpec | Path | str", given)
    return RewardSpec.from_dict({"graders": [{"name": name_grader(given), "type": given}]})


def _load_spec(spec: RewardSpec | Path | str) -> RewardSpec:
    """The spec itself; an address is the spec of a judge service."""
    if isinstance(spec, RewardSpec):
        return spec
    if isinstance(spec, str) and is_address(spec):
        from adjudge.client.grader import make_service_spec  # noqa: PLC0415  (files need none)

        return make_service_spec(spec, pinned=True)
    return RewardSpec.load(spec)


class SpecReward:
    """A reward spec as a callable: prompts and completions in, one reward a completion out.

    ``prompts[i]`` belongs to ``completions[i]``; each is text or a list of chat messages. Every
    other argument is a column: a list with one value a completion, or one value for all. The column
    ``group`` names the samples that are compared; without it equal prompts are one group. A group
    must be whole in one call where the spec compares its samples. A completion that is ``None`` or
    cannot be read, and one without a turn of the assistant, is missing.

    Called, it blocks, also inside a running event loop; from a coroutine await :meth:`acall`. One
    object serves any thread, loop and process. Raises what :func:`adjudge.grade` raises.
    """

    __name__ = "adjudge"  # trainers log a reward function by its name

    def __init__(self, spec: RewardSpec | Path | str) -> None:
        from adjudge.trainers.scoring import Scorer  # noqa: PLC0415  (grading needs none)

        self.scorer = Scorer(spec)

    def __call__(
        self, prompts: Sequence[object], completions: Sequence[object], **columns: object
    ) -> list[float | None]:
        """The rewards; ``None`` is missing, never a number."""
        return run_blocking(self.acall(prompts, completions, **columns))

    async def acall(
        self, prompts: Sequence[object], completions: Sequence[object], **columns: object
    ) -> list[float | None]:
        """The same from a coroutine."""
        return (await self.ascore(prompts, completions, **columns)).rewards

    async def ascore(
        self, prompts: Sequence[object], completions: Sequence[object], **columns: object
    ) -> ScorerResult:
        """The rewards with what is behind them: each grader's score and reason, and metrics."""
        samples, groups = _make_batch(prompts, completions, columns)
        return await self.scorer.ascore(samples, groups)


def _make_batch(
    prompts: Iterable[object], completions: Sequence[Any], columns: Mapping[str, Any]
) -> tuple[list[Sample], list[str]]:
    """A call's samples, and the name of each one's group."""
    count = len(completions)
    prompts = list(prompts)
    # As lists: [0] of a series is not its first value, but the one with that label.
    sized = {name: list(values) for name, values in columns.items() if _is_column(values)}
    for name, values in {"prompts": prompts, **sized}.items():
        if len(values) != count:
            raise ConfigError(
                f"{name}: must have one value for each completion (found {len(values)}; "
                f"allowed: {count})"
            )
    samples: list[Sample] = []
    for i, completion in enumerate(completions):
        row = {
            name: _plain_value(sized[name][i] if name in sized else values)
            for name, values in columns.items()
        }
        turns = {"prompt": _plain_value(prompts[i]), "response": _plain_value(completion)}
        row |= {"messages": None, **turns}
        try:
            sample = sample_from_row(row, i)
        except RolloutError as error:
            sample = sample_from_row({**row, "response": ""}, i)  # which its group is known by
            sample.is_lost, sample.problem, sample.response = True, str(error), None
        samples.append(sample)
    names = GroupNames()
    return samples, [names.name(sample) for sample in samples]


def _is_column(values: Any) -> bool:
    """A list, an array, a series, a tensor of values; text and mappings are one value."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__getitem__"):
        return False
    try:
        return len(values) >= 0
    except TypeError:  # an array of no dimension
        return False


def _path(value: Path | str | None) -> Path | None:
    return None if value is None else Path(value)


def _split_input(
    rollouts: Path | str | Iterable[object],
) -> tuple[list[Path], list[FileRow] | None, bool]:
    """Files, or rows in memory, and whether their columns are adjudge's own for certain."""
    if isinstance(rollouts, str | os.PathLike):
        return [Path(rollouts)], None, False
    if isinstance(rollouts, Mapping):
        raise ConfigError(
            f"rollouts: must be a file or several rows (found one {type(rollouts).__name__}). "
            "Give a list, or one split of a dataset."
        )
    records = list(_iter_records(rollouts))
    if records and all(isinstance(one, str | os.PathLike) for one in records):
        return [Path(one) for one in records], None, False
    rows: list[FileRow] = [(f"rollouts[{i}]", _row_of(one, i)) for i, one in enumerate(records)]
    return [], rows, any(isinstance(one, Sample) for one in records)


def _iter_records(table: Any) -> Any:
    """What is in a list, a dataset or a table, row by row."""
    if hasattr(table, "to_pylist"):  # Arrow
        return table.to_pylist()
    if hasattr(table, "to_dicts"):  # Polars
        return table.to_dicts()
    if hasattr(table, "iterrows"):  # pandas
        return table.to_dict("records")
    return table


def _row_of(record: object, place: int) -> Metadata | RolloutError:
    if isinstance(record, Sample):
        if record.is_lost:
            return RolloutError(record.problem or "the rollout was lost")
        beside = {"opening_turns": record.opening_turns, "group": record.group}
        return record.fields() | {name: one for name, one in beside.items() if one is not None}
    if not isinstance(record, Mapping):
        raise ConfigError(
            f"rollouts[{place}]: must be a mapping or a Sample (found {type(record).__name__})"
        )
    return {str(name): _plain_value(value) for name, value in record.items()}


def _plain_value(value: object) -> object:
    """A table's value as JSON has it: its arrays are lists, and NaN stands for nothing."""
    value = without_arrays(value)
    return None if isinstance(value, float) and math.isnan(value) else value
