"""ms-swift: a reward spec as one of its reward functions.

ms-swift imports a file of the user's (``--external_plugins plugin.py --reward_funcs adjudge``)::

    from swift.rewards import orms
    from adjudge.trainers.ms_swift import AdjudgeORM    # ADJUDGE_SPEC names the spec
    orms["adjudge"] = AdjudgeORM                        # or make_reward("reward.toml")

Its sum over reward functions makes a missing reward 0. What is exact all the same: with
``--scale_rewards none``, the mean of the present in a missing one's place, since the trainer then
takes the group's mean off and does nothing else. ``reward.group = "z_score"`` in the spec divides
by the deviation there. A group without any reward gets one value. All other settings are refused
when the trainer starts, unless the spec's policy raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Unpack

from adjudge.errors import ConfigError
from adjudge.rewards.spec import RewardSpec
from adjudge.stats import mean
from adjudge.trainers.adapter import DEFAULT_NAME, Adapter, AdapterOptions
from adjudge.trainers.metrics import fill_missing
from adjudge.trainers.trl_batch import GroupLayout
from adjudge.types import Sample

_INTERNAL = frozenset(
    {"prompt_id", "request_id", "is_truncated", "rollout_infos", "response_token_ids"}
)
_REMEDY = (
    "--scale_rewards none with --advantage_estimator grpo, --kl_in_reward false and adjudge as the "
    "only reward function, where a missing reward can be given its group's mean (reward.group = "
    "'z_score' in the spec divides by the deviation there)"
)


class AdjudgeORM:
    """A reward function for ``swift.rewards.orms``; ``ADJUDGE_SPEC`` names the spec.

    ms-swift makes it with its own arguments, and raises :class:`~adjudge.errors.ConfigError` then
    where a missing reward would change what other completions learn.
    """

    spec: ClassVar[RewardSpec | Path | str | None] = None
    options: ClassVar[AdapterOptions] = {}

    def __init__(self, args: Any = None, **_: Any) -> None:
        self._adapter = _SwiftAdapter(args, self.spec, **self.options)

    async def __call__(self, _completions: Sequence[Any], **given: Any) -> list[float | None]:
        """The rewards to train on; ``None`` where nothing in the call has one.

        Raises :class:`~adjudge.errors.JudgeUnavailable`, :class:`~adjudge.errors.JudgeAuthError`,
        under policy ``raise`` :class:`~adjudge.errors.MissingRewardError`, and
        :class:`~adjudge.errors.ConfigError` where a group straddles processes.
        """
        return await self._adapter.rewards(given)


def make_reward(
    spec: RewardSpec | Path | str | None = None, **options: Unpack[AdapterOptions]
) -> type[AdjudgeORM]:
    """A class for ``swift.rewards.orms`` with a spec of its own, called ``name`` in the log.

    ``options`` are those of :class:`~adjudge.trainers.adapter.Adapter`. What the spec says is
    checked when ms-swift makes an object of it.
    """
    name = options.get("name", DEFAULT_NAME)
    return type(name, (AdjudgeORM,), {"spec": spec, "options": options})


class _SwiftAdapter(Adapter):
    trainer = "ms-swift"

    def __init__(self, args: Any, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._size = int(getattr(args, "num_generations", None) or 1)
        self._eval_size = int(getattr(args, "num_generations_eval", None) or self._size)
        self._read_settings(lambda key: getattr(args, key, None))
        self._check_policy(GroupLayout(["0"] * self._size))

    def _read_settings(self, find_setting: Callable[[str], Any]) -> None:
        """Whether ms-swift's settings undo the mean of a group in a missing reward's place.

        They do where the mean of the group is taken off and nothing else is done; elsewhere the 0
        that stands for a missing reward counts.
        """
        scale, estimator = find_setting("scale_rewards"), find_setting("advantage_estimator")
        self._who = f"ms-swift (scale_rewards {scale!r}, advantage_estimator {estimator!r})"
        divergence = find_setting("kl_in_reward") and find_setting("beta")
        others = find_setting("reward_model") or find_setting("use_gym_env")
        self._only_centres = (
            scale == "none"
            and estimator in ("grpo", "reinforce_plus_plus")
            and find_setting("loss_type") != "real"  # under which 0 is a bad answer
            and not (divergence or others)
            and len(find_setting("reward_funcs") or [""]) == 1
        )
        if scale in ("batch", "gdpo"):
            self.check_drawn_groups(f"--scale_rewards {scale}")
        if estimator == "reinforce_plus_plus":
            self.check_drawn_groups(f"--advantage_estimator {estimator}")

    def _check_policy(self, layout: GroupLayout) -> None:
        """Refuse a spec whose missing rewards would become 0; raises :class:`ConfigError`."""
        policy = self.spec.missing.policy
        if policy == "raise" or (self._only_centres and layout.broken is None):
            return
        who = f"{self._who}, where {layout.broken}" if self._only_centres else self._who
        raise ConfigError(
            f"{self.spec.where}: missing.policy: does not hold under {who}, which counts a missing "
            "reward as 0, so that a failed judge looks like a bad answer "
            f"(found {policy!r}; allowed here: 'raise'). Use it, or {_REMEDY}."
        )

    async def rewards(self, given: Mapping[str, Any]) -> list[float | None]:
        layout = self._find_layout(given)
        self.check_whole_groups(layout.broken, "Let each process hold whole groups")
        self._check_policy(layout)
        samples = self._make_samples(given, layout.groups)
        whole_groups = layout.broken is None
        scored = await self.ascore(samples, layout.groups, whole_groups=whole_groups)
        if None not in scored.rewards:
            return scored.rewards
        self.warn(
            "a missing reward goes to ms-swift as the mean of its group, which exactly undoes it"
        )
        filled = fill_missing(scored.rewards, layout.groups)
        of_all = mean([one for one in filled if one is not None])
        return [of_all if one is None else one for one in filled]  # a group without any

    def _find_layout(self, given: Mapping[str, Any]) -> GroupLayout:
        """Blocks of ``num_generations``, as ms-swift compares them, or those of an evaluation."""
        prompts, requests = given["prompt_id"], given["request_id"]
        if len(set(requests)) < len(requests) or "trajectory_inputs" in given:
            return GroupLayout(list(prompts), "a rollout of several turns may have several rows")
        for size in (self._size, self._eval_size):
            groups = [str(place // size) for place in range(len(prompts))]
            apart = len(set(zip(groups, prompts, strict=True))) == len(set(groups))
            if apart and len(prompts) % size == 0:
                return GroupLayout(groups)
        return GroupLayout(
            list(prompts),
            f"a group straddles processes: num_generations is {self._size}, and "
            f"this process has {len(prompts)} completions",
        )

    def _make_samples(self, given: Mapping[str, Any], groups: Sequence[str]) -> list[Sample]:
        """Each row's conversation, the last message being the response, and dataset columns."""
        rows = {
            name: values
            for name, values in given.items()
            if name not in _INTERNAL and isinstance(values, list) and len(values) == len(groups)
        }
        samples = []
        for place, messages in enumerate(given["messages"]):
            fields = self.select_fields({name: values[place] for name, values in rows.items()})
            if ended := given["finish_reason"][place]:
                fields["finish_reason"] = ended
            within = groups[:place].count(groups[place])
            said = (n for n, one in enumerate(messages) if one.get("role") == "assistant")
            start = max(said, default=0)  # what comes after it is a tool's or a user's
            turns = messages[:start], messages[start:]
            samples.append(self.make_sample(place, within, *turns, fields))
        return samples
