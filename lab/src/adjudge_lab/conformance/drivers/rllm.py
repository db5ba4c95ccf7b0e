"""rLLM: its two rollout engines, grouping, filter and advantages."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from adjudge_lab.conformance.driver import Batch, StepResult, Way, split_groups
from adjudge_lab.conformance.source import Scope, TrainerSource, pass_on_misfits, stand_in

_GROUPING = "trainer/algorithms/transform.py"
_FLOW = "engine/agentflow_engine.py"
_WORKFLOW = "engine/unified_workflow_engine.py"
_NAMES: Mapping[str, str] = {
    "types.py": "_DEFAULT_TRAJ_NAME Step Trajectory Episode TrajectoryGroup",
    "workflows/workflow.py": "TerminationReason TerminationEvent Workflow",
    "trainer/algorithms/config.py": "rLLMAdvantageEstimator CompactFilteringConfig "
    "TransformConfig RejectionSamplingConfig",
    _GROUPING: "LOG_N_WARNINGS _impute_trajectory_names _validate_and_propagate_rewards "
    "_build_trajectory_groups _get_transform_metrics _default_traj_grouping_hook "
    "transform_episodes_to_trajectory_groups",
    "trainer/algorithms/rejection_sampling.py": "RejectionSamplingMetrics RejectionSamplingState "
    "update_episode_metrics filter_groups filter_episodes apply_rejection_sampling_and_filtering",
    "trainer/algorithms/rl_algo.py": "calculate_grpo_advantages_per_group "
    "calculate_rloo_advantages_per_group",
    "trainer/algorithms/advantage.py": "RLLM_ADV_ESTIMATOR_REGISTRY register_rllm_adv_estimator "
    "get_rllm_adv_estimator calculate_grpo_advantages calculate_rloo_advantages "
    "calculate_reinforce_plus_plus_baseline_advantages "
    "collect_reward_and_advantage_from_trajectory_groups",
}
_IMPORTED: Mapping[str, str] = {
    "typing": "Any Literal",
    "abc": "ABC abstractmethod",
    "collections": "defaultdict",
    "collections.abc": "Callable",
    "copy": "deepcopy",
    "dataclasses": "dataclass field",
    "enum": "Enum",
    "pydantic": "BaseModel ConfigDict Field",
}
_MODULES = ("asyncio", "time", "uuid")
_SETTINGS: Mapping[str, tuple[str, bool]] = {
    # estimator, norm_adv_by_std_in_grpo
    "grpo": ("GRPO", True),
    "grpo, no std": ("GRPO", False),
    "rloo": ("RLOO", True),
    "reinforce++ baseline": ("REINFORCE_PLUS_PLUS_BASELINE", True),
}


class _Telling(NamedTuple):
    """What the user's code does where a reward is missing, and rLLM's settings."""

    failure: str
    workflow: bool = False
    raise_on_error: bool = False
    compact_filtering: bool = False


_WAYS: Mapping[str, _Telling] = {
    "evaluator raises, raise_on_error=false": _Telling("raise"),
    "evaluator raises": _Telling("raise", raise_on_error=True),
    "workflow raises, raise_on_error=false": _Telling("raise", workflow=True),
    "workflow raises, compact_filtering": _Telling("raise", workflow=True, compact_filtering=True),
    "evaluator empties the episode": _Telling("clear"),
    "None": _Telling("None"),
    "NaN": _Telling("NaN"),
}


class RLLMDriver:
    """rLLM from an evaluator, or a workflow, to the advantages of ``step.advantage``.

    The loss is that of a backend, so there is no gradient. A failed rollout is tried once. With
    ``compact_filtering``, ``raise_on_error`` is false, too.
    """

    name = "rLLM"
    ways: tuple[Way, ...] = tuple(Way(name, documented="raises" in name) for name in _WAYS)
    settings: tuple[str, ...] = tuple(_SETTINGS)
    batch_wide = frozenset({"reinforce++ baseline"})

    def __init__(self, checkout: Path | None = None) -> None:
        source = TrainerSource("rllm", "rllm", checkout)
        self.version = source.version
        self.decided_at = source.find_line(_GROUPING, "if len(trajectory.steps) == 0")
        levels = dict.fromkeys(("debug", "info", "warning"), lambda *_, **__: None)
        # pydantic looks a class's annotations up in its module
        self._scope: Scope = vars(stand_in("conformance_rllm"))
        self._scope |= {
            **{
                name: getattr(import_module(module), name)
                for module, names in _IMPORTED.items()
                for name in names.split()
            },
            **{name: import_module(name) for name in _MODULES},
            "np": import_module("numpy"),
            "logger": SimpleNamespace(**levels, error=pass_on_misfits),
            "BaseAgent": type("BaseAgent", (), {}),
            "BaseEnv": type("BaseEnv", (), {}),
            "Task": SimpleNamespace,
            "enrich_episode_with_traces": lambda episode, *_, **__: episode,  # of the gateway
            "colorful_print": lambda *_, **__: None,
            "_format_timing_breakdown": lambda _: "",
        }
        for file, names in _NAMES.items():
            source.load_names(file, names.split(), self._scope)
        process = "process_task_with_retry"
        methods = [f"AgentFlowEngine.{name}" for name in (process, "_finish_episode")]
        source.load_names(_FLOW, methods, self._scope)
        self._process_flow, self._finish = self._scope[process], self._scope["_finish_episode"]
        source.load_names(_WORKFLOW, [f"UnifiedWorkflowEngine.{process}"], self._scope)
        self._process_workflow = self._scope[process]

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """The advantages of rLLM, and the mean reward that it logs."""
        take, size = self._scope, len(batch.groups[0])
        telling = _WAYS[way]
        episodes = asyncio.run(self._roll_out(batch, telling))
        steps = [[one.steps[-1] for one in episode.trajectories] for episode in episodes]
        filtering = take["CompactFilteringConfig"](
            enable=telling.compact_filtering, mask_timeout=True, mask_error=True
        )
        groups, _ = take["transform_episodes_to_trajectory_groups"](
            episodes, take["TransformConfig"](), filtering
        )
        rejection = take["RejectionSamplingConfig"](), take["RejectionSamplingState"]()
        groups, *_ = take["apply_rejection_sampling_and_filtering"](episodes, groups, *rejection)
        estimator, by_std = _SETTINGS[setting]
        config = SimpleNamespace(
            estimator=take["rLLMAdvantageEstimator"][estimator],
            estimator_map={},
            norm_adv_by_std_in_grpo=by_std,
            stepwise_advantage_mode="broadcast",
            use_precomputed_advantage=False,
        )
        logged = take["collect_reward_and_advantage_from_trajectory_groups"](groups, config)
        advantages = [one[-1].advantage if one else None for one in steps]
        mean = logged.get("reward/agent/mean")
        return StepResult(
            advantages=split_groups(advantages, size),
            reward_mean=None if mean is None else float(mean),
        )

    async def _roll_out(self, batch: Batch, telling: _Telling) -> list[Any]:
        """The episodes of a step, from one of the two engines."""
        episodes = []
        for number, group in enumerate(batch.groups):
            for place, reward in enumerate(group):
                if telling.workflow:
                    engine, process = self._make_workflow_engine(reward), self._process_workflow
                else:
                    engine, process = self._make_flow_engine(reward, telling), self._process_flow
                engine.raise_on_error, engine.retry_limit = telling.raise_on_error, 1
                task = SimpleNamespace(metadata={})
                made = await process(engine, task, f"t{number}", place, place)
                episodes.append(made[-1])
        return episodes

    def _play(self) -> Any:
        """An agent's trajectory of one step, without a reward."""
        step = self._scope["Step"](prompt_ids=[1], response_ids=[2], chat_completions=[{}])
        return self._scope["Trajectory"](name="agent", steps=[step])

    def _make_flow_engine(self, reward: float | None, telling: _Telling) -> Any:
        """An ``AgentFlowEngine`` with an evaluator of the user's own."""

        def evaluate(_: Any, episode: Any) -> Any:
            if reward is None and telling.failure == "raise":
                raise TimeoutError("the judge did not answer")
            if reward is None and telling.failure == "clear":
                episode.trajectories.clear()
            value = math.nan if reward is None and telling.failure == "NaN" else reward
            return SimpleNamespace(reward=value, is_correct=False, signals=[], metadata={})

        async def run_single(task: Any, uid: str, **_: Any) -> Any:
            episode = self._scope["Episode"](id=uid, trajectories=[self._play()])
            context = SimpleNamespace(evaluator=SimpleNamespace(evaluate=evaluate))
            return await self._finish(
                SimpleNamespace(executor=None), episode, [], uid, task, context
            )

        return SimpleNamespace(_semaphore=asyncio.Semaphore(1), _run_single=run_single)

    def _make_workflow_engine(self, reward: float | None) -> Any:
        """A ``UnifiedWorkflowEngine`` with a workflow of the user's own."""
        play = self._play

        class JudgedWorkflow(self._scope["Workflow"]):  # type: ignore[name-defined, misc]
            async def run(self, *_: Any, **__: Any) -> None:
                self.commit(trajectory=play())
                if reward is None:
                    raise RuntimeError("the judge did not answer")
                self._completed_trajectories[0].steps[0].reward = reward

        queue: asyncio.Queue[Any] = asyncio.Queue()
        queue.put_nowait(JudgedWorkflow(None, None))
        return SimpleNamespace(workflow_queue=queue)
