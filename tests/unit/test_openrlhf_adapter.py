"""OpenRLHF's agent without OpenRLHF: it judges whole groups."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.stand_in_modules import stand_in
from tests.unit.test_trl_reward import SPEC, spec

from adjudge import make_reward


class SingleTurnAgentExecutor:
    """Generates what the prompt says, a token a letter, in as many steps as it has letters."""

    async def execute(
        self, prompt: str, label: Any, params: Any, _max_length: int, _tokenizer: Any, engine: Any
    ) -> dict[str, Any]:
        text = next(engine)
        for _ in text:
            await asyncio.sleep(0)
        tokens = [*map(ord, prompt + text)]
        span = (len(prompt), len(tokens))
        return {"observation_tokens": tokens, "action_ranges": [span], "truncated": False}


@pytest.fixture(autouse=True)
def openrlhf(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"SingleTurnAgentExecutor": SingleTurnAgentExecutor}
    stand_in(monkeypatch, {"openrlhf.utils.agent": names})


def execute(
    *groups: list[str], of: dict[str, Any] = SPEC, estimator: str = "dr_grpo"
) -> list[list[dict[str, Any]]]:
    executor = make_reward(spec(of), trainer="openrlhf", estimator=estimator)()
    tokenizer = SimpleNamespace(decode=lambda ids, **_: "".join(map(chr, ids)))

    async def generate(texts: list[str]) -> list[dict[str, Any]]:
        params, engine = SimpleNamespace(), iter(texts)
        answers = [executor.execute("p", "4", params, 64, tokenizer, engine) for _ in texts]
        return list(await asyncio.gather(*answers))  # noqa: TID251  (what OpenRLHF does)

    async def generate_all() -> list[list[dict[str, Any]]]:
        return list(await asyncio.gather(*map(generate, groups)))  # noqa: TID251

    return asyncio.run(generate_all())


def column(group: list[dict[str, Any]], key: str) -> list[float]:
    return [answer[key] for answer in group]


def test_groups_are_judged_apart_and_a_missing_reward_is_the_mean() -> None:
    first, second = execute(["a", "poor", "fail"], ["poor", "poor", "poor", "a"])
    assert column(first, "reward") == column(first, "scores") == pytest.approx([0.5, 0.1, 0.3])
    assert [one["extra_logs"]["judge/missing_frac"] for one in first] == [0, 0, 1]
    assert column(second, "reward") == pytest.approx([0.1, 0.1, 0.1, 0.5])


def test_a_group_without_a_reward_teaches_nothing_and_is_filtered() -> None:
    [group] = execute(["fail", "fail"])
    assert column(group, "reward") == [0, 0]
    assert all(map(math.isnan, column(group, "scores")))


def test_the_mean_of_the_others_is_that_of_the_present() -> None:
    [group] = execute(["a", "poor", "fail", "poor"], estimator="rloo")
    rewards = column(group, "reward")
    advantages = [one - (sum(rewards) - one) / 3 for one in rewards]
    assert advantages == pytest.approx([0.4, -0.2, 0, -0.2])


def test_filtering_sees_rewards_before_the_group_step() -> None:
    [group] = execute(["a", "poor", "fail"], of={**SPEC, "reward": {"group": "z_score"}})
    assert column(group, "reward") == pytest.approx([0.5**0.5, -(0.5**0.5), 0])
    assert column(group, "scores") == pytest.approx([0.5, 0.1, 0.3])


def test_estimators_that_a_filled_reward_would_change() -> None:
    with refuses("--algo.advantage.estimator"):
        execute(["a"], estimator="group_norm")
    complete = {**SPEC, "missing": {"policy": "raise"}}
    assert execute(["a"], of=complete, estimator="group_norm")[0][0]["reward"] == 0.5
