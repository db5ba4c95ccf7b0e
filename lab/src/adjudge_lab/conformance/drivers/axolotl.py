"""Axolotl's GRPO trainers: TRL's by default, and two with statements of their own."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from adjudge_lab.conformance.driver import Batch, StepResult, split_groups
from adjudge_lab.conformance.drivers.trl import TRLDriver
from adjudge_lab.conformance.source import Scope, TrainerSource

_ASYNC = "core/trainers/grpo/async_trainer.py"
_PARALLEL = "core/trainers/grpo/trainer.py"
_PARALLEL_STEP = "AxolotlGRPOContextParallelTrainer._generate_and_score_completions"
_DEFAULT = "TRL's own"
_SETTINGS: Mapping[str, str] = {
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
    settings: tuple[str, ...] = tuple(_SETTINGS)
    batch_wide: frozenset[str] = frozenset()

    def __init__(self, checkout: Path | None = None) -> None:
        axolotl = TrainerSource("axolotl", "axolotl", checkout)
        beside = checkout is not None and (checkout / "trl").is_dir()
        super().__init__(checkout if beside else None)
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
        trainer_name = _SETTINGS[setting]
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
        first = _find_first(texts, lambda text: text.startswith("rewards_per_func = "))
        end = first + _find_first(texts[first:], lambda text: "process_slice = " in text)
        log = [
            node
            for node, text in zip(body[end:], texts[end:], strict=True)
            if text.startswith("agg_rewards =") or "['reward'].append" in text
        ]
        return _ScoreStatements(file, body[first:end], log)


def _find_first(texts: list[str], wanted: Callable[[str], bool]) -> int:
    return next(number for number, text in enumerate(texts) if wanted(text))
