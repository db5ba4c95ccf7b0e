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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.errors import (
    ErrorKind,
    JudgeAuthError,
    JudgeUnavailable,
    TrainingStopped,
)
from adjudge.rewards.spec import RewardSpec
from adjudge.text import printable, shorten_text
from adjudge.trainers.adapter import make_missing_failure
from adjudge.trainers.progress import TrainerProgress
from adjudge.trainers.scoring import Scorer, ScorerResult
from adjudge.trainers.verl.advantage import (
    ADJUDGE_ESTIMATOR,
    STOCK_ESTIMATOR,
    ImputedRewards,
    MissingRewardUid,
    TurnRewardPlacer,
    check_estimator,
    configured_estimator,
    find_caller_local,
    find_turn_ends,
    impute_for_validation,
    impute_rewards,
    make_turn_reward,
    raises_on_missing,
)
from adjudge.trainers.verl.batches import (
    DETAILS_COLUMN,
    METRICS_COLUMN,
    MISSING_COLUMN,
    BatchRows,
    RowReader,
    details_texts,
    flat_loop_row,
    last_output,
    loop_row,
    number_columns,
    object_column,
    plain_details,
    results_from_columns,
)
from adjudge.trainers.verl.reward_sources import (
    GroupService,
    MissingRewardChannel,
    detect_channel,
    make_checked_scorer,
    make_reward_source,
    refuse_verl_schedules,
)
from adjudge.trainers.verl.step_metrics import COUNTS_REQUEST, RewardCounts, compute_loop_metrics
from adjudge.types import GraderError, RewardResult, Sample

_MAX_CHARACTERS = 2000


def print_examples(rows: BatchRows, results: Sequence[RewardResult], num_examine: int) -> None:
    """Print the first ``num_examine`` rollouts of each data source.

    Asked for by the user, and cut at 2,000 characters a field; control characters are escaped,
    because the texts are a policy's and the console is a terminal.
    """
    seen: Counter[str] = Counter()
    for sample, source, result in zip(rows.samples, rows.sources, results, strict=True):
        seen[source] += 1
        if seen[source] <= num_examine:
            lines = {
                "prompt": sample.prompt,
                "response": sample.response,
                "ground_truth": (sample.extra or {}).get("reference"),
                "score": f"missing: {result.missing.kind}" if result.missing else result.score,
                **result.reward_info,
            }
            for name, one in lines.items():
                text = shorten_text(one, _MAX_CHARACTERS).split("\n")
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
        config = find_caller_local("load_reward_manager", "config")
        self.tokenizer, self.num_examine, self.reward_fn_key = tokenizer, num_examine, reward_fn_key
        self.source = make_reward_source(compute_score, spec)
        own_spec = self.source.spec if isinstance(self.source, Scorer) else None
        if own_spec is not None:
            refuse_verl_schedules(own_spec)
        self.reader = RowReader(tokenizer, reward_fn_key, find_response_limit(config))
        self.adv_estimator = adv_estimator or configured_estimator(config)
        if own_spec is None or not raises_on_missing(own_spec):
            check_estimator(self.adv_estimator, own_spec)
        self.metrics: dict[str, float] = {}
        self.collected: list[tuple[list[Sample], dict[str, float]]] | None = None
        self._keys: list[str] = list(getattr(self.source, "info_keys", ()))
        self._stopped: Exception | None = None
        self._placer = TurnRewardPlacer()

    def __call__(self, data: Any, return_dict: bool = False) -> Any:
        """The reward tensor ``[B, R]``, or with ``return_dict`` that and ``reward_extra_info``.

        A reward stands on the last valid token of its response; in training with ``adjudge_grpo``
        what events add to it stands on their turns (:mod:`.advantage`). ``rm_scores`` that the
        reward loop made are taken as they are. Where a reward is missing see :mod:`.advantage`.
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

    def samples(self, data: Any) -> list[Sample]:
        """The rollouts of a batch as graders see them."""
        return self.reader.read(data).samples

    def _rewards(self, data: Any) -> tuple[Any, dict[str, Any]]:
        if "rm_scores" in data.batch.keys():  # noqa: SIM118  (a TensorDict)
            return self._from_the_loop(data)
        import torch  # noqa: PLC0415  (heavy)

        rows = self.reader.read(data)
        progress = TrainerProgress(
            data.meta_info.get("global_steps"), evaluating=bool(data.meta_info.get("validate"))
        )
        scored = self.source.score(rows.samples, rows.groups, progress=progress)
        self._note(rows.samples, scored)
        self.reader.warn_without_messages(scored.results)
        print_examples(rows, scored.results, self.num_examine)
        values, extra = self._filled(data, scored.results, rows.groups, rows.sources)
        tensor = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        tensor[torch.arange(len(values)), torch.tensor(rows.last)] = torch.tensor(values)
        if self.adv_estimator == ADJUDGE_ESTIMATOR and not data.meta_info.get("validate"):
            self._place_events(tensor, data, rows, scored.results)
        return tensor, extra

    def _place_events(
        self, tensor: Any, data: Any, rows: BatchRows, results: Sequence[RewardResult]
    ) -> None:
        """What events add to the rewards in ``tensor`` goes to the turns that earned it."""
        mask = data.batch.get("response_mask", None)
        if mask is None or not any(result.event_rewards for result in results):
            return
        for place, ends in enumerate(find_turn_ends(mask)):
            reward = make_turn_reward(results[place])
            self._placer.place(tensor[place], rows.last[place], ends, reward)

    def _from_the_loop(self, data: Any) -> tuple[Any, dict[str, Any]]:
        """``rm_scores`` as they are, but for the NaN by which our loop manager says "missing"."""
        tensor = data.batch["rm_scores"]
        names = data.meta_info.get("reward_extra_keys", [])
        extra = {name: data.non_tensor_batch[name] for name in names}
        if MISSING_COLUMN not in extra:
            return tensor, extra  # somebody else's
        tensor = tensor.clone()  # to write into
        rewards = [None if math.isnan(value) else value for value in tensor.sum(dim=-1).tolist()]
        groups, sources = self.reader.groups(data), self.reader.sources(data)
        results = results_from_columns(rewards, extra)
        self._keys = [
            key for key in names if key not in {MISSING_COLUMN, DETAILS_COLUMN, METRICS_COLUMN}
        ]
        lengths = data.batch["attention_mask"][:, -tensor.shape[-1] :].sum(dim=-1).tolist()
        metrics = compute_loop_metrics(results, groups, lengths, extra.get(METRICS_COLUMN, ()))
        samples = [] if self.collected is None else self.samples(data)
        self._note(samples, ScorerResult(results, metrics))
        values, extra = self._filled(data, results, groups, sources)
        for place, reward in enumerate(rewards):
            if reward is None:
                tensor[place].nan_to_num_(nan=values[place])
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
        """Rewards with stand-ins, and ``reward_extra_info`` (:mod:`.batches`)."""
        rewards = [result.score for result in results]
        for result in results:
            self._keys += [key for key in result.reward_info if key not in self._keys]
        extra: dict[str, Any] = dict(number_columns(results, self._keys))
        extra[MISSING_COLUMN] = [float(reward is None) for reward in rewards]
        if data.meta_info.get("validate"):
            for key in self._keys:
                parts = [result.reward_info.get(key) for result in results]
                extra[key] = impute_for_validation(parts, groups, sources)
            extra[DETAILS_COLUMN] = object_column(details_texts(results, self._keys))
            return impute_for_validation(rewards, groups, sources), extra
        stood = impute_rewards(rewards, groups)
        self._say_inflation(stood)
        extra[DETAILS_COLUMN] = [plain_details(result) for result in results]
        extra[METRICS_COLUMN] = [self.metrics, *({} for _ in rewards[1:])]
        if "uid" in data.non_tensor_batch:
            marked = [
                MissingRewardUid(group) if reward is None else group
                for group, reward in zip(groups, rewards, strict=True)
            ]
            extra["uid"] = object_column(marked)
        return stood.rewards, extra

    def _say_inflation(self, stood: ImputedRewards) -> None:
        """Log what a group's mean in place of missing rewards does to the others' z-scores."""
        factors = [factor for factor in stood.inflation.values() if factor > 1]
        if self.adv_estimator != STOCK_ESTIMATOR or not factors:
            return
        self.metrics["judge/inflation_max"] = max(factors)
        self.metrics["judge/inflation_mean"] = sum(stood.inflation.values()) / len(stood.inflation)
        _log.warning(
            "missing rewards in %d of %d groups have the group's mean, so grpo's other "
            "advantages are up to %.3f times too large. Use adv_estimator=adjudge_grpo, which "
            "is exact.",
            len(factors), len(stood.inflation), max(factors),
        )  # fmt: skip


def make_reward(
    spec: RewardSpec | Path | str | None = None,
    *,
    tokenizer: Any,
    num_examine: int = 0,
    adv_estimator: str | None = None,
) -> JudgeRewardManager:
    """A manager for ``reward_fn=`` of verl 0.6.1's ``RayPPOTrainer``, in a script of one's own.

    verl 0.9.1 makes its managers itself, in workers: name one in its configuration.
    """
    return JudgeRewardManager(tokenizer, num_examine, spec=spec, adv_estimator=adv_estimator)


class JudgeRewardLoopManager:
    """Scores each rollout when it is done; verl calls it in reward actors.

    ``config`` is verl's; the spec is ``reward.reward_kwargs.spec`` there (0.6.1:
    ``reward_model.reward_kwargs.spec``), else ``ADJUDGE_SPEC``. A rollout is seen alone, so what
    compares a group is refused with :class:`~adjudge.errors.ConfigError` unless the spec is the
    address of a judge service, where the V1 trainers' groups meet (:mod:`.reward_sources`).
    ``sample_rate`` is refused, and so are estimators that cannot leave a missing reward out.
    ``compute_score``, the router's address and tokenizer are verl's and not used.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
        **_: Any,
    ) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.reward_router_address = reward_router_address
        self.reward_model_tokenizer = reward_model_tokenizer
        self.channel = detect_channel(config)
        self.scorer = make_checked_scorer(config, compute_score)
        source_key = str((config.get("data") or {}).get("reward_fn_key") or "data_source")
        self.reader = RowReader(tokenizer, source_key, find_response_limit(config))
        # Only the V1 trainers' rollout workers can be ours, and only they see the response mask.
        self._by_turn = self.channel.is_v1 and configured_estimator(config) == ADJUDGE_ESTIMATOR
        self._told = False
        self._counts = RewardCounts()

    async def run_single(self, data: Any) -> dict[str, Any]:
        """``{"reward_score", "reward_extra_info"}`` of a ``DataProto`` with one rollout.

        Of a rollout in several rows the last counts. A missing reward is NaN with
        ``reward_missing`` 1.0, or a :class:`~adjudge.errors.GradingFailure` where that is how this
        verl leaves a rollout out; see :mod:`.reward_sources`. Keys are always the same
        (:mod:`.batches`). With ``adjudge_grpo`` in a V1 trainer the score also carries what events
        add to it, for :class:`~adjudge.trainers.verl.JudgeAgentLoopManager`.
        """
        if data.meta_info.get(COUNTS_REQUEST):
            return {"reward_score": 0.0, "reward_extra_info": self._counts.take()}
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
            self._counts.add(result)
            if not self.channel.outages_are_missing:
                raise
            if not self._told:
                self._told = True
                _log.error("all rewards are missing from now on: %s", stop)
            return self._answer(result)
        self.reader.warn_without_messages([result])
        self._counts.add(result)
        if result.score is None and self.channel.absent:
            raise make_missing_failure(result)
        answer = self._answer(result, metrics)
        if self._by_turn and result.event_rewards:
            answer["reward_score"] = make_turn_reward(result)
        return answer

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

    def _answer(
        self, result: RewardResult, metrics: Mapping[str, float] | None = None
    ) -> dict[str, Any]:
        keys = self.scorer.info_keys
        if self.channel is MissingRewardChannel.LOOP_061:
            row = {**loop_row(result, keys, absent=math.nan), METRICS_COLUMN: metrics}
        else:
            row = flat_loop_row(result, keys, metrics)
        return {
            "reward_score": math.nan if result.score is None else result.score,
            "reward_extra_info": row,
        }

    def _result_of_stop(
        self, stop: JudgeAuthError | JudgeUnavailable | TrainingStopped
    ) -> RewardResult:
        """What should end the run, as a missing reward: ``adjudge_grpo`` ends it."""
        kind = ErrorKind.AUTH if isinstance(stop, JudgeAuthError) else getattr(stop, "kind", None)
        missing = GraderError("reward", kind or ErrorKind.CIRCUIT_OPEN, str(stop))
        return RewardResult(0, 0, None, dict.fromkeys(self.scorer.info_keys), {}, missing)


def find_response_limit(config: Any) -> int | None:
    """How many tokens a response of the run may have; ``None`` where it is not known."""
    found = config
    for key in ("actor_rollout_ref", "rollout", "response_length"):
        found = None if found is None else found.get(key)
    return None if found is None else int(found)
