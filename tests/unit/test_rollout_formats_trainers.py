"""Dumps of trainers as rows.

The verl, TRL, verifiers 0.4 and slime samples are what the libraries' own writers made of invented
content (verl 0.6.1 and 0.9.1, TRL 1.16, slime's ``Sample``); the others follow their sources.
"""

from pathlib import Path

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

from adjudge.errors import RolloutError
from adjudge.intake.conversation import read_messages
from adjudge.intake.rendered import read_rendered_prompt
from adjudge.rollouts.formats.completions import completion_row
from adjudge.rollouts.samples import read_samples
from adjudge.types import Sample

COLOUR = [system("Be brief."), user("Name a colour.")]


def test_verl_0_6_has_a_template_in_its_input_and_no_group() -> None:
    [right, wrong, plain] = converted("verl-rollouts/0.6-train-5.jsonl")
    chat = [system("You are a helpful assistant."), user("What is 2 + 2?")]
    assert right == {
        "messages": [*chat, assistant("It is 4.")],
        "prompt": "What is 2 + 2?",
        "response": "It is 4.",
        "reference": "4",
        "group": "5/88b96687e5d22b9d",
        "env_reward": 1.0,
        "score": 1.0,
        "step": 5,
        "acc": True,
        "pred": "4",
    }
    assert wrong["group"] == right["group"] != plain["group"]
    # A score of NaN is a reward that is missing, and a text without a template stays as it is.
    assert plain == {
        "prompt": "Once upon a time",
        "response": " there was a cat.",
        "group": "5/e4b6f49f92512aa4",
        "score": None,
        "step": 5,
        "acc": None,
        "pred": None,
    }


def test_verl_validation_says_its_score_twice() -> None:
    [row] = converted("verl-rollouts/0.6-validation-10.jsonl")
    assert (row["env_reward"], row["reward"], row["acc"]) == (1.0, 1.0, 1.0)
    assert row["response"] == "<think>three threes</think>9"


def test_verl_0_9_has_the_group_in_its_uid() -> None:
    [first, second, other] = converted("verl-rollouts/0.9-train-7.jsonl")
    assert first["group"] == second["group"] == "7/0b5a2c1e-8f1d-4a57-9d0a-6a6f8a8a1c11"
    assert first["uid"] == "0b5a2c1e-8f1d-4a57-9d0a-6a6f8a8a1c11_0_0"
    assert first["prompt"] == "Who wrote Faust?"
    assert "env_reward" not in second
    # Its question has a line "user": where the roles begin is not certain.
    assert other["prompt"] == "user\nWhat does the line\nuser\nmean?\nassistant\n"
    assert "messages" not in other


def test_verl_messages_of_a_reward_function_say_more_than_the_texts() -> None:
    [record, *_] = records("verl-rollouts/0.6-train-5.jsonl")
    row = only_row("verl-rollouts", {**record, "messages": [*COLOUR, assistant("Red")]})
    assert row["messages"] == [*COLOUR, assistant("Red")]
    assert "prompt" not in row
    assert "response" not in row


def test_trl_texts_with_one_reward_function() -> None:
    [right, wrong, unscored] = converted("trl-completions/completions_00005.parquet")
    assert right == {
        "prompt": "The sky is",
        "response": " blue.",
        "group": "5/c03b1992979e6eee",
        "step": 5,
        "truth_reward": 1.0,
        "advantage": 0.7,
    }
    assert wrong["group"] == right["group"] != unscored["group"]


def test_trl_chats_with_tools_and_two_reward_functions() -> None:
    [row, _] = converted("trl-completions/completions_00010.parquet")
    assert row == {
        "messages": [
            *(system("Use the tools."), user("Add 2 and 3.")),
            assistant(None, call("", "add", '{"a":2,"b":3}')),
            *({"role": "tool", "name": "add", "content": "5"}, assistant("It is 5.")),
        ],
        "prompt": "Add 2 and 3.",
        "response": "It is 5.",
        "group": "10/aed78b9d127ee578",
        "step": 10,
        "right": 1.0,
        "brief": 0.5,
        "gold": "5",
        "advantage": 1.0,
    }


def test_the_same_prompt_in_two_steps_is_two_groups() -> None:
    record = {"prompt": "p", "completion": "c", "right": 1.0, "advantage": 0.0}
    rows = [next(iter(NAMED["trl-completions"].convert({**record, "step": n}))) for n in (1, 2)]
    assert len({str(row["group"]) for row in rows if isinstance(row, dict)}) == 2


def test_a_line_of_ms_swift_is_a_step() -> None:
    [red, seven, plain, blue, gone] = converted("ms-swift-completions/completions.jsonl")
    assert red == {
        "messages": [*COLOUR, assistant("Red")],
        "prompt": "Name a colour.",
        "response": "Red",
        "reference": "red",
        "group": "12/fa20ffa13d85e4b4",
        "step": 12,
        "ColourORM": 1.0,
        "advantages": 0.7,
        "entropy": 0.3,
    }
    assert seven["group"] == red["group"] != plain["group"]
    assert (blue["A"], blue["B"], blue["step"]) == (1.0, 0.5, 13)
    assert gone == "completion.1: there is no response"


def test_ms_swift_with_ray_writes_a_line_a_sample() -> None:
    [green, plain] = converted("ms-swift-completions/ray.jsonl")
    assert (green["response"], green["step"]) == ("Green", 2)
    assert plain["prompt"] == "user: hi\n"


def test_areal() -> None:
    [red, seven] = converted("areal-rollouts/12.jsonl")
    assert (red["response"], red["env_reward"]) == ("Red", 1.0)
    assert red["group"] == seven["group"] == "12/fa20ffa13d85e4b4"
    assert (seven["head_version"], seven["tail_version"]) == (4, 4)
    # One ended with newer weights; its reward was replaced by the distance from the group's mean.
    record = records("areal-rollouts/12.jsonl")[0]
    newer = {**record, "tail_version": 5, "reward": 0.5, "original_reward": 1.0}
    row = only_row("areal-rollouts", newer)
    assert (row["group"], row["env_reward"]) == (red["group"], 1.0)


def test_slime_samples() -> None:
    [no, yes, aborted, alone] = converted("slime-samples/converted.jsonl")
    assert no == {
        "messages": [user("Is 91 prime?"), assistant("No, 7 * 13.")],
        "prompt": "Is 91 prime?",
        "response": "No, 7 * 13.",
        "reference": "no",
        "group": "4/3",
        "env_reward": 1.0,
        "step": 4,
        "status": "completed",
        "metadata": {"level": 1},
    }
    # Which part of a reward with two numbers is learned from stands in no dump.
    assert (yes["score"], yes["acc"], yes["pred"]) == (-1.0, 0.0, "yes")
    assert "env_reward" not in yes
    assert aborted == "the rollout did not end (its status is 'aborted')"
    assert alone["acc"] == 1.0


def test_a_slime_dump_as_a_document() -> None:
    [yes, failed] = converted("slime-samples/eval_4.json")
    assert (yes["step"], yes["group"], yes["reference"]) == (4, "4/9a6f8d845bb3e0e2", "yes")
    assert not {"tokens", "loss_mask", "rollout_log_probs"} & yes.keys()
    assert failed == "samples.1: the rollout did not end (its status is 'failed')"


def test_openrlhf() -> None:
    [hi, no] = converted("openrlhf-inference/rewards.jsonl")
    assert hi["messages"][0] == {"role": "user", "content": "Say hi."}
    assert no == {"prompt": "Say hi.", "response": "No.", "env_reward": -1.0, "reward": -1.0}


def test_verifiers_results_have_calls_as_json_texts() -> None:
    [found, guessed] = converted("verifiers-results/0.1.8.jsonl")
    assert found == {
        "messages": [
            *(system("Search first."), user("Where is Lima?")),
            assistant("", call("c1", "search", '{"q": "Lima"}')),
            *(tool("c1", "Peru"), assistant("In Peru.")),
        ],
        "prompt": "Where is Lima?",
        "response": "In Peru.",
        "reference": "Peru",
        "group": "geo/4",
        "env_reward": 1.2,
        "reward": 1.2,
        "example_id": 4,
        "task": "geo",
        "info": {"source": "atlas"},
        "correct_reward": 1.0,
        "brevity": 0.2,
        "generation_ms": 812.5,
        "scoring_ms": 3.0,
        "total_ms": 815.5,
    }
    assert (guessed["group"], guessed["env_reward"]) == ("geo/4", 0.2)


def test_a_failed_rollout_of_verifiers_has_no_reward_of_zero() -> None:
    [found, failed] = converted("verifiers-results/0.1.14.jsonl")
    assert found["messages"][2]["tool_calls"][0]["function"]["name"] == "search"
    assert (found["group"], found["correct"], "tool_defs" in found) == ("9", 1.0, False)
    assert failed == "the rollout failed: ModelError('overloaded')"
    [text] = converted("verifiers-results/text.jsonl")
    assert (text["prompt"], text["response"], text["group"]) == (
        "The sea is",
        " wide.",
        "default/0",
    )


def test_verifiers_episodes() -> None:
    [right, branched, failed, solver, critic] = converted("verifiers-traces/0.4-episodes.jsonl")
    multiply = call("c1", "multiply", '{"a": 6, "b": 7}')
    assert right == {
        "messages": [
            *(system("Use the tools."), user("What is 6 * 7?")),
            assistant(None, multiply, reasoning_content="a product"),
            *(tool("c1", "42"), assistant("It is 42.")),
        ],
        "prompt": "What is 6 * 7?",
        "response": "It is 42.",
        "reference": "42",
        "group": "12/5f0e8d7a",
        "env_reward": 1.1,
        "step": 12,
        "right": 1.0,
        "brief": 0.5,
        "turns": 2.0,
        "id": "c50b1078920644bda0c9e75d64e470f8",
        "stop_condition": "agent_completed",
        "is_timeout": False,
    }
    assert [message["content"] for message in branched["messages"]][-1] == "It is 41."
    assert (branched["group"], branched["env_reward"]) == ("12/5f0e8d7a", 0.2)
    assert failed == "the rollout failed: ProviderError: the server is away"
    # Agents of one episode answer different questions.
    assert (solver["group"], critic["group"]) == ("solver/math-0", "critic/math-0")
    assert (critic["prompt"], critic["response"], critic["agent"]) == (
        "Is 42 right?",
        "Yes.",
        "critic",
    )


def test_verifiers_traces_without_episodes() -> None:
    [row, failed] = converted("verifiers-traces/0.2-traces.jsonl")
    assert (row["prompt"], row["response"]) == ("Capital of Peru?", "Yes: Lima.")
    assert (row["env_reward"], row["exact"], row["polite"]) == (0.75, 1.0, -0.25)
    assert (row["group"], row["reference"], row["num_turns"]) == ("8/3", ["Lima"], 2)
    assert failed == "the rollout failed: SandboxError: no sandbox"


def test_a_trace_nobody_scored_has_no_reward() -> None:
    [episode, *_] = records("verifiers-traces/0.4-episodes.jsonl")
    part = {"score": 1.0}
    for rewards in (
        *({}, {"right": None}, {"right": {"weight": 1.0}}),
        *({"right": part, "brief": None}, {"right": part, "brief": {"score": float("nan")}}),
    ):
        episode["traces"][0]["rewards"] = rewards
        [row] = NAMED["verifiers-traces"].convert(episode)
        assert isinstance(row, dict)
        assert "env_reward" not in row


def test_nodes_that_go_round_are_refused() -> None:
    nodes = [{"parent": 1, "message": {"role": "user", "content": "a"}}] * 2
    record = {"task": {}, "nodes": nodes, "rewards": {}}
    with pytest.raises(RolloutError, match="a 'parent' is no node before it"):
        list(NAMED["verifiers-traces"].convert(record))


def test_nemo_gym_items_become_messages() -> None:
    [five, four, empty, failed] = converted("nemo-gym-rollouts/rollouts.jsonl")
    add = call("call_1", "add", '{"a": 2, "b": 3}')
    assert five == {
        "messages": [
            *(system("Be exact."), user("Add 2 and 3.")),
            assistant(None, add, reasoning_content="a sum"),
            *(tool("call_1", "5"), assistant("It is 5.")),
        ],
        "prompt": "Add 2 and 3.",
        "response": "It is 5.",
        "reference": "5",
        "group": "calculator/ecf6d56e2730f956/0",
        "env_reward": 1.0,
        "agent": "calculator",
        "reward": 1.0,
        "extracted_answer": "5",
        "_ng_task_index": 0,
        "_ng_rollout_index": 1,
    }
    assert (four["prompt"], four["env_reward"], "group" in four) == ("Name a prime.", 0.0, False)
    assert empty == "response.output: is empty: no response was made"
    assert failed == "the rollout failed: server_error: overloaded"
    assert converted("nemo-gym-rollouts/rollouts_failures.jsonl") == [
        "the rollout failed: judge_failed"
    ]


def test_a_masked_sample_of_nemo_gym_has_no_reward() -> None:
    """Its environment failed: the reward of 0 is of nobody's answer."""
    record = records("nemo-gym-rollouts/rollouts.jsonl")[0]
    row = only_row("nemo-gym-rollouts", {**record, "reward": 0.0, "mask_sample": True})
    assert "env_reward" not in row


def test_a_run_folder_has_rewards_and_no_texts() -> None:
    [why] = converted("adjudge-rewards/rewards.jsonl")
    assert "Give the file that adjudge grade graded" in why


def test_lists_of_responses() -> None:
    found = [sample for _, sample in read_samples([DATA / "responses/generation.parquet"])]
    [four, gone, five] = found
    assert isinstance(four, Sample)
    assert isinstance(five, Sample)
    assert (four.prompt, four.response, four.reference) == ("2 + 2?", "4", "4")
    assert (four.group, five.group) == ("row 0", "row 0")
    assert (five.extra["sample"], five.extra["data_source"]) == (2, "math")
    assert str(gone).endswith("responses.1: is null: no response was made")
    lines = [sample for _, sample in read_samples([DATA / "responses/responses.jsonl"])]
    assert [getattr(one, "messages", None) for one in lines] == [
        getattr(one, "messages", None) for one in found
    ]


@pytest.mark.parametrize(
    ("file", "rewards", "group"),
    [
        ("completions", [1.0, None], "row 0"),
        ("generations", [1.0, 0.0], "row 0"),
        ("outputs", [None], "g1"),
    ],
)
def test_lists_by_other_names(file: str, rewards: list[float | None], group: str) -> None:
    samples = [sample for _, sample in read_samples([DATA / f"responses/{file}.jsonl"])]
    assert [getattr(one, "env_reward", None) for one in samples] == rewards
    assert {getattr(one, "group", None) for one in samples} == {group}


def test_references_of_a_benchmark_are_no_responses(tmp_path: Path) -> None:
    path = tmp_path / "ruler.jsonl"
    path.write_text('{"prompt": "p", "output": "a", "outputs": ["b", "c"]}\n')
    [(_, sample)] = read_samples([path], {"response": "output"})
    assert isinstance(sample, Sample)
    assert (sample.response, sample.extra["outputs"]) == ("a", ["b", "c"])


def test_nan_in_a_line_is_null(tmp_path: Path) -> None:
    path = tmp_path / "5.jsonl"
    path.write_text('{"input": "NaN", "output": "o", "score": NaN, "step": 5, "x": -Infinity}\n')
    [(_, sample)] = read_samples([path])
    assert isinstance(sample, Sample)
    assert (sample.prompt, sample.env_reward) == ("NaN", None)
    assert sample.extra == {"score": None, "step": 5, "x": None}


CHATML = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        (CHATML, ["user"]),
        (CHATML + "<think>\n", ["user"]),
        (CHATML + "Sure, ", None),  # a beginning of the answer
        ("Look: " + CHATML, None),
        (CHATML.replace("<|im_end|>", ""), None),
        (CHATML.replace("user", "stranger"), None),
        (CHATML.replace("Hi", "Hi<|im_end|> there"), None),
        ("system\ns\nuser\nu\nassistant\n", ["system", "user"]),
        ("user\nu\nassistant\n<think>\n\n</think>\n\n", ["user"]),
        ("user\nu\nassistant\na\nuser\nb\nassistant\n", None),
        ("user\nu", None),
        ("assistant\n", None),
        ("", None),
    ],
)
def test_rendered_prompts(text: str, roles: list[str] | None) -> None:
    found = read_rendered_prompt(text)
    assert (None if found is None else [message["role"] for message in found]) == roles


def test_only_the_end_of_the_message_is_cut_from_a_response() -> None:
    assert completion_row(CHATML, "Hello<|im_end|>\n")["response"] == "Hello"
    assert completion_row(CHATML, "a<|im_end|>b\n")["response"] == "a<|im_end|>b\n"


def test_items_of_other_tools_are_calls_by_their_type() -> None:
    items = [
        {"type": "web_search_call", "id": "w1", "action": {"query": "Lima"}},
        {"type": "item_reference", "id": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]},
    ]
    [searched, refusal] = read_messages(items, "output")
    assert searched["tool_calls"] == [call("w1", "web_search_call", '{"query":"Lima"}')]
    assert refusal == assistant("No")
    custom = {"id": "c0", "type": "custom", "custom": {"name": "run", "input": "1 + 1"}}
    [turn] = read_messages([{"role": "assistant", "tool_calls": [custom]}], "m")
    assert turn["tool_calls"][0]["function"] == {"name": "run", "arguments": "1 + 1"}
    code = {"type": "code_interpreter_call", "id": "c1", "code": "1 + 1", "outputs": None}
    [ran] = read_messages([code], "output")
    assert ran["tool_calls"][0]["function"]["arguments"] == '{"code":"1 + 1"}'
