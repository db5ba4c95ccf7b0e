"""Who scores verl's rollouts (a reward spec, the user's function, a judge service), and where.

How the verl around a reward manager takes a missing reward:

=============================  ==============================================================
verl 0.6.1's reward loop       NaN, which the batch manager of the same name replaces
verl 0.9.1, V1 ``sync``        an exception: that rollout is not in the batch, whoever averages
verl 0.9.1, V1 asynchronous    NaN, which ``adjudge_grpo`` leaves out; an exception there drops the
                               rollout's whole group, and an outage would refill for ever
verl 0.9.1, ``use_v1=False``   NaN, which ``adjudge_grpo`` leaves out; an exception ends the run
``one_step_off_policy``        the same
``fully_async_policy``         NaN, which ``adjudge_grpo`` leaves out; an exception ends the run
                               as if it were finished
=============================  ==============================================================
"""

from __future__ import annotations

import functools
import math
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from adjudge.client.exchange import GroupClient
from adjudge.client.grader import ServiceInfo, fetch_service_info, fields_to_request
from adjudge.config import suggest_name
from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, JudgeAuthError, JudgeUnavailable
from adjudge.hosts import is_address
from adjudge.rewards.function import RewardFunction, check_results
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.scoring import (
    SPEC_VARIABLE,
    Scorer,
    ScorerResult,
    TrainerProgress,
    open_recorder,
)
from adjudge.trainers.verl import check_verl_version, installed_verl
from adjudge.trainers.verl.batches import RowReader
from adjudge.trainers.verl.rewards import ADJUDGE_ESTIMATOR, STOCK_ESTIMATOR, compute_result_metrics
from adjudge.types import GraderError, RewardResult, Sample
from adjudge.wire import GroupRequest, JudgeResponse


class FunctionScorer:
    """A user's :class:`~adjudge.rewards.RewardFunction`; what it raises goes through.

    A score that is no finite number is missing (``out_of_range``).
    """

    spec = None

    def __init__(self, function: RewardFunction) -> None:
        self.function = function

    def score(
        self,
        samples: Sequence[Sample],
        groups: Sequence[str],
        *,
        progress: TrainerProgress | None = None,  # noqa: ARG002  (a Scorer's; nothing is recorded)
    ) -> ScorerResult:
        """One result per sample; ``ValueError`` when an index comes back never or twice."""
        by_group: dict[str, list[Sample]] = {}
        for sample, group in zip(samples, groups, strict=True):
            by_group.setdefault(group, []).append(sample)
        given = run_blocking(self.function.compute_batch_scores(by_group))
        found = check_results(given, by_group)
        keys = list(dict.fromkeys(key for one in found.values() for key in one.reward_info))
        results = [found[sample.original_index] for sample in samples]
        for one in results:
            one.reward_info = {key: one.reward_info.get(key) for key in keys}
            if one.score is not None and not math.isfinite(one.score):
                said = f"score is {one.score}"
                one.score, one.missing = None, GraderError("reward", ErrorKind.OUT_OF_RANGE, said)
        lengths = [len(sample.response or "") for sample in samples]
        return ScorerResult(results, compute_result_metrics(results, groups, lengths))


def make_scorer(spec: Any, *, records: bool = True) -> Scorer:
    """The spec's scorer, once nothing forbids it in all of verl, which tells nobody its step.

    It ``records`` where ``ADJUDGE_RECORD`` names a folder. Raises
    :class:`~adjudge.errors.ConfigError`.
    """
    scorer = Scorer(spec, record=open_recorder() if records else None)
    scorer.spec.refuse_undrawn()
    scorer.spec.refuse_schedules("verl's reward manager", "Give the grader a number.")
    return scorer


def make_reward_source(compute_score: Any, spec: Any) -> FunctionScorer | Scorer:
    """The reward function in ``compute_score``, or the scorer of ``spec``.

    ``spec`` is a file or a judge service's address; ``None`` is that in ``ADJUDGE_SPEC``. Raises
    :class:`~adjudge.errors.ConfigError`.
    """
    function = _find_function(compute_score, spec)
    return make_scorer(spec) if function is None else FunctionScorer(function)


def _find_function(compute_score: Any, spec: Any) -> RewardFunction | None:
    """The user's function; ``None`` without one, and :class:`ConfigError` for one never called.

    verl wraps ``custom_reward_function`` in a ``functools.partial`` and, without one, hands over
    its own rules; those and classes mean "none".
    """
    custom = isinstance(compute_score, functools.partial) and compute_score.args
    function = compute_score.args[0] if custom else compute_score
    if isinstance(function, RewardFunction):
        if spec is not None:
            raise ConfigError("custom_reward_function: there is a spec too. Give one of the two.")
        return function
    verls_own = str(getattr(function, "__module__", "")).startswith("verl.")
    if not (function is None or isinstance(function, type) or verls_own):
        name = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(
            f"custom_reward_function: {name!r} would never be called. Make it an object of a class "
            "derived from adjudge.rewards.RewardFunction, or a grader of the spec."
        )
    return None


AGENT_LOOP_MANAGER = "adjudge.trainers.verl.JudgeAgentLoopManager"
"""The value of ``+actor_rollout_ref.rollout.agent.agent_loop_manager_class``."""

REGISTER_MODULE = "adjudge.trainers.verl.register"
"""The value of verl's variable ``VERL_USE_EXTERNAL_MODULES``."""

GROUP_SIZE_COLUMN = "judge_group_size"
"""The column in which that manager's rollouts carry their group's size."""

_MAX_WAITING = 800
"""Rollouts that may wait in one reward actor: Ray runs 1000 of its calls at once, and verl deals
them out by chance."""

_PATIENCE_S = 15.0
"""For a judge service to answer at the start of a run."""


class GroupMember(NamedTuple):
    """A rollout's place: its group, how many there are in it, and which of them it is."""

    group_id: str
    group_size: int
    request_id: str


def read_group_member(columns: Mapping[str, Any], usual_size: int) -> GroupMember:
    """The seat of a rollout of verl's V1 trainers; ``usual_size`` where it does not say its own.

    verl draws a ``uid`` for each prompt of each batch, in validation too, so that no two groups of
    a run have the same. Raises ``GradingFailure(invalid_input)`` for a rollout without one.
    """
    uid, session = columns.get("uid"), columns.get("session_id")
    if uid is None:
        raise GradingFailure(
            ErrorKind.INVALID_INPUT, "the rollout has no uid, so its group is unknown"
        )
    size = columns.get(GROUP_SIZE_COLUMN)
    name = uuid.uuid4().hex if session is None else str(session)
    return GroupMember(str(uid), usual_size if size is None else int(size), name)


class GroupService:
    """Rewards from the groups of the service at ``url``, which said ``info`` of itself.

    ``size``: of a group, where rollouts do not carry it (:data:`GROUP_SIZE_COLUMN`). While a
    rollout waits for its group, the service is asked again through restarts and full queues, until
    the group's time is up.
    """

    def __init__(self, url: str, info: ServiceInfo, size: int) -> None:
        self.url = url
        self.info_keys = [*(f"{name}_score" for name in info.graders), "env_reward"]
        self._graders, self._size = list(info.graders), size
        self._client = GroupClient(
            url, run_id=_run_id(), timeout_s=info.group_timeout_s + 2 * info.deadline_s + 60.0
        )

    async def reward(self, sample: Sample, columns: Mapping[str, Any]) -> RewardResult:
        """The sample's reward, once its group is settled; missing with the kind of what failed.

        Raises :class:`~adjudge.errors.JudgeAuthError` when a key was refused, and
        :class:`~adjudge.errors.JudgeUnavailable` for what no other request will do better with.
        """
        env, error = sample.env_reward, None
        answer = JudgeResponse()
        try:
            seat = read_group_member(columns, self._size)
            try:
                one = fields_to_request(sample.fields())
            except GradingFailure:
                await self.announce(seat)
                raise
            request = GroupRequest(**msgspec.structs.asdict(one) | seat._asdict())
            answer = await self._client.judge(request)
            if (said := answer.error) is not None:
                error = GraderError("reward", said.kind, said.message, said.failure_metadata)
        except GradingFailure as failure:
            error = GraderError("reward", failure.kind, str(failure), failure.metadata)
        if error is not None and error.kind is ErrorKind.AUTH:
            raise JudgeAuthError(f"{self.url}: {error.error}")
        if error is not None and error.final:
            raise JudgeUnavailable(f"{self.url}: {error.error}", error.kind)
        scores = answer.detailed_scores or {}
        info = {f"{name}_score": scores.get(name) for name in self._graders} | {"env_reward": env}
        details = {**(answer.metadata or {}), "reason": answer.explanation or ""}
        score = None if error is not None else answer.score
        return RewardResult(0, 0, score, info, details, error)

    async def announce(self, seat: GroupMember) -> None:
        """Say that this rollout will never come; raises ``GradingFailure`` if nobody hears it."""
        await self._client.abort(**seat._asdict())


def _run_id() -> str:
    """The same in every process of one run, and another after a restart that sends uids again."""
    import ray  # noqa: PLC0415  (verl's)

    if not ray.is_initialized():
        return uuid.uuid4().hex
    context = ray.get_runtime_context()
    return f"{context.get_job_id()}/{context.namespace}"[:200]


# --- verl's configuration -------------------------------------------------------------------------


def read_setting(config: Any, name: str) -> Any:
    """A value of verl's configuration by its dotted name; ``None`` where there is none."""
    for key in name.split("."):
        config = None if config is None else config.get(key)
    return config


def configured_estimator(config: Any) -> str | None:
    """``algorithm.adv_estimator``; ``None`` where there is none."""
    found = read_setting(config, "algorithm.adv_estimator")
    return None if found is None else str(getattr(found, "value", found))


def configured_spec(config: Any) -> Any:
    """``reward_kwargs.spec`` of ``reward`` (0.9.1), else of ``reward_model`` (0.6.1)."""
    sections = ("reward", "reward_model")
    found = (read_setting(config, f"{section}.reward_kwargs.spec") for section in sections)
    return next(filter(None, found), None)


def make_row_reader(tokenizer: Any, config: Any, source_key: Any = None) -> RowReader:
    """The reader of the run's batches; ``config`` is ``None`` where verl does not hand it over."""
    key = source_key or read_setting(config, "data.reward_fn_key") or "data_source"
    limit = read_setting(config, "actor_rollout_ref.rollout.response_length")
    return RowReader(tokenizer, str(key), None if limit is None else int(limit))


class Channel(NamedTuple):
    """Who is around us, as far as missing rewards go.

    ``absent``: an exception leaves just that rollout out. ``is_v1``: each rollout has a
    ``session_id``, and rollout workers can be ours. ``outages_are_missing``: what should end the
    run must come as missing rewards, since nothing else ends it.
    """

    title: str
    absent: bool = False
    is_v1: bool = False
    outages_are_missing: bool = False


BATCH_061 = Channel("0.6.1's whole batches")
LOOP_061 = Channel("0.6.1's reward loop")
V1_SYNC = Channel("0.9.1's V1 trainer, which goes on without a rollout that failed", True, True)
V1_ASYNC = Channel(
    "0.9.1's asynchronous V1 trainers, which replace a group with a failed rollout",
    is_v1=True,
    outages_are_missing=True,
)
V0 = Channel("0.9.1's trainer with use_v1=False")
ONE_STEP_OFF = Channel("one_step_off_policy")
FULLY_ASYNC = Channel(
    "fully_async_policy, which ends as if finished when a rollout fails", outages_are_missing=True
)


def detect_channel(config: Any) -> Channel:
    """Read verl's configuration; ``reward`` is a section of the newer one only.

    ``rollout`` and ``async_training`` are sections of the experimental policies' own files, which
    leave ``trainer.use_v1`` as it is.
    """
    if config.get("reward") is None:
        one_by_one = read_setting(config, "actor_rollout_ref.rollout.mode") == "async"
        return LOOP_061 if one_by_one else BATCH_061
    if config.get("async_training") is not None:
        return FULLY_ASYNC
    if config.get("rollout") is not None:
        return ONE_STEP_OFF
    if not read_setting(config, "trainer.use_v1"):
        return V0
    refills = read_setting(config, "trainer.v1.sampler.sync_refill_failed_groups")
    sync = read_setting(config, "trainer.v1.trainer_mode") in (None, "sync") and not refills
    return V1_SYNC if sync else V1_ASYNC


def _takes_our_agent_loops(config: Any) -> bool:
    found = read_setting(config, "actor_rollout_ref.rollout.agent.agent_loop_manager_class")
    return bool(found == AGENT_LOOP_MANAGER)


# --- what goes with a run, and what does not ------------------------------------------------------


def make_checked_scorer(config: Any, compute_score: Any) -> Scorer | GroupService:
    """The spec's scorer, once nothing in the spec or in verl's configuration forbids it.

    Raises :class:`~adjudge.errors.ConfigError` where one rollout at a time, or the way in which
    this verl takes missing rewards, is not enough.
    """
    check_verl_version(installed_verl())
    channel = detect_channel(config)
    channel = LOOP_061 if channel is BATCH_061 else channel  # whoever asks scores one by one
    if _takes_our_agent_loops(config) and not channel.is_v1:
        raise ConfigError(
            f"agent_loop_manager_class: {AGENT_LOOP_MANAGER} is for the V1 trainers. Name "
            "JudgeToolAgentLoop in agent_loop_config_path instead."
        )
    spec = configured_spec(config)
    if _find_function(compute_score, spec) is not None:
        raise ConfigError(
            "custom_reward_function: a RewardFunction scores whole groups, but this verl passes "
            f"one rollout at a time. Use a spec{_batch_mode_hint(channel)}."
        )
    if service := make_group_service(config, spec):
        _check_missing(config, channel)
        return service
    scorer = make_scorer(spec)
    check_scorer(config, channel, scorer)
    return scorer


def check_scorer(config: Any, channel: Channel, scorer: Scorer) -> None:
    """Raise :class:`ConfigError` for a spec that the run around it cannot serve."""
    spec = scorer.spec
    if scorer.needs_groups and channel is not BATCH_061:
        served = ", or put the spec behind `adjudge serve` and give its address instead"
        raise ConfigError(
            f"{spec.where}: {scorer.needs_groups}: needs whole groups, but this verl passes one "
            "rollout at a time. Use graders that score each answer by itself"
            f"{served * bool(scorer.compares_groups and channel.is_v1)}{_batch_mode_hint(channel)}."
        )
    _check_missing(config, channel, spec)


def _batch_mode_hint(channel: Channel) -> str:
    old = channel is LOOP_061
    return f", or {'' if old else 'verl 0.6.1 with '}rollout.mode=sync"


def _check_missing(config: Any, channel: Channel, spec: RewardSpec | None = None) -> None:
    """``spec`` is ``None`` for a service's own, whose failures are always missing rewards."""
    estimator = configured_estimator(config)
    if channel in (BATCH_061, LOOP_061):
        check_estimator(estimator, spec)
        return
    if read_setting(config, "reward.reward_model.enable"):
        raise ConfigError(
            "reward.reward_model.enable: that model would score instead of the spec's judges, or "
            "hide what they need. Set it to False, and name its server in the spec."
        )
    fully_async = channel is FULLY_ASYNC
    if (channel.is_v1 or fully_async) and spec is not None and spec.missing.policy == "raise":
        instead = ", or trainer.use_v1=False" if channel.is_v1 else ""
        raise ConfigError(
            f"{spec.where}: missing.policy: 'raise' cannot end a run of {channel.title}. Use "
            f"'mask'{instead}."
        )
    registered = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    if fully_async and REGISTER_MODULE not in registered:
        raise ConfigError(
            "VERL_USE_EXTERNAL_MODULES: this verl trains in a process that never loads the reward "
            f"manager, and so does not know {ADJUDGE_ESTIMATOR!r}. Set "
            f"VERL_USE_EXTERNAL_MODULES={REGISTER_MODULE} for all processes: in the shell, or in "
            "env_vars of Ray's runtime environment."
        )
    if not channel.absent:
        check_estimator(estimator, spec, [ADJUDGE_ESTIMATOR])


def check_estimator(
    name: str | None,
    spec: RewardSpec | None = None,
    allowed: Sequence[str] = (ADJUDGE_ESTIMATOR, STOCK_ESTIMATOR),
) -> None:
    """Refuse estimators under which a group's mean is no neutral reward; ``None`` is unknown.

    GAE and REINFORCE++ learn from a reward's level, so an imputed mean would be a made-up number,
    and under the ``sample_rate`` of ``spec`` groups with and without a judge's part would be
    compared. Where a missing reward stops the run, no estimator ever meets one. Raises
    :class:`~adjudge.errors.ConfigError`.
    """
    rate = 1.0 if spec is None else spec.reward.sample_rate
    stops = spec is not None and spec.missing.policy == "raise" and rate == 1
    if name is None or name in allowed or stops:
        return
    if spec is not None and rate < 1:
        raise ConfigError(
            f"{spec.where}: reward.sample_rate: must be 1 with algorithm.adv_estimator = "
            f"{name!r}, which compares the rewards of several groups (found {rate:g}). Set 1, or "
            f"use {ADJUDGE_ESTIMATOR!r}."
        )
    raise ConfigError(
        "algorithm.adv_estimator: cannot leave a missing reward out"
        f"{suggest_name(name, allowed)} (found {name!r}; allowed: {' or '.join(allowed)}). Use "
        f"{ADJUDGE_ESTIMATOR!r}, which is exact."
    )


def make_group_service(config: Any, spec: Any = None) -> GroupService | None:
    """The judge service that scores whole groups of this run, if one does.

    That is where the V1 trainers are given the address (``spec``, :func:`configured_spec`,
    ``ADJUDGE_SPEC``) of a service whose spec compares groups. Raises
    :class:`~adjudge.errors.ConfigError` when it does not answer, or verl's configuration does not
    go with groups.
    """
    address = spec or configured_spec(config) or os.environ.get(SPEC_VARIABLE) or ""
    url = str(address).rstrip("/")
    if not (detect_channel(config).is_v1 and is_address(url)):
        return None
    info = fetch_service_info(url, patience_s=_PATIENCE_S)
    if info is None:
        raise ConfigError(
            f"{url}: no judge service is ready there. Start it before the trainer; for other "
            "machines it needs --host 0.0.0.0 and a key."
        )
    if info.compares_groups is None:
        return None
    return GroupService(url, info, _check_group_size(config, url, info.compares_groups))


def _check_group_size(config: Any, url: str, what: str) -> int:
    """The usual group's size, once nothing in verl's configuration forbids to wait for groups."""
    rollout = config["actor_rollout_ref"]["rollout"]
    size, in_validation = int(rollout["n"]), int(rollout["val_kwargs"]["n"])
    if size != in_validation and not _takes_our_agent_loops(config):
        raise ConfigError(
            f"{url}: {what} needs whole groups, and verl's rollouts do not say whether they are of "
            f"training (rollout.n = {size}) or validation (val_kwargs.n = {in_validation}). Set "
            f"+actor_rollout_ref.rollout.agent.agent_loop_manager_class={AGENT_LOOP_MANAGER}"
        )
    mode = read_setting(config, "trainer.v1.trainer_mode")
    ahead = read_setting(config, f"trainer.v1.{mode}.num_warmup_batches")
    waiting = (1.0 + float(ahead or 0)) * int(config["data"]["train_batch_size"]) * size
    workers = int(config["reward"]["num_workers"])
    if waiting > _MAX_WAITING * workers:
        raise ConfigError(
            f"reward.num_workers: must be at least {math.ceil(waiting / _MAX_WAITING)}, since "
            f"{math.ceil(waiting)} rollouts may wait for their groups at once, at most "
            f"{_MAX_WAITING} in a worker (found {workers})"
        )
    return size
