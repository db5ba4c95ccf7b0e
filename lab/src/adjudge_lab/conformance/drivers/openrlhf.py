"""OpenRLHF: its reward call, dynamic filtering, experience maker and policy loss."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from adjudge_lab.conformance.driver import Batch, StepResult, Way, make_ways, split_groups
from adjudge_lab.conformance.source import SILENT, Scope, TrainerSource

_MAKER = "trainer/ppo_utils/experience_maker.py"
_ACTOR = "trainer/ray/ppo_actor.py"
_IMPORTED = ("typing", "abc", "copy", "dataclasses", "datetime", "itertools")
_MODULES = ("asyncio", "heapq", "itertools", "time", "torch")
_NAMES: Mapping[str, str] = {
    "utils/utils.py": "zero_pad_sequences",
    "utils/loss_utils.py": "_get_dp_group _optimizer_step_loss_norm iter_grad_accum_global_norm",
    "utils/config.py": "hierarchize",
    "utils/agent.py": "AgentExecutorBase SingleTurnAgentExecutor",
    "models/utils.py": "compute_approx_kl compute_reward masked_mean",
    "models/loss.py": "aggregate_loss PolicyLoss",
    "trainer/ppo_utils/experience.py": "tensor_field Experience",
    "trainer/ppo_utils/length_penalty.py": "apply_length_penalties",
    "trainer/ppo_utils/samples_generator.py": "_collect_prompt_batch SamplesGenerator",
    _MAKER: "RemoteExperienceMaker",
    "trainer/ppo_trainer.py": "BasePPOTrainer._compute_rollout_stats",
}
_ARGUMENTS: Mapping[str, Any] = {
    # what the driven lines read, with OpenRLHF's defaults
    **dict.fromkeys(("train.dynamic_batch_enable", "train.colocate_all"), False),
    **dict.fromkeys(("train.colocate_actor_ref", "train.colocate_critic_reward"), False),
    "algo.kl.unbiased_gradient": False,
    **dict.fromkeys(("algo.advantage.no_std_norm", "reward.clip_range"), None),
    **dict.fromkeys(("ds.ring_attn_size", "ds.tensor_parallel_size"), 1),
    **dict.fromkeys(("algo.advantage.gamma", "algo.advantage.lambd"), 1),
    "algo.advantage.is_correction_level": "off",
    "algo.dynamic_filtering_range": (0, 1),
    "algo.kl.use_loss": True,  # no default, but where the suite looks for the term
    "algo.kl.estimator": "k3",
}
_LOSS = ("actor_loss,", "(actor_loss,", "advantages", "base_action", "if self.args.al", "loss =")
_PROMPT = [1, 2]


class OpenRLHFDriver:
    """OpenRLHF from ``SingleTurnAgentExecutor.execute`` to the loss of ``training_step``.

    Its default estimator, ``gae``, knows no groups; its critic says 0 here. A micro batch is one
    group. The answer that the executor gives no action tokens has the reward 0.
    """

    name = "OpenRLHF"
    ways: tuple[Way, ...] = make_ways("raising", undocumented=("None", "NaN", "no action tokens"))
    settings: tuple[str, ...] = (
        *("gae", "group_norm", "rloo, sequence", "dr_grpo"),
        "reinforce_baseline",
    )
    batch_wide = frozenset({"gae", "reinforce_baseline"})

    def __init__(self, checkout: Path | None = None) -> None:
        import torch  # noqa: PLC0415

        self._torch = torch
        self._source = source = TrainerSource("openrlhf", "openrlhf", checkout)
        self.version = source.version
        self.decided_at = source.find_line(_MAKER, "rewards.reshape(-1, args.rollout")
        self._scope: Scope = {
            **{name: one for file in _IMPORTED for name, one in vars(import_module(file)).items()},
            **{name: import_module(name) for name in _MODULES},
            "SimpleNamespace": SimpleNamespace,
            "nn": torch.nn,
            "F": torch.nn.functional,
            "dist": SimpleNamespace(is_available=lambda: False),
            "logger": SILENT,
            "tqdm": _ProgressBar,
            "SamplingParams": SimpleNamespace,
            "ray": SimpleNamespace(wait=lambda refs, **_: (refs[:1], refs[1:]), get=list, put=list),
        }
        for file, names in _NAMES.items():
            source.load_names(file, names.split(), self._scope)
        self._step = source.load_statements(
            _ACTOR, "ActorPPOTrainer.training_step", lambda text: text.startswith(_LOSS)
        )

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """OpenRLHF's rollouts, advantages, filter, logged mean and gradient."""
        size = len(batch.groups[0])
        estimator, _, by_sequence = setting.partition(", ")
        sizes = dict.fromkeys(("rollout.micro_batch_size", "rollout.n_samples_per_prompt"), size)
        more = {"algo.advantage.estimator": estimator, "algo.kl.init_coef": batch.kl}
        args = self._scope["hierarchize"](SimpleNamespace(**_ARGUMENTS, **sizes, **more))
        groups = asyncio.run(self._judge(batch, way))
        rollouts = self._generate(groups, args, dynamic_filtering=False)
        kept = {one.prompts[0] for one in self._generate(groups, args, dynamic_filtering=True)}
        actor, reference, critic = (
            _Model(fill=self._torch.full, value=value) for value in (-1.0, -2.0, 0.0)
        )
        made = self._scope["RemoteExperienceMaker"](
            *(actor, critic if estimator == "gae" else None, None, reference),
            SimpleNamespace(value=0.0),
            *(SimpleNamespace(args=args), SimpleNamespace(pad_token_id=0)),
        ).make_experience_batch(rollouts)
        first = len(_PROMPT) - 1  # log-probabilities are of the next token
        advantages = [
            float(row[first]) if mask[first] else 0.0
            for one in made
            for row, mask in zip(one.advantages, one.action_mask, strict=True)
        ]
        gradients = self._gradients(made, args, by_token=not by_sequence)
        return StepResult(
            advantages=split_groups(advantages, size),
            gradients=split_groups([row[first] for row in gradients], size),
            reward_mean=self._scope["_compute_rollout_stats"](None, made)["rollout/reward_mean"],
            kept=[f"prompt {number}" in kept for number in range(len(groups))],
        )

    async def _judge(self, batch: Batch, way: str) -> list[list[dict[str, Any]]]:
        """What the executor returns for each answer, by group."""
        filler = {"None": None, "NaN": math.nan}.get(way, 0.0)

        def judge(_: Any, __: Any, labels: list[float | None]) -> dict[str, Any]:
            if labels[0] is None and way == "raising":
                raise TimeoutError("the judge did not answer")
            reward = filler if labels[0] is None else labels[0]
            return {"rewards": reward, "scores": reward, "extra_logs": {}}

        executor = self._scope["SingleTurnAgentExecutor"]("http://judge")
        executor.reward_func = judge
        prompt = self._torch.tensor([_PROMPT])
        params = SimpleNamespace(max_tokens=16, logprobs=None)
        groups: list[list[dict[str, Any]]] = [[] for _ in batch.groups]
        for number, group in enumerate(batch.groups):
            for reward, length in zip(group, batch.lengths[number], strict=True):
                model = _Model(prompt=prompt, length=length, decode=lambda *_, **__: "")
                rollout = (f"prompt {number}", reward, params, 64, model, model)
                answer = await executor.execute(*rollout)
                if reward is None and way == "no action tokens":
                    answer["action_ranges"] = []
                groups[number].append(answer)
        return groups

    def _generate(self, groups: list[Any], args: Any, *, dynamic_filtering: bool) -> list[Any]:
        """The rollouts of the groups; one that is filtered is not replaced."""
        waiting = iter(groups)
        engine = SimpleNamespace(
            get_num_unfinished_requests=SimpleNamespace(remote=lambda: 0),
            generate_responses=SimpleNamespace(remote=lambda **_: next(waiting)),
        )
        prompts = [(None, [f"prompt {number}"], [""], [None]) for number in range(len(groups))]
        strategy = SimpleNamespace(args=args)
        generator = self._scope["SamplesGenerator"](strategy, [], [], None, [engine])
        generate = generator._generate_vllm  # noqa: SLF001
        return list(generate(iter(prompts), len(groups), dynamic_filtering)[0])

    def _gradients(self, made: list[Any], args: Any, *, by_token: bool) -> list[list[float]]:
        """One optimiser step, a micro batch after the other, each scaled as DeepSpeed does."""
        trainer = SimpleNamespace(
            args=args, actor_loss_fn=self._scope["PolicyLoss"](token_level_loss=by_token)
        )
        gradients: list[list[float]] = []
        for one, normaliser in self._scope["iter_grad_accum_global_norm"](
            made, None, len(made), lambda item: item.action_mask
        ):
            logps = one.action_log_probs.clone().requires_grad_()
            scope: Scope = {**self._scope, "self": trainer, "experience": one}
            scope |= {"action_log_probs": logps, "old_action_log_probs": one.action_log_probs}
            scope |= {"loss_batch_info": normaliser, "kl_ctl": args.algo.kl.init_coef}
            self._source.run_statements(_ACTOR, self._step, scope)
            (scope["loss"] / len(made)).backward()
            gradients += logps.grad.tolist()
        return gradients


class _ProgressBar:
    """A progress bar that shows nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.update = self.set_postfix = self.close = lambda *_, **__: None


class _Model(SimpleNamespace):
    """A tokenizer, an engine that answers with ``length`` tokens, and its log-probabilities."""

    def __call__(self, **_: Any) -> Any:
        return {"input_ids": self.prompt}

    async def generate(self, *_: Any, **__: Any) -> Any:
        answer = SimpleNamespace(token_ids=[3] * self.length, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[answer])

    def async_run_method_batch(self, action_mask: Any, **_: Any) -> Any:
        return [[self.fill(mask.shape, self.value)] for mask in action_mask]
