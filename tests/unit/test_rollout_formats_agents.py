"""Dumps of agents, evaluation harnesses and providers' APIs, each as its program writes it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.rows import (
    DATA,
    NAMED,
    ROWS,
    assistant,
    call,
    converted,
    only_row,
    records,
    system,
    user,
)

from adjudge.datasets.files import read_file
from adjudge.errors import RolloutError
from adjudge.graders.rules.redundancy import ActionLoopDetectionGrader
from adjudge.graders.rules.trajectory import ToolCallPrecisionRecallMatchGrader
from adjudge.rollouts.samples import SampleReader
from adjudge.types import Sample

EXPECTED = json.loads(ROWS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", EXPECTED)
def test_the_rows_of_each_file(name: str) -> None:
    """Of programs that this page and that of the trainers are about.

    A row says what is easily lost: NaN of verl is a missing reward; a line "user" of a question is
    no turn; a group is a step and a prompt; a run that failed, an aborted sample and a masked
    one are no rollouts, though they are written with a reward of 0; of several metrics none is
    the environment's reward.
    """
    assert converted(name) == EXPECTED[name]


def test_graders_take_the_calls_of_converted_rows() -> None:
    *whole, _ = converted("tau-bench/results.json")
    grader = ToolCallPrecisionRecallMatchGrader(match_arguments=True)
    scores = [grader.evaluate(r["reference_tool_calls"], messages=r["messages"]) for r in whole]
    assert [one.score for one in scores] == [1.0, 0.5]
    [row] = converted("swe-agent/text_0.7.traj")
    assert ActionLoopDetectionGrader().evaluate(row["messages"]).score == 0.0
    [row] = converted("swe-rows/messages.jsonl")
    assert ActionLoopDetectionGrader().evaluate(row["messages"]).metadata["calls"] == 1


def test_tasks_of_two_benchmarks_with_one_id_are_two_groups() -> None:
    """tau-bench, tau2-bench and Inspect count the tasks of each environment from 0 or 1."""
    [retail, _, _] = records("tau-bench/results.json")
    airline = {**retail, "info": {"task": {"instruction": "You want to fly."}}}
    lamps = records("tau2-bench/results.json")[0]
    domain = {**lamps["info"]["environment_info"], "domain_name": "airline"}
    flights = {**lamps, "info": {**lamps["info"], "environment_info": domain}}
    arms = records("inspect/samples/star-1_epoch_1.json")[0]
    for name, one, other in (
        ("tau-bench", retail, airline),
        ("tau2-bench", lamps, flights),
        ("inspect", arms, {**arms, "input": "How many eyes has a spider?"}),
    ):
        groups = [next(iter(NAMED[name].rows(record))) for record in (one, one, other)]
        names = [group["group"] for group in groups if isinstance(group, dict)]
        assert names[0] == names[1] != names[2]


def test_tau2_bench_whose_user_broke_the_protocol_is_no_rollout() -> None:
    record = records("tau2-bench/simulation.json")[0]
    for name, broken in (("user_error", True), ("agent_error", False), ("max_steps", False)):
        try:
            [row] = NAMED["tau2-bench"].rows({**record, "termination_reason": name})
        except RolloutError:
            row = {}
        assert (not row) == broken


@pytest.mark.parametrize(
    "name", ["swe-agent/function_calling.traj", "mini-swe-agent/toolcalls.traj.json"]
)
def test_a_run_that_was_cut_off_is_no_sample(name: str) -> None:
    [record] = records(name)
    cut = {**record, "info": {**record["info"], "exit_status": None}}
    with pytest.raises(RolloutError, match="did not end"):
        list(NAMED[name.partition("/")[0]].rows(cut))


def test_inspect_zip_with_what_is_not_scored(tmp_path: Path) -> None:
    log = tmp_path / "log.eval"
    one = (DATA / "inspect/samples/star-1_epoch_1.json").read_text(encoding="utf-8")
    failed = (DATA / "inspect/samples/star-3_epoch_1.json").read_text(encoding="utf-8")
    with zipfile.ZipFile(log, "w") as archive:
        archive.writestr("samples/star-1_epoch_1.json", one)
        archive.writestr("samples/star-1_epoch_2.json", one.replace('"value": "C"', '"value": NaN'))
        archive.writestr("samples/star-3_epoch_1.json", failed)
        archive.writestr("samples/star-9_epoch_1/messages/0.json", "[]")
        archive.writestr("header.json", "{}")
    samples = [sample for _, sample in SampleReader([log]).read()]
    assert [getattr(sample, "env_reward", str(sample)[-52:]) for sample in samples] == [
        1.0,
        None,
        "_1.json: the sample failed: RateLimitError('try later')"[-52:],
    ]


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        ("['Lima', \"Lima's\"]", ["Lima", "Lima's"]),
        ("['Lima']", "Lima"),
        ("['a", "['a"),
        ("", None),
    ],
)
def test_targets_of_lm_eval(target: str, reference: Any) -> None:
    """It writes ``str(target)``; several accepted answers are a list."""
    [record, *_] = records("lm-eval/samples_fish_2026-03-01T10-00-00.jsonl")
    row = only_row("lm-eval", {**record, "target": target})
    assert row.get("reference") == reference


def test_openai_chat_lines_are_read_by_their_column() -> None:
    """As for fine-tuning: adjudge's own column, so they need no format; either form of calls."""
    path = DATA / "openai-chat/fine_tuning.jsonl"
    samples = [sample for _, sample in SampleReader([path]).read()]
    rows = [row for _, row in read_file(path, path.name)]
    for sample, row in zip(samples, rows, strict=True):
        assert isinstance(sample, Sample)
        assert isinstance(row, dict)
        assert [one["content"] for one in sample.messages or ()] == [
            one["content"] for one in row["messages"]
        ]
        assert not any(one.matches(row) for one in NAMED.values())
        assert ActionLoopDetectionGrader().evaluate(sample.messages).metadata["calls"] == 1


def test_batches_of_every_endpoint_have_their_prompts() -> None:
    """Those of the Responses API and of completions, too; answers to one prompt are a group."""
    request = {"method": "POST", "url": "/v1/responses"}
    asked = {"instructions": "Be brief.", "input": "Which tide?"}
    [answered, *_] = records("batches/openai_responses.jsonl")
    rows: list[Any] = []
    for name in ("a-0", "a-1"):
        joined = {**answered, **request, "custom_id": name, "body": asked}
        rows.append(only_row("batches", joined))
    assert rows[0]["messages"][:2] == [system("Be brief."), user("Which tide?")]
    assert rows[0]["group"] == rows[1]["group"] != rows[0]["custom_id"]
    # The question and the answer are the last ones, and nothing that was said before.
    history = [user("Hello"), assistant("Hi"), user("Which tide?")]
    silent = {"role": "assistant", "content": None, "tool_calls": [call("c", "tide_at", "{}")]}
    body = {"object": "chat.completion", "choices": [{"message": silent}]}
    line = {"custom_id": "c", "response": {"status_code": 200, "body": body}, "error": None}
    row = only_row("batches", {**line, **request, "body": {"messages": history}})
    assert (row["prompt"], row["response"]) == ("Which tide?", "")
    former = {"content": None, "function_call": {"name": "tide_at", "arguments": "{}"}}
    body = {"object": "chat.completion", "choices": [{"message": former}]}
    row = only_row("openai-response", body)
    assert row["messages"] == [assistant(None, call("", "tide_at", "{}"))]
    [_, completion] = records("openai-response/completions.jsonl")
    response = {"status_code": 200, "body": completion}
    line = {"custom_id": "c", "response": response, "error": None}
    row = only_row("batches", {**line, **request, "body": {"prompt": "High water is"}})
    assert (row["prompt"], row["response"]) == ("High water is", " at noon.")


def test_an_answer_goes_on_after_the_words_that_its_request_began() -> None:
    [answered, *_] = records("batches/anthropic_results.jsonl")
    begun = {"messages": [user("Which tide?"), assistant("Well: ")]}
    row = only_row("batches", {**answered, "params": begun})
    assert row["messages"] == [user("Which tide?"), assistant("Well: Gulls nest on cliffs.")]
    assert row["response"] == "Well: Gulls nest on cliffs."
