"""``[rollout.scaffold]`` in verl 0.6.1's own settings, and those of our hook."""

from __future__ import annotations

from typing import Any

from adjudge.training.runfile import RunFile

__all__ = ["scaffold_settings"]

_BATCHED_TOKENS = 8192  # verl's default


def scaffold_settings(run: RunFile, shown_tokens: int) -> dict[str, Any]:
    """What rollouts are shown, and verl's correction for their having been shown it.

    ``shown_tokens``: room for the longest prompt with all of its rubrics. ``truncated_is`` is
    verl's own: each token's loss times min(π_old(token | prompt) / π_rollout(token | shown), cap),
    from the log-probabilities that the rollout server gives. Without a scaffold nothing.
    """
    scaffold, at = run.rollout.scaffold, "actor_rollout_ref.rollout"
    if scaffold is None:
        return {}
    room = shown_tokens + run.rollout.max_tokens
    settings: dict[str, Any] = {
        **{f"+adjudge.scaffold.{key}": value for key, value in scaffold.model_dump().items()},
        "+adjudge.seed": run.training.seed,
        f"{at}.max_model_len": room,
        f"{at}.max_num_batched_tokens": max(_BATCHED_TOKENS, room),
    }
    if scaffold.correction == "truncated_is" and not scaffold.participate_training:
        settings |= {
            f"{at}.calculate_log_probs": True,
            "algorithm.rollout_correction.rollout_is": "token",
            "algorithm.rollout_correction.rollout_is_threshold": scaffold.correction_cap,
        }
        if run.rollout.temperature != 1.0:  # vLLM's are those before it, unless told
            settings[f"+{at}.engine_kwargs.vllm.logprobs_mode"] = "processed_logprobs"
    return settings
