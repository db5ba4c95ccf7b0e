"""AReaL's plug-in without AReaL: what graders see, how missing is said, what is refused."""

import asyncio
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.stand_in_modules import stand_in

import adjudge
from adjudge.rewards import RewardSpec
from adjudge.trainers import areal

RIGHT: dict[str, Any] = {"graders": [{"name": "right", "type": "answer"}]}


class RLVRWorkflow:
    """What the plug-in takes from AReaL's: the call of the reward function, and its result."""

    def __init__(self, reward_fn: Any, gconfig: Any, tokenizer: Any) -> None:
        assert isinstance(reward_fn, str)  # anything else starts AReaL's pool of processes
        self.reward_fn: Any = reward_fn
        self.async_reward_fn: Any = None
        self.gconfig, self.tokenizer = gconfig, tokenizer

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        assert not isinstance(self.reward_fn, str)
        return {"rewards": await self.async_reward_fn("rendered", "text", [1], engine, **data)}


class Normalization:
    def __call__(self, x: Any, group_sizes: Any = None) -> Any:
        """The main branch's."""


class Tokenizer:
    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(map(chr, tokens))


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """What goes to AReaL's tracker of statistics."""
    found: list[dict[str, float]] = []
    tracker = SimpleNamespace(scalar=lambda **named: found.append(named))
    modules: dict[str, dict[str, Any]] = {
        "areal": {
            "workflow_context": SimpleNamespace(
                stat_scope=lambda: "rollout", get=lambda: SimpleNamespace(task_id=None)
            )
        },
        "areal.utils": {"stats_tracker": SimpleNamespace(get=lambda _: tracker)},
        "areal.utils.data": {"Normalization": Normalization},
        "areal.workflow.rlvr": {"RLVRWorkflow": RLVRWorkflow},
    }
    stand_in(monkeypatch, modules)
    areal.workflow_class.cache_clear()
    return found


def run(workflow: Any, text: str, /, **row: Any) -> Any:
    return asyncio.run(workflow.arun_episode([ord(one) for one in text], row))


def test_an_episode_has_the_reward(logged: list[dict[str, float]]) -> None:
    workflow = adjudge.make_reward(
        RewardSpec.from_dict(RIGHT), trainer="areal", gconfig=None, tokenizer=Tokenizer()
    )
    chat = [{"role": "user", "content": "2 + 2?"}]
    assert run(workflow, r"\boxed{4}", messages=chat, answer="4") == {"rewards": 1.0}
    assert run(workflow, r"\boxed{5}", prompt="a column of this name", answer="4") == {
        "rewards": 0.0
    }
    assert logged[0] == {"judge/right_score": 1.0, "judge/outcome": 1.0, "judge/missing_frac": 0.0}


def test_a_missing_reward_is_no_episode(logged: list[dict[str, float]]) -> None:
    workflow = areal.make_reward(RewardSpec.from_dict(RIGHT), gconfig=None, tokenizer=Tokenizer())
    assert run(workflow, r"\boxed{4}") is None  # no reference
    assert logged == [{"judge/missing_frac": 1.0}]
    spec = RewardSpec.from_dict({**RIGHT, "reward": {"group": "centre"}})
    with refuses("spec"):
        areal.make_reward(spec, gconfig=None, tokenizer=None)


@pytest.mark.usefixtures("logged")
def test_the_workflow_has_a_dotted_name_and_is_the_same_each_time() -> None:
    made = areal.AdjudgeWorkflow
    assert made is areal.workflow_class()
    assert pickle.loads(pickle.dumps(made)) is made


@pytest.mark.usefixtures("logged")
def test_a_version_with_groups_of_a_fixed_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def __call__(self, x: Any) -> Any:
            """Version 1.0.4's."""

    monkeypatch.setattr(sys.modules["areal.utils.data"], "Normalization", Old)
    with refuses("AReaL"):
        areal.make_reward(RewardSpec.from_dict(RIGHT), gconfig=None, tokenizer=None)
