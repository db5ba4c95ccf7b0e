"""ROLL without ROLL: what its worker reads of a row, what leaves its loop, what is refused."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest
from tests.refusals import refuses
from tests.unit.helpers.stand_in_modules import stand_in
from tests.unit.test_trl_reward import SPEC, spec

import adjudge
from adjudge.trainers import roll

CENTRES = SimpleNamespace(adv_estimator="reinforce", norm_mean_type="group", norm_std_type=None)
NAN = math.nan


class Rows(list[Any]):
    """A tensor as far as the worker goes."""

    def float(self) -> "Rows":
        return self

    def new_tensor(self, values: list[Any]) -> list[Any]:
        return values

    def __mul__(self, _: Any) -> "Rows":
        return self


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """The worker on stand-ins of what it takes from ROLL, initialised."""
    (path := tmp_path / "reward.toml").write_text(
        '[[graders]]\nname = "right"\ntype = "string_match"\n'
    )
    monkeypatch.setenv("ADJUDGE_SPEC", str(path))
    decode = {"batch_decode": lambda rows, **_: ["".join(map(chr, row)) for row in rows]}
    parts: dict[str, dict[str, Any]] = {
        "roll.distributed.executor.worker": {"Worker": Worker},
        "roll.distributed.scheduler.decorator": {
            "Dispatch": SimpleNamespace(ONE_TO_ALL=1, DP_MP_COMPUTE=2),
            "register": lambda **_: lambda method: method,
        },
        "roll.distributed.scheduler.protocol": {
            "DataProto": SimpleNamespace(from_dict=lambda tensors: SimpleNamespace(batch=tensors))
        },
        "roll.models.model_providers": {
            "default_tokenizer_provider": lambda _: SimpleNamespace(**decode)
        },
    }
    stand_in(monkeypatch, parts)
    monkeypatch.delitem(vars(roll), "JudgeRewardWorker", raising=False)
    made = roll.JudgeRewardWorker(None)
    monkeypatch.delitem(vars(roll), "JudgeRewardWorker")
    return made


class Worker:
    rank_info = SimpleNamespace(rank=0, world_size=1)

    def __init__(self, worker_config: Any) -> None:
        pass

    def initialize(self, pipeline_config: Any) -> None:
        pass


def config(loop: str = roll.LOOP) -> Any:
    actor = SimpleNamespace(model_args=None)
    return SimpleNamespace(user_defined_rollout_loop_cls=loop, actor_train=actor)


def test_a_worker_judges_decoded_rows(worker: Any) -> None:
    worker.initialize(config())
    rows = Rows([[52], [53]])
    data = SimpleNamespace(
        batch={"prompts": [[112], [112]], "responses": rows},
        non_tensor_batch={"ground_truth": ["4", "4"], "id": [1, 2]},
    )
    made = worker.compute_rewards(data)
    assert made.batch["response_level_rewards"] == made.batch["scores"] == [1.0, 0.0]
    assert type(worker).__qualname__ == "JudgeRewardWorker"


def test_a_worker_of_a_spec_of_its_own(
    worker: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("ADJUDGE_SPEC")
    made = adjudge.make_reward(tmp_path / "reward.toml", trainer="roll", columns={"reference": "c"})
    own = made(None)
    own.initialize(config())
    assert own.adapter.score_rows(["p"], ["4"], {"c": ["4"]}) == [1.0]


def test_another_loop_is_refused(worker: Any) -> None:
    with refuses("user_defined_rollout_loop_cls"):
        worker.initialize(config("mine"))
    roll.RollAdapter(spec(missing={"policy": "raise"})).check_config(config("mine"))


def test_a_missing_reward_is_nan_for_the_loop() -> None:
    rewards = roll.RollAdapter(spec(SPEC)).score_rows(["p"] * 2, ["poor", "fail"], {})
    assert rewards == [0.1, pytest.approx(NAN, nan_ok=True)]


@pytest.mark.parametrize(
    ("rewards", "settings", "trained"),
    [
        ([1.0, NAN, 0.0], {}, [1.0, 0.5, 0.0]),
        ([1.0, NAN, 0.0], {"norm_std_type": "group"}, None),
        ([1.0, NAN, 0.0], {"adv_estimator": "grpo"}, None),
        ([1.0, NAN, 0.0], {"norm_mean_type": "batch"}, None),
        ([1.0, NAN, 0.0], {"whiten_advantages": True}, None),
        ([1.0, NAN, 0.0], {"whiten_rewards": True}, None),
        ([NAN, NAN], {}, None),
        ([1.0, 0.0], {"adv_estimator": "grpo"}, [1.0, 0.0]),
        ([1.0, NAN, 1.0], {}, None),  # nothing to learn, says the filter
    ],
)
def test_nothing_missing_leaves_the_loop(
    rewards: list[float], settings: dict[str, Any], trained: list[float] | None
) -> None:
    class Loop:
        async def process_new_prompt(self, _: Any) -> list[Any]:
            names = ("response_level_rewards", "scores")
            return [SimpleNamespace(batch={name: [one] for name in names}) for one in rewards]

    def differ(responses: Any, _: Any) -> bool:
        return len({one.batch["scores"][0] for one in responses}) > 1

    loop: Any = roll.derive_loop(Loop, differ)()
    given = SimpleNamespace(**{**vars(CENTRES), **settings})
    context = SimpleNamespace(is_val=False, pipeline_config=given)
    made = asyncio.run(loop.process_new_prompt(context))
    for name in ("response_level_rewards", "scores"):
        assert (None if made is None else [one.batch[name][0] for one in made]) == trained
    context.is_val = True
    assert len(asyncio.run(loop.process_new_prompt(context))) == len(rewards)
