"""Unsloth's GRPO: TRL's text as Unsloth's functions rewrite it, and Unsloth's loss."""

from __future__ import annotations

import ast
import collections
import inspect
import math
import os
import re
import textwrap
from pathlib import Path
from typing import Any

from adjudge_lab.conformance.driver import Batch
from adjudge_lab.conformance.drivers.trl import TRL_SETTINGS, TRLDriver
from adjudge_lab.conformance.source import SILENT, Scope, TrainerSource

_REPLACEMENTS = "models/rl_replacements.py"
_LOSS = "rl_replacements.py"
_TRL = "trainer/grpo_trainer.py"
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
            "RL_FUNCTIONS": collections.defaultdict(list),
            "RL_PRE_ITEMS": collections.defaultdict(list),
            "RL_EXTRA_ARGS": collections.defaultdict(list),
            "DEVICE_TYPE_TORCH": "cuda",
            "Version": Version,
            "logger": SILENT,
            "torch": self._torch,
            **{module.__name__: module for module in (ast, inspect, math, os, re, textwrap)},
            "defaultdict": collections.defaultdict,
            # TRL's newest that is allowed, where it is a folder and not a version
            "trl_version": Version(self.version if self.version[:1].isdigit() else "1.15.0"),
        }
        body = ast.parse((unsloth.root / _REPLACEMENTS).read_text(encoding="utf-8")).body
        unsloth.run_statements(_REPLACEMENTS, [one for one in body if _rewrites(one)], rewriting)
        text = _read_method(self._source.root / _TRL)
        for function in rewriting["RL_FUNCTIONS"]["grpo_trainer"]:
            text = function(_METHOD, text)
        rewritten: Any = ast.parse(textwrap.dedent(text)).body[0]
        self._take_statements(rewritten.body)
        self._zoo: Scope = {"torch": self._torch, "math": math}
        zoo.load_names(_LOSS, ["grpo_compute_loss"], self._zoo)
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
