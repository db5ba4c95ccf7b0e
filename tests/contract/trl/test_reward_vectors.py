"""A reward vector inside the real `GRPOTrainer`, with GDPO: run by `make test-trl`.

What the trainer makes of the vectors is compared with GDPO by hand over the samples that have all
their components, and with the group step `gdpo` of a spec.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract.trl.tiny_policy import GROUP, new_policy, spec_file, train

from adjudge.trainers.trl import make_reward
from adjudge.trainers.trl_functions import make_rewards

REASON = "not installed here; run `make test-trl`"
trl: Any = pytest.importorskip("trl", reason=f"trl is {REASON}")
torch: Any = pytest.importorskip("torch", reason=f"torch is {REASON}")

EPSILON = 1e-4  # what GRPOTrainer adds to a deviation
WEIGHTS = {"kindness": 2.0, "brief": 0.5}
BRIEF = """
[[graders]]
name = "brief"
type = "length_penalty"
min_length = 0
max_length = 1
penalty_rate = 0.01
weight = 0.5
"""


class Recorded(trl.GRPOTrainer):  # type: ignore[misc]
    """The trainer, keeping what it was given as rewards and what it made of them."""

    def _calculate_rewards(self, *given: Any) -> Any:
        self.seen = [*getattr(self, "seen", []), super()._calculate_rewards(*given)]
        return self.seen[-1]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        self.made = [*getattr(self, "made", []), output["advantages"]]
        return output


def two_graders(folder: Path, group: str = "none") -> Path:
    path = spec_file(folder, group)
    text = path.read_text().replace("[judges.main]", BRIEF + "\n[judges.main]")
    text = text.replace('template = "{response}"', 'template = "{response}"\nweight = 2.0')
    path.write_text(text)
    return path


def gdpo_by_hand(rewards: Any, weights: Any) -> Any:
    """GDPO's advantages of a batch: of the rows without NaN alone, and 0 for the others."""
    totals = torch.full(rewards.shape[:1], float("nan"))
    whole = ~torch.isnan(rewards).any(dim=1)
    for start in range(0, len(rewards), GROUP):
        rows = [place for place in range(start, start + GROUP) if whole[place]]
        scores = rewards[rows]
        std = scores.std(dim=0) if len(rows) > 1 else torch.zeros(rewards.shape[1])
        totals[rows] = ((scores - scores.mean(dim=0)) / (std + EPSILON)) @ weights
    present = totals[whole]
    advantages = torch.zeros(len(rewards))
    advantages[whole] = (present - present.mean()) / (present.std() + EPSILON)
    return advantages


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("vectors")
    rewards = make_rewards(two_graders(folder))
    return train(
        new_policy(),
        folder,
        rewards.functions,
        steps=6,
        trainer_class=Recorded,
        reward_weights=rewards.weights,
        multi_objective_aggregation="normalize_then_sum",
    )


def test_a_missing_component_is_in_no_mean_of_gdpo(vectors: Any) -> None:
    assert vectors.reward_func_names == list(WEIGHTS)
    missing = 0
    for rewards, advantages in zip(vectors.seen, vectors.made, strict=True):
        gone = torch.isnan(rewards)
        assert (gone.any(dim=1) == gone.all(dim=1)).all()
        missing += int(gone.any(dim=1).sum())
        expected = gdpo_by_hand(rewards, torch.tensor(list(WEIGHTS.values())))
        torch.testing.assert_close(advantages, expected, rtol=1e-4, atol=1e-5)
        assert (advantages[gone.any(dim=1)] == 0).all()
    assert missing > 10


def test_the_group_step_and_the_batchs_deviation_are_the_same_as_the_vectors(
    vectors: Any, tmp_path: Path
) -> None:
    """`group = "gdpo"` under `scale_rewards="batch"`, from the same policy and seed."""
    trainer = train(
        new_policy(),
        tmp_path,
        make_reward(two_graders(tmp_path, "gdpo")),
        steps=1,
        trainer_class=Recorded,
        scale_rewards="batch",
    )
    assert torch.isnan(trainer.seen[0]).view(-1).equal(torch.isnan(vectors.seen[0]).any(dim=1))
    # The trainer's own epsilon stands in each component's deviation, ours has none.
    torch.testing.assert_close(trainer.made[0], vectors.made[0], rtol=0.02, atol=5e-3)
