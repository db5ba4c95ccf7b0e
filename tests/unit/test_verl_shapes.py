"""What the verl adapter does without verl: stand-ins for missing rewards, messages, refusals."""

import math
import pickle
import statistics
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, strategies as st

from adjudge.errors import ConfigError, GradingFailure
from adjudge.rewards import RewardResult
from adjudge.trainers.verl import SUPPORTED_VERSIONS, check_verl_version
from adjudge.trainers.verl.batches import rebuild_turns
from adjudge.trainers.verl.rewards import (
    count_reward,
    find_caller_local,
    impute_for_validation,
    impute_rewards,
    loop_row,
    make_turn_reward,
    missing_metrics,
    read_loop_rows,
)
from adjudge.types import GraderError

ROWS = st.lists(
    st.tuples(st.none() | st.floats(-10, 10), st.sampled_from("abc"), st.sampled_from("xy")),
    min_size=1,
    max_size=24,
)
CALL = '<tool_call>{"name": "add", "arguments": {"x": 2}}</tool_call>'


@given(ROWS)
def test_a_stand_in_leaves_its_groups_mean(rows: list[tuple[float | None, str, str]]) -> None:
    rewards, groups = [row[0] for row in rows], [row[1] for row in rows]
    stood, factors = impute_rewards(rewards, groups)
    for group in set(groups):
        here = [i for i, one in enumerate(groups) if one == group]
        present = [r for i in here if (r := rewards[i]) is not None]
        if present:
            filled = statistics.fmean(stood[i] for i in here)
            assert filled == pytest.approx(statistics.fmean(present), abs=1e-9)
        if len(present) > 1:
            factor = math.sqrt((len(here) - 1) / (len(present) - 1))
            assert factors[group] == pytest.approx(factor)
        else:
            assert group not in factors
    kept = [(a, b) for a, b in zip(rewards, stood, strict=True) if a is not None]
    assert all(a == b for a, b in kept)


@given(ROWS)
def test_validation_means_are_those_without_the_missing(
    rows: list[tuple[float | None, str, str]],
) -> None:
    values, groups, sources = ([row[k] for row in rows] for k in range(3))
    filled = impute_for_validation(values, groups, sources)  # type: ignore[arg-type]  # zipped

    def verl_mean(source: str, numbers: list[Any]) -> float:
        prompts = defaultdict(list)
        for number, group, own in zip(numbers, groups, sources, strict=True):
            if own == source and number is not None:
                prompts[group].append(number)
        return statistics.fmean([statistics.fmean(p) for p in prompts.values()] or [math.nan])

    for source in set(map(str, sources)):
        wanted = verl_mean(source, values)
        found = verl_mean(source, list(filled))
        assert found == pytest.approx(wanted, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("words", ["Adding.", "<think>Adding."])  # a result came back: a call
def test_turns_are_rebuilt_from_the_mask_and_bad_calls_stay_text(words: str) -> None:
    parts = [f"{words} {CALL}", "<tool_response>4</tool_response>", "<tool_call>{</tool_call>"]
    found = rebuild_turns([0, 1, 2], [1, 0, 1], 4, lambda ids: parts[ids[0]])
    assert [m["role"] for m in found] == ["assistant", "tool", "assistant"]
    assert found[0]["content"] == words
    assert found[0]["tool_calls"][0]["id"] == found[1]["tool_call_id"] == "call_0"
    assert found[2] == {"role": "assistant", "content": "<tool_call>{</tool_call>"}


@pytest.mark.parametrize(
    ("mask", "words", "said"), [([1, 0], CALL, "<tool_response>"), (None, "so", "response_mask")]
)
def test_what_cannot_be_read_is_no_trajectory(
    mask: list[int] | None, words: str, said: str
) -> None:
    with pytest.raises(GradingFailure, match=said) as caught:
        rebuild_turns([0, 1], mask, 3, lambda ids: words)
    assert caught.value.kind == "invalid_input"


def test_the_config_of_the_loader_is_seen_and_nobody_elses() -> None:
    def load_reward_manager(config: Any) -> Any:
        return find_caller_local("load_reward_manager", "config")

    assert load_reward_manager({"a": 1}) == {"a": 1}
    assert find_caller_local("load_reward_manager", "config") is None


def test_a_reward_remembers_its_events_through_a_pickle() -> None:
    reward = make_turn_reward(RewardResult(0, 0, 1.5, event_rewards=[0.5, 0.25]))
    again = pickle.loads(pickle.dumps(reward))
    assert (again, again.events) == (1.5, (0.5, 0.25))
    assert isinstance(again, float)
    assert repr(again) == "1.5"


_KINDS = ("timeout", "unparsable")
_scores = st.none() | st.floats(-1, 1)


@given(st.lists(st.tuples(_scores, st.sampled_from(_KINDS), st.floats(0, 1)), min_size=1))
def test_a_steps_metrics_come_back_from_its_rows(rows: list[tuple[Any, Any, float]]) -> None:
    results = [
        RewardResult(
            i, 0, score, {"q_score": score}, {},
            None if score is not None else GraderError("q", kind, "gone"),
        )
        for i, (score, kind, _) in enumerate(rows)
    ]  # fmt: skip
    infos = [
        loop_row(result, ["q_score"], {"judge/cost_usd": cost, "judge/score_mean": 9.0})
        for result, (_, _, cost) in zip(results, rows, strict=True)
    ]
    rewards = [math.nan if score is None else score for score, _, _ in rows]
    columns = {key: [info[key] for info in infos] for key in infos[0]}
    found = read_loop_rows(columns, rewards, ["u"] * len(rows), [1] * len(rows)).metrics
    present = [score for score, _, _ in rows if score is not None]
    assert found["judge/missing_frac"] == pytest.approx(1 - len(present) / len(rows))
    assert found["judge/cost_usd"] == pytest.approx(sum(cost for _, _, cost in rows))
    if present:
        assert found["judge/score_mean"] == pytest.approx(statistics.fmean(present), abs=1e-9)
        assert found["judge/q_score_mean"] == pytest.approx(statistics.fmean(present), abs=1e-9)
    counted = missing_metrics(sum(map(count_reward, results), Counter()))
    assert counted.items() <= {"judge/missing_frac": 0.0, **found}.items()


@pytest.mark.parametrize("found", ["0.6.1", "0.9.1", "0.9.1.post1", None, "dev"])
def test_versions_of_verl_that_work(found: str | None, caplog: pytest.LogCaptureFixture) -> None:
    check_verl_version(found)
    assert not caplog.records


@pytest.mark.parametrize("found", ["0.6.0", "0.7.1", "0.8.0.dev0", "0.9.0"])
def test_versions_of_verl_that_do_not_are_refused(found: str) -> None:
    allowed = ", ".join(SUPPORTED_VERSIONS)
    with pytest.raises(ConfigError, match=f"found {found}; allowed: {allowed}, or newer"):
        check_verl_version(found)


def test_a_newer_verl_is_tried_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    check_verl_version("0.10.0.dev0")
    assert "0.10.0.dev0 is newer" in caplog.text
