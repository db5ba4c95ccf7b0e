"""A reward spec as one function of a trainer for each grader, without TRL."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.errors import ConfigError, ErrorKind, GradingFailure, MissingRewardError
from adjudge.graders import FunctionGrader
from adjudge.rewards import RewardSpec
from adjudge.trainers.trl_functions import RewardVector, make_rewards
from adjudge.types import Role

ASKED: list[str] = []


def kind(response: str) -> float:
    ASKED.append(response)
    if response == "fail":
        raise GradingFailure(ErrorKind.TIMEOUT, "no answer")
    return float(response.count("kind"))


class Kind(FunctionGrader):
    """From 0 to 4."""

    def __init__(self) -> None:
        super().__init__(kind, score_range=(0, 4))


class Gate(FunctionGrader):
    """Open for all."""

    def __init__(self) -> None:
        super().__init__(lambda response: 1.0, role=Role.GATE)


def spec(*more: dict[str, Any], **tables: Any) -> RewardSpec:
    graders = [
        {"name": "kind", "type": f"{__name__}:Kind", "weight": 2.0},
        {
            "name": "long",
            "type": "length_penalty",
            "min_length": 0,
            "max_length": 4,
            "penalty_rate": 0.5,
            "weight": 0.25,
        },
        {"name": "seen", "type": "string_match", "weight": 0.0},
        *more,
    ]
    tables.setdefault("missing", {"patience_s": 0})
    return RewardSpec.from_dict({"graders": graders, **tables})


class Trainer:
    """What the functions read of a trainer, and what they log to it."""

    def __init__(self, vector: RewardVector, **more: Any) -> None:
        self.num_generations = self.num_generations_eval = 4
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(process_index=0)
        self.reward_funcs, self.reward_weights = vector.functions, vector.weights
        self.multi_objective_aggregation = "normalize_then_sum"
        self.metrics: list[str] = []
        self.extra: dict[str, list[Any]] = {}
        for name, value in more.items():
            setattr(self, name, value)

    def log_metric(self, name: str, _: float) -> None:
        self.metrics.append(name)

    def log_extra(self, column: str, values: list[Any]) -> None:
        self.extra[column] = values

    def ask(self, texts: list[str]) -> dict[str, list[float | None]]:
        """What each function says, called one after the other, as TRL does."""

        given = {"trainer_state": SimpleNamespace(global_step=0), "reference": texts}
        logs = {"log_metric": self.log_metric, "log_extra": self.log_extra}
        batch = {"prompts": ["p"] * len(texts), "completions": texts, **given, **logs}
        said = [one(**batch) for one in self.reward_funcs]
        return {one.__name__: part for one, part in zip(self.reward_funcs, said, strict=True)}


def test_each_grader_is_asked_once_and_has_a_function_of_its_own() -> None:
    vector = make_rewards(spec())
    assert [one.__name__ for one in vector.functions] == ["kind", "long"]
    assert vector.weights == [2.0, 0.25]
    trainer = Trainer(vector)
    ASKED.clear()
    for _ in range(2):  # as many batches
        said = trainer.ask(["kind", "kind kind", "bad", "none"])
        assert said == {"kind": [0.25, 0.5, 0.0, 0.0], "long": [0.0, -2.5, 0.0, 0.0]}
    assert sorted(ASKED) == sorted(["kind", "kind kind", "bad", "none"] * 2)
    assert trainer.metrics.count("judge/score_mean") == 2
    assert trainer.extra["judge/seen_score"] == [1.0] * 4


def test_a_missing_component_leaves_its_sample_out_of_every_function() -> None:
    said = Trainer(make_rewards(spec())).ask(["kind", "fail", "bad", "none"])
    assert said == {"kind": [0.25, None, 0.0, 0.0], "long": [0.0, None, 0.0, 0.0]}


def test_a_dropped_group_is_missing_in_every_function() -> None:
    missing = {"policy": "drop_group", "patience_s": 0}
    said = Trainer(make_rewards(spec(missing=missing))).ask(["kind", "fail", *["bad"] * 6])
    expected: list[float | None] = [None] * 4 + [0.0] * 4
    assert said == {"kind": expected, "long": expected}


def test_an_error_reaches_every_function_and_the_next_batch_is_asked_again() -> None:
    trainer = Trainer(make_rewards(spec(missing={"policy": "raise", "patience_s": 0})))
    with pytest.raises(MissingRewardError):
        trainer.ask(["kind", "fail", "bad", "none"])
    assert trainer.ask(["kind"] * 4)["kind"] == [0.25] * 4


@pytest.mark.parametrize(
    ("more", "tables", "message"),
    [
        ([], {"reward": {"group": "gdpo"}}, r"reward\.group: must be 'none' .*found 'gdpo'"),
        ([], {"reward": {"combine_mode": "weighted_sum"}}, r"reward\.combine_mode: must be"),
        ([], {"reward": {"judge_scale": 2.0}}, r"reward\.judge_scale: must be 1\.0"),
        ([], {"reward": {"aggregate": "min"}}, r"reward\.aggregate: must be 'weighted_mean'"),
        ([], {"missing": {"policy": "fallback", "fallback": "seen"}}, r"missing\.policy: must be"),
        (
            [{"name": "late", "type": "string_match", "weight": {"from": 0, "to": 1, "steps": 9}}],
            {},
            r"graders\.late\.weight: is a schedule",
        ),
        ([{"name": "gate", "type": f"{__name__}:Gate"}], {}, r"graders\.gate: is a gate"),
    ],
)
def test_what_is_more_than_a_weighted_sum_is_refused(
    more: list[dict[str, Any]], tables: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_rewards(spec(*more, **tables))


def test_other_functions_and_other_weights(caplog: pytest.LogCaptureFixture) -> None:
    vector = make_rewards(spec())
    with caplog.at_level(logging.WARNING, "adjudge"):
        for _ in range(2):
            Trainer(vector, reward_weights=[1.0, 1.0]).ask(["kind"] * 4)
    assert sum("reward_weights are [1.0, 1.0]" in one.message for one in caplog.records) == 1

    def other(prompts: Any, completions: Any, **_: Any) -> list[float]:
        return [0.0 for _ in completions]

    beside = [*vector.functions, other]
    with refuses("spec.missing.policy"):
        Trainer(vector, reward_funcs=beside).ask(["kind"] * 4)
