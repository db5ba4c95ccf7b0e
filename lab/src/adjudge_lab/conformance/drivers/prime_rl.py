"""prime-rl: rewards by verifiers, its train sink, algorithms and loss."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adjudge_lab.conformance.driver import Batch, StepResult, Way, make_ways, split_groups
from adjudge_lab.conformance.source import SILENT, Scope, TrainerSource, stand_in

_GROUPS = "orchestrator/algo/base.py"
_TRAIN = "trainer/rl/train.py"
_VERIFIERS: Mapping[str, str] = {
    "v1/errors.py": "RolloutError ProviderError TaskError boundary",
    "v1/utils/decorators.py": "invoke invoke_all seed unseed",
    "v1/task.py": "Task.score",
    "v1/trace.py": "Trace.record_reward Trace.record_error Trace.stop Trace.reward Trace.has_error",
    "v1/rollout.py": "Rollout.fail Rollout._release_borrowed_runtime Rollout.close",
}
_PRIME: Mapping[str, str] = {
    _GROUPS: "iter_trainable_traces Algorithm",
    "orchestrator/algo/routing.py": "assign_advantages stamp_loss_routing",
    "orchestrator/algo/grpo.py": "GRPOAlgorithm",
    "orchestrator/algo/max_rl.py": "MaxRLAlgorithm",
    "orchestrator/utils.py": "episode_env_name episode_group_id min_fresh_version",
    "orchestrator/metrics.py": "TraceRecord _records Stat EpisodeMetrics TrainMetrics "
    "EpisodeCollection TrainEpisodes",
    "orchestrator/types.py": "TrainBatch",
    "orchestrator/trajectories.py": "_encode_routed_experts iter_trainable_branches _loss_weights "
    "trace_to_samples",
    "orchestrator/train_sink.py": "MAX_CONSECUTIVE_ZERO_OUTPUT_BATCH_EQUIVALENTS payload_tokens "
    "_prune_zero_advantages TrainSink",
    "trainer/rl/loss.py": "LossInputs LossOutputs _safe_mean default_loss_fn compute_loss "
    "compute_importance_ratio_and_mismatch_kl",
}
_IMPORTED = ("typing", "abc", "contextlib", "collections", "collections.abc", "dataclasses")
_MODULES = ("asyncio", "inspect", "time", "torch", "traceback")
_SETTINGS = {"grpo": "GRPOAlgorithm", "max_rl": "MaxRLAlgorithm"}
_PHASES = ("boot", "setup", "agent", "finalize", "scoring")
_ABSENT = ("advantages", "loss_weights", "reference_logprobs")


class PrimeRLDriver:
    """A rollout through verifiers' scoring, ``TrainSink`` and ``compute_loss``.

    verifiers is the one in the folder of the checkout, else that of its submodule, else the
    installed one. The logged mean is that of what is shipped, with ``filter_zero_advantages`` off:
    with it, which is the default, answers without an advantage are in none, missing or not.
    """

    name = "prime-rl"
    ways: tuple[Way, ...] = make_ways("raising", undocumented=("None", "NaN"))
    settings: tuple[str, ...] = tuple(_SETTINGS)
    batch_wide: frozenset[str] = frozenset()

    def __init__(self, checkout: Path | None = None) -> None:
        import pydantic  # noqa: PLC0415
        import torch  # noqa: PLC0415

        self._torch = torch
        self._source = source = TrainerSource("prime_rl", "prime-rl", checkout)
        verifiers = TrainerSource("verifiers", "verifiers", _find_verifiers(checkout))
        self.version = f"{source.version}, verifiers {verifiers.version}"
        self.decided_at = source.find_line(_GROUPS, "if trace.has_error or")
        modules = [vars(import_module(name)) for name in _IMPORTED]
        common: Scope = {
            **{name: one for every in modules for name, one in every.items() if name[:2] != "__"},
            **{name: import_module(name) for name in _MODULES},
            "np": import_module("numpy"),
            "logger": SILENT,
            "get_logger": lambda: SILENT,
            "Error": SimpleNamespace,
            "TrainingSample": SimpleNamespace,
            "jaxtyped": lambda **_: lambda function: function,
            "typechecker": None,
        }
        # pydantic looks a class's annotations up in its module
        judging = vars(stand_in("conformance_verifiers", **common))
        judging |= {name: getattr(pydantic, name) for name in ("BaseModel", "FiniteFloat")}
        verifiers.load_names("v1/trace.py", ["Reward"], judging)
        judging |= {"BaseModel": SimpleNamespace, "Field": lambda **_: None}
        verifiers.load_names("v1/trace.py", ["Branch"], judging)
        judging["Branch"].multi_modal_data = judging["Branch"].routed_experts = None  # no images
        for file, names in _VERIFIERS.items():
            verifiers.load_names(file, names.split(), judging)
        self._trace = _build_class("Trace", judging, "record_reward record_error stop")
        self._trace.reward = property(judging["reward"])
        self._trace.has_error = property(judging["has_error"])
        self._trace.branches = property(lambda one: [judging["Branch"](index=0, nodes=one.nodes)])
        self._rollout = _build_class("Rollout", judging, "fail _release_borrowed_runtime close")
        self._task = _build_class("Task", judging, "score")
        self._scope = common
        for file, names in _PRIME.items():
            source.load_names(file, names.split(), self._scope)
        self._scales = source.load_statements(_TRAIN, "train", _counts_tokens)

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """prime-rl's advantages, shipped groups, logged mean and gradient."""
        size = len(batch.groups[0])
        traces, shipped = asyncio.run(self._train(batch, way, setting, prune=True))
        _, unpruned = asyncio.run(self._train(batch, way, setting, prune=False))
        samples = shipped.samples if shipped else []
        learned = self._gradients(samples, batch.kl) if samples else {}
        advantages: list[float | None] = []
        gradients: list[float | None] = []
        for place, trace in enumerate(traces):
            credit = trace.nodes[1].advantages
            advantages.append(None if credit is None else credit[0])
            gradients.append(None if credit is None else learned.get(place, 0.0))
        groups = range(len(batch.groups))
        return StepResult(
            advantages=split_groups(advantages, size),
            gradients=split_groups(gradients, size),
            reward_mean=unpruned.cohort.effective.metrics.reward.mean() if unpruned else None,
            kept=[any(place // size == number for place in learned) for number in groups],
        )

    async def _train(self, batch: Batch, way: str, setting: str, *, prune: bool) -> Any:
        """The scored rollouts, and what the sink ships of them."""
        algorithm = self._scope[_SETTINGS[setting]](SimpleNamespace(length_penalty=None), None)
        size = len(batch.groups[0])
        traces: list[Any] = []
        environment = SimpleNamespace(
            config=SimpleNamespace(group_size=size),
            algorithm=algorithm,
            sampling_args={"temperature": 1.0},
        )
        train = SimpleNamespace(filter_zero_advantages=prune)
        sink = self._scope["TrainSink"](
            SimpleNamespace(train=train, max_off_policy_steps=8, seq_len=64),
            tokenizer=None,
            train_envs=SimpleNamespace(get=lambda _: environment),
            mm_token_type_ids_mapping=None,
            progress=SimpleNamespace(step=1),
            batch_size=size * len(batch.groups) + 1,
            token_batch_size=None,
        )
        for number, group in enumerate(batch.groups):
            for reward, length in zip(group, batch.lengths[number], strict=True):
                trace = await self._score(len(traces), reward, length, way)
                traces.append(trace)
                episode = _Episode(id=trace.id, ok=trace.ok, traces=[trace])
                episode.env, episode.group = SimpleNamespace(name="e"), SimpleNamespace(id=number)
                await sink.add(episode)
        return traces, sink.process_batch() if sink.pending_batch else None

    async def _score(self, place: int, reward: float | None, length: int, way: str) -> Any:
        """A finished rollout after ``Rollout.close``."""

        async def judge() -> float | None:
            if reward is None and way == "raising":
                raise TimeoutError("the judge did not answer")
            return math.nan if reward is None and way == "NaN" else reward

        spans = {name: SimpleNamespace(start=0.0, end=0.0) for name in _PHASES}
        trace = self._trace(id=place, ok=True, rewards={}, metrics={}, errors=[], num_turns=1)
        trace.agent = SimpleNamespace(trainable=True, name="agent")
        trace.timing, trace.split_agent_time = SimpleNamespace(**spans), lambda: None
        trace.last_error = trace.stop_condition = None
        trace.nodes = [_make_node([0], sampled=False), _make_node([place] * length, sampled=True)]
        trace.task = SimpleNamespace(data=SimpleNamespace(idx=0))
        task = self._task(data=trace.task.data, plugged_judges=list, finalize=_wait)
        task.hooks = lambda kind: [judge] if kind == "reward" else []
        rollout = self._rollout(trace=trace, task=task, _opened=True)
        for name in ("_closed", "_failed", "_owns_runtime"):
            setattr(rollout, name, False)
        for name in ("runtime", "_harness_session", "_previous_runtime_env"):
            setattr(rollout, name, None)
        rollout.harness = SimpleNamespace(score=_wait)
        rollout._stack = AsyncExitStack()  # noqa: SLF001
        rollout._timeouts = SimpleNamespace(finalize=None, scoring=None)  # noqa: SLF001
        return await rollout.close()

    def _gradients(self, samples: list[Any], beta: float) -> dict[int, float]:
        """Of the first token of each answer that is shipped, by its place."""
        torch = self._torch
        logps = [torch.full((len(one.token_ids),), -0.9, requires_grad=True) for one in samples]
        masks = [torch.tensor(one.mask) for one in samples]
        weights = [one.rl_weights and torch.tensor(one.rl_weights) for one in samples]
        scope: Scope = {**self._scope, "micro_batches": []}
        for mask, weight in zip(masks, weights, strict=True):
            row = {"loss_mask": mask, "rl_weights": weight}
            scope["micro_batches"].append({**row, "ce_weights": None, "ref_kl_weights": None})
        self._source.run_statements(_TRAIN, self._scales, scope)
        config = SimpleNamespace(dppo_mask_low=0.2, dppo_mask_high=0.2, adv_tau=1.0, kl_tau=beta)
        before = [torch.tensor(one.logprobs) for one in samples]
        advantages = [torch.tensor(one.advantages) for one in samples]
        function = partial(self._scope["default_loss_fn"], loss_config=config)
        scale = max(scope["local_rl_scale"], 1)
        columns = (logps, before, None, advantages, masks, weights, None, None)
        loss, _ = self._scope["compute_loss"](*columns, function, scale, 1, 1)
        loss.backward()
        return {
            one.token_ids[1]: float(logp.grad[1]) for one, logp in zip(samples, logps, strict=True)
        }


class _Episode(SimpleNamespace):
    """One rollout of an environment, as the orchestrator gets it."""

    def model_copy(self, update: dict[str, Any]) -> _Episode:
        return _Episode(**vars(self) | update)


def _build_class(name: str, scope: Scope, methods: str) -> Any:
    """A class of the methods of verifiers that are driven."""
    return type(name, (SimpleNamespace,), {method: scope[method] for method in methods.split()})


def _make_node(tokens: list[int], *, sampled: bool) -> SimpleNamespace:
    """A message; the tokens of an answer say which one it is."""
    made = SimpleNamespace(token_ids=tokens, mask=[sampled] * len(tokens), sampled=sampled)
    made.logprobs = [-1.0] * len(tokens) if sampled else []
    vars(made).update(dict.fromkeys(_ABSENT))
    return made


async def _wait(*_: Any) -> None:
    """A stage in which nothing happens."""


def _find_verifiers(checkout: Path | None) -> Path | None:
    """The folder of verifiers: beside prime-rl's package, or the submodule of its repository."""
    folders = [] if checkout is None else [checkout, checkout.parent / "deps" / "verifiers"]
    return next((one for one in folders if (one / "verifiers").is_dir()), None)


def _counts_tokens(text: str) -> bool:
    """Whether a statement makes the numbers of tokens by which the loss is divided."""
    return text.startswith(("local_", "for micro_batch in micro_batches:"))
