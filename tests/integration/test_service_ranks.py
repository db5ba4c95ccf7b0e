"""Eight processes of a trainer and one judge: with `adjudge serve` in front, and each by itself.

Limits of calls, the budget and what is known of an outage belong to the process that calls the
judge. With the service in front there is one such process, however many ranks ask.
"""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.unit.helpers.mock_provider import start_mock_here

from adjudge.mock import MockSettings
from adjudge.service.server import start_service

pytestmark = pytest.mark.slow

RANKS, EACH, LIMIT = 8, 12, 5
MAX_TOKENS, REPLY_TOKENS = 20, 18
OWN = """
[[graders]]
name = "quality"
type = "llm"
judge = "main"
template = "How good is {{response}} as an answer to {{prompt}}?"
score_range = [0, 10]
[missing]
max_missing = 1.0
patience_s = 0.0
[judges.main]
type = "openai"
model = "mock"
base_url = "{url}"
price = {{ input = 0.0, output = 1_000_000.0 }}
max_tokens = {tokens}
[judges.main.endpoint]
max_concurrency = {limit}
hedge = false
{more}
"""
SERVED = """
[[graders]]
name = "served"
type = "adjudge.client.grader:ServedGrader"
url = "{url}"
[missing]
max_missing = 1.0
patience_s = 0.0
[reward]
normalise = false
"""


def ask_by_ranks(spec: Path, each: int = EACH) -> list[float | None]:
    """What all ranks got, who began together."""
    script = str(Path(__file__).with_name("service_rank.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(spec), str(rank), str(each)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in ranks:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=100)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    return [reward for one in said for reward in json.loads(one)]


def stats_of(provider: str) -> dict[str, Any]:
    with urllib.request.urlopen(provider.removesuffix("/v1") + "/stats") as response:
        found: dict[str, Any] = json.load(response)
    return found


def ask_judge(
    folder: Path, *, served: bool, more: str = "", **mock: Any
) -> tuple[list[float | None], dict[str, Any]]:
    """Rewards of all ranks, and what the provider counted."""
    settings = MockSettings(reply='{"score": 5, "reason": "fair"}', seed=1, **mock)
    own = folder / "own.toml"
    with start_mock_here(settings) as provider:
        own.write_text(OWN.format(url=provider, limit=LIMIT, tokens=MAX_TOKENS, more=more))
        if not served:
            return ask_by_ranks(own), stats_of(provider)
        with start_service(str(own)) as url:
            spec = folder / "served.toml"
            spec.write_text(SERVED.format(url=url))
            return ask_by_ranks(spec), stats_of(provider)


@pytest.mark.parametrize("served", [True, False])
def test_a_limit_of_calls_is_one_for_all_ranks(tmp_path: Path, served: bool) -> None:
    rewards, provider = ask_judge(tmp_path, served=served, latency=("fixed:0.1",))
    assert rewards == [0.5] * (RANKS * EACH)
    assert provider["replied"] == RANKS * EACH
    if served:
        assert provider["in_flight"]["peak"] == LIMIT
    else:
        assert LIMIT < provider["in_flight"]["peak"] <= RANKS * LIMIT


BUDGET_USD = 300.0


@pytest.mark.parametrize("served", [True, False])
def test_a_budget_is_spent_once(tmp_path: Path, served: bool) -> None:
    """A token of a reply costs a dollar, and a reply has at most 20."""
    rewards, provider = ask_judge(
        tmp_path, served=served, more=f"budget_usd = {BUDGET_USD}", latency=("fixed:0.02",)
    )
    spent = provider["replied"] * REPLY_TOKENS
    assert rewards.count(0.5) == provider["replied"]
    if served:
        assert BUDGET_USD - MAX_TOKENS - LIMIT * REPLY_TOKENS < spent <= BUDGET_USD
        assert None in rewards
    else:
        assert spent > BUDGET_USD


@pytest.mark.parametrize("served", [True, False])
def test_an_outage_is_learnt_once(tmp_path: Path, served: bool) -> None:
    """Eight failures in a row open the breaker; what is in flight then may still fail.

    After a second one call probes.
    """
    more = "max_attempts = 2\ndeadline_s = 2.0"
    rewards, provider = ask_judge(tmp_path, served=served, more=more, fail=("503:1",))
    assert rewards == [None] * (RANKS * EACH)
    once = 8 + LIMIT + 1
    if served:
        assert 8 <= provider["requests"] < RANKS * 8
    else:
        assert RANKS * 8 <= provider["requests"] <= RANKS * once
