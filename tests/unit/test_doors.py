"""The table of rollouts through every door that needs no trainer: the samples are the same."""

import asyncio
import json
import re
import sys
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MethodType, ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import doors
from tests.doors import LIMIT, SPEC, Characters, Door, Rollout, Talk, columns_of, looking
from tests.unit.test_areal_adapter import logged  # noqa: F401  (a fixture)
from tests.unit.test_slime_adapter import Sample as SlimeSample
from tests.unit.test_slime_adapter import Status, arguments

from adjudge import grade, make_reward
from adjudge.client.grader import fields_to_request
from adjudge.errors import RolloutError
from adjudge.intake.conversation import read_messages
from adjudge.intake.samples import compute_prompt_key
from adjudge.rollouts.samples import SampleReader, sample_from_row
from adjudge.service.backends.conversion import request_to_sample
from adjudge.trainers import openrlhf, roll, skyrl
from adjudge.trainers.recorder import FlightRecorder
from adjudge.types import Sample
from adjudge.wire import JudgeRequest

# --- rows, and the function of a spec -------------------------------------------------------------


def rows(make: Any) -> Any:
    """A door of rows in memory."""

    def give(rollouts: list[Rollout]) -> list[Sample]:
        with looking() as found:
            table = [{**one.columns, **make(one)} for one in rollouts]
            assert grade(table, SPEC, progress=False).broken == []
        return found

    return give


def messages_row(one: Rollout) -> dict[str, Any]:
    return {"messages": one.talk, "opening_turns": len(one.before)}


def prompt_row(one: Rollout) -> dict[str, Any]:
    return {"prompt": one.shown, "response": one.response if one.is_text else one.said}


def give_file(rollouts: list[Rollout]) -> list[Sample]:
    with TemporaryDirectory() as folder, looking() as found:
        lines = [json.dumps(one.columns | messages_row(one)) for one in rollouts]
        (path := Path(folder) / "rollouts.jsonl").write_text("\n".join(lines))
        assert grade(path, SPEC, progress=False).broken == []
    return found


def give_function(rollouts: list[Rollout]) -> list[Sample]:
    both = [one.shown for one in rollouts], [one.said for one in rollouts]
    with looking() as found:
        make_reward(SPEC)(*both, **columns_of(rollouts))
    return found


def give_service(rollouts: list[Rollout]) -> list[Sample]:
    requests = [fields_to_request(one.fields()) for one in give_function(rollouts)]
    bodies = map(msgspec.json.encode, requests)
    return [request_to_sample(msgspec.json.decode(one, type=JudgeRequest)) for one in bodies]


# --- TRL ------------------------------------------------------------------------------------------


def encode(one: Rollout, text: str) -> list[int]:
    return Characters(one.special).encode(text)


def read_back(one: Rollout) -> str:
    """What a trainer decodes of the policy's turn, without special tokens."""
    return Characters(one.special).decode(encode(one, one.text), skip_special_tokens=True)


def call_trl(
    rollouts: list[Rollout],
    prompts: Any,
    completions: Any,
    ids: Any,
    record: Any = None,
    **more: Any,
) -> list[Sample]:
    opens, special = (any(getattr(one, name) for one in rollouts) for name in ("opens", "special"))
    trainer = SimpleNamespace(
        processing_class=Characters(special, opens), max_completion_length=LIMIT, eos_token_id=1,
        rollout_func=print if more else None, num_generations=1, num_generations_eval=1,
        model=SimpleNamespace(training=True), accelerator=SimpleNamespace(process_index=0),
    )  # fmt: skip
    log_metric = MethodType(lambda *_: None, trainer)
    told = {"trainer_state": SimpleNamespace(global_step=1), "log_metric": log_metric}
    reward = make_reward(SPEC, trainer="trl", record=record)
    with looking() as found:
        asyncio.run(reward(prompts, completions, ids, **told, **columns_of(rollouts), **more))
    return found


def give_chats(rollouts: list[Rollout], record: Any = None) -> list[Sample]:
    said = [doors.policy(read_back(one)) for one in rollouts]
    completions = [
        one.said if not one.is_text else turn["content"] if one.is_rendered else [turn]
        for one, turn in zip(rollouts, said, strict=True)
    ]
    ids = [encode(one, one.text if one.is_text else "a few turns") for one in rollouts]
    return call_trl(rollouts, [one.shown for one in rollouts], completions, ids, record)


def give_texts(rollouts: list[Rollout]) -> list[Sample]:
    ids = [encode(one, one.text) for one in rollouts]
    prompts = [one.rendered for one in rollouts]
    return call_trl(rollouts, prompts, list(map(read_back, rollouts)), ids)


def give_messages(rollouts: list[Rollout]) -> list[Sample]:
    prompts, blank = [one.shown for one in rollouts], ["(all turns)"] * len(rollouts)
    said = [one.said for one in rollouts]
    return call_trl(rollouts, prompts, blank, [[1]] * len(rollouts), messages=said)


def give_masks(rollouts: list[Rollout]) -> list[Sample]:
    ids, masks = [], []
    for one in rollouts:
        texts = [one.text] if one.is_text else [f"{turn['content']}<eos>" for turn in one.said]
        parts = [encode(one, text) for text in texts]
        ids.append(list(chain(*parts)))
        both = zip(one.said, parts, strict=True)
        masks.append([int(turn["role"] == "assistant") for turn, part in both for _ in part])
    prompts, blank = [one.shown for one in rollouts], ["(all turns)"] * len(rollouts)
    return call_trl(rollouts, prompts, blank, ids, tool_mask=masks)


def give_recorder(rollouts: list[Rollout]) -> list[Sample]:
    with TemporaryDirectory() as folder:
        give_chats(rollouts, recorder := FlightRecorder(folder))
        recorder.close()
        lines = (Path(folder) / "rollouts.jsonl").read_bytes().splitlines()
    return [sample_from_row(msgspec.json.decode(line), 0) for line in lines]


# --- plug-ins -------------------------------------------------------------------------------------


def each(give: Any) -> Any:
    """A door that one rollout at a time comes through."""

    def all_of_them(rollouts: list[Rollout]) -> list[Sample]:
        with looking() as found:
            for one in rollouts:
                give(one)
        return found

    return all_of_them


def give_slime(one: Rollout) -> None:
    status = Status.TRUNCATED if one.finish == "length" else Status.COMPLETED
    sample = SlimeSample(one.text, prompt=one.rendered, status=status, metadata={**one.columns})
    asyncio.run(make_reward(SPEC, trainer="slime")(arguments(), sample))


def give_openrlhf(one: Rollout) -> None:
    prompt, ids = encode(one, one.rendered), encode(one, one.text)

    async def generate() -> dict[str, Any]:
        span, cut = (len(prompt), len(prompt + ids)), one.finish == "length"
        return {"observation_tokens": prompt + ids, "action_ranges": [span], "truncated": cut}

    door = openrlhf.GroupExecution(SPEC, "dr_grpo")
    given = one.columns["answer"], SimpleNamespace(), Characters(one.special), generate()
    asyncio.run(door.execute(one.rendered, *given))


def give_swift(one: Rollout) -> None:
    args = {"scale_rewards": "none", "advantage_estimator": "grpo", "reward_funcs": ["adjudge"]}
    door = make_reward(SPEC, trainer="ms-swift")(args=SimpleNamespace(**args, num_generations=1))
    row = {"messages": [*one.before, doors.policy(read_back(one))], "finish_reason": one.finish}
    row |= {"prompt_id": "0", "request_id": "0", **one.columns}
    asyncio.run(door([""], **{name: [value] for name, value in row.items()}))


def give_skyrl(one: Rollout) -> None:
    answer = [doors.policy(read_back(one))]
    skyrl.SkyRLReward(SPEC).judge(one.before, answer, extra_info=one.columns)


def give_rllm(one: Rollout) -> None:
    output = SimpleNamespace(finish_reason=one.finish)
    steps = [
        SimpleNamespace(chat_completions=one.talk[: place + 1], model_output=output)
        for place, turn in enumerate(one.talk)
        if turn["role"] == "assistant" and place >= len(one.before)
    ]
    episode = SimpleNamespace(id="7:0", trajectories=[SimpleNamespace(steps=steps, reward=None)])
    task = SimpleNamespace(metadata=one.columns)
    make_reward(SPEC, trainer="rllm").evaluate(task, episode)


def give_areal(one: Rollout) -> None:
    tokenizer, ids = Characters(one.special), encode(one, one.text)
    workflow = make_reward(SPEC, trainer="areal", gconfig=None, tokenizer=tokenizer)
    row = one.columns if one.is_rendered else {"messages": one.before, **one.columns}
    asyncio.run(workflow.async_reward_fn(one.rendered, "text", [], ids, **row))


def give_roll(one: Rollout) -> None:
    prompt = Characters().decode(encode(one, one.rendered), skip_special_tokens=True)
    roll.RollAdapter(SPEC).score_rows([prompt], [read_back(one)], columns_of([one]))


def give_tinker(one: Rollout) -> None:
    judge = make_reward(SPEC, trainer="tinker-cookbook").judge
    asyncio.run(judge(one.shown, one.said, finish_reason=one.finish, **one.columns))


@pytest.fixture(autouse=True)
def trainers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the plug-ins take from AReaL and rLLM."""
    request.getfixturevalue("logged")
    for name in ("rllm", "rllm.eval", "rllm.eval.types"):
        module = ModuleType(name)
        vars(module).update(EvalOutput=SimpleNamespace, Signal=SimpleNamespace)
        monkeypatch.setitem(sys.modules, name, module)


DOORS = [
    Door("rows with a prompt", rows(prompt_row), "is_plain"),
    Door(
        "rows with a rendered prompt",
        rows(lambda one: {"prompt": one.rendered, "response": one.text}),
        "is_text",
    ),
    Door("rows with opening_turns", rows(messages_row), "is_plain"),
    Door(
        "rows with messages",
        rows(lambda one: {"messages": one.talk}),
        "is_plain",
        knows_opening=False,
    ),
    Door("a file", give_file, "is_plain"),
    Door("make_reward", give_function, "is_plain"),
    Door("the service", give_service, "is_plain"),
    Door("TRL, chats", doors.by_template(give_chats), finish=True),
    Door("TRL, texts", doors.by_template(give_texts), "is_text", finish=True),
    Door("TRL, messages of rollout_func", give_messages, "is_plain"),
    Door("TRL, tool_mask", doors.by_template(give_masks), "has_no_tool"),
    Door("the recorder", doors.by_template(give_recorder), finish=True),
    Door("slime", each(give_slime), "is_text", finish=True),
    Door("OpenRLHF", each(give_openrlhf), "is_text", finish=True),
    Door("AReaL", each(give_areal), "is_text"),
    Door("ms-swift", each(give_swift), "is_text is_plain", finish=True),
    Door("SkyRL", each(give_skyrl), "is_text is_plain"),
    Door("rLLM", each(give_rllm), "is_plain", finish=True),
    Door("ROLL", each(give_roll), "is_text"),
    Door("tinker-cookbook", each(give_tinker), "is_plain", finish=True),
]


@pytest.mark.parametrize(("door", "stratum"), doors.list_cells(DOORS))
def test_a_sample_is_the_same_through_every_door(door: Door, stratum: str) -> None:
    doors.check_cell(door, stratum)


def test_every_cell_is_tested_or_cannot_be() -> None:
    doors.check_cells(DOORS)
    assert len(doors.TABLE) == 14
    assert min(map(len, doors.TABLE.values())) == 4


# --- makers' own forms ----------------------------------------------------------------------------

words = st.text("abc <>?é", min_size=1, max_size=8).filter(str.strip)


@st.composite
def conversations(draw: Any) -> Talk:
    """Turns as OpenAI writes them, which end in a turn of the assistant."""
    talk: Talk = [{"role": "system", "content": draw(words)}] if draw(st.booleans()) else []
    for number in range(draw(st.integers(1, 3))):
        calls = [doors.call(draw(words), draw(words), number)] if draw(st.booleans()) else []
        thought = {"reasoning_content": draw(words)} if draw(st.booleans()) else {}
        talk += [doors.user(draw(words)), {**doors.policy(draw(words), *calls), **thought}]
        if calls and draw(st.booleans()):
            talk += [doors.result(draw(words), number), doors.policy(draw(words))]
    return talk


def to_items(talk: Talk) -> Any:
    """The same as items of OpenAI's Responses API."""
    for turn in talk:
        text = turn["content"]
        if turn["role"] == "tool":
            call_id = turn["tool_call_id"]
            yield {"type": "function_call_output", "call_id": call_id, "output": text}
            continue
        if thought := turn.get("reasoning_content"):
            yield {"type": "reasoning", "summary": [{"type": "summary_text", "text": thought}]}
        kind = "output_text" if turn["role"] == "assistant" else "input_text"
        yield {"type": "message", "role": turn["role"], "content": [{"type": kind, "text": text}]}
        for one in turn.get("tool_calls", ()):
            yield {"type": "function_call", "call_id": one["id"], **one["function"]}


def to_message(turn: dict[str, Any]) -> dict[str, Any]:
    """The same as a message of Anthropic's API."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": turn["content"]}]
    if turn["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": blocks}
        return {"role": "user", "content": [result]}
    if thought := turn.get("reasoning_content"):
        blocks.insert(0, {"type": "thinking", "thinking": thought})
    for one in turn.get("tool_calls", ()):
        name, given = one["function"].values()
        blocks.append(
            {"type": "tool_use", "id": one["id"], "name": name, "input": json.loads(given)}
        )
    return {"role": turn["role"], "content": blocks}


def to_langchain(turn: dict[str, Any]) -> dict[str, Any]:
    """The same as LangChain's ``model_dump`` writes it."""
    kind = {"assistant": "ai", "user": "human"}.get(turn["role"], turn["role"])
    made = {"type": kind, "content": turn["content"], "additional_kwargs": {}, "name": None}
    made |= {key: turn[key] for key in ("tool_call_id", "reasoning_content") if key in turn}
    calls = [one["function"] | {"id": one["id"]} for one in turn.get("tool_calls", ())]
    if kind == "ai":
        made["tool_calls"] = [
            {"name": one["name"], "args": json.loads(one["arguments"]), "id": one["id"]}
            for one in calls
        ]
    return made


def to_data(turn: dict[str, Any]) -> dict[str, Any]:
    """As ``messages_to_dict`` does."""
    made = to_langchain(turn)
    return {"type": made.pop("type"), "data": made}


def to_constructor(turn: dict[str, Any]) -> dict[str, Any]:
    """As ``dumpd`` does."""
    made = to_langchain(turn)
    path = ["langchain", "schema", "messages", f"{made.pop('type').title()}Message"]
    path[-1] = path[-1].replace("Ai", "AI")
    return {"lc": 1, "type": "constructor", "id": path, "kwargs": made}


def to_parts(turn: dict[str, Any]) -> dict[str, Any]:
    """The same as OpenTelemetry's semantic conventions write it."""
    parts: list[dict[str, Any]] = [{"type": "text", "content": turn["content"]}]
    if thought := turn.get("reasoning_content"):
        parts.insert(0, {"type": "reasoning", "content": thought})
    if turn["role"] == "tool":
        parts = [
            {"type": "tool_call_response", "id": turn["tool_call_id"], "result": turn["content"]}
        ]
    for one in turn.get("tool_calls", ()):
        given = json.loads(one["function"]["arguments"])
        named = {"id": one["id"], "name": one["function"]["name"], "arguments": given}
        parts.append({"type": "tool_call", **named})
    return {"role": turn["role"], "parts": parts}


def to_gemini(turn: dict[str, Any]) -> dict[str, Any]:
    """The same as Gemini's ``contents``, of which the calls have no ids."""
    parts: list[dict[str, Any]] = [{"text": turn["content"]}]
    if thought := turn.get("reasoning_content"):
        parts.insert(0, {"text": thought, "thought": True})
    if turn["role"] == "tool":
        parts = [{"functionResponse": {"name": "f", "response": turn["content"]}}]
    for one in turn.get("tool_calls", ()):
        given = json.loads(one["function"]["arguments"])
        parts.append({"functionCall": {"name": one["function"]["name"], "args": given}})
    return {
        "role": {"assistant": "model", "tool": "user"}.get(turn["role"], "user"),
        "parts": parts,
    }


def without_ids(messages: Talk) -> Talk:
    kept: Talk = json.loads(json.dumps(messages))
    for one in kept:
        one.pop("tool_call_id", None)
        one.pop("name", None)
        for made in one.get("tool_calls", ()):
            made["id"] = ""
    return kept


@pytest.mark.parametrize(
    "form", [to_message, to_langchain, to_data, to_constructor, to_parts, to_gemini]
)
@given(talk=conversations())
def test_a_column_of_messages_may_be_of_any_maker(form: Any, talk: Talk) -> None:
    if form is to_gemini or form is to_message:
        talk = [one for one in talk if one["role"] != "system"]
    wanted = sample_from_row({"messages": talk}, 0)
    written = [form(turn) for turn in talk]
    for messages in (written, json.dumps(written), {"messages": written}):
        found = sample_from_row({"messages": messages}, 0)
        assert (found.prompt, found.response) == (wanted.prompt, wanted.response)
        assert without_ids(found.messages or []) == without_ids(talk)
        assert form is to_gemini or found.messages == talk


OTHER_TURNS: list[tuple[Talk, Talk]] = [
    (
        [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "Weather?"},
            {"from": "function_call", "value": '{"name": "look", "arguments": {"at": "Rome"}}'},
            {"from": "observation", "value": "sunny"},
            {"from": "gpt", "value": "Sunny."},
        ],
        [
            {"role": "system", "content": "s"},
            doors.user("Weather?"),
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "", "type": "function",
                 "function": {"name": "look", "arguments": '{"at":"Rome"}'}}]},
            {"role": "tool", "content": "sunny"},
            {"role": "assistant", "content": "Sunny."},
        ],
    ),
    (
        [
            {"role": "User", "content": {"text": "Weather?"}},
            {"role": "Assistant", "content": [{"type": "text", "content": "I look."}],
             "tool_calls": [{"function": "look", "args": {"at": "Rome"}, "id": "1"}]},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "content": "sun"}]},
            {"message": {"role": "agent", "content": "Sunny."}, "finish_reason": "stop"},
        ],
        [
            doors.user("Weather?"),
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"id": "1", "type": "function",
                 "function": {"name": "look", "arguments": '{"at":"Rome"}'}}]},
            {"role": "tool", "tool_call_id": "1", "content": "sun"},
            {"role": "assistant", "content": "Sunny."},
        ],
    ),
    (  # what a server's own tool found is in the turn of the assistant
        [
            doors.user("Weather?"),
            {"role": "assistant", "content": [
                {"type": "text", "text": "I look."},
                {"type": "server_tool_use", "id": "1", "name": "search", "input": {"q": "Rome"}},
                {"type": "web_search_tool_result", "tool_use_id": "1", "content": [{"url": "u"}]},
                {"type": "text", "text": "Sunny."}]},
        ],
        [
            doors.user("Weather?"),
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"id": "1", "type": "function",
                 "function": {"name": "search", "arguments": '{"q":"Rome"}'}}]},
            {"role": "tool", "tool_call_id": "1", "content": '[{"url":"u"}]'},
            {"role": "assistant", "content": "Sunny."},
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("written", "wanted"), OTHER_TURNS)
def test_turns_of_other_makers(written: Talk, wanted: Talk) -> None:
    assert sample_from_row({"messages": written}, 0).messages == wanted


AT, Q, SUN, SAID = {"at": "Rome"}, "Weather?", "sun", "Sunny."
AT_TEXT = json.dumps(AT)
LOOK = {"name": "look", "arguments": AT_TEXT}

SAME_TALKS: dict[str, Talk] = {  # the user asks, the policy looks, is answered, and answers
    "calls as JSON text": [
        doors.user(Q), {"role": "assistant", "content": "", "tool_calls": json.dumps([LOOK])},
        {"role": "tool", "content": SUN}, doors.policy(SAID)],
    "the former call as JSON text": [
        doors.user(Q), {"role": "assistant", "content": None, "function_call": json.dumps(LOOK)},
        {"role": "function", "name": "look", "content": SUN}, doors.policy(SAID)],
    "arguments and a result in other words": [
        doors.user(Q),
        {"role": "assistant", "content": "", "tool_calls": [{"tool": "look", "tool_input": AT}]},
        {"role": "tool", "content": None, "output": SUN}, doors.policy(SAID)],
    "one call beside the text": [
        doors.user(Q), {"role": "assistant", "content": "", "tool_call": LOOK},
        {"role": "tool", "result": SUN}, doors.policy(SAID)],
    "a result's text": [
        doors.user(Q), {"role": "assistant", "content": "", "toolCalls": [LOOK]},
        doors.user([{"type": "tool_result", "tool_use_id": "1", "text": SUN}]),
        doors.policy(SAID)],
    "ShareGPT with a list of calls": [
        {"from": "human", "value": Q}, {"from": "function_call", "value": json.dumps([LOOK])},
        {"from": "observation", "value": SUN}, {"from": "gpt", "value": SAID}],
    "LangChain's call that was no JSON": [
        {"type": "human", "content": Q},
        {"type": "ai", "content": "", "tool_calls": [], "invalid_tool_calls": [
            {"name": "look", "args": AT_TEXT, "id": "1", "type": "invalid_tool_call"}]},
        {"type": "tool", "content": SUN, "tool_call_id": "1"}, {"type": "ai", "content": SAID}],
    "Vercel's model messages": [
        doors.user([{"type": "text", "text": Q}]),
        {"role": "assistant", "content": [
            {"type": "tool-call", "toolCallId": "1", "toolName": "look", "input": AT}]},
        {"role": "tool", "content": [
            {"type": "tool-result", "toolCallId": "1", "toolName": "look",
             "output": {"type": "text", "value": SUN}}]},
        doors.policy(SAID)],
    "Vercel's messages of an interface": [
        {"role": "user", "parts": [{"type": "text", "text": Q}]},
        {"role": "assistant", "parts": [
            {"type": "step-start"},
            {"type": "tool-look", "toolCallId": "1", "state": "output-available", "input": AT,
             "output": SUN},
            {"type": "text", "text": SAID}]}],
    "Vercel's former messages of an interface": [
        {"role": "user", "content": Q, "parts": [{"type": "text", "text": Q}]},
        {"role": "assistant", "content": SAID,
         "toolInvocations": [{"toolCallId": "1", "toolName": "look", "args": AT, "result": SUN}],
         "parts": [
            {"type": "tool-invocation", "toolInvocation": {
                "state": "result", "toolCallId": "1", "toolName": "look", "args": AT,
                "result": SUN}},
            {"type": "text", "text": SAID}]}],
    "Bedrock": [
        doors.user([{"text": Q}, {"image": {"format": "png", "source": {"bytes": ""}}}]),
        {"role": "assistant", "content": [
            {"toolUse": {"toolUseId": "1", "name": "look", "input": AT}}]},
        doors.user([{"toolResult": {"toolUseId": "1", "content": [{"text": SUN}]}}]),
        doors.policy([{"text": SAID}])],
    "Haystack": [
        doors.user([{"text": Q}]),
        {"role": "assistant", "content": [
            {"tool_call": {"tool_name": "look", "arguments": AT, "id": "1"}}]},
        {"role": "tool", "content": [{"tool_call_result": {
            "result": SUN, "origin": {"tool_name": "look", "id": "1"}, "error": False}}]},
        doors.policy([{"text": SAID}])],
    "LlamaIndex": [
        {"role": "user", "blocks": [{"block_type": "text", "text": Q}]},
        {"role": "assistant", "blocks": [],
         "additional_kwargs": {"tool_calls": [{"id": "1", "function": LOOK}]}},
        {"role": "tool", "blocks": [{"block_type": "text", "text": SUN}],
         "additional_kwargs": {"tool_call_id": "1"}},
        {"role": "assistant", "blocks": [{"block_type": "text", "text": SAID}]}],
    "Semantic Kernel": [
        {"role": "user", "items": [{"content_type": "text", "text": Q}]},
        {"role": "assistant", "items": [{"content_type": "function_call", "id": "1", **LOOK}]},
        {"role": "tool", "items": [{"content_type": "function_result", "id": "1", "result": SUN}]},
        {"role": "assistant", "items": [{"content_type": "text", "text": SAID}]}],
    "events of Google's ADK": [
        {"author": "user", "content": {"role": "user", "parts": [{"text": Q}]}},
        {"author": "look", "content": {"role": "model", "parts": [
            {"functionCall": {"id": "1", "name": "look", "args": AT}}]}},
        {"author": "look", "content": {"role": "user", "parts": [
            {"functionResponse": {"id": "1", "name": "look", "response": SUN}}]}},
        {"author": "look", "content": {"role": "model", "parts": [{"text": SAID}]}}],
    "an item of a server's tool with its result": [
        doors.user(Q), {"type": "mcp_call", "id": "1", **LOOK, "output": SUN},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": SAID}]}],
    "Harmony": [
        doors.user(Q),
        {"role": "assistant", "channel": "commentary", "recipient": "functions.look",
         "content": AT_TEXT},
        {"role": "tool", "name": "functions.look", "content": SUN},
        {"role": "assistant", "channel": "final", "content": SAID}],
}  # fmt: skip


def list_acts(talk: Talk) -> Any:
    """What each turn says, without ids and names of results."""
    for one in talk:
        for made in one.get("tool_calls", ()):
            yield made["function"]["name"], json.loads(made["function"]["arguments"])
        content = one.get("content")
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        if content:
            yield one["role"], content


@pytest.mark.parametrize("name", SAME_TALKS)
def test_a_call_and_its_result_in_the_words_of_other_makers(name: str) -> None:
    sample = sample_from_row({"messages": SAME_TALKS[name]}, 0)
    assert (sample.prompt, sample.response, sample.ending) == (Q, SAID, "text")
    wanted = [("user", Q), ("look", AT), ("tool", SUN), ("assistant", SAID)]
    assert list(list_acts(sample.messages or [])) == wanted


@pytest.mark.parametrize(
    ("turn", "response", "thought"),
    [
        ({"content": SAID, "thinking": "hm"}, SAID, "hm"),
        ({"content": SAID, "reasoning": "hm"}, SAID, "hm"),
        ({"content": SAID, "tool_plan": "hm"}, SAID, "hm"),
        ({"content": SAID, "additional_kwargs": {"reasoning_content": "hm"}}, SAID, "hm"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                      {"type": "text", "text": SAID}]}, SAID, "hm"),
        ({"content": [{"reasoningContent": {"reasoningText": {"text": "hm"}}}, {"text": SAID}]},
         SAID, "hm"),
        ({"content": "hm", "channel": "analysis"}, "", "hm"),
        ({"content": None, "refusal": SAID}, SAID, None),
        ({"content": None, "audio": {"id": "1", "transcript": SAID}}, SAID, None),
        ({"content": {"content_type": "text", "parts": [SAID]}}, SAID, None),
        ({"content": [{"type": "text", "value": SAID}]}, SAID, None),
        ({"content": "", "parts": [{"text": SAID}]}, SAID, None),
    ],
)  # fmt: skip
def test_words_beside_the_content_are_not_lost(
    turn: dict[str, Any], response: str, thought: str | None
) -> None:
    sample = sample_from_row({"messages": [doors.user(Q), {"role": "assistant", **turn}]}, 0)
    assert (sample.prompt, sample.response) == (Q, response)
    assert sample.messages is not None
    assert sample.messages[-1].get("reasoning_content") == thought


TURNS = [doors.user(Q), doors.policy(SAID)]


@pytest.mark.parametrize(
    ("row", "opening_turns"),
    [
        ({"system": "s", "messages": TURNS}, None),
        ({"system": [{"type": "text", "text": "s"}], "messages": TURNS}, None),
        ({"system_prompt": "s", "messages": json.dumps(TURNS)}, None),
        ({"system_prompt": "s", "messages": TURNS, "opening_turns": 1}, 2),
        ({"system": "s", "prompt": TURNS[:1], "response": SAID}, 2),
        ({"system": "s", "conversations": [{"from": "human", "value": Q},
                                           {"from": "gpt", "value": SAID}]}, None),
        # a conversation that only asks, and the answer beside it
        ({"system": "s", "messages": TURNS[:1], "response": SAID}, 2),
        ({"system": "s", "messages": TURNS[:1], "completion": TURNS[1:]}, 2),
        ({"system": "s", "messages": TURNS[:1], "output": SAID}, 2),
        # the list of a thread begins with its end
        ({"system": "s", "messages": [{**TURNS[1], "created_at": 2},
                                      {**TURNS[0], "created_at": 1}]}, None),
        ({"system": "s", "prompt": {"messages": TURNS[:1]}, "response": TURNS[1]}, 2),
        # tables of JSON
        ({"system": "s", "prompt": json.dumps(TURNS[:1]), "response": json.dumps(TURNS[1])}, 2),
    ],
)  # fmt: skip
def test_parts_of_a_conversation_in_columns_of_their_own(
    row: dict[str, Any], opening_turns: int | None
) -> None:
    [sample] = SampleReader([], {}, rows=[("rows:1", row)], strict=True)
    assert (sample.prompt, sample.response, sample.opening_turns) == (Q, SAID, opening_turns)
    messages = [{"role": one["role"], "content": one["content"]} for one in sample.messages or []]
    assert messages == [{"role": "system", "content": "s"}, *TURNS]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": Q, "response": {"content": "I look.", "tool_calls": [LOOK]}},
        {"prompt": Q, "response": {"content": None, "tool_calls": [LOOK]}},
        {"prompt": Q, "response": {"text": "", "function_call": LOOK}},
        {"prompt": Q, "response": {"choices": [
            {"message": {"role": "assistant", "content": None, "tool_calls": [
                {"id": "1", "function": LOOK}]}}]}},
    ],
)  # fmt: skip
def test_a_response_that_calls_a_tool_is_no_text(row: dict[str, Any]) -> None:
    [sample] = SampleReader([], {}, rows=[("rows:1", row)], strict=True)
    assert (sample.prompt, sample.response, sample.ending) == (Q, "", "ended_in_tool_call")


def test_what_a_tool_gave_is_no_question() -> None:
    call, found = "<tool_call>{}</tool_call>", "<tool_response>\nsun\n</tool_response>"
    talk = [doors.user(Q), doors.policy(call), doors.user(found), doors.policy(SAID)]
    before = {"prompt": talk[:3], "response": SAID}
    for row in ({"messages": talk}, before, {"history": talk[:2], "question": Q, "output": SAID}):
        [sample] = SampleReader([], {}, rows=[("rows:1", row)], strict=True)
        assert (sample.prompt, sample.response) == (Q, SAID)


def test_a_conversation_without_an_answer_is_refused() -> None:
    for row in ({"messages": TURNS[:1]}, {"messages": TURNS[:1], "reference": SAID}):
        with pytest.raises(RolloutError, match="^messages: "):
            sample_from_row(row, 0)


@pytest.mark.parametrize(
    ("turn", "key"),
    [
        ({"role": "narrator", "content": "x"}, "messages.1.role"),
        ({"speaker_id": 1, "line": "x"}, "messages.1.role"),
        ({"role": "assistant", "answer": "x"}, "messages.1"),
        ({"role": "assistant", "content": {"told": "x"}}, "messages.1.content"),
        ({"role": "assistant", "content": [{"type": "poem", "text": "x"}]}, "messages.1.content.0"),
        ({"role": "assistant", "content": [{"type": "text"}]}, "messages.1.content.0"),
        ({"role": "assistant", "content": 4}, "messages.1.content"),
        ({"role": "user", "content": [{"functionCall": {"args": {}}}]}, "messages.1.content.0"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"args": {}}]},
            "messages.1.tool_calls",
        ),
        ({"role": "assistant", "tool_calls": 3}, "messages.1.tool_calls"),
        ({"role": "assistant", "tool_calls": ["{"]}, "messages.1.tool_calls"),
        (  # nobody says whether the text was before the result
            {"role": "assistant", "content": "x", "tool_calls": [{**LOOK, "result": "y"}]},
            "messages.1",
        ),
        ({"type": "function_call", "arguments": "{}"}, "messages.1"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "told": {"a": 1}}]},
            "messages.1.tool_calls",
        ),
        ({"type": "telegram", "content": "x"}, "messages.1.role"),
        ("x", "messages.1"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_keys(turn: Any, key: str) -> None:
    with pytest.raises(RolloutError, match=rf"^{re.escape(key)}: "):
        sample_from_row({"messages": [doors.user("q"), turn]}, 0)


@given(conversations())
def test_every_makers_form_gives_the_sample_of_openais_chat(talk: Talk) -> None:
    wanted = sample_from_row({"prompt": talk[:-1], "response": talk[-1:]}, 0)
    before, said = (read_messages(list(to_items(one)), "") for one in (talk[:-1], talk[-1:]))
    system = "".join(one["content"] for one in talk if one["role"] == "system")
    *asked, answer = (to_message(one) for one in talk if one["role"] != "system")
    result = {"type": "succeeded", "message": answer}
    batch = {"custom_id": "a", "params": {"system": system, "messages": asked}, "result": result}
    [found] = SampleReader([], {}, rows=[("batch:1", batch)], strict=True)
    for sample in (sample_from_row({"prompt": before, "response": said}, 0), found):
        assert (sample.prompt, sample.response) == (wanted.prompt, wanted.response)
        assert (sample.messages, sample.ending) == (wanted.messages, wanted.ending)
        assert compute_prompt_key(sample) == compute_prompt_key(wanted)
