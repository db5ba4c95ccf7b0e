"""Dumps of agents, evaluation harnesses and providers' APIs, each as its program writes it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.rows import (
    DATA,
    NAMED,
    assistant,
    call,
    converted,
    only_row,
    records,
    system,
    tool,
    user,
)

from adjudge.datasets.files import read_file
from adjudge.errors import RolloutError
from adjudge.graders.rules.redundancy import ActionLoopDetectionGrader
from adjudge.graders.rules.trajectory import ToolCallPrecisionRecallMatchGrader
from adjudge.rollouts.samples import read_samples
from adjudge.types import Sample

PATCH = (
    "diff --git a/kelp.py b/kelp.py\n--- a/kelp.py\n+++ b/kelp.py\n"
    "@@ -1 +1 @@\n-depth = 1\n+depth = 2\n"
)
ISSUE = "Please solve: the depth of kelp is wrong."


def select(rows: list[Any], *names: str) -> list[Any]:
    """Some columns of each row, in this order; a reason stays as it is."""
    return [row if isinstance(row, str) else tuple(row.get(n) for n in names) for row in rows]


def test_tau_bench() -> None:
    first, second, broken = converted("tau-bench/results.json")
    given = records("tau-bench/results.json")[0]
    assert first == {
        "messages": given["traj"],
        "group": "50e48b3d88e9dea9/0",
        "env_reward": 1.0,
        "task_id": 0,
        "trial": 0,
        "instruction": "You are Ida Brook. You want crate C7 moved to dock 2.",
        "outputs": ["C7"],
        "reference_tool_calls": [
            {"name": "find_crate", "arguments": {"crate": "C7"}},
            {"name": "move_crate", "arguments": {"crate": "C7", "to": "dock 2"}},
        ],
        "user_cost": 0.0012,
    }
    assert (second["group"], second["trial"], second["env_reward"]) == (first["group"], 1, 0.0)
    # It is written with reward 0.0, as a failed attempt is.
    assert broken == "the run failed: litellm.Timeout: the model did not answer"
    grader = ToolCallPrecisionRecallMatchGrader(match_arguments=True)
    scores = [
        grader.evaluate(row["reference_tool_calls"], messages=row["messages"]).score
        for row in (first, second)
    ]
    assert scores == [1.0, 0.5]


def test_tau2_bench() -> None:
    rows = converted("tau2-bench/results.json")
    lamp = [
        call("call_1", "get_line", '{"line":3}'),
        call("call_2", "get_lamp", '{"line":3}'),
    ]
    assert rows[0] == {
        "messages": [
            assistant("Hi! How can I help you today?"),
            user("My lamp on line 3 is dark."),
            assistant(None, *lamp),
            tool("call_1", '{"line": 3, "on": true}'),
            tool("call_2", '{"fuse": "blown"}'),
            assistant("Please press the switch."),
            user("Done, it is lit. ###STOP###"),
        ],
        "prompt": "My lamp on line 3 is dark.",
        "group": "lamps/lamp_1",
        "env_reward": 1.0,
        "task_id": "lamp_1",
        "trial": 0,
        "seed": 300,
        "termination_reason": "user_stop",
        "reward_breakdown": {"DB": 1.0, "COMMUNICATE": 1.0},
        "agent_cost": 0.01,
        "user_cost": 0.002,
        "duration": 60.0,
        "agent_model": "agent-test",
        "domain": "lamps",
        "policy": "Ask before you switch a line off.",
        "reference_tool_calls": [{"name": "get_line", "arguments": {"line": 3}}],
    }
    assert select(rows[1:], "trial", "env_reward", "termination_reason") == [
        (1, 0.0, "max_steps"),
        "simulations.2: the run failed (infrastructure_error): connection reset",
        (3, None, "user_stop"),
    ]
    alone = converted("tau2-bench/simulation.json")
    assert select(alone, "group", "env_reward", "policy") == [
        ("c9d9d5886d806f99/lamp_1", 0.0, "Be short.")
    ]


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
        groups = [next(iter(NAMED[name].convert(record))) for record in (one, one, other)]
        names = [group["group"] for group in groups if isinstance(group, dict)]
        assert names[0] == names[1] != names[2]


def test_tau2_bench_whose_user_broke_the_protocol_is_no_rollout() -> None:
    record = records("tau2-bench/simulation.json")[0]
    for name, broken in (("user_error", True), ("agent_error", False), ("max_steps", False)):
        try:
            [row] = NAMED["tau2-bench"].convert({**record, "termination_reason": name})
        except RolloutError:
            row = {}
        assert (not row) == broken


def test_tau2_bench_in_a_folder_names_its_simulations() -> None:
    record: dict[str, Any] = {"info": {}, "tasks": [], "simulation_index": []}
    assert NAMED["tau2-bench"].matches(record)
    with pytest.raises(RolloutError, match="folder simulations/"):
        list(NAMED["tau2-bench"].convert(record))


def test_swe_agent_with_tool_calls() -> None:
    [row] = converted("swe-agent/function_calling.traj")
    given = records("swe-agent/function_calling.traj")[0]
    calls = [item["tool_calls"][0] for item in given["history"] if item.get("tool_calls")]
    assert row == {
        "messages": [
            system("You fix bugs."),
            user("ISSUE: the depth of kelp is wrong."),
            assistant("I look around.", calls[0], reasoning_content="Files first."),
            tool("call_1", "kelp.py"),
            assistant(None, calls[1]),
            tool("call_2", PATCH),
        ],
        "group": "reef__kelp-12",
        "instance_id": "reef__kelp-12",
        "exit_status": "submitted",
        "submission": PATCH,
        "model_stats": given["info"]["model_stats"],
        "swe_agent_version": "1.1.0",
        "environment": "main",
    }


def test_swe_agent_whose_actions_are_text() -> None:
    [row] = converted("swe-agent/text_0.7.traj")
    listing = '{"command":"ls\\n"}'
    assert row["messages"] == [
        system("You fix bugs."),
        user("ISSUE: the depth of kelp is wrong."),
        assistant("I look around.\n", call("command_1", "bash", listing)),
        tool("command_1", "kelp.py\n(Open file: n/a)"),
        assistant("Again.\n", call("command_2", "bash", listing)),
        tool("command_2", "kelp.py\n(Open file: n/a)"),
    ]
    assert select([row], "group", "exit_status") == [(None, "submitted (exit_cost)")]
    assert ActionLoopDetectionGrader().evaluate(row["messages"]).score == 0.0
    assert converted("swe-agent/broken.traj") == [
        "the run failed (exit_status exit_environment_error)"
    ]


@pytest.mark.parametrize(
    "name", ["swe-agent/function_calling.traj", "mini-swe-agent/toolcalls.traj.json"]
)
def test_a_run_that_was_cut_off_is_no_sample(name: str) -> None:
    [record] = records(name)
    cut = {**record, "info": {**record["info"], "exit_status": None}}
    with pytest.raises(RolloutError, match="did not end"):
        list(NAMED[name.partition("/")[0]].convert(cut))


def test_mini_swe_agent_with_tool_calls() -> None:
    [row] = converted("mini-swe-agent/toolcalls.traj.json")
    given = records("mini-swe-agent/toolcalls.traj.json")[0]
    calls = [item["tool_calls"][0] for item in given["messages"] if item.get("tool_calls")]
    assert row == {
        "messages": [
            system("You fix bugs."),
            user(ISSUE),
            assistant(None, calls[0], reasoning_content="Files first."),
            tool("call_1", "<returncode>0</returncode>\n<output>\nkelp.py\n</output>"),
            assistant("I am done.", calls[1]),
        ],
        "group": "reef__kelp-12",
        "instance_id": "reef__kelp-12",
        "exit_status": "Submitted",
        "submission": PATCH,
        "model_stats": {"instance_cost": 0.05, "api_calls": 2},
        "model": "test/coder-1",
        "mini_version": "2.1.0",
    }


def test_mini_swe_agent_in_its_other_forms() -> None:
    [text] = converted("mini-swe-agent/text_v1.traj.json")
    block = "THOUGHT: look.\n\n```bash\nls\n```"
    assert text["messages"] == [
        system("You fix bugs."),
        user(ISSUE),
        assistant(block, call("command_1", "bash", '{"command":"ls"}')),
        tool("command_1", "<returncode>0</returncode>\n<output>\nkelp.py\n</output>"),
        assistant("No block here."),
        user("Please always provide EXACTLY ONE action."),
    ]
    [responses] = converted("mini-swe-agent/responses.traj.json")
    assert responses["messages"] == [
        system("You fix bugs."),
        user(ISSUE),
        assistant(None, call("call_7", "bash", '{"command": "ls"}')),
        tool("call_7", "<returncode>0</returncode>"),
        assistant("Done."),
    ]
    assert converted("mini-swe-agent/broken.traj.json") == ["the run failed: the provider is down"]


def test_tables_of_swe_trajectories() -> None:
    first, broken = converted("swe-rows/texts.jsonl")
    assert first == {
        "messages": [
            system("You fix bugs."),
            user("ISSUE: the depth of kelp is wrong."),
            assistant("I look around.\n", call("command_1", "bash", '{"command":"ls\\n"}')),
            tool("command_1", "kelp.py"),
            assistant("I am lost."),
        ],
        "group": "reef__kelp-12",
        "env_reward": 1.0,
        "instance_id": "reef__kelp-12",
        "exit_status": "submitted (exit_context)",
        "submission": PATCH[:31],
        "model": "coder-test",
    }
    assert broken == "the run failed (exit_status exit_environment_error)"
    [row] = converted("swe-rows/messages.jsonl")
    assert row["messages"] == records("swe-rows/messages.jsonl")[0]["trajectory"]
    assert ActionLoopDetectionGrader().evaluate(row["messages"]).metadata["calls"] == 1
    assert select([row], "group", "env_reward", "submission", "repo") == [
        ("reef__kelp-12", 0.0, PATCH[:31], "reef/kelp")
    ]


STARFISH = [system("Answer with a number."), user("Question: How many arms has a starfish?")]


def test_inspect() -> None:
    rows = converted("inspect/log.json")
    first = {
        "messages": [*STARFISH, assistant("5")],
        "prompt": "How many arms has a starfish?",
        "response": "5",
        "reference": "5",
        "group": "dcb80887a637f9ee/star-1",
        "env_reward": 1.0,
        "sample_id": "star-1",
        "epoch": 1,
        "model": "test/answers-1",
        "scores": {"match": 1.0},
        "scored_answer": "5",
        "metadata": {"topic": "sea"},
    }
    assert rows[0] == {**first, "task": "starfish"}
    assert rows[1]["messages"] == [*STARFISH, assistant("6", reasoning_content="Perhaps six.")]
    assert rows[2]["messages"] == [
        user("Has an urchin arms?"),
        assistant(None, call("call_1", "look_up", '{"animal":"urchin"}')),
        tool("call_1", "Command timed out."),
        assistant("I do not know."),
    ]
    assert select(rows[1:], "group", "epoch", "env_reward", "scores", "reference", "limit") == [
        ("dcb80887a637f9ee/star-1", 2, 0.0, {"match": 0.0}, "5", "token"),
        (
            "89ea253ff5b52075/star-2",
            1,
            None,
            {"match": 0.0, "model_graded_qa": 0.5},
            ["yes", "no"],
            None,
        ),
        "samples.3: the sample failed: RateLimitError('try later')",
        ("11698bc64e17d6ff/star-4", 1, None, {"drawing": None}, None, None),
    ]
    assert converted("inspect/samples/star-1_epoch_1.json") == [first]
    [old] = converted("inspect/first_version_sample.json")
    assert old == {**first, "scores": {"score": 1.0}}


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
    samples = [sample for _, sample in read_samples([log])]
    assert [getattr(sample, "env_reward", str(sample)[-52:]) for sample in samples] == [
        1.0,
        None,
        "_1.json: the sample failed: RateLimitError('try later')"[-52:],
    ]


@pytest.mark.parametrize(
    ("value", "number"),
    [("C", 1.0), ("P", 0.5), ("N", 0.0), ("yes", 1.0), ("0.25", 0.25), (True, 1.0), (3, 3.0)]
    + [(value, None) for value in ("nan", "great", float("nan"), None, [1, 0], {"a": 1})],
)
def test_scores_of_inspect_are_numbers_as_it_reads_them(value: Any, number: float | None) -> None:
    [record] = records("inspect/samples/star-1_epoch_1.json")
    row = only_row("inspect", {**record, "scores": {"own": {"value": value}}})
    assert row.get("env_reward") == number


def test_lm_eval_generation() -> None:
    name = "lm-eval/samples_fish_2026-03-01T10-00-00.jsonl"
    rows = converted(name)
    strict = records(name)[0]
    assert rows[0] == {
        "prompt": strict["arguments"]["gen_args_0"]["arg_0"],
        "response": "There are 12 fish. #### 12",
        "filtered_response": "12",
        "reference": "12",
        "group": "d000000000000000 strict-match",
        "env_reward": 1.0,
        "exact_match": 1.0,
        "doc_id": 0,
        "doc": strict["doc"],
        "filter": "strict-match",
    }
    # Another filter; two answers, of which the metrics are together; a metric that is lower better.
    assert select(rows[1:], "group", "response", "env_reward", "sample") == [
        ("d000000000000000 flexible-extract", "There are 12 fish. #### 12", 0.0, None),
        ("d000000000000000", "12", None, 0),
        ("d000000000000000", "13", None, 1),
        ("d000000000000000", "A dozen.", None, None),
    ]
    assert rows[3]["messages"] == [user(strict["doc"]["question"]), assistant("13")]


def test_lm_eval_without_arguments_has_its_input() -> None:
    """As lmms-eval writes its samples."""
    [record, *_] = records("lm-eval/samples_fish_2026-03-01T10-00-00.jsonl")
    row = only_row("lm-eval", {**record, "arguments": [], "input": "How many?"})
    assert (row["prompt"], row["response"]) == ("How many?", "There are 12 fish. #### 12")


@pytest.mark.parametrize(
    ("target", "reference"),
    [
        ("['Lima', \"Lima's\"]", ["Lima", "Lima's"]),
        ("['Lima']", "Lima"),
        ("[1, 2]", "[1, 2]"),
        ("['a", "['a"),
        ("['a'] + ['b']", "['a'] + ['b']"),
        ("", None),
    ],
)
def test_targets_of_lm_eval(target: str, reference: Any) -> None:
    """It writes ``str(target)``; several accepted answers are a list."""
    [record, *_] = records("lm-eval/samples_fish_2026-03-01T10-00-00.jsonl")
    row = only_row("lm-eval", {**record, "target": target})
    assert row.get("reference") == reference


def test_lm_eval_choices() -> None:
    choice, rolling = converted("lm-eval/samples_limpets_2026-03-01T10-00-00.jsonl")
    assert choice == {
        "prompt": "Question: What do limpets eat?\nAnswer:",
        "response": "algae",
        "reference": "algae",
        "group": "d000000000000000",
        "env_reward": 1.0,
        "acc": 1.0,
        "acc_norm": 0.0,
        "choices": ["algae", "fish"],
        "log_likelihoods": [-1.5, -4.25],
        "doc_id": 0,
        "doc": {"question": "What do limpets eat?", "choices": ["algae", "fish"]},
        "filter": "none",
    }
    assert rolling == "has log-likelihoods of texts that are given, and no answer"


def test_openai_chat_lines_are_read_by_their_column() -> None:
    """As for fine-tuning: adjudge's own column, so they need no format; either form of calls."""
    path = DATA / "openai-chat/fine_tuning.jsonl"
    samples = [sample for _, sample in read_samples([path])]
    rows = [row for _, row in read_file(path, path.name)]
    for sample, row in zip(samples, rows, strict=True):
        assert isinstance(sample, Sample)
        assert isinstance(row, dict)
        assert [one["content"] for one in sample.messages or ()] == [
            one["content"] for one in row["messages"]
        ]
        assert not any(one.matches(row) for one in NAMED.values())
        assert ActionLoopDetectionGrader().evaluate(sample.messages).metadata["calls"] == 1


def test_openai_batch_of_chat_completions() -> None:
    rows = converted("openai-batch/output.jsonl")
    assert rows[0] == {
        "messages": [assistant("High water is at noon.")],
        "response": "High water is at noon.",
        "group": "tide-1",
        "custom_id": "tide-1",
        "model": "gpt-test-1",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
    }
    looked_up = call("call_1", "tide_at", '{"port": "Marrow Bay"}')
    assert select(rows[1:], "group", "sample", "messages") == [
        ("tide-2", 0, [assistant("At six.")]),
        "choices.1: the message has no content (finish_reason: content_filter)",
        ("tide-2", 2, [assistant("At seven.")]),
        ("tide-3", None, [assistant(None, looked_up)]),
        ("tide-4", None, [assistant("I cannot help with that.")]),
        (
            "the request failed with status 400: invalid_request_error: model_not_found: "
            "Invalid value: 'gpt-tset'."
        ),
        (
            "the request failed: batch_expired: This request could not be executed before the "
            "completion window expired."
        ),
    ]
    assert converted("openai-batch/requests.jsonl") == [
        "is a request of the batch. Give the batch's output file."
    ]


def test_openai_batch_line_with_its_request() -> None:
    [answered, *_] = records("openai-batch/output.jsonl")
    [request] = records("openai-batch/requests.jsonl")
    row = only_row("openai-batch", {**request, **answered})
    assert row["messages"] == [user("When is high water?"), assistant("High water is at noon.")]


def test_batches_of_every_endpoint_have_their_prompts() -> None:
    """Those of the Responses API and of completions, too; answers to one prompt are a group."""
    request = {"method": "POST", "url": "/v1/responses"}
    asked = {"instructions": "Be brief.", "input": "Which tide?"}
    [answered, *_] = records("openai-batch/responses.jsonl")
    rows: list[Any] = []
    for name in ("a-0", "a-1"):
        joined = {**answered, **request, "custom_id": name, "body": asked}
        rows += NAMED["openai-batch"].convert(joined)
    assert rows[0]["messages"][:2] == [system("Be brief."), user("Which tide?")]
    assert rows[0]["group"] == rows[1]["group"] != rows[0]["custom_id"]
    # The question and the answer are the last ones, and nothing that was said before.
    history = [user("Hello"), assistant("Hi"), user("Which tide?")]
    silent = {"role": "assistant", "content": None, "tool_calls": [call("c", "tide_at", "{}")]}
    body = {"object": "chat.completion", "choices": [{"message": silent}]}
    line = {"custom_id": "c", "response": {"status_code": 200, "body": body}, "error": None}
    [row] = NAMED["openai-batch"].convert({**line, **request, "body": {"messages": history}})
    assert select([row], "prompt", "response") == [("Which tide?", "")]
    former = {"content": None, "function_call": {"name": "tide_at", "arguments": "{}"}}
    body = {"object": "chat.completion", "choices": [{"message": former}]}
    [row] = NAMED["openai-response"].convert(body)
    assert select([row], "messages") == [([assistant(None, call("", "tide_at", "{}"))],)]
    [_, completion] = records("openai-response/completions.jsonl")
    response = {"status_code": 200, "body": completion}
    line = {"custom_id": "c", "response": response, "error": None}
    row = only_row("openai-batch", {**line, **request, "body": {"prompt": "High water is"}})
    assert (row["prompt"], row["response"]) == ("High water is", " at noon.")


def test_calls_in_the_requests_of_anthropic_are_tool_calls() -> None:
    [answered, *_] = records("anthropic-batch/results.jsonl")
    use = {"type": "tool_use", "id": "t1", "name": "tide_at", "input": {"port": "Kel"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"text": "noon"}]}
    asked = {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            user("Which tide?"),
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
        ],
    }
    row = only_row("anthropic-batch", {**answered, "params": asked})
    assert row["messages"] == [
        system("Be brief."),
        user("Which tide?"),
        assistant("I look.", call("t1", "tide_at", '{"port":"Kel"}')),
        tool("t1", "noon"),
        user("And now?"),
        assistant("Gulls nest on cliffs."),
    ]
    assert (row["prompt"], row["response"]) == ("And now?", "Gulls nest on cliffs.")
    begun = {"messages": [user("Which tide?"), assistant("Well: ")]}
    row = only_row("anthropic-batch", {**answered, "params": begun})
    assert row["messages"] == [user("Which tide?"), assistant("Well: Gulls nest on cliffs.")]
    assert row["response"] == "Well: Gulls nest on cliffs."


def test_openai_batch_of_responses() -> None:
    rows = converted("openai-batch/responses.jsonl")
    thought = {"reasoning_content": "Full moon, so a spring tide."}
    phase = call("call_5", "moon_phase", '{"day": 3}')
    assert select(rows, "group", "status", "messages") == [
        ("moon-1", "completed", [assistant("A spring tide.", **thought)]),
        ("moon-2", "completed", [assistant(None, phase)]),
        "the response has no text (status: incomplete, reason: max_output_tokens)",
        "the request failed: server_error: The model could not answer.",
    ]


def test_openai_completions() -> None:
    rows = converted("openai-response/completions.jsonl")
    assert select(rows, "group", "messages", "response", "finish_reason") == [
        ("chatcmpl-a1", [assistant("Low water is at six.")], "Low water is at six.", "stop"),
        ("cmpl-7", None, " at noon.", "length"),
    ]


def test_anthropic_batch() -> None:
    rows = converted("anthropic-batch/results.jsonl")
    assert rows[0] == {
        "messages": [assistant("Gulls nest on cliffs.")],
        "response": "Gulls nest on cliffs.",
        "group": "gull-1",
        "custom_id": "gull-1",
        "model": "claude-test-1",
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 11, "output_tokens": 7},
    }
    count = call("toolu_1", "count_gulls", '{"cliff":"north"}')
    thought = {"reasoning_content": "I need the count."}
    assert select(rows[1:], "group", "messages") == [
        ("gull-2", [assistant("I look it up.", count, **thought)]),
        "the request failed: invalid_request_error: max_tokens: Field required",
        "the request has no message (result: expired)",
        "the request has no message (result: canceled)",
    ]
