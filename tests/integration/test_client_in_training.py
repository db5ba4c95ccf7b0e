"""The client where training uses it: threads, an older script."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.helpers.stand_in_service import StandIn, stand_in

from adjudge.client import JudgeRewardSystem


@pytest.fixture
def service() -> Iterator[StandIn]:
    with stand_in() as running:
        yield running


def test_eight_threads_share_batches(service: StandIn) -> None:
    rewards = JudgeRewardSystem({"judge_url": service.url})
    found: dict[int, Any] = {}

    def work(n: int) -> None:
        found[n] = [rewards.reward("p", "x" * (8 * n + i))["reward"] for i in range(3)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [(8 * n + i) / 100 for i in range(3)] for n in range(8)}
    assert len(service.posts) < 24
    rewards.close()


# ── a script written for an older reward system: only its import was replaced ────────────────────

SCRIPT = """
import os
RewardSystem = JudgeRewardSystem  # was: from reward.reward_system import RewardSystem

config = {
    "reward": {
        "type": "judge_model",
        "config": {
            "judge_url": "${JUDGE_MODEL_URL}",
            "api_key": "${JUDGE_MODEL_API_KEY}",
            "use_cache": True,
            "cache_size": 5000,
            "max_batch_size": 16,
            "batch_timeout": 0.005,
            "max_concurrent_requests": 32,
            "timeout": 30.0,
            "fallback_to_rule": True,
            "max_retries": 3,
        },
    }
}
reward_system = RewardSystem(config.get("reward", {}).get("config", {}))

reward_scores, printed = [], []
for global_step, batch in enumerate(batches):
    for item in batch:
        result = reward_system.reward(item["prompt"], item["completion"], item["answer"])
        reward_scores.append(result["reward"])
        assert result["source"] in ("judge", "rule_fallback")
    if global_step % 100 == 0:
        metrics = reward_system.get_metrics()
        printed.append(f"Inflight: {metrics['current_queue_size']}")
        printed.append(f"Hit rate: {metrics['cache_hit_rate']:.1%}")
        printed.append(f"Circuit: {metrics['circuit_breaker']['state']}")
        for name in ("cache_hit_rate", "latency", "error_rate"):
            printed.append(f"{name}: {metrics[name]}")
"""


def test_just_replace_the_import(service: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_MODEL_URL", service.url)
    monkeypatch.delenv("JUDGE_MODEL_API_KEY", raising=False)
    batches = [
        [{"prompt": "p", "completion": "x" * (s + i), "answer": "4"} for i in range(4)]
        for s in range(3)
    ]
    names: dict[str, Any] = {"JudgeRewardSystem": JudgeRewardSystem, "batches": batches}
    exec(SCRIPT, names)
    assert names["reward_scores"] == [(s + i) / 100 for s in range(3) for i in range(4)]
    assert "Circuit: CLOSED" in names["printed"]
    counted = names["reward_system"].get_metrics()
    assert (counted["total_requests"], counted["cache_hits"]) == (12, 6)
    names["reward_system"].close()
