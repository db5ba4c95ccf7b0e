"""Who scores verl's rollouts: a reward spec, the user's function, or a judge service.

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
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from adjudge.client.grader import ServiceInfo, fetch_service_info, fields_to_request
from adjudge.client.rendezvous import GroupClient
from adjudge.engine.loop import run_blocking
from adjudge.errors import (
    ConfigError,
    ErrorKind,
    GradingFailure,
    JudgeAuthError,
    JudgeUnavailable,
)
from adjudge.hosts import is_address
from adjudge.rewards.function import RewardFunction, check_results
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.metrics import batch_metrics
from adjudge.trainers.progress import TrainerProgress
from adjudge.trainers.recorder import open_recorder
from adjudge.trainers.scoring import SPEC_VARIABLE, Scorer, ScorerResult
from adjudge.trainers.verl.advantage import (
    ADJUDGE_ESTIMATOR,
    check_estimator,
    configured_estimator,
    raises_on_missing,
)
from adjudge.trainers.verl.versions import check_verl_version, installed_verl
from adjudge.types import (
    GradedSample,
    GraderError,
    RewardResult,
    Sample,
)
from adjudge.wire import GroupRequest, JudgeResponse


class FunctionScorer:
    """A user's :class:`~adjudge.rewards.RewardFunction`; what it raises goes through.

    A score that is no finite number is missing (``out_of_range``).
    """

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
        results = [_complete_result(found[sample.original_index], keys) for sample in samples]
        lengths = [len(sample.response or "") for sample in samples]
        return ScorerResult(results, compute_result_metrics(results, groups, lengths))


def _complete_result(result: RewardResult, keys: Sequence[str]) -> RewardResult:
    """The result with every key of the batch (absent parts are missing) and a finite score."""
    result.reward_info = {key: result.reward_info.get(key) for key in keys}
    score = result.score
    if score is not None and not math.isfinite(score):
        result.score = None
        result.missing = GraderError("reward", ErrorKind.OUT_OF_RANGE, f"score is {score}")
    return result


def compute_result_metrics(
    results: Sequence[RewardResult], groups: Sequence[str], lengths: Sequence[int]
) -> dict[str, float]:
    """:func:`~adjudge.trainers.metrics.batch_metrics` where only results are known."""
    judged = [
        GradedSample(
            r.original_index, r.group_index, group, r.reward_info.get("env_reward"), {}, []
        )
        for r, group in zip(results, groups, strict=True)
    ]
    return batch_metrics(judged, results, lengths)


def make_recorded_scorer(spec: Any) -> Scorer:
    """The spec's scorer; it records where ``ADJUDGE_RECORD`` names a folder."""
    scorer = Scorer(spec, record=open_recorder())
    scorer.spec.refuse_undrawn()
    return scorer


def make_reward_source(
    compute_score: Any, spec: Any, made_of: Callable[[Any], Any] = make_recorded_scorer
) -> FunctionScorer | Any:
    """The reward function in ``compute_score``, or what ``made_of`` makes of ``spec``.

    ``spec`` is a file or a judge service's address; ``None`` is that in ``ADJUDGE_SPEC``.
    verl wraps ``custom_reward_function`` in a ``functools.partial`` and, without one, hands over
    its own rules; those and classes mean "none". Raises :class:`~adjudge.errors.ConfigError`.
    """
    custom = isinstance(compute_score, functools.partial) and compute_score.args
    function = compute_score.args[0] if custom else compute_score
    if isinstance(function, RewardFunction):
        if spec is not None:
            raise ConfigError("custom_reward_function: there is a spec too. Give one of the two.")
        return FunctionScorer(function)
    verls_own = str(getattr(function, "__module__", "")).startswith("verl.")
    if not (function is None or isinstance(function, type) or verls_own):
        name = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(
            f"custom_reward_function: {name!r} would never be called. Make it an object of a class "
            "derived from adjudge.rewards.RewardFunction, or a grader of the spec."
        )
    return made_of(spec)


AGENT_LOOP_MANAGER = "adjudge.trainers.verl.JudgeAgentLoopManager"
"""The value of ``+actor_rollout_ref.rollout.agent.agent_loop_manager_class``."""

REGISTER_MODULE = "adjudge.trainers.verl.register"
"""The value of verl's variable ``VERL_USE_EXTERNAL_MODULES``."""

GROUP_SIZE_COLUMN = "judge_group_size"
"""The column in which that manager's rollouts carry their group's size."""

_MAX_WAITING = 800
"""Rollouts that may wait in one reward actor: Ray runs 1000 of its calls at once, and verl deals
them out by chance."""


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
            url,
            run_id=_run_id(),
            timeout_s=info.group_timeout_s + 2 * info.deadline_s + 60.0,
        )

    async def reward(self, sample: Sample, columns: Mapping[str, Any]) -> RewardResult:
        """The sample's reward, once its group is settled; missing with the kind of what failed.

        Raises :class:`~adjudge.errors.JudgeAuthError` when a key was refused, and
        :class:`~adjudge.errors.JudgeUnavailable` for what no other request will do better with.
        """
        env, error = sample.env_reward, None
        answer = JudgeResponse()
        try:
            answer = await self._answer(sample, columns, env)
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

    async def _answer(
        self, sample: Sample, columns: Mapping[str, Any], env: float | None
    ) -> JudgeResponse:
        seat = read_group_member(columns, self._size)
        try:
            one = fields_to_request(sample.fields())
        except GradingFailure:
            await self.announce(seat)
            raise
        fields = {name: getattr(one, name) for name in one.__struct_fields__}
        if env is not None:
            fields["metadata"] = {**(one.metadata or {}), "env_reward": env}
        return await self._client.judge(GroupRequest(**fields | seat._asdict()))


def _run_id() -> str:
    """The same in every process of one run, and another after a restart that sends uids again."""
    import ray  # noqa: PLC0415  (verl's)

    if not ray.is_initialized():
        return uuid.uuid4().hex
    context = ray.get_runtime_context()
    return f"{context.get_job_id()}/{context.namespace}"[:200]


def check_group_settings(config: Any, url: str, what: str) -> int:
    """The usual group's size, once nothing in verl's configuration forbids to wait for groups.

    Raises :class:`~adjudge.errors.ConfigError`.
    """
    rollout = config["actor_rollout_ref"]["rollout"]
    size, in_validation = int(rollout["n"]), int(rollout["val_kwargs"]["n"])
    if size != in_validation and not _takes_our_agent_loops(config):
        raise ConfigError(
            f"{url}: {what} needs whole groups, and verl's rollouts do not say whether they are of "
            f"training (rollout.n = {size}) or validation (val_kwargs.n = {in_validation}). Set "
            f"+actor_rollout_ref.rollout.agent.agent_loop_manager_class={AGENT_LOOP_MANAGER}"
        )
    v1 = config["trainer"].get("v1") or {}
    mode = v1.get("trainer_mode", "sync")
    ahead = 0 if mode == "sync" else (v1.get(mode) or {}).get("num_warmup_batches") or 0
    waiting = (1.0 + float(ahead)) * int(config["data"]["train_batch_size"]) * size
    workers = int(config["reward"]["num_workers"])
    if waiting > _MAX_WAITING * workers:
        raise ConfigError(
            f"reward.num_workers: must be at least {math.ceil(waiting / _MAX_WAITING)}, since "
            f"{math.ceil(waiting)} rollouts may wait for their groups at once, at most "
            f"{_MAX_WAITING} in a worker (found {workers})"
        )
    return size


_PATIENCE_S = 15.0
"""For a judge service to answer at the start of a run."""


class MissingRewardChannel(StrEnum):
    """Who is around us, as far as missing rewards go."""

    LOOP_061 = "0.6.1's reward loop"
    V1_SYNC = "0.9.1's V1 trainer, which goes on without a rollout that failed"
    V1_ASYNC = "0.9.1's asynchronous V1 trainers, which replace a group with a failed rollout"
    V0 = "0.9.1's trainer with use_v1=False"
    ONE_STEP_OFF = "one_step_off_policy"
    FULLY_ASYNC = "fully_async_policy, which ends as if finished when a rollout fails"

    @property
    def absent(self) -> bool:
        """Whether an exception leaves just that rollout out."""
        return self is MissingRewardChannel.V1_SYNC

    @property
    def swallows(self) -> bool:
        """Whether exceptions of a reward manager never reach the run."""
        return self.is_v1 or self is MissingRewardChannel.FULLY_ASYNC

    @property
    def is_v1(self) -> bool:
        """Whether each rollout has a ``session_id``, and rollout workers can be ours."""
        return self in (MissingRewardChannel.V1_SYNC, MissingRewardChannel.V1_ASYNC)

    @property
    def outages_are_missing(self) -> bool:
        """Whether what should end the run must come as missing rewards: nothing else ends it."""
        return self in (MissingRewardChannel.V1_ASYNC, MissingRewardChannel.FULLY_ASYNC)


def detect_channel(config: Any) -> MissingRewardChannel:
    """Read verl's configuration; ``reward`` is a section of the newer one only.

    ``rollout`` and ``async_training`` are sections of the experimental policies' own files, which
    leave ``trainer.use_v1`` as it is.
    """
    if config.get("reward") is None:
        return MissingRewardChannel.LOOP_061
    if config.get("async_training") is not None:
        return MissingRewardChannel.FULLY_ASYNC
    if config.get("rollout") is not None:
        return MissingRewardChannel.ONE_STEP_OFF
    trainer = config.get("trainer") or {}
    if not trainer.get("use_v1"):
        return MissingRewardChannel.V0
    v1 = trainer.get("v1") or {}
    refills = (v1.get("sampler") or {}).get("sync_refill_failed_groups")
    sync = v1.get("trainer_mode", "sync") == "sync" and not refills
    return MissingRewardChannel.V1_SYNC if sync else MissingRewardChannel.V1_ASYNC


def configured_spec(config: Any) -> Any:
    """``reward_kwargs.spec`` of ``reward`` (0.9.1), else of ``reward_model`` (0.6.1)."""
    for section in ("reward", "reward_model"):
        kwargs = (config.get(section) or {}).get("reward_kwargs") or {}
        if kwargs.get("spec"):
            return kwargs["spec"]
    return None


def refuse_verl_schedules(spec: RewardSpec) -> None:
    """Raise :class:`ConfigError` for weights by step: verl tells no reward manager its own."""
    spec.refuse_schedules("verl's reward manager", "Give the grader a number.")


def make_checked_scorer(config: Any, compute_score: Any) -> Scorer | GroupService:
    """The spec's scorer, once nothing in the spec or in verl's configuration forbids it.

    Raises :class:`~adjudge.errors.ConfigError` where one rollout at a time, or the way in which
    this verl takes missing rewards, is not enough.
    """
    check_verl_version(installed_verl())
    channel = detect_channel(config)
    if _takes_our_agent_loops(config) and not channel.is_v1:
        raise ConfigError(
            f"agent_loop_manager_class: {AGENT_LOOP_MANAGER} is for the V1 trainers. Name "
            "JudgeToolAgentLoop in agent_loop_config_path instead."
        )

    def made_of(spec: Any) -> Scorer | GroupService:
        return make_group_service(config, spec) or make_recorded_scorer(spec)

    source: Any = make_reward_source(compute_score, configured_spec(config), made_of)
    if isinstance(source, FunctionScorer):
        raise ConfigError(
            "custom_reward_function: a RewardFunction scores whole groups, but this verl passes "
            f"one rollout at a time. Use a spec{_batch_mode_hint(channel)}."
        )
    if isinstance(source, GroupService):
        _check_missing(config, channel)
    else:
        check_scorer(config, source)
    found: Scorer | GroupService = source
    return found


def check_scorer(config: Any, scorer: Scorer) -> None:
    """Raise :class:`ConfigError` for a spec that cannot be served one rollout at a time."""
    channel = detect_channel(config)
    refuse_verl_schedules(scorer.spec)
    what = scorer.compares_groups
    served = ""
    if what is None and scorer.spec.reward.sample_rate < 1:
        what = "reward.sample_rate"
    elif what is not None and channel.is_v1:
        served = ", or put the spec behind `adjudge serve` and give its address instead"
    if what is not None:
        raise ConfigError(
            f"{scorer.spec.where}: {what} needs whole groups, but this verl passes one rollout at "
            "a time. Use graders that score each answer by itself"
            f"{served}{_batch_mode_hint(channel)}."
        )
    _check_missing(config, channel, scorer.spec)


def _takes_our_agent_loops(config: Any) -> bool:
    rollout = (config.get("actor_rollout_ref") or {}).get("rollout") or {}
    return (rollout.get("agent") or {}).get("agent_loop_manager_class") == AGENT_LOOP_MANAGER


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
    return GroupService(url, info, check_group_settings(config, url, info.compares_groups))


def _batch_mode_hint(channel: MissingRewardChannel) -> str:
    old = channel is MissingRewardChannel.LOOP_061
    return f", or {'' if old else 'verl 0.6.1 with '}rollout.mode=sync"


def _check_missing(
    config: Any, channel: MissingRewardChannel, spec: RewardSpec | None = None
) -> None:
    """``spec`` is ``None`` for a service's own, whose failures are always missing rewards."""
    always_there = spec is not None and raises_on_missing(spec)
    if channel is MissingRewardChannel.LOOP_061:
        if not always_there:
            check_estimator(configured_estimator(config), spec)
        return
    if (config["reward"].get("reward_model") or {}).get("enable"):
        raise ConfigError(
            "reward.reward_model.enable: that model would score instead of the spec's judges, or "
            "hide what they need. Set it to False, and name its server in the spec."
        )
    if channel.swallows and spec is not None and spec.missing.policy == "raise":
        instead = ", or trainer.use_v1=False" if channel.is_v1 else ""
        raise ConfigError(
            f"{spec.where}: missing.policy: 'raise' cannot end a run of {channel}. Use "
            f"'mask'{instead}."
        )
    registered = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    if channel is MissingRewardChannel.FULLY_ASYNC and REGISTER_MODULE not in registered:
        raise ConfigError(
            "VERL_USE_EXTERNAL_MODULES: this verl trains in a process that never loads the reward "
            f"manager, and so does not know {ADJUDGE_ESTIMATOR!r}. Set "
            f"VERL_USE_EXTERNAL_MODULES={REGISTER_MODULE} for all processes: in the shell, or in "
            "env_vars of Ray's runtime environment."
        )
    if not (channel.absent or always_there):
        check_estimator(configured_estimator(config), spec, [ADJUDGE_ESTIMATOR])
