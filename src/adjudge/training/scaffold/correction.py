"""The off-policy correction: rollouts drawn with a scaffold, trained without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from adjudge.training.runfile.tables import Scaffold

__all__ = ["correct", "unscaffolded_logps"]


def correct(
    output: dict[str, Any],
    shown: Sequence[bool],
    scaffold: Scaffold,
    *,
    lags: bool,
    logps: Callable[[], Any],
) -> dict[str, float]:
    """Change the trainer's batch in place for the rollouts that were ``shown`` a scaffold.

    ``truncated_is``: the advantage of each of their tokens is multiplied with
    min(π_old(token | prompt) / π_old(token | scaffold, prompt), ``correction_cap``), which is what
    multiplying the clipped objective with that weight is, as no weight is negative. ``lags``: the
    batch has its own old log-probabilities, those of drawing; theirs become ``logps()``, so that
    the trainer's own ratio is one of policies and not of prompts.

    ``logps()``: log-probabilities of all completions after the prompts without scaffolds, by the
    policy before this update. Returns metrics over the tokens drawn with a scaffold:
    ``weight_mean``, ``weight_clipped_frac`` (the share at the cap) and ``ess``, the effective
    sample size (Σw)² / Σw² as a share of their number; nothing where no such token is weighed.
    """
    import torch  # noqa: PLC0415

    weighs = scaffold.correction == "truncated_is"
    if not any(shown) or not (lags or weighs):
        return {}
    drawn = output["sampling_per_token_logps"]
    rows = torch.tensor(list(shown), device=drawn.device).unsqueeze(1)
    unshown = logps().to(drawn.device)
    if lags:
        output["old_per_token_logps"] = torch.where(rows, unshown, output["old_per_token_logps"])
    if not weighs:
        return {}
    theirs = rows & (output["completion_mask"] > 0)
    if not bool(theirs.any()):
        return {}
    cap = math.log(scaffold.correction_cap)
    log_ratio = torch.where(theirs, unshown - drawn, 0.0)
    weights = torch.where(theirs, log_ratio.clamp(max=cap).exp(), 1.0)
    advantages = output["advantages"]
    spread = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
    output["advantages"] = spread * weights
    found, clipped = weights[theirs].double(), log_ratio[theirs] > cap
    squares = float((found**2).sum())
    return {
        "scaffold/weight_mean": float(found.mean()),
        "scaffold/weight_clipped_frac": float(clipped.double().mean()),
        "scaffold/ess": float(found.sum()) ** 2 / (found.numel() * squares) if squares else 0.0,
    }


def unscaffolded_logps(trainer: Any, output: dict[str, Any]) -> Any:
    """Log-probabilities of the batch's completions after the prompts that are trained on.

    By the trainer's own forward pass, at its temperature. Shape: rollouts × completion tokens.
    """
    import torch  # noqa: PLC0415

    parts = [(output[f"{part}_ids"], output[f"{part}_mask"]) for part in ("prompt", "completion")]
    ids, mask = (torch.cat(both, dim=1) for both in zip(*parts, strict=True))
    with torch.no_grad():
        logps, *_ = trainer._get_per_token_logps_and_entropies(  # noqa: SLF001  (has no other door)
            trainer.model,
            ids,
            mask,
            output["completion_ids"].size(1),
            batch_size=trainer.args.per_device_train_batch_size,
        )
    return logps
