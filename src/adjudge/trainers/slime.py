"""slime and miles: a reward spec in their reward hook, and a normalisation over what is there.

Both have the same hooks; ``ADJUDGE_SPEC`` names the spec. ``--custom-rm-path`` takes
:func:`reward`, ``--custom-reward-post-process-path`` :func:`normalize_rewards`, and, where wanted,
``--dynamic-sampling-filter-path`` :func:`check_reward_nonzero_std` and
``--custom-rollout-log-function-path`` :func:`log_metrics`, each as ``adjudge.trainers.slime.NAME``.

A missing reward is NaN with ``remove_sample``, which takes the sample out of the loss. In the
trainers' own normalisation it would still vote, so a run without :func:`normalize_rewards` is
refused. A call has a whole group with ``--group-rm``; without, a spec that needs one is refused.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from adjudge.errors import ConfigError
from adjudge.rewards.formulas import group_step
from adjudge.rewards.spec import RewardSpec
from adjudge.stats import std
from adjudge.trainers.adapter import Adapter, AdapterOptions, check_settings, share_adapter
from adjudge.trainers.metrics import TrainerProgress, batch_metrics, fill_missing
from adjudge.types import GradedSample, RewardResult

_EPSILON = 1e-6  # both trainers'
_SETTINGS: Mapping[str, tuple[str | None, str]] = {
    "custom_reward_post_process_path": (
        f"{__name__}.normalize_rewards",
        "the trainer's own normalisation counts a missing reward in its group's mean",
    ),
    "dynamic_sampling_filter_path": (
        f"{__name__}.check_reward_nonzero_std",
        "the trainer's own drops every group with a missing reward",
    ),
    "custom_convert_samples_to_train_data_path": (None, "it replaces what leaves samples out"),
    "reward_key": (None, "adjudge's reward is a number"),
    "eval_reward_key": (None, "adjudge's reward is a number"),
}

_UNENDED = ("aborted", "failed")
"""What has no answer to judge. A custom generate function may leave ``pending`` as it is."""

_since_last_log: list[tuple[GradedSample, RewardResult, int]] = []


def make_reward(
    spec: RewardSpec | Path | str | None = None, **options: Unpack[AdapterOptions]
) -> Callable[..., Coroutine[Any, Any, float | list[float]]]:
    """:func:`reward` with a spec of its own, for ``--custom-rm-path my_module.NAME``.

    ``options`` are those of :class:`~adjudge.trainers.adapter.Adapter`; columns are keys of the
    metadata. Raises :class:`~adjudge.errors.ConfigError`.
    """
    adapter = _SlimeAdapter(spec, **options)

    async def scored(args: Any, samples: Any, **_: Any) -> float | list[float]:
        return await adapter.rewards(args, samples)

    return scored


async def reward(args: Any, samples: Any, **_: Any) -> float | list[float]:
    """The reward of a sample, or of each of a group; NaN and ``remove_sample`` are missing.

    Why is in ``metadata["adjudge"]``. Raises :class:`~adjudge.errors.JudgeUnavailable`,
    :class:`~adjudge.errors.JudgeAuthError`, and :class:`~adjudge.errors.ConfigError` also where
    the run's settings would make a missing reward count.
    """
    return await share_adapter(_SlimeAdapter).rewards(args, samples)


def normalize_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """The rewards to log, and the trainer's normalisation of them over those that are present.

    ``advantage_estimator``, ``rewards_normalization`` and ``grpo_std_normalization`` say which (std
    with n − 1, plus 1e-6). The samples of one rollout count once. A missing reward and a lone one
    become 0; a missing one is logged as the mean of the present, so that the logged mean is theirs.
    Raises :class:`~adjudge.errors.ConfigError` where a group cannot be told.
    """
    found = [_read_reward(args, sample) for sample in samples]
    for sample, value in zip(samples, found, strict=True):
        sample.remove_sample = sample.remove_sample or value is None
    filled = fill_missing(found, ["all"] * len(found))
    logged = [math.nan if value is None else value for value in filled]
    centred = args.advantage_estimator in {"grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"}
    if not (centred and args.rewards_normalization):
        return logged, [value or 0.0 for value in found]
    divides = args.grpo_std_normalization and "reinforce" not in args.advantage_estimator
    groups: dict[Any, dict[Any, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, sample in enumerate(samples):
        if sample.group_index is None:
            raise ConfigError("a sample has no group_index. Set it in the rollout function.")
        rollout = ("row", row) if sample.rollout_id is None else sample.rollout_id
        groups[sample.group_index][rollout].append(row)
    trained = [0.0] * len(found)
    for rollouts in groups.values():
        if any(len({found[row] for row in rows}) > 1 for rows in rollouts.values()):
            raise ConfigError("the samples of one rollout have different rewards. Give them one.")
        values = [found[rows[0]] for rows in rollouts.values()]
        stepped = group_step(values, "z_score" if divides else "centre", epsilon=_EPSILON)
        for rows, value in zip(rollouts.values(), stepped, strict=True):
            for row in rows:
                trained[row] = value or 0.0
    return logged, trained


def check_reward_nonzero_std(args: Any, samples: Sequence[Any], **_: Any) -> bool:
    """Whether a group's present rewards differ: dynamic sampling keeps it."""
    flat = [one for given in samples for one in (given if isinstance(given, list) else [given])]
    found = [value for one in flat if (value := _read_reward(args, one)) is not None]
    return (std(found) or 0.0) > _EPSILON


def log_metrics(_rollout: int, _args: Any, _samples: Any, extra: Any, _seconds: float) -> bool:
    """Adds ``judge/…`` about all that was judged since the last time to what is logged."""
    if _since_last_log and extra is not None:
        judged, results, lengths = zip(*_since_last_log, strict=True)
        extra.update(batch_metrics(judged, results, lengths))
    _since_last_log.clear()
    return False


class _SlimeAdapter(Adapter):
    trainer = "slime (or miles) without --group-rm"

    async def rewards(self, args: Any, given: Any) -> float | list[float]:
        samples = given if isinstance(given, list) else [given]
        if not samples:  # all of them have a reward from the generate function
            return []
        self._check(args, given)
        made = []
        for place, one in enumerate(samples):
            response = None if one.status.value in _UNENDED else one.response
            fields = self._fields(one)
            made.append(self.make_sample(place, place, one.prompt, response, fields))
        groups = list(map(self.name_group, made, [one.group_index for one in samples]))
        progress = TrainerProgress(evaluating=all(one.group_index is None for one in samples))
        scored = await self.ascore(
            made, groups, whole_groups=isinstance(given, list), progress=progress
        )
        logs = getattr(args, "custom_rollout_log_function_path", None) == f"{__name__}.log_metrics"
        for place, (sample, result) in enumerate(zip(samples, scored.results, strict=True)):
            if sample.status.value not in _UNENDED:  # which may go on later
                sample.remove_sample = sample.remove_sample or result.score is None
            sample.metadata = {**(sample.metadata or {}), "adjudge": result.details}
            if logs and sample.group_index is not None:  # an evaluation's has none
                _since_last_log.append((scored.judged[place], result, len(sample.response)))
        rewards = [math.nan if one is None else one for one in scored.rewards]
        return rewards if isinstance(given, list) else rewards[0]

    def _check(self, args: Any, given: Any) -> None:
        self.spec.refuse_schedules("slime (or miles)", "Give the grader a number.")
        if not isinstance(given, list):
            self._check_one_sample()
        elif not args.group_rm or any(isinstance(one, list) for one in given):
            raise ConfigError(
                "--custom-generate-function-path: must give one sample for a rollout, or set the "
                f"reward of its samples itself (found {len(given)} samples without a reward)"
            )
        settings = dict(_SETTINGS)
        used = getattr(args, "dynamic_sampling_filter_path", None)
        if "check_reward_nonzero_std" not in str(used):
            del settings["dynamic_sampling_filter_path"]  # one of one's own may look elsewhere
        check_settings(settings, args, lambda key: f"--{key.replace('_', '-')}")

    def _fields(self, sample: Any) -> dict[str, Any]:
        """The metadata, and ``label`` as the reference."""
        columns = {**(sample.metadata or {})}
        if sample.label is not None:
            columns |= {"label": sample.label, "reference": sample.label}
        ended = {"completed": "stop", "truncated": "length"}.get(sample.status.value)
        return self.select_fields(columns) | ({"finish_reason": ended} if ended else {})


def _read_reward(args: Any, sample: Any) -> float | None:
    """``None`` where it is missing, or was never asked for."""
    value = None if sample.reward is None else float(sample.get_reward_value(args))
    return None if value is None or not math.isfinite(value) else value
