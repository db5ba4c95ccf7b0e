"""TRL's ``GRPOTrainer``, and those that Unsloth and Axolotl build on it."""

from __future__ import annotations

import ast
import asyncio
import inspect
import math
import os
import re
import textwrap
import types
from collections import defaultdict
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from adjudge_lab.conformance.driver import Batch, StepResult, Way, split_groups
from adjudge_lab.conformance.source import SILENT, Scope, TrainerSource

_FILE = "trainer/grpo_trainer.py"
_LOG_PROBS = "_get_per_token_logps_and_entropies"
_STEP = "GRPOTrainer._generate_and_score_completions"
TRL_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "group, dapo": {"scale_rewards": "group", "loss_type": "dapo"},
    "none, dr_grpo": {"scale_rewards": "none", "loss_type": "dr_grpo"},
    "batch, bnpo": {"scale_rewards": "batch", "loss_type": "bnpo"},
    "group, grpo": {"scale_rewards": "group", "loss_type": "grpo"},
    "normalize_then_sum, dapo": {
        "scale_rewards": "group",
        "loss_type": "dapo",
        "multi_objective_aggregation": "normalize_then_sum",
    },
}
TRL_WAYS = (
    Way("None"),
    Way("NaN", documented=False),
    Way("None of one of two functions", functions=2),
    Way("None of both functions", functions=2),
)


class TRLDriver:
    """TRL's own statements from rewards to ``advantages``, and its ``_compute_loss``."""

    name = "TRL"
    ways: tuple[Way, ...] = TRL_WAYS
    settings: tuple[str, ...] = tuple(TRL_SETTINGS)
    batch_wide: frozenset[str] = frozenset({"batch, bnpo", "normalize_then_sum, dapo"})

    def __init__(self, checkout: Path | None = None) -> None:
        import torch  # noqa: PLC0415

        self._torch = torch
        self._source = source = TrainerSource("trl", "trl", checkout)
        self.version = source.version
        self.decided_at = source.find_line(_FILE, ".nansum(dim=1)")
        self._scope: Scope = {
            "torch": torch,
            "math": math,
            "nn": torch.nn,
            "asyncio": asyncio,
            "inspect": inspect,
            "logger": SILENT,
            "gather": lambda tensor: tensor,
            "profiling_context": lambda *_: nullcontext(),
            "is_async_callable": lambda _: False,
        }
        source.load_names("trainer/utils.py", ["nanstd", "nanmin", "nanmax"], self._scope)
        source.load_names(
            _FILE, ["GRPOTrainer._calculate_rewards", "GRPOTrainer._compute_loss"], self._scope
        )
        self._take_statements(source.load_statements(_FILE, _STEP, lambda _: True))
        loss = (source.root / _FILE).read_text(encoding="utf-8")
        self._returns_aux = "per_token_logps, entropies, aux_loss" in loss

    def _take_statements(self, body: list[ast.stmt]) -> None:
        """From the method's statements, those around the advantages and the logged mean."""
        texts = [ast.unparse(node) for node in body]
        first = _find(texts, lambda text: "unscorable_mask =" in text or "rewards = (" in text)
        end = _find(texts, lambda text: text.startswith("process_slice ="))
        self._advantages = body[first:end]
        log = _find(texts, lambda text: "['reward'].append" in text or '["reward"].append' in text)
        self._log = [node for node in body[end + 1 : log + 1] if _mentions_rewards(node)]

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """TRL's rewards, advantages, logged mean and gradient."""
        size = len(batch.groups[0])
        given = [reward for group in batch.groups for reward in group]
        trainer = self._stand_in(setting, size, batch.kl)
        self._set_functions(trainer, batch, way)
        rewards = self._scope["_calculate_rewards"](
            trainer, [{"prompt": "p"}] * len(given), ["p"] * len(given), [""] * len(given), []
        )
        scope = {
            **self._scope,
            "self": trainer,
            "rewards_per_func": rewards,
            "num_generations": size,
            "device": "cpu",
            "mode": "train",
        }
        self._source.run_statements(_FILE, self._advantages, scope)
        advantages = scope["advantages"]
        self._source.run_statements(_FILE, self._log, scope)
        gradients = self._gradients(trainer, advantages, batch, self._scope, setting)
        return StepResult(
            advantages=split_groups(advantages.tolist(), size),
            gradients=split_groups(gradients, size),
            reward_mean=self._find_logged_mean(trainer),
        )

    def _set_functions(self, trainer: Any, batch: Batch, way: str) -> None:
        """The judge's rewards and, where the way has two functions, the other's."""
        given = [reward for group in batch.groups for reward in group]
        if way == "NaN":
            given = [math.nan if reward is None else reward for reward in given]
        trainer.reward_funcs = [lambda **_: given]
        other: list[float | None] = list(batch.other_rewards)
        if way == "None of both functions":
            other = [None if one is None else rest for one, rest in zip(given, other, strict=True)]
        if "functions" in way:
            trainer.reward_funcs.append(lambda **_: other)
        count = len(trainer.reward_funcs)
        trainer.reward_weights = self._torch.ones(count)
        trainer.reward_func_names = ["judge", "rule"][:count]
        trainer.reward_processing_classes = [None] * count

    def _find_logged_mean(self, trainer: Any) -> float | None:
        """``None`` with two functions: their sum is not what the suite compares."""
        alone = len(trainer.reward_funcs) == 1
        return float(trainer._metrics["train"]["reward"][-1]) if alone else None  # noqa: SLF001

    def _gradients(
        self,
        trainer: Any,
        advantages: Any,
        batch: Batch,
        scope: Scope,
        setting: str,  # noqa: ARG002  (a trainer that is built on TRL reads it)
    ) -> list[float]:
        torch = self._torch
        lengths = torch.tensor([length for group in batch.lengths for length in group])
        mask = (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).int()
        logps = torch.full(mask.shape, -1.0, requires_grad=True)
        made = (logps, torch.zeros(mask.shape), None)
        setattr(trainer, _LOG_PROBS, lambda *_, **__: made if self._returns_aux else made[:2])
        ids = torch.zeros(mask.shape, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1],
            "completion_ids": ids,
            "completion_mask": mask,
            "advantages": advantages,
            "num_items_in_batch": mask.sum(),  # as _generate counts: completions, all of them
            "ref_per_token_logps": torch.full(mask.shape, -2.0),
        }
        scope["_compute_loss"](trainer, None, inputs).backward()
        return list(logps.grad[:, 0].tolist())

    def _stand_in(self, setting: str, size: int, kl: float) -> Any:
        """What the driven lines read of the trainer, with TRL's defaults."""
        accelerator = SimpleNamespace(
            device="cpu",
            num_processes=1,
            process_index=0,
            sync_gradients=True,
            gather=lambda tensor: tensor,
            gather_for_metrics=lambda tensor: tensor,
            reduce=lambda tensor, **_: tensor,
        )
        return SimpleNamespace(
            accelerator=accelerator,
            state=None,
            environments=None,
            _log_completion_extra=None,
            _log_metric=None,
            chat_template_kwargs={},
            num_generations=size,
            num_generations_eval=size,
            _metrics=defaultdict(lambda: defaultdict(list)),
            model=SimpleNamespace(training=True),
            args=SimpleNamespace(
                delta=None,
                use_bias_correction_kl=False,
                steps_per_generation=1,
                num_generations=size,
                scale_rewards=TRL_SETTINGS[setting]["scale_rewards"],
            ),
            beta=kl,
            top_entropy_quantile=1.0,
            aux_loss_enabled=False,
            off_policy_mask_threshold=None,
            importance_sampling_level="token",
            epsilon_low=0.2,
            epsilon_high=0.2,
            use_vllm=False,
            vllm_importance_sampling_correction=False,
            current_gradient_accumulation_steps=1,
            max_completion_length=8,
            _entropy_bonus_enabled=False,
            **{"multi_objective_aggregation": "sum_then_normalize", **TRL_SETTINGS[setting]},
        )


def _find(texts: list[str], wanted: Any) -> int:
    return next(number for number, text in enumerate(texts) if wanted(text))


def _mentions_rewards(node: ast.stmt) -> bool:
    """Whether a statement makes or logs the mean reward."""
    text = ast.unparse(node)
    return text.startswith(("rewards", "mean_grouped_rewards")) or "'reward']" in text


_REPLACEMENTS = "models/rl_replacements.py"
_ZOO_LOSS = "rl_replacements.py"
_METHOD = "_generate_and_score_completions"


class UnslothDriver(TRLDriver):
    """The statements that Unsloth makes of TRL's, and ``grpo_compute_loss`` of its zoo.

    TRL is a dependency: the one in the folder of the checkout, else the installed one. The package
    ``unsloth_zoo`` is looked for in the same two places.
    """

    name = "Unsloth"

    def __init__(self, checkout: Path | None = None) -> None:
        unsloth = TrainerSource("unsloth", "unsloth", checkout)
        zoo = TrainerSource("unsloth_zoo", "unsloth_zoo", _beside(checkout, "unsloth_zoo"))
        super().__init__(_beside(checkout, "trl"))
        from packaging.version import Version  # noqa: PLC0415

        rewriting: Scope = {
            "RL_FUNCTIONS": defaultdict(list),
            "RL_PRE_ITEMS": defaultdict(list),
            "RL_EXTRA_ARGS": defaultdict(list),
            "DEVICE_TYPE_TORCH": "cuda",
            "Version": Version,
            "logger": SILENT,
            "torch": self._torch,
            **{module.__name__: module for module in (ast, inspect, math, os, re, textwrap)},
            "defaultdict": defaultdict,
            # TRL's newest that is allowed, where it is a folder and not a version
            "trl_version": Version(self.version if self.version[:1].isdigit() else "1.15.0"),
        }
        body = ast.parse((unsloth.root / _REPLACEMENTS).read_text(encoding="utf-8")).body
        unsloth.run_statements(_REPLACEMENTS, [one for one in body if _rewrites(one)], rewriting)
        text = _read_method(self._source.root / _FILE)
        for function in rewriting["RL_FUNCTIONS"]["grpo_trainer"]:
            text = function(_METHOD, text)
        rewritten: Any = ast.parse(textwrap.dedent(text)).body[0]
        self._take_statements(rewritten.body)
        self._zoo: Scope = {"torch": self._torch, "math": math}
        zoo.load_names(_ZOO_LOSS, ["grpo_compute_loss"], self._zoo)
        self.version = f"{unsloth.version}, TRL {self.version}"

    def _gradients(
        self,
        trainer: Any,  # noqa: ARG002
        advantages: Any,
        batch: Batch,
        scope: Scope,  # noqa: ARG002
        setting: str,
    ) -> list[float]:
        torch = self._torch
        lengths = torch.tensor([length for group in batch.lengths for length in group])
        mask = (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).int()
        logps = torch.full(mask.shape, -1.0, requires_grad=True)
        loss, *_ = self._zoo["grpo_compute_loss"](
            torch.full(mask.shape, -2.0),
            logps,
            None,
            None,
            torch.zeros(mask.shape, dtype=torch.long),
            mask,
            batch.kl,
            advantages,
            loss_type=TRL_SETTINGS[setting]["loss_type"],
            num_items_in_batch=mask.sum(),
            max_completion_length=8,
        )
        loss.backward()
        return list(logps.grad[:, 0].tolist())


def _beside(checkout: Path | None, package: str) -> Path | None:
    return checkout if checkout is not None and (checkout / package).is_dir() else None


def _rewrites(node: ast.stmt) -> bool:
    """Whether a statement of Unsloth's module makes its functions; its imports need a GPU."""
    text = ast.unparse(node)
    if isinstance(node, ast.Expr):
        return text.startswith("RL_FUNCTIONS['grpo_trainer']")
    return isinstance(node, ast.FunctionDef) or (
        isinstance(node, ast.Assign)
        and not text.startswith("RL_")
        and "RL_REPLACEMENTS" not in text
    )


def _read_method(path: Path) -> str:
    """The text of the method that Unsloth is given."""
    text = path.read_text(encoding="utf-8")
    made = next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == _METHOD
    )
    return "".join(text.splitlines(keepends=True)[made.lineno - 1 : made.end_lineno])


_ASYNC = "core/trainers/grpo/async_trainer.py"
_PARALLEL = "core/trainers/grpo/trainer.py"
_PARALLEL_STEP = "AxolotlGRPOContextParallelTrainer._generate_and_score_completions"
_DEFAULT = "TRL's own"
_AXOLOTL_SETTINGS: Mapping[str, str] = {
    _DEFAULT: "",
    "context parallel": "parallel",
    "async": "deferred",
    "streaming": "streaming",
}


class _ScoreStatements(NamedTuple):
    """From the call of the reward functions to the advantages, and what logs the mean reward."""

    file: str
    score: list[ast.stmt]
    log: list[ast.stmt]


class AxolotlDriver(TRLDriver):
    """Axolotl's own statements from rewards to ``advantages``, and its loss.

    TRL is a dependency: the one in the folder of the checkout, else the installed one. Axolotl
    pins a version of it, which ``AxolotlGRPOTrainer``, the default, leaves as it is.
    """

    name = "Axolotl"
    settings: tuple[str, ...] = tuple(_AXOLOTL_SETTINGS)
    batch_wide: frozenset[str] = frozenset()

    def __init__(self, checkout: Path | None = None) -> None:
        axolotl = TrainerSource("axolotl", "axolotl", checkout)
        super().__init__(_beside(checkout, "trl"))
        self._axolotl = axolotl
        self.version = f"{axolotl.version}, TRL {self.version}"
        self.decided_at = axolotl.find_line(_ASYNC, ".nansum(dim=1)")
        self._trainers = {
            "parallel": self._find_statements(_PARALLEL, _PARALLEL_STEP),
            "deferred": self._find_statements(_ASYNC, "AsyncGRPOTrainer._compute_deferred_scores"),
            "streaming": self._find_statements(
                _ASYNC, "AsyncGRPOTrainer._compute_streaming_group_scores"
            ),
        }
        self._own: Scope = {
            **self._scope,
            "profiling_context": lambda *_: nullcontext(),
            "is_conversational": lambda _: False,
            "warnings": SimpleNamespace(warn=lambda *_, **__: None),
        }
        methods = ("_compute_loss", "_collect_reward_workers", "_compute_rewards_for_batch")
        axolotl.load_names(_ASYNC, [f"AsyncGRPOTrainer.{name}" for name in methods], self._own)

    def run_step(self, batch: Batch, way: str, setting: str) -> StepResult:
        """Rewards, advantages, logged mean and gradient of one of Axolotl's trainers."""
        if setting == _DEFAULT:
            return super().run_step(batch, way, "group, dapo")
        size = len(batch.groups[0])
        given = [reward for group in batch.groups for reward in group]
        trainer_name = _AXOLOTL_SETTINGS[setting]
        trainer = self._stand_in("group, dapo", size, batch.kl)
        self._complete_stand_in(trainer)
        self._set_functions(trainer, batch, way)
        statements = self._trainers[trainer_name]
        scope: Scope = {
            **self._own,
            "self": trainer,
            "inputs": [{"prompt": "p"}] * len(given),
            "prompts": ["p"] * len(given),
            "completions": [""] * len(given),
            "completion_ids_list": [],
            "chunk_size": len(given),  # of the streaming trainer: whole groups
            "rank0_only": False,
            "num_generations": size,
            "device": "cpu",
            "mode": "train",
        }
        self._axolotl.run_statements(statements.file, statements.score, scope)
        self._axolotl.run_statements(statements.file, statements.log, scope)
        advantages = scope["advantages"]
        loss = self._scope if trainer_name == "parallel" else self._own
        gradients = self._gradients(trainer, advantages, batch, loss, setting)
        return StepResult(
            advantages=split_groups(advantages.tolist(), size),
            gradients=split_groups(gradients, size),
            reward_mean=self._find_logged_mean(trainer),
        )

    def _complete_stand_in(self, trainer: Any) -> None:
        """What Axolotl's lines read besides what TRL's do."""
        trainer.args.context_parallel_size = 1
        for name in ("_collect_reward_workers", "_compute_rewards_for_batch", "_calculate_rewards"):
            setattr(trainer, name, types.MethodType(self._own[name], trainer))

    def _find_statements(self, file: str, step: str) -> _ScoreStatements:
        """The statements of a method around its advantages."""
        body = self._axolotl.load_statements(file, step, lambda _: True)
        texts = [ast.unparse(node) for node in body]
        first = _find(texts, lambda text: text.startswith("rewards_per_func = "))
        end = first + _find(texts[first:], lambda text: "process_slice = " in text)
        log = [
            node
            for node, text in zip(body[end:], texts[end:], strict=True)
            if text.startswith("agg_rewards =") or "['reward'].append" in text
        ]
        return _ScoreStatements(file, body[first:end], log)
