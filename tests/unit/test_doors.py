"""The table of rollouts through every door that needs no trainer: the samples are the same."""

import asyncio
import json
import sys
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MethodType, ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests import doors
from tests.doors import LIMIT, SPEC, Characters, Door, Rollout, columns_of, looking
from tests.unit.test_areal_adapter import logged  # noqa: F401  (a fixture)
from tests.unit.test_slime_adapter import Sample as SlimeSample, Status, arguments

from adjudge import grade, make_reward
from adjudge.client.grader import fields_to_request
from adjudge.rollouts.samples import sample_from_row
from adjudge.service.formats import Format, OpenRLHF, Slime
from adjudge.service.requests import check_request
from adjudge.service.spec_backend import request_to_sample
from adjudge.trainers import openrlhf, roll, skyrl
from adjudge.trainers.recorder import FlightRecorder
from adjudge.trainers.scoring import Scorer
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


# --- the service ----------------------------------------------------------------------------------


def receive(request: JudgeRequest) -> Sample:
    arrived = msgspec.json.decode(msgspec.json.encode(request), type=JudgeRequest)
    check_request(arrived, 999)
    return request_to_sample(arrived)


def give_service(rollouts: list[Rollout]) -> list[Sample]:
    return [receive(fields_to_request(one.fields())) for one in give_function(rollouts)]


def give_dumps(rollouts: list[Rollout]) -> list[Sample]:
    """Conversations in LangChain's form, and no text beside them."""
    found = []
    for one in rollouts:
        opening, talk = {"opening_turns": len(one.before)}, list(map(doors.dump_message, one.talk))
        found.append(receive(JudgeRequest(None, "", one.reference, None, None, opening, talk)))
    return found


def give_format(form: Format, make: Any) -> Any:
    """A trainer's request at its own path, of which the label is the one column."""

    def give(rollouts: list[Rollout]) -> list[Sample]:
        bodies = [msgspec.json.encode(make(one, one.columns["answer"])) for one in rollouts]
        return [receive(request) for body in bodies for request in form.requests(body)]

    return give


def slime_body(one: Rollout, label: Any) -> dict[str, Any]:
    return {"prompt": one.posted, "response": one.text, "label": label}


def openrlhf_body(one: Rollout, label: Any) -> dict[str, Any]:
    return {"query": [one.rendered + one.text], "prompts": [one.rendered], "labels": [label]}


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
    sample = SlimeSample(one.text, None, None, None, one.rendered, None, {**one.columns}, status)
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
    Door("the service, LangChain's messages", give_dumps, "is_plain"),
    Door("the service, /slime", give_format(Slime(), slime_body), "is_text"),
    Door("the service, /get_reward", give_format(OpenRLHF(), openrlhf_body), "is_text"),
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


ALONE = ("slime", "OpenRLHF", "AReaL", "SkyRL", "ROLL", "tinker-cookbook")


@pytest.mark.parametrize("door", [one for one in DOORS if one.name in ALONE], ids=lambda x: x.name)
def test_a_group_that_nobody_names_is_that_of_all_before_the_policy(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, ask = list[str](), Scorer.grade

    async def keep(self: Any, samples: Any, given: Any, **more: Any) -> Any:
        groups.extend(given)
        return await ask(self, samples, given, **more)

    monkeypatch.setattr(Scorer, "grade", keep)
    door.give(doors.TABLE["system only"])  # of which the first two have one prompt
    assert [*map(groups.index, groups)] == [0, 0, 2, 3]


def test_every_cell_is_tested_or_cannot_be() -> None:
    doors.check_cells(DOORS)
    assert len(doors.TABLE) == 16
    assert min(map(len, doors.TABLE.values())) == 4
