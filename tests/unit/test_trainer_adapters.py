"""A reward spec in the form of a trainer that is named: shipped, installed, or one's own."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.refusals import refuses
from tests.unit.helpers.packages import Packages

from adjudge import FunctionGrader, RewardSpec, extensions
from adjudge.errors import ConfigError
from adjudge.trainers import SHIPPED_TRAINERS, make_trainer_reward
from adjudge.trainers.adapter import Adapter
from adjudge.trainers.rllm import AdjudgeEvaluator
from adjudge.trainers.roll import RollAdapter
from adjudge.trainers.scoring import Scorer
from adjudge.trainers.skyrl import SkyRLReward
from adjudge.trainers.tinker_cookbook import TinkerReward

SPEC = '[[graders]]\nname = "answer"\ntype = "answer"\nanswer_type = "NUMBER"\n'
ADAPTER = """
from adjudge import RewardSample
from adjudge.trainers.scoring import Scorer

def make_reward(spec, *, scale=1.0):
    scorer = Scorer(spec)

    def score_texts(texts, reference):
        extra = {"reference": reference}
        samples = [RewardSample(i, 0, "", text, extra=extra) for i, text in enumerate(texts)]
        rewards = scorer.score(samples, ["0"] * len(samples)).rewards
        return [None if reward is None else scale * reward for reward in rewards]

    return score_texts
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (path := tmp_path / "reward.toml").write_text(SPEC)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_adapter", raising=False)
    return path


def test_a_shipped_trainer(spec: Path) -> None:
    reward = make_trainer_reward(spec, "trl", name="quality")
    assert reward.__name__ == "quality"
    prompts, answers = ["2 + 2?"] * 2, ["It is 4.", "It is 5."]
    assert asyncio.run(reward(prompts, answers, reference=["4", "4"])) == [1.0, 0.0]


def test_an_adapter_beside_the_spec(spec: Path) -> None:
    (spec.parent / "my_adapter.py").write_text(ADAPTER)
    reward = make_trainer_reward(spec, "my_adapter:make_reward", scale=2.0)
    assert reward(["It is 4.", "It is 5."], "4") == [2.0, 0.0]


def test_an_installed_adapter(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = Packages(spec.parent, ADAPTER)
    packages.install("my_adapter", {"mine": "my_adapter:make_reward"}, group="adjudge.trainers")
    monkeypatch.setattr(extensions, "entry_points", packages.entry_points)
    monkeypatch.syspath_prepend(str(spec.parent))
    assert make_trainer_reward(spec, "mine")(["4"], "4") == [1.0]


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ("trll", r"trainer: the trainer adapter is unknown; did you mean 'trl'\? \(found 'trll'"),
        ("my_adapter:none", r"trainer: 'my_adapter:none' cannot be imported: my_adapter has no"),
    ],
)
def test_what_is_no_adapter(spec: Path, trainer: str, message: str) -> None:
    (spec.parent / "my_adapter.py").write_text(ADAPTER)
    with pytest.raises(ConfigError, match=message):
        make_trainer_reward(spec, trainer)


def test_options_are_the_adapters(spec: Path) -> None:
    (spec.parent / "my_adapter.py").write_text(ADAPTER)
    with pytest.raises(TypeError, match="scael"):
        make_trainer_reward(spec, "my_adapter:make_reward", scael=2.0)


def test_the_shipped_names() -> None:
    assert list(SHIPPED_TRAINERS) == sorted(SHIPPED_TRAINERS)


@pytest.mark.parametrize("make", [AdjudgeEvaluator, RollAdapter, SkyRLReward, TinkerReward])
def test_one_answer_alone_has_no_group_to_compare(make: Callable[[RewardSpec], object]) -> None:
    graders = [{"name": "right", "type": "answer"}]
    with refuses("spec"):
        make(RewardSpec.from_dict({"graders": graders, "reward": {"group": "centre"}}))


def test_a_completion_that_was_lost_has_no_reward_whatever_is_judged() -> None:
    graders = [
        FunctionGrader(lambda reference: 1.0, "reference", score_range=(0, 1)),
        FunctionGrader(lambda **fields: 1.0, "all", score_range=(0, 1)),
    ]
    for grader in graders:
        spec = RewardSpec.from_dict({"graders": [{"name": grader.name, "type": "string_match"}]})
        scorer = Scorer(spec, graders={grader.name: grader})
        texts, adapter = ["right", None], Adapter(spec)
        made = [
            adapter.make_sample(n, n, "p", text, {"reference": "a"}) for n, text in enumerate(texts)
        ]
        assert scorer.score(made, ["p", "p"]).rewards == [1.0, None]


def test_a_trainer_that_is_not_installed_is_named_with_its_install_line(spec: Path) -> None:
    with pytest.raises(ConfigError, match=r"found no areal\)\. Run: pip install git\+https://"):
        make_trainer_reward(spec, "areal")
