"""TRL's calling forms without TRL: shapes in, rewards out, groups found or refused."""

import asyncio
import inspect
import logging
import pickle
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.refusals import refuses

from adjudge.errors import ConfigError
from adjudge.intake.rendered import Thinking
from adjudge.rewards import RewardSpec
from adjudge.trainers import trl
from adjudge.trainers.adapter import Adapter
from adjudge.trainers.trl import PicklableReward, make_reward
from adjudge.trainers.trl_batch import TrlBatch, find_group_layout, group_equal_prompts
from adjudge.trainers.trl_functions import share_missing, shares_missing

# No word of hexadecimal digits: a fence's tag could hold it, once in hundreds of runs.
SPEC: dict[str, Any] = {
    "graders": [
        {"name": "quality", "type": "llm", "template": "{response}", "score_range": [0.0, 1.0]}
    ],
    "judges": {
        "main": {
            "type": "scripted",
            "script": {"poor": '{"score": 0.1}', "fail": "no verdict", "": '{"score": 0.5}'},
        }
    },
}
ANSWER: dict[str, Any] = {"graders": [{"name": "right", "type": "answer"}]}


class Trainer:
    """What the adapter reads of a trainer, and what it logs to it."""

    def __init__(self, size: int = 2, rank: int = 0, *, training: bool = True, **more: Any) -> None:
        self.num_generations, self.num_generations_eval = size, 4
        self.model = SimpleNamespace(training=training)
        self.accelerator = SimpleNamespace(process_index=rank)
        self.metrics: dict[str, float] = {}
        self.extra: dict[str, list[Any]] = {}
        for name, value in more.items():
            setattr(self, name, value)

    def log_metric(self, name: str, value: float) -> None:
        self.metrics[name] = value

    def log_extra(self, column: str, values: list[Any]) -> None:
        self.extra[column] = values


def spec(of: dict[str, Any] = SPEC, **more: Any) -> RewardSpec:
    return RewardSpec.from_dict({**of, **more})


def call(reward: Any, texts: list[str], trainer: Trainer | None = None, **given: Any) -> Any:
    """One call in the standard form, each text a completion."""
    if trainer is not None:
        given |= {"log_metric": trainer.log_metric, "log_extra": trainer.log_extra}
        given["trainer_state"] = SimpleNamespace(global_step=3)
    ids = given.pop("completion_ids", [[1]] * len(texts))
    given.setdefault("prompts", ["p"] * len(texts))
    result = reward(completions=texts, completion_ids=ids, **given)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def batch(completions: list[Any], trainer: Trainer | None = None, **given: Any) -> TrlBatch:
    prompts = given.pop("prompts", ["p"] * len(completions))
    ids = given.pop("completion_ids", None)
    if trainer is not None:
        given["log_metric"] = trainer.log_metric
    return TrlBatch(prompts, completions, ids, **given)


def fields(completion: Any, **given: Any) -> dict[str, Any]:
    adapter = Adapter(spec(), columns=given.pop("columns", None))
    called = batch([completion], **given)
    asyncio.run(called.read_environments())
    return called.samples(["0"], adapter, Thinking())[0].fields()


def test_columns_of_the_dataset_never_stand_for_the_rollout() -> None:
    found = fields("b", messages=[["gold"]], response=["gold"], finish_reason=["stop"], topic=["x"])
    assert found == {"prompt": "p", "response": "b", "topic": "x"}


@pytest.mark.parametrize(
    ("prompts", "columns", "name"),
    [(["a"], {}, "prompts"), (["a", "b"], {"answer": ["4"]}, "answer")],
)
def test_lists_of_another_length_are_refused(
    prompts: list[str], columns: dict[str, Any], name: str
) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: .*found 1; there are 2"):
        batch(["x", "y"], prompts=prompts, **columns)


def test_bad_columns_are_named() -> None:
    with refuses("columns"):
        call(make_reward(spec(), columns={"reference": "target"}), ["a"], topic=["x"])
    with refuses("columns"):
        make_reward(spec(), columns={"response": "chat"})
    with refuses("columns"):
        call(make_reward(spec(), columns={"messages": "chat"}), ["a"], Trainer(1), chat=[[]])


def test_the_environment_may_have_a_reward_of_its_own() -> None:
    environments = [SimpleNamespace(env_reward=2.0)]
    assert fields("b", environments=environments)["env_reward"] == 2.0
    assert fields("b", environments=environments, env_reward=[3.0])["env_reward"] == 3.0
    assert "environments" not in fields("b", environments=environments)


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 3))
def test_groups_are_blocks_of_the_whole_batch(size: int, count: int, rank: int) -> None:
    layout = find_group_layout(batch(["x"] * count, Trainer(size, rank)))
    places = range(rank * count, (rank + 1) * count)
    assert layout.groups == [str(place // size) for place in places]
    whole = all(layout.groups.count(group) == size for group in layout.groups)
    assert (layout.broken is None) == whole


def test_equal_prompts_where_nobody_says_the_size() -> None:
    assert group_equal_prompts([*"aabb"]) == (["0", "0", "1", "1"], None)
    chats = [[{"content": "a"}], [{"content": "b"}]] * 2
    assert group_equal_prompts(chats) == (["0", "1", "0", "1"], None)
    assert group_equal_prompts([*"abb"]).broken is not None
    assert group_equal_prompts([]).groups == []


@pytest.mark.parametrize(
    "more",
    [
        {"reward": {"group": "z_score"}},
        {"missing": {"policy": "drop_group"}},
        {"graders": [*SPEC["graders"], {"name": "best", "type": "listwise"}]},
    ],
)
def test_a_spec_that_compares_refuses_half_a_group(more: dict[str, Any]) -> None:
    reward = make_reward(spec(**more))
    with refuses("spec"):
        call(reward, ["a", "b", "poor"], Trainer(2))
    with refuses("spec"):
        call(reward, ["a", "b", "poor"], prompts=["p", "p", "q"])


def test_a_group_step_works_inside_blocks() -> None:
    reward = make_reward(spec(reward={"group": "centre"}))
    found = call(reward, ["a", "poor", "poor", "poor"], Trainer(2))
    assert found == pytest.approx([0.2, -0.2, 0.0, 0.0])


BOTH = ("sum_then_normalize", "normalize_then_sum")


@pytest.mark.parametrize("aggregation", BOTH)
def test_a_missing_reward_beside_other_functions_is_refused(aggregation: str) -> None:
    reward, other = make_reward(spec()), share_missing([len, len])
    for functions in ([reward, len], [*share_missing([reward]), *other], [*other, reward]):
        trainer = Trainer(reward_funcs=functions, multi_objective_aggregation=aggregation)
        with refuses("spec.missing.policy"):
            call(functions[0] if functions[0] is not other[0] else reward, ["a", "poor"], trainer)
        ends = make_reward(spec(missing={"policy": "raise"}))
        assert call(ends, ["a", "poor"], trainer) == [0.5, 0.1]


class Plain:
    def __call__(self, completions: Any, **_: Any) -> list[float | None]:
        ASKED.append("Plain")
        return [None if text == "none" else 1.0 for text in completions]


async def nan(completions: Any, **_: Any) -> list[float]:
    ASKED.append("nan")
    return [float("nan") if text == "nan" else 2.0 for text in completions]


def short(scale: float, completions: Any, **_: Any) -> tuple[float, ...]:
    ASKED.append("short")
    return tuple(scale for text in completions if text != "short")


ASKED: list[str] = []


@pytest.mark.parametrize("aggregation", BOTH)
def test_a_missing_reward_of_one_function_is_missing_in_all(aggregation: str) -> None:
    functions = share_missing([Plain(), make_reward(spec()), nan, partial(short, 3.0)])
    assert [one.__name__ for one in functions] == ["Plain", "adjudge", "nan", "short"]
    trainer = Trainer(4, reward_funcs=functions, multi_objective_aggregation=aggregation)
    for texts in (["a", "none", "fail", "nan"], ["a", "poor", "a", "a"], ["fail"] * 4):
        ASKED.clear()
        said = [call(one, texts, trainer) for one in functions]
        there = [text in ("a", "poor") for text in texts]
        ours = [{"a": 0.5, "poor": 0.1}.get(text) for text in texts]
        values = ([1.0] * 4, ours, [2.0] * 4, [3.0] * 4)
        pairs = [zip(row, there, strict=True) for row in values]
        assert said == [[value if left else None for value, left in row] for row in pairs]
        assert ASKED == ["Plain", "short", "nan"]  # each once, the plain ones first


def test_functions_that_share_are_pickled_together_and_say_what_is_wrong() -> None:
    functions = pickle.loads(pickle.dumps(share_missing([Plain(), PicklableReward(spec())])))
    assert shares_missing(functions)
    assert call(functions[1], ["a", "none"]) == [0.5, None]
    with refuses("share_missing.short"):
        call(share_missing([partial(short, 3.0)])[0], ["a", "short"])
    for model in ("org/reward-model", SimpleNamespace(forward=len)):
        with refuses("share_missing.functions[1]"):
            share_missing([len, model])


@pytest.mark.parametrize(
    ("step", "settings", "found"),
    [
        ("z_score", {"scale_rewards": "batch"}, "scale_rewards='batch'"),
        ("z_score", {"normalize_advantages": True}, "normalize_advantages=True"),
        ("z_score", {"scale_rewards": "none"}, None),
        ("gdpo", {"scale_rewards": "group"}, "scale_rewards='group'"),
        ("gdpo", {"scale_rewards": "batch"}, None),
        ("gdpo", {"multi_objective_aggregation": "normalize_then_sum"}, "'normalize_then_sum'"),
        ("rloo", {"scale_rewards": "none"}, None),
    ],
)
def test_a_group_step_that_the_trainer_does_again_is_warned_about(
    step: str, settings: dict[str, Any], found: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "adjudge"):
        reward = make_reward(spec(reward={"group": step}))
        for _ in range(2):
            call(reward, ["a", "poor"], Trainer(**settings))
    assert [found in one.message for one in caplog.records if found] == ([True] if found else [])
    assert len(caplog.records) == (found is not None)


def test_a_schedule_goes_by_the_trainers_step(caplog: pytest.LogCaptureFixture) -> None:
    first, second = ({**SPEC["graders"][0], "name": name} for name in ("quality", "again"))
    graders = [{**first, "weight": {"from": 1.0, "to": 0.0, "steps": 4}}, second]
    reward, trainer = make_reward(spec(graders=graders)), Trainer(2)
    assert call(reward, ["a", "poor"], trainer) == [0.5, 0.1]
    assert trainer.metrics["judge/quality_weight"] == 0.25  # global_step is 3
    with refuses("spec.graders.quality.weight"):
        call(PicklableReward(spec(graders=graders)), ["a", "poor"])


def test_the_dotted_path_reads_the_variable_at_the_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pickle.loads(pickle.dumps(trl.reward)) is trl.reward
    monkeypatch.delenv("ADJUDGE_SPEC", raising=False)
    with pytest.raises(ConfigError, match="ADJUDGE_SPEC"):
        call(trl.reward, ["{}"])
    path = tmp_path / "spec.toml"
    path.write_text('[[graders]]\nname = "v"\ntype = "json_valid"\n')
    monkeypatch.setenv("ADJUDGE_SPEC", str(path))
    assert call(trl.reward, ["{}", "{"]) == [1.0, 0.0]


def test_one_group_in_a_thread_of_another_process() -> None:
    """AsyncGRPO's form: pickled, a plain call per group, prompts, completions, ids and columns."""
    reward = PicklableReward(spec(reward={"group": "centre"}), name="kindness")
    there = pickle.loads(pickle.dumps(reward))
    assert there.__name__ == "kindness"
    assert not inspect.iscoroutinefunction(there.__call__)

    async def step() -> Any:
        # Environments may write into prompts, so those of one group differ.
        group = {"prompts": ["p", "q"], "completions": ["a", "poor"], "completion_ids": [[1], [2]]}
        return await asyncio.to_thread(there, **group, answer=["x", "x"])

    assert asyncio.run(step()) == pytest.approx([0.2, -0.2])


def test_the_pickled_form_draws_each_group_anew() -> None:
    """That trainer's call is one group; the next call with the same prompt is another draw."""
    drawing = {"sample_rate": 0.25, "seed": 5, "combine_mode": "weighted_sum"}
    reward = PicklableReward(spec(reward=drawing))
    group = {"prompts": ["p"] * 2, "completions": ["a", "b"], "env_reward": [1.0, 1.0]}
    calls = [reward(**group) for _ in range(200)]
    judged = [rewards == [1.5, 1.5] for rewards in calls]
    assert all(whole or rewards == [1.0, 1.0] for whole, rewards in zip(judged, calls, strict=True))
    assert 30 <= sum(judged) <= 70
    assert len({tuple(judged[start : start + 8]) for start in range(0, 200, 8)}) > 10


DRAWING = {"sample_rate": 0.5, "seed": 5, "combine_mode": "weighted_sum"}


def test_a_step_draws_the_same_groups_in_every_process_and_says_how_many() -> None:
    texts, paid = ["a"] * 8, {"env_reward": [1.0] * 8}
    trainer, late = Trainer(), make_reward(spec(reward=DRAWING))
    first = call(make_reward(spec(reward=DRAWING)), texts, trainer, **paid)
    assert set(first) == {1.0, 1.5}
    assert trainer.metrics["judge/drawn_frac"] == first.count(1.5) / 8
    assert [call(late, texts, Trainer(), **paid) for _ in range(3)] == [first] * 3


@pytest.mark.parametrize("settings", [
    {"scale_rewards": "batch"},
    {"normalize_advantages": True},
    {"multi_objective_aggregation": "normalize_then_sum"},
])  # fmt: skip
def test_groups_with_and_without_the_judges_part_are_not_compared(settings: dict[str, Any]) -> None:
    call(make_reward(spec(reward=DRAWING)), ["a", "b"], Trainer(), env_reward=[1.0, 1.0])
    with refuses("spec.reward.sample_rate"):
        call(make_reward(spec(reward=DRAWING)), ["a", "b"], Trainer(**settings))


@pytest.mark.parametrize("mode", ["replace", "multiply"])
def test_a_mode_in_which_an_undrawn_group_has_no_reward_is_refused(mode: str) -> None:
    with refuses("spec.reward.sample_rate"):
        make_reward(spec(reward={**DRAWING, "combine_mode": mode}))


class Adding(Trainer):
    """A trainer that sums as TRL did before 1.6; its code is read, never run."""

    reward_weights: Any

    def advantages(self, torch: Any, rewards: Any) -> Any:
        rewards = (rewards * self.reward_weights).nansum(dim=1)
        return rewards - rewards.view(-1, self.num_generations).mean(dim=1)


class Warning018(Adding):
    """The same as in 0.18, which looks for such rows only to name them."""

    def advantages(self, torch: Any, rewards: Any) -> Any:
        if torch.isnan(rewards).any():
            nan_row_idx = torch.isnan(rewards).nonzero()[0]
            self.extra["row"] = [row[nan_row_idx] for row in rewards]
        return (rewards * self.reward_weights).nansum(dim=1)


class Masking(Adding):
    """The same as TRL does it since 1.6."""

    def advantages(self, torch: Any, rewards: Any) -> Any:
        rewards = (rewards * self.reward_weights).nansum(dim=1)
        return torch.nan_to_num(rewards - torch.nanmean(rewards), nan=0.0)


class Counting(Masking):
    """A trainer of a user's own, that asks the base for the sum."""

    def advantages(self, torch: Any, rewards: Any) -> Any:
        return super().advantages(torch, rewards)


@pytest.mark.parametrize("missing", [{}, {"policy": "drop_group"}, {"policy": "fallback"}])
@pytest.mark.parametrize("trainer", [Adding, Warning018])
def test_a_trainer_that_counts_missing_rewards_as_0_is_refused(
    trainer: type[Trainer], missing: dict[str, Any]
) -> None:
    """Before anything is judged, and with what to do instead."""
    graders = [*SPEC["graders"], {**ANSWER["graders"][0], "weight": 0.0}]
    if missing.get("policy") == "fallback":
        missing = {**missing, "fallback": "right"}
    reward = make_reward(spec(graders=graders, missing=missing))
    said = rf"{trainer.__name__}, which counts a missing reward as 0.*trl >= 1\.6"
    with pytest.raises(ConfigError, match=said):
        call(reward, ["a"] * 4, trainer(4))
    complete = make_reward(spec(missing={"policy": "raise"}))
    assert call(complete, ["a"] * 4, trainer(4)) == [0.5] * 4


@pytest.mark.parametrize("name", ["GRPO", "RLOO"])
@pytest.mark.parametrize("trainer", [Adding, Warning018])
def test_older_trl_is_refused_at_the_start(
    name: str, trainer: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the code of the trainers that are imported, and whatever the spec says."""
    complete = spec(missing={"policy": "raise"})
    made_before = make_reward(complete)
    module = SimpleNamespace(**{f"{name}Trainer": trainer})
    monkeypatch.setitem(sys.modules, f"trl.trainer.{name.lower()}_trainer", module)
    refused = r"^trl: .*counts a missing reward as 0.*pip install 'trl>=1\.6'"
    for make in (make_reward, PicklableReward):
        with pytest.raises(ConfigError, match=refused):
            make(complete)
    with pytest.raises(ConfigError, match=refused):
        call(made_before, ["a"] * 4)


@pytest.mark.parametrize("kind", [Trainer, Masking, Counting])
def test_missing_is_none_and_everything_is_logged(kind: type[Trainer]) -> None:
    trainer = kind(size=4)
    assert call(make_reward(spec()), ["a", "poor", "fail", "b"], trainer) == [0.5, 0.1, None, 0.5]
    assert trainer.metrics["judge/missing_frac"] == 0.25
    assert trainer.metrics["judge/missing_frac/unparsable"] == 0.25
    assert trainer.extra["judge/missing"] == ["", "", "unparsable", ""]
    assert trainer.extra["judge/quality_score"] == [0.5, 0.1, None, 0.5]
    columns = ("quality_score", "outcome", "env_reward", "missing")
    assert set(trainer.extra) == {f"judge/{name}" for name in columns}


WORDS = ["<end>", "Well", "done", "or", "not?", "Done"]
TOLD = [
    {"role": "user", "content": "Ask."},
    {"role": "assistant", "content": "Which?"},
    {"role": "user", "content": "The second."},
    {"role": "assistant", "content": "Two."},
]


def rolling(*dataset: str) -> Trainer:
    """A trainer with a rollout_func, and a tokenizer of single words."""

    def decode(ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return " ".join(WORDS[one] for one in ids if one)

    return Trainer(
        rollout_func=lambda prompts, trainer: {},
        processing_class=SimpleNamespace(decode=decode),
        train_dataset=SimpleNamespace(column_names=["prompt", *dataset]),
    )


def test_the_column_of_what_a_rollout_func_tells() -> None:
    """The dataset may have messages of its own, which are not what the policy said."""
    gold = [[{"role": "assistant", "content": "gold"}]]
    named = {"messages": gold, "told": [TOLD], "columns": {"messages": "told"}}
    assert fields("x", trainer=rolling("messages"), **named)["messages"] == TOLD
    with refuses("rollout_func"):
        fields("x", trainer=rolling("messages"), messages=gold)
    with refuses("rollout_func"):
        fields("x", trainer=rolling(), messages=["text"])


@pytest.mark.parametrize("column", ["tool_mask", "env_mask"])
def test_a_mask_tells_the_policys_tokens(column: str) -> None:
    mask = {column: [[1, 1, 0, 0, 1, 1]], "completion_ids": [[1, 2, 3, 4, 5, 0]]}
    found = fields("Well done or not? Done", trainer=rolling(), **mask)
    assert found["response"] == "Done"
    assert [one["content"] for one in found["messages"]] == ["p", "Well done", "or not?", "Done"]
    roles = ["user", "assistant", "user", "assistant"]
    assert [one["role"] for one in found["messages"]] == roles
    with refuses("rollout_func"):
        fields("x", trainer=rolling(), completion_ids=[[1, 2]], **{column: [[1]]})


def test_two_functions_of_one_trainer_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    functions = share_missing([make_reward(spec()), make_reward(spec(ANSWER), name="rules")])
    trainer = Trainer(reward_funcs=functions, reward_func_names=["adjudge", "rules"])
    assert call(functions[0], ["a", "fail"], trainer, answer=["a", "b"]) == [0.5, None]
    assert trainer.metrics["judge/score_mean"] == 0.5
    assert trainer.metrics["judge/rules/right_score_mean"] == 0.5
    assert trainer.extra["judge/missing"] == ["", "unparsable"]
    assert trainer.extra["judge/rules/missing"] == ["", ""]
    assert not any("are called" in one.message for one in caplog.records)
    same = Trainer(reward_func_names=["adjudge", "adjudge"])
    with caplog.at_level(logging.WARNING, "adjudge"):
        call(make_reward(spec()), ["a", "b"], same)
    assert any("2 reward functions are called 'adjudge'" in one.message for one in caplog.records)


def test_the_trainers_own_warning_of_none_is_ours(caplog: pytest.LogCaptureFixture) -> None:
    """TRL's three lines a step, where the reward function has said why; nobody else's None."""
    kind = type("GRPOTrainer", (Trainer,), {"__module__": "trl.trainer.grpo_trainer"})
    log = logging.getLogger("trl.trainer.grpo_trainer")
    warning = "[RANK 0] All reward functions returned None for the following kwargs:\n{}"
    reward = make_reward(spec())
    for texts, passes in ((["fail", "b"], False), (["a", "b"], True), (["a", "fail"], False)):
        caplog.clear()
        call(reward, texts, kind())
        log.warning(warning)
        log.warning("another warning")
        theirs = [one.getMessage() for one in caplog.records if one.name == log.name]
        assert theirs == [warning] * passes + ["another warning"]
