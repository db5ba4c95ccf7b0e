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
from adjudge.stats import collect
from adjudge.trainers.metrics import TrainerProgress
from adjudge.trainers.scoring import SPEC_VARIABLE, Scorer, ScorerResult
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
        by_group = collect(zip(groups, samples, strict=True))
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
    scorer = Scorer(spec)
    scorer.spec.refuse_undrawn()
    scorer.spec.refuse_schedules("verl's reward manager", "Give the grader a number.")
    if records:
        scorer.start_recording()
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


class VerlRun:
    """The configuration of a run, of both versions, as far as rewards go.

    ``config`` is ``None`` where verl does not hand it over. ``in_batches``: whole batches are
    scored, as 0.6.1 does (``reward`` is a section of the newer one only). ``is_v1``: each rollout
    has a ``session_id``, and rollout workers can be ours. ``is_absent``: an exception leaves just
    that rollout out. ``outages_are_missing``: what should end the run must come as missing
    rewards, since nothing else ends it.
    """

    def __init__(self, config: Any) -> None:
        self._config = config
        self.is_old = self.read("reward") is None
        self.in_batches = self.is_old and self.read("actor_rollout_ref.rollout.mode") != "async"
        # Sections of the experimental policies' own files, which leave trainer.use_v1 as it is.
        self.is_fully_async = not self.is_old and self.read("async_training") is not None
        own_policy = self.is_fully_async or self.read("rollout") is not None
        self.is_v1 = not (self.is_old or own_policy) and bool(self.read("trainer.use_v1"))
        refills = self.read("trainer.v1.sampler.sync_refill_failed_groups")
        is_sync = self.read("trainer.v1.trainer_mode") in (None, "sync") and not refills
        self.is_absent = self.is_v1 and is_sync
        self.outages_are_missing = self.is_fully_async or (self.is_v1 and not is_sync)
        agent_loops = self.read("actor_rollout_ref.rollout.agent.agent_loop_manager_class")
        self.takes_our_agent_loops = agent_loops == AGENT_LOOP_MANAGER
        estimator = self.read("algorithm.adv_estimator")
        self.estimator = None if estimator is None else str(getattr(estimator, "value", estimator))

    def read(self, name: str) -> Any:
        """A value by its dotted name; ``None`` where there is none."""
        found = self._config
        for key in name.split("."):
            found = None if found is None else found.get(key)
        return found

    @property
    def spec(self) -> str | None:
        """The file or the address of the spec, else what ``ADJUDGE_SPEC`` names."""
        found = self.read("reward.reward_kwargs.spec")
        found = found or self.read("reward_model.reward_kwargs.spec")  # 0.6.1's
        return str(found) if found else os.environ.get(SPEC_VARIABLE)

    def make_reader(self, tokenizer: Any, source_key: str | None = None) -> RowReader:
        """The reader of the run's batches."""
        key = source_key or self.read("data.reward_fn_key") or "data_source"
        rollout = self.read("actor_rollout_ref.rollout") or {}
        turns = rollout.get("multi_turn") or {}
        tools = bool(turns.get("tool_config_path") or turns.get("function_tool_path"))
        return RowReader(tokenizer, str(key), int(rollout.get("response_length") or 0), tools)


# --- what goes with a run, and what does not ------------------------------------------------------


def make_checked_scorer(run: VerlRun, compute_score: Any) -> Scorer | GroupService:
    """The scorer of single rollouts, once nothing in the spec or in the configuration forbids it.

    Raises :class:`~adjudge.errors.ConfigError` where one rollout at a time, or the way in which
    this verl takes missing rewards, is not enough.
    """
    check_verl_version(installed_verl())
    if run.takes_our_agent_loops and not run.is_v1:
        raise ConfigError(
            f"agent_loop_manager_class: {AGENT_LOOP_MANAGER} is for the V1 trainers. Name "
            "JudgeToolAgentLoop in agent_loop_config_path instead."
        )
    if _find_function(compute_score, run.spec) is not None:
        raise ConfigError(
            "custom_reward_function: a RewardFunction scores whole groups, but this verl passes "
            "one rollout at a time. Use a spec, or verl 0.6.1 with rollout.mode=sync."
        )
    if service := make_group_service(run):
        _check_missing(run)
        return service
    scorer = make_scorer(run.spec)
    check_scorer(run, scorer, in_batches=False)
    return scorer


def check_scorer(run: VerlRun, scorer: Scorer, *, in_batches: bool) -> None:
    """Raise :class:`ConfigError` for a spec that the run around it cannot serve."""
    spec = scorer.spec
    if scorer.needs_groups and not in_batches:
        raise ConfigError(
            f"{spec.where}: {scorer.needs_groups}: needs whole groups, but this verl passes one "
            "rollout at a time. Use graders that score each answer by itself, or verl 0.6.1 with "
            "rollout.mode=sync. The V1 trainers take the address of the spec behind `adjudge "
            "serve`, too, if it draws all groups."
        )
    _check_missing(run, spec)


def _check_missing(run: VerlRun, spec: RewardSpec | None = None) -> None:
    """``spec`` is ``None`` for a service's own, whose failures are always missing rewards."""
    if run.is_old:
        check_estimator(run.estimator, spec)
        return
    if run.read("reward.reward_model.enable"):
        raise ConfigError(
            "reward.reward_model.enable: that model would score instead of the spec's judges, or "
            "hide what they need. Set it to False, and name its server in the spec."
        )
    goes_on = run.is_v1 or run.is_fully_async
    if goes_on and spec is not None and spec.missing.policy == "raise":
        raise ConfigError(
            f"{spec.where}: missing.policy: 'raise' cannot end a run of verl's V1 trainers, nor of "
            f"fully_async_policy. Use 'mask'{', or trainer.use_v1=False' if run.is_v1 else ''}."
        )
    registered = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    if run.is_fully_async and REGISTER_MODULE not in registered:
        raise ConfigError(
            "VERL_USE_EXTERNAL_MODULES: this verl trains in a process that never loads the reward "
            f"manager, and so does not know {ADJUDGE_ESTIMATOR!r}. Set "
            f"VERL_USE_EXTERNAL_MODULES={REGISTER_MODULE} for all processes: in the shell, or in "
            "env_vars of Ray's runtime environment."
        )
    if not run.is_absent:
        check_estimator(run.estimator, spec, [ADJUDGE_ESTIMATOR])


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


def make_group_service(run: VerlRun) -> GroupService | None:
    """The judge service that scores whole groups of this run, if one does.

    That is where the V1 trainers are given the address of a service whose spec compares groups.
    Raises :class:`~adjudge.errors.ConfigError` when it does not answer, or verl's configuration
    does not go with groups.
    """
    url = (run.spec or "").rstrip("/")
    if not (run.is_v1 and is_address(url)):
        return None
    info = fetch_service_info(url, patience_s=_PATIENCE_S)
    if info is None:
        raise ConfigError(
            f"{url}: no judge service is ready there. Start it before the trainer; for other "
            "machines it needs --host 0.0.0.0 and a key."
        )
    if info.compares_groups is None:
        return None
    return GroupService(url, info, _check_group_size(run, url, info.compares_groups))


def _check_group_size(run: VerlRun, url: str, what: str) -> int:
    """The usual group's size, once nothing in verl's configuration forbids to wait for groups."""
    size = int(run.read("actor_rollout_ref.rollout.n"))
    in_validation = int(run.read("actor_rollout_ref.rollout.val_kwargs.n"))
    if size != in_validation and not run.takes_our_agent_loops:
        raise ConfigError(
            f"{url}: {what} needs whole groups, and verl's rollouts do not say whether they are of "
            f"training (rollout.n = {size}) or validation (val_kwargs.n = {in_validation}). Set "
            f"+actor_rollout_ref.rollout.agent.agent_loop_manager_class={AGENT_LOOP_MANAGER}"
        )
    mode = run.read("trainer.v1.trainer_mode")
    ahead = float(run.read(f"trainer.v1.{mode}.num_warmup_batches") or 0)
    waiting = (1.0 + ahead) * int(run.read("data.train_batch_size")) * size
    workers = int(run.read("reward.num_workers"))
    if waiting > _MAX_WAITING * workers:
        raise ConfigError(
            f"reward.num_workers: must be at least {math.ceil(waiting / _MAX_WAITING)}, since "
            f"{math.ceil(waiting)} rollouts may wait for their groups at once, at most "
            f"{_MAX_WAITING} in a worker (found {workers})"
        )
    return size
