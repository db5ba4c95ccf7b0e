"""A reward spec as judge of the real verifiers; run by `make test-verifiers`."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

vf: Any = pytest.importorskip(
    "verifiers.v1", reason="verifiers is not installed here; run `make test-verifiers`"
)

from adjudge.errors import ConfigError, GradingFailure  # noqa: E402
from adjudge.mock import MockSettings, start_mock  # noqa: E402
from adjudge.trainers import make_trainer_reward  # noqa: E402
from adjudge.trainers.recorder import FlightRecorder  # noqa: E402
from adjudge.trainers.scoring import SPEC_VARIABLE  # noqa: E402
from adjudge.trainers.verifiers import to_verifiers_usage  # noqa: E402
from adjudge.types import Usage  # noqa: E402

QUALITY = """
[[graders]]
name = "quality"
type = "llm"
template = "{response} / {reference}"
score_range = [0.0, 1.0]
"""
JUDGES = """
[judges.main]
type = "scripted"
[judges.main.script]
"good" = '{"score": 1.0}'
"fail" = "I would rather not say"
"" = '{"score": 0.25}'
"""
MODULE = """
from adjudge.trainers.verifiers import AdjudgeJudge
__all__ = ["AdjudgeJudge"]
"""


class Data(vf.TaskData):  # type: ignore[misc]  # verifiers is not installed where mypy runs
    answer: str = "forty-two"


class Plain(vf.Task[Data, vf.State, vf.TaskConfig]):  # type: ignore[misc]  # as above
    """A task with a reward of its own beside the judge's."""

    @vf.reward(weight=0.5)
    async def exact(self, trace: Any) -> float:
        return float(trace.last_reply == self.data.answer)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "adjudge_test_judge.py").write_text(MODULE)
    (path := tmp_path / "reward.toml").write_text(QUALITY + JUDGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(SPEC_VARIABLE, raising=False)
    yield path
    sys.modules.pop("adjudge_test_judge", None)


def config(**judge: Any) -> Any:
    entry = {"id": "adjudge-test-judge", **judge}
    return vf.TaskConfig.model_validate({"judges": [entry]})


def trace_of(task: Any, *replies: str, role: str = "assistant") -> Any:
    found = vf.Trace[Data, vf.State, vf.AgentConfig](
        task=vf.TraceTask[Data](type="Plain", data=task.data),
        agent=vf.AgentInfo[vf.AgentConfig](config=vf.AgentConfig()),
    )
    found.nodes.append(vf.MessageNode(message=vf.UserMessage(content=task.data.prompt)))
    for reply in replies:
        node = vf.MessageNode(
            parent=len(found.nodes) - 1, message=vf.AssistantMessage(content=reply), sampled=True
        )
        found.nodes.append(node)
    return found


def score(settings: Any, *replies: str) -> Any:
    """The trace after the task's real scoring, errors of it raised."""
    task = Plain(Data(prompt="What is it?"), settings)
    trace = trace_of(task, *replies)
    asyncio.run(task.score(trace))
    return trace


def test_the_judge_is_found_by_its_module_and_scores_with_its_weight(spec: Path) -> None:
    trace = score(config(spec=str(spec), weight=2.0, name="quality"), "good answer")
    assert trace.rewards["quality"].score == 1.0
    assert trace.rewards["quality"].weight == 2.0
    assert trace.reward == 2.0
    assert score(config(spec=str(spec)), "forty-two").reward == 0.25 + 0.5


def test_a_missing_reward_is_an_error_of_the_rollout_and_no_number(spec: Path) -> None:
    task = Plain(Data(prompt="What is it?"), config(spec=str(spec), name="quality"))
    trace = trace_of(task, "fail")
    with pytest.raises(vf.TaskError, match="no reward: unparsable") as caught:
        asyncio.run(task.score(trace))
    assert trace.info["adjudge"]["quality"]["quality"]["kind"] == "unparsable"
    assert "quality/quality_score" not in trace.metrics
    trace.record_error(caught.value)
    assert trace.rewards["quality"] is None
    assert not trace.ok
    assert trace.last_error.type == "TaskError"
    assert trace.stop_condition == "task_error"


def test_parts_and_reasons_are_on_the_trace_and_it_is_json(spec: Path) -> None:
    trace = score(config(spec=str(spec), name="judge"), "good answer")
    assert trace.metrics["judge/quality_score"] == 1.0
    assert trace.info["adjudge"]["judge"]["quality"]["score"] == 1.0
    assert json.loads(trace.model_dump_json())["info"]["adjudge"]["judge"]["source"]


@pytest.mark.parametrize(("said", "ok"), [('{"score": 1.0}', True), ("I would rather not", False)])
def test_what_the_judge_consumed_is_the_traces_extra_usage(spec: Path, said: str, ok: bool) -> None:
    """Also of a rollout without a reward: its calls are paid like any other."""
    with start_mock(MockSettings(reply=said)) as base_url:
        spec.write_text(
            QUALITY + '[judges.main]\ntype = "openai"\nmodel = "mock"\n'
            f'base_url = "{base_url}"\nprice = {{ input = 1.0, output = 2.0 }}\n'
        )
        task = Plain(Data(prompt="What is it?"), config(spec=str(spec), name="judge"))
        trace = trace_of(task, "good answer")
        if ok:
            asyncio.run(task.score(trace))
        else:
            with pytest.raises(vf.TaskError, match="unparsable"):
                asyncio.run(task.score(trace))
    (usage,) = trace.extra_usage
    assert usage.prompt_tokens > 10
    assert usage.completion_tokens > 3
    expected = (usage.prompt_tokens + 2 * usage.completion_tokens) / 1e6
    assert usage.cost == pytest.approx(expected)
    assert trace.usage is None


def test_cached_tokens_are_parted_as_verifiers_has_them() -> None:
    usage = to_verifiers_usage(
        Usage(input_tokens=100, output_tokens=7, cached_tokens=60, cost_usd=0.5)
    )
    assert (usage.prompt_tokens, usage.cached_input_tokens) == (40, 60)
    assert (usage.input_tokens, usage.total_tokens, usage.cost) == (100, 107, 0.5)
    unknown = to_verifiers_usage(Usage(input_tokens=100, output_tokens=7))
    assert (unknown.prompt_tokens, unknown.cached_input_tokens, unknown.cost) == (100, None, None)


def test_the_reference_is_the_answer_or_the_field_that_is_named(spec: Path) -> None:
    template = QUALITY.replace("{response} / {reference}", "{response} {reference}")
    spec.write_text(template + JUDGES.replace('"good"', '"forty-two"'))
    assert score(config(spec=str(spec)), "x").rewards["adjudge-test-judge"].score == 1.0
    named = config(spec=str(spec), columns={"reference": "prompt"})
    assert score(named, "x").rewards["adjudge-test-judge"].score == 0.25
    with pytest.raises(vf.TaskError, match="found 'gold'"):
        score(config(spec=str(spec), columns={"reference": "gold"}), "x")


def test_a_plugged_reward_reads_the_spec_from_the_environment(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SPEC_VARIABLE, str(spec))
    plugged = {"rewards": {"quality": {"fn": "adjudge.trainers.verifiers:reward", "weight": 4.0}}}
    trace = score(vf.TaskConfig.model_validate(plugged), "good")
    assert trace.rewards["quality"].value == 4.0
    with pytest.raises(vf.TaskError, match="no reward: unparsable"):
        score(vf.TaskConfig.model_validate(plugged), "fail")


def test_one_scorer_serves_every_judge_object_and_loop(spec: Path) -> None:
    one, two = (vf.load_judge(config(spec=str(spec)).judges[0]) for _ in range(2))
    assert one is not two
    assert one._adapter is two._adapter
    for reply, expected in [("good", 1.0), ("meh", 0.25), ("good", 1.0)]:
        trace = score(config(spec=str(spec)), reply)
        assert trace.rewards["adjudge-test-judge"].score == expected


def test_many_rollouts_at_once(spec: Path) -> None:
    async def all_of_them() -> list[Any]:
        tasks = [Plain(Data(prompt=str(i)), config(spec=str(spec))) for i in range(64)]
        traces = [trace_of(task, "good" if i % 2 else "meh") for i, task in enumerate(tasks)]
        async with asyncio.TaskGroup() as group:
            for task, trace in zip(tasks, traces, strict=True):
                group.create_task(task.score(trace))
        return [trace.rewards["adjudge-test-judge"].score for trace in traces]

    assert asyncio.run(all_of_them()) == [0.25, 1.0] * 32


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('[reward]\ngroup = "z_score"\n', "needs whole groups"),
        ('[reward]\ncombine_mode = "weighted_sum"\n', "combine_mode"),
        ("[reward]\nsample_rate = 0.5\n", "sample_rate"),
    ],
)
def test_specs_that_need_more_than_one_rollout_are_refused_at_the_start(
    spec: Path, more: str, says: str
) -> None:
    spec.write_text(QUALITY + more + JUDGES)
    with pytest.raises(ConfigError, match=says):
        vf.load_judge(config(spec=str(spec)).judges[0])


def test_a_reward_made_for_a_module_of_one_s_own(spec: Path) -> None:
    columns = {"reference": "answer"}
    quality = make_trainer_reward(spec, "verifiers", name="quality", columns=columns)
    task = Plain(Data(prompt="What is it?"), vf.TaskConfig())
    trace = trace_of(task, "good answer")
    assert asyncio.run(quality(task.data, trace)) == 1.0
    assert trace.metrics["quality/quality_score"] == 1.0
    with pytest.raises(GradingFailure, match="no reward: unparsable"):
        asyncio.run(quality(task.data, trace_of(task, "fail")))


def test_rollouts_of_one_task_are_recorded_as_a_group(spec: Path, tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "run")
    reward = make_trainer_reward(spec, "verifiers", record=recorder)
    task = Plain(Data(prompt="What is it?", idx=7), config(spec=str(spec)))
    for reply in ("good answer", "an answer"):
        asyncio.run(reward(task.data, trace_of(task, reply)))
    with pytest.raises(GradingFailure):
        asyncio.run(reward(task.data, trace_of(task, "fail")))
    recorder.close()
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").open()]
    assert [row["reward"] for row in rows] == [1.0, 0.25, None]
    assert {row["group"] for row in rows} == {"task 7"}
    assert rows[2]["missing"]["kind"] == "unparsable"
