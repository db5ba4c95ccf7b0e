"""AReaL: its reward wrapper, workflows, advantages and GRPO loss."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from adjudge_lab.conformance.driver import Batch, StepResult, Way, make_ways, split_groups
from adjudge_lab.conformance.source import Scope, TrainerSource, pass_on_misfits, stand_in

_GROUPED = "infra/remote_inf_engine.py"
_GAE = "trainer/ppo/gae.py"
_METHODS = "PROX_LOGP_METHOD_RECOMPUTE PROX_LOGP_METHOD_LOGLINEAR PROX_LOGP_METHOD_METRICS"
_CONCATENATING = "is_multi_modal_key _pad_cat_dim0 concat_padded_tensors TrajBatchMeta concat_batch"
_SPLITTING = "_unpad_splits split_and_unpad_tensor split_batch batched_call"
_NAMES: Mapping[str, str] = {
    "api/reward_api.py": "AsyncRewardWrapper",
    "utils/constants.py": f"ProxLogpMethod {_METHODS}",
    "utils/data.py": f"{_CONCATENATING} {_SPLITTING} Normalization KLEstimator",
    "workflow/rlvr.py": "default_get_input_ids_fn default_data_extract_prompt_fn RLVRWorkflow",
    _GROUPED: "GroupedRolloutWorkflow",
    "infra/workflow_executor.py": "WorkflowExecutor._create_workflow_task",
    "utils/functional/functional.py": "ppo_actor_loss_fn",
    "trainer/ppo/actor.py": "PPOActor.compute_advantages PPOActor._compute_advantages "
    "_resolve_proximal_logp grpo_loss_fn",
}
_IMPORTED = ("typing", "dataclasses", "enum", "functools")
_MODULES = ("asyncio", "copy", "math", "threading", "torch", "uuid")
_LOGS = ["trace_session_event", "infer_token_denominator"]
_LOGS += ["_log_proximal_approximation_stats", "_log_version_staleness_stats"]
_OFF = ["overlong_reward_penalty", "use_decoupled_loss", "recompute_logprob"]
_OFF += ["check_trajectory_format", "dump_to_file", "enable_rollout_tracing"]
_SETTINGS: Mapping[str, tuple[str | None, bool, bool]] = {
    # std_level of reward_norm, its mean_leave1out, adv_norm over the batch
    "group": ("group", False, False),
    "group, no std": (None, False, False),
    "leave one out": (None, True, False),
    "group, then batch": ("group", False, True),
}
_NONE, _RAISING = "None from arun_episode", "raising"
_FILLERS = {"slower than its timeout": "too slow", "None": None, "NaN": math.nan}


class ARealDriver:
    """AReaL from a reward function to ``grpo_loss_fn``, with ``reward_norm`` by group.

    ``None`` is what ``arun_episode`` of a workflow of the user's own returns, here ``RLVRWorkflow``
    with a ``try``. A group that ``WorkflowExecutor`` rejects is not replaced by another prompt.
    """

    name = "AReaL"
    ways: tuple[Way, ...] = make_ways(
        _NONE,
        _RAISING,
        "slower than its timeout",
        undocumented=("None", "NaN", "loss mask of zeros"),
    )
    settings: tuple[str, ...] = tuple(_SETTINGS)
    batch_wide = frozenset({"group, then batch"})

    def __init__(self, checkout: Path | None = None) -> None:
        import torch  # noqa: PLC0415

        self._torch = torch
        source = TrainerSource("areal", "areal", checkout)
        self.version = source.version
        self.decided_at = source.find_line(_GROUPED, "valid_results = [")
        self._logged: list[float] = []
        context = SimpleNamespace(is_eval=False, task_id=0)
        contexts = {"get": lambda: context, "set": lambda _: None, "stat_scope": lambda: "rollout"}
        stand_in("areal.infra.workflow_context", **contexts, WorkflowContext=SimpleNamespace)
        unused = {"InteractionWithTokenLogpReward": type("Unused", (), {})}
        stand_in("areal.experimental.openai", **unused)
        tracker = SimpleNamespace(scalar=self._log)
        self._scope: Scope = {
            **{name: one for file in _IMPORTED for name, one in vars(import_module(file)).items()},
            **{name: import_module(name) for name in _MODULES},
            **unused,
            "np": import_module("numpy"),
            "F": torch.nn.functional,
            "dist": torch.distributed,
            "os": SimpleNamespace(cpu_count=lambda: 1),
            "_get_device_count_safely": lambda: 1,
            "atexit": _Ignoring(),
            "ProcessPoolExecutor": lambda **_: _Executor(),
            "BrokenProcessPool": type("BrokenProcessPool", (Exception,), {}),
            "RolloutWorkflow": object,
            **dict.fromkeys(("ModelRequest", "WorkflowContext", "_RolloutResult"), SimpleNamespace),
            "workflow_context": SimpleNamespace(**contexts),
            "stats_tracker": _Ignoring(get=lambda _: tracker),
            **dict.fromkeys(("logger", "perf_tracer"), _Ignoring()),
            "trace_session": lambda _: lambda method: method,
            "session_context": lambda: lambda method: method,
            "atrace_session_phase": lambda _: nullcontext(),
            **dict.fromkeys(_LOGS, lambda *_, **__: None),
        }
        for file, names in _NAMES.items():
            source.load_names(file, names.split(), self._scope)
        if (source.root / _GAE).is_file():  # before, a part of _compute_advantages
            source.load_names(_GAE, ["_compute_token_level_gae"], self._scope)

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """AReaL's groups, advantages, logged mean and gradient."""
        torch, size = self._torch, len(batch.groups[0])
        self._logged.clear()
        advantages: list[float | None] = [None] * (len(batch.groups) * size)
        gradients = list(advantages)
        if groups := asyncio.run(self._roll_out(batch, way)):
            made = self._scope["compute_advantages"](self._make_actor(batch, setting), groups)
            rows, _ = self._scope["concat_batch"](made)
            policy = rows["logprobs"].clone().requires_grad_()
            entropy = torch.zeros(policy.shape)
            self._scope["grpo_loss_fn"](policy, entropy, rows, 0.2, None, None).backward()
            masked = (rows["advantages"] * rows["loss_mask"])[:, 0].tolist()
            for row, place in enumerate(rows["place"].tolist()):
                advantages[place], gradients[place] = masked[row], float(policy.grad[row, 0])
        return StepResult(
            advantages=split_groups(advantages, size),
            gradients=split_groups(gradients, size),
            reward_mean=fmean(self._logged) if self._logged else None,
        )

    def _log(self, **scalars: float) -> None:
        self._logged += [float(value) for name, value in scalars.items() if name == "reward"]

    async def _roll_out(self, batch: Batch, way: str) -> list[dict[str, Any]]:
        """The groups that the executor accepts."""
        accepted = []
        for number, group in enumerate(batch.groups):
            model = _Model(lengths=batch.lengths[number], next=0)
            workflow = self._build_workflow(group, model, way, number * len(group))
            workflow = self._scope["GroupedRolloutWorkflow"](workflow, len(group), _Ignoring())
            executor = SimpleNamespace(inference_engine=model, staleness_manager=_Ignoring())
            executor.logger = SimpleNamespace(error=pass_on_misfits)
            executor.config = SimpleNamespace(**dict.fromkeys(_OFF, False))
            task = SimpleNamespace(workflow=workflow, data={"messages": []}, task_id=number)
            task.is_eval, task.should_accept_fn = False, None
            result = await self._scope["_create_workflow_task"](executor, task)()
            if result is not None:
                reference = self._torch.full(result.trajectory["logprobs"].shape, -2.0)
                accepted.append({**result.trajectory, "ref_logp": reference})
        return accepted

    def _build_workflow(self, group: Any, model: Any, way: str, start: int) -> Any:
        """A user's ``RLVRWorkflow`` around a reward function that may fail."""
        torch = self._torch

        def judge(_: Any, __: Any, ___: Any, completion: list[int], **____: Any) -> Any:
            reward = group[completion[0]]
            if reward is None and way in (_NONE, _RAISING):
                raise ConnectionError("the judge did not answer")
            return _FILLERS.get(way, 0.0) if reward is None else reward

        class JudgedWorkflow(self._scope["RLVRWorkflow"]):  # type: ignore[name-defined, misc]
            async def arun_episode(self, engine: Any, data: Any) -> Any:
                try:
                    episode = await super().arun_episode(engine, data)
                except ConnectionError:
                    if way == _NONE:
                        return None
                    raise
                place = int(episode["input_ids"][0, 1])
                if group[place] is None and way == "loss mask of zeros":
                    episode["loss_mask"] = torch.zeros_like(episode["loss_mask"])
                return {**episode, "place": torch.tensor([start + place])}

        workflow = JudgedWorkflow(judge, model, model, False, lambda *_: [1])
        workflow.async_reward_fn.timeout_seconds, workflow.async_reward_fn.max_retries = 0.001, 0
        return workflow

    def _make_actor(self, batch: Batch, setting: str) -> Any:
        """What the driven lines read of ``PPOActor``, with AReaL's defaults."""
        std_level, leave_one_out, whole_batch = _SETTINGS[setting]
        norm: dict[str, Any] = {"mean_leave1out": leave_one_out, "std_unbiased": True, "eps": 1e-5}
        norm |= {"mean_level": "group", "std_level": std_level, "group_size": len(batch.groups[0])}
        over_batch = norm | {"mean_level": "batch", "std_level": "batch"}
        normalise = self._scope["Normalization"]
        actor = SimpleNamespace(reward_bias=0.0, reward_scaling=1.0, reward_clip=20.0)
        actor.config = SimpleNamespace(**dict.fromkeys(_OFF, False))
        actor.discount = actor.gae_lambda = 1.0
        actor.gae_timestep_unit, actor._gae_lambda_is_custom = "token", False  # noqa: SLF001
        actor.mask_no_eos_with_zero = False
        actor.kl_ctl, actor.kl_estimator = batch.kl, self._scope["KLEstimator"]("k1")
        actor.reward_norm = normalise(SimpleNamespace(**norm))
        actor.adv_norm = normalise(SimpleNamespace(**over_batch)) if whole_batch else None
        actor._compute_advantages = partial(self._scope["_compute_advantages"], actor)  # noqa: SLF001
        return actor


class _Model(SimpleNamespace):
    """A server; its first token says which answer it is; its tokenizer and its settings."""

    def new(self, *_: Any, **__: Any) -> _Model:
        return self

    new_with_stop_and_pad_token_ids = new

    def decode(self, _: list[int]) -> str:
        return ""

    async def agenerate(self, _: Any) -> Any:
        place, length = self.next, self.lengths[self.next]
        self.next += 1
        answer = SimpleNamespace(input_tokens=[1], input_len=1, output_len=length)
        answer.output_tokens = [place] + [3] * (length - 1)
        answer.output_logprobs, answer.output_versions = [-1.0] * length, [0] * length
        return answer


class _Executor:
    """AReaL's pool of processes, in this one; a call that is too slow never ends."""

    def submit(self, call: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            reward = call()
        except ConnectionError as error:
            future.set_exception(error)
            return future
        if reward != "too slow":
            future.set_result(reward)
        return future


class _Ignoring(SimpleNamespace):
    """A logger, or a tracker of statistics."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None
