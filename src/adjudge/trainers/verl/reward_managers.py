"""Reward managers for verl: whole batches (0.6.1), one rollout at a time (0.6.1 and 0.9.1).

``reward_model.reward_manager=adjudge`` in verl 0.6.1 rewards a whole batch at once, or makes one of
the rewards that the reward loop (``rollout.mode=async``) made one by one. ``num_examine`` rollouts
go to the console, as verl's own managers print them.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adjudge.errors import ErrorKind, JudgeAuthError, JudgeUnavailable, TrainingStopped
from adjudge.rewards.spec import RewardSpec
from adjudge.text import printable, shorten_text
from adjudge.trainers.adapter import make_missing_failure
from adjudge.trainers.metrics import TrainerProgress
from adjudge.trainers.scoring import ScorerResult
from adjudge.trainers.verl.batches import BatchRows, last_output
from adjudge.trainers.verl.reward_sources import (
    GroupService,
    VerlRun,
    check_estimator,
    make_checked_scorer,
    make_reward_source,
)
from adjudge.trainers.verl.rewards import (
    ADJUDGE_ESTIMATOR,
    DETAILS_COLUMN,
    METRICS_COLUMN,
    MISSING_COLUMN,
    MISSING_PARTS,
    STOCK_ESTIMATOR,
    MissingRewardUid,
    count_reward,
    details_text,
    find_caller_local,
    impute_for_validation,
    impute_rewards,
    loop_row,
    make_turn_reward,
    object_column,
    place_turn_rewards,
    plain_details,
    read_loop_batch,
)
from adjudge.types import GraderError, RewardResult, Sample

COUNTS_REQUEST = "adjudge_counts"
"""The key in ``meta_info`` of a batch that asks a reward actor for its counts."""


def print_examples(rows: BatchRows, results: Sequence[RewardResult], num_examine: int) -> None:
    """Print the first ``num_examine`` rollouts of each data source.

    Asked for by the user, and cut at 2,000 characters a field; control characters are escaped,
    because the texts are a policy's and the console is a terminal.
    """
    seen: Counter[str] = Counter()
    for sample, source, result in zip(rows.samples, rows.sources, results, strict=True):
        seen[source] += 1
        if seen[source] > num_examine:
            continue
        reference = (sample.extra or {}).get("reference")
        score = f"missing: {result.missing.kind}" if result.missing else result.score
        shown = {"prompt": sample.prompt, "response": sample.response, "ground_truth": reference}
        for name, one in {**shown, "score": score, **result.reward_info}.items():
            text = shorten_text(one, 2000).split("\n")
            sys.stdout.write(f"[{name}] " + "\n".join(map(printable, text)) + "\n")


_log = logging.getLogger("adjudge")


class JudgeRewardManager:
    """Scores a ``DataProto`` by a reward spec, or by a :class:`~adjudge.rewards.RewardFunction`.

    ``compute_score`` is such a function, or verl's own, which is not called; ``spec`` is a spec's
    file (``+reward_model.reward_kwargs.spec=…``; default ``ADJUDGE_SPEC``). In each call
    ``num_examine`` rollouts of each data source are printed. ``adv_estimator`` need not be given
    inside verl.

    ``metrics`` are the last call's. ``collected``, when it is a list, gets a pair of samples and
    metrics per call. Picklable, and connections are made in the process that scores.
    """

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: Any = None,
        reward_fn_key: str = "data_source",
        *,
        spec: RewardSpec | Path | str | None = None,
        adv_estimator: str | None = None,
    ) -> None:
        # verl 0.6.1 hands over no configuration, only what reward_kwargs has: the frame of its
        # loader, in the trainer's process or a Ray task, is the only place to see it.
        run = VerlRun(find_caller_local("load_reward_manager", "config"))
        self.tokenizer, self.num_examine, self.reward_fn_key = tokenizer, num_examine, reward_fn_key
        self.source = make_reward_source(compute_score, spec)
        self.reader = run.make_reader(tokenizer, reward_fn_key)
        self.adv_estimator = adv_estimator or run.estimator
        check_estimator(self.adv_estimator, self.source.spec)
        self.metrics: dict[str, float] = {}
        self.collected: list[tuple[list[Sample], dict[str, float]]] | None = None
        self._keys: list[str] = list(getattr(self.source, "info_keys", ()))
        self._stopped: Exception | None = None

    def __call__(self, data: Any, return_dict: bool = False) -> Any:
        """The reward tensor ``[B, R]``, or with ``return_dict`` that and ``reward_extra_info``.

        A reward stands on the last valid token of its response; in training with ``adjudge_grpo``
        what events add to it stands on their turns (:mod:`.rewards`). ``rm_scores`` that the
        reward loop made are taken as they are. Where a reward is missing see :mod:`.rewards`.
        Raises what the spec says must stop a run: :class:`~adjudge.errors.JudgeUnavailable`,
        :class:`~adjudge.errors.JudgeAuthError`, :class:`~adjudge.errors.ConfigError`,
        :class:`~adjudge.errors.MissingRewardError`; and what a user's own function raises.
        """
        stopped, self._stopped = self._stopped, None
        if stopped is not None and not return_dict:
            # verl answers an exception by calling again without the dict: do not judge twice.
            raise stopped
        try:
            tensor, extra = self._rewards(data)
        except Exception as error:
            self._stopped = error
            raise
        return {"reward_tensor": tensor, "reward_extra_info": extra} if return_dict else tensor

    def _rewards(self, data: Any) -> tuple[Any, dict[str, Any]]:
        if "rm_scores" in data.batch.keys():  # noqa: SIM118  (a TensorDict)
            return self._from_the_loop(data)
        rows = self.reader.read(data)
        progress = TrainerProgress(
            data.meta_info.get("global_steps"), evaluating=bool(data.meta_info.get("validate"))
        )
        scored = self.source.score(rows.samples, rows.groups, progress=progress)
        self._note(rows.samples, scored)
        print_examples(rows, scored.results, self.num_examine)
        values, extra = self._filled(data, scored.results, rows.groups, rows.sources)
        tensor = JudgeRewardLoopManager.assemble_rm_scores(data, values)
        mask = data.batch.get("response_mask", None)
        by_turn = self.adv_estimator == ADJUDGE_ESTIMATOR and not data.meta_info.get("validate")
        if by_turn and mask is not None:
            rewards = list(map(make_turn_reward, scored.results))
            place_turn_rewards(tensor, rows.last, mask, rewards)
        return tensor, extra

    def _from_the_loop(self, data: Any) -> tuple[Any, dict[str, Any]]:
        """``rm_scores`` as they are, but for the NaN by which our loop manager says "missing"."""
        tensor = data.batch["rm_scores"]
        names = data.meta_info.get("reward_extra_keys", [])
        groups = self.reader.groups(data)
        scored = read_loop_batch(data, groups)
        if scored is None:
            return tensor, {name: data.non_tensor_batch[name] for name in names}
        self._keys = [key for key in names if key not in {MISSING_COLUMN, DETAILS_COLUMN}]
        self._note([] if self.collected is None else self.reader.read(data).samples, scored)
        values, extra = self._filled(data, scored.results, groups, self.reader.sources(data))
        tensor = tensor.clone()  # to write into
        for row, value in zip(tensor, values, strict=True):
            row.nan_to_num_(nan=value)
        return tensor, extra

    def _note(self, samples: list[Sample], scored: ScorerResult) -> None:
        self.metrics = scored.metrics
        if self.collected is not None:
            self.collected.append((samples, scored.metrics))

    def _filled(
        self,
        data: Any,
        results: Sequence[RewardResult],
        groups: Sequence[str],
        sources: Sequence[str],
    ) -> tuple[list[float], dict[str, Any]]:
        """Rewards with stand-ins, and ``reward_extra_info`` (:mod:`.rewards`)."""
        rewards = [result.score for result in results]
        for result in results:
            self._keys += [key for key in result.reward_info if key not in self._keys]
        parts = {key: [result.reward_info.get(key) for result in results] for key in self._keys}
        missing = {MISSING_COLUMN: [float(reward is None) for reward in rewards]}
        if data.meta_info.get("validate"):
            filled = {k: impute_for_validation(col, groups, sources) for k, col in parts.items()}
            gone = [[key for key in parts if one.reward_info.get(key) is None] for one in results]
            texts = [
                details_text(result, **{MISSING_PARTS: keys})
                for result, keys in zip(results, gone, strict=True)
            ]
            values = impute_for_validation(rewards, groups, sources)
            return values, {**filled, **missing, DETAILS_COLUMN: object_column(texts)}
        values, factors = impute_rewards(rewards, groups)
        self._say_inflation(list(factors.values()))
        extra: dict[str, Any] = {
            **{k: [math.nan if one is None else one for one in col] for k, col in parts.items()},
            **missing,
            DETAILS_COLUMN: [plain_details(result) for result in results],
            METRICS_COLUMN: [self.metrics, *({} for _ in rewards[1:])],
        }
        if "uid" in data.non_tensor_batch:
            marked = [
                MissingRewardUid(group) if reward is None else group
                for group, reward in zip(groups, rewards, strict=True)
            ]
            extra["uid"] = object_column(marked)
        return values, extra

    def _say_inflation(self, factors: Sequence[float]) -> None:
        """Log what a group's mean in place of missing rewards does to the others' z-scores."""
        inflated = sum(factor > 1 for factor in factors)
        if self.adv_estimator != STOCK_ESTIMATOR or not inflated:
            return
        self.metrics["judge/inflation_max"] = max(factors)
        self.metrics["judge/inflation_mean"] = sum(factors) / len(factors)
        _log.warning(
            "missing rewards in %d of %d groups have the group's mean, so grpo's other "
            "advantages are up to %.3f times too large. Use adv_estimator=adjudge_grpo, which "
            "is exact.",
            inflated, len(factors), max(factors),
        )  # fmt: skip


def make_reward(
    spec: RewardSpec | Path | str | None = None, *, tokenizer: Any, **options: Any
) -> JudgeRewardManager:
    """A manager for ``reward_fn=`` of verl 0.6.1's ``RayPPOTrainer``, in a script of one's own.

    ``options`` are those of :class:`JudgeRewardManager`. verl 0.9.1 makes its managers itself, in
    workers: name one in its configuration.
    """
    return JudgeRewardManager(tokenizer, **{"num_examine": 0, **options}, spec=spec)


class JudgeRewardLoopManager:
    """Scores each rollout when it is done; verl calls it in reward actors.

    ``config`` is verl's; the spec is ``reward.reward_kwargs.spec`` there (0.6.1:
    ``reward_model.reward_kwargs.spec``), else ``ADJUDGE_SPEC``. A rollout is seen alone, so what
    compares a group is refused with :class:`~adjudge.errors.ConfigError` unless the spec is the
    address of a judge service, where the V1 trainers' groups meet (:mod:`.reward_sources`).
    ``sample_rate`` is refused, and so are estimators that cannot leave a missing reward out.
    The router's address and tokenizer are verl's and not used.
    """

    def __init__(
        self, config: Any, tokenizer: Any, compute_score: Any = None, *_: Any, **__: Any
    ) -> None:
        self.run = VerlRun(config)
        self.scorer = make_checked_scorer(self.run, compute_score)
        self.reader = self.run.make_reader(tokenizer)
        # Only the V1 trainers' rollout workers can be ours, and only they see the response mask.
        self._by_turn = self.run.is_v1 and self.run.estimator == ADJUDGE_ESTIMATOR
        self._told = False
        self._counts: Counter[str] = Counter()

    async def run_single(self, data: Any) -> dict[str, Any]:
        """``{"reward_score", "reward_extra_info"}`` of a ``DataProto`` with one rollout.

        Of a rollout in several rows the last counts. A missing reward is NaN with
        ``reward_missing`` 1.0, or a :class:`~adjudge.errors.GradingFailure` where that is how this
        verl leaves a rollout out; see :mod:`.reward_sources`. Keys are always the same
        (:mod:`.rewards`). With ``adjudge_grpo`` in a V1 trainer the score also carries what
        events add to it, for :class:`~adjudge.trainers.verl.JudgeAgentLoopManager`.
        """
        if data.meta_info.get(COUNTS_REQUEST):
            taken, self._counts = self._counts, Counter()
            return {"reward_score": 0.0, "reward_extra_info": dict(taken)}
        row = last_output(data)
        rows = self.reader.read(row)
        metrics: dict[str, float] = {}
        try:
            if isinstance(self.scorer, GroupService):
                columns = {name: column[0] for name, column in row.non_tensor_batch.items()}
                result = await self.scorer.reward(rows.samples[0], columns)
            else:
                scored = await self.scorer.ascore(rows.samples, rows.groups, whole_groups=False)
                [result], metrics = scored.results, scored.metrics
        except (JudgeAuthError, JudgeUnavailable, TrainingStopped) as stop:
            result = self._result_of_stop(stop)  # adjudge: meant (it is missing)
            if not self.run.outages_are_missing:
                self._counts += count_reward(result)
                raise
            if not self._told:
                self._told = True
                _log.error("all rewards are missing from now on: %s", stop)
        self._counts += count_reward(result)
        if result.score is None and self.run.is_absent:
            raise make_missing_failure(result)
        reward = make_turn_reward(result) if self._by_turn else result.score
        return {
            "reward_score": math.nan if reward is None else reward,
            "reward_extra_info": loop_row(result, self.scorer.info_keys, metrics),
        }

    @classmethod
    def assemble_rm_scores(cls, data: Any, scores: Sequence[float]) -> Any:
        """``rm_scores`` ``[B, R]`` of a batch, each score on its row's last valid token.

        verl 0.9.1 asks the class. NaN stays NaN; an empty response has its score on the row's last.
        """
        import torch  # noqa: PLC0415  (heavy)

        tensor = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        width = tensor.shape[-1]
        lengths = data.batch["attention_mask"][:, -width:].sum(dim=-1)
        tensor[torch.arange(len(tensor)), lengths - 1] = tensor.new_tensor(scores)
        return tensor

    def _result_of_stop(
        self, stop: JudgeAuthError | JudgeUnavailable | TrainingStopped
    ) -> RewardResult:
        """What should end the run, as a missing reward: ``adjudge_grpo`` ends it."""
        kind = ErrorKind.AUTH if isinstance(stop, JudgeAuthError) else getattr(stop, "kind", None)
        missing = GraderError("reward", kind or ErrorKind.CIRCUIT_OPEN, str(stop))
        return RewardResult(0, 0, None, dict.fromkeys(self.scorer.info_keys), {}, missing)
