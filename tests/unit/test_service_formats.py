"""The trainers' formats: what is asked of the judge, and what the trainer gets back."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.refusals import refuses

from adjudge.errors import ErrorKind
from adjudge.service.formats import (
    MAX_ITEMS,
    Format,
    LlamaFactory,
    OpenRLHF,
    Slime,
    SlimeWithParts,
    extract_completion,
    load_formats,
)
from adjudge.service.nemo_gym import (
    NemoGym,
    NemoGymMarked,
    NemoGymMetrics,
    NemoGymSession,
    aggregate_metrics,
)
from adjudge.service.requests import RequestRefused
from adjudge.text import strip_end_tokens
from adjudge.wire import ErrorInfo, GroupRequest, JudgeRequest, JudgeResponse


class Judge:
    """Scores by what a completion says; ``fail`` fails."""

    def __init__(self) -> None:
        self.asked: list[JudgeRequest] = []

    async def __call__(self, requests: Sequence[JudgeRequest]) -> list[JudgeResponse]:
        self.asked += requests
        return [self.response(one) for one in requests]

    def response(self, request: JudgeRequest) -> JudgeResponse:
        if "fail" in request.completion:
            return JudgeResponse(error=ErrorInfo(ErrorKind.TIMEOUT, "no answer in time"))
        if "slow here" in request.completion:  # asking again would not help
            return JudgeResponse(error=ErrorInfo(ErrorKind.TIMEOUT, "no answer", local=True))
        if "refuse" in request.completion:
            return JudgeResponse(error=ErrorInfo(ErrorKind.INVALID_INPUT, "no reference"))
        parts: dict[str, float | None] = {"length": float(len(request.completion)), "style": None}
        return JudgeResponse(score=float(len(request.completion)), detailed_scores=parts)


def ask(form: Format, body: Any) -> tuple[int, Any, list[JudgeRequest]]:
    judge = Judge()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        status, answer = 200, asyncio.run(form.answer(data, judge))
    except RequestRefused as refused:  # the service answers so
        said = {"kind": refused.kind, "message": str(refused)}
        return refused.status, {"error": said}, judge.asked
    return status, json.loads(answer), judge.asked


def row(text: str = "four", **fields: Any) -> dict[str, Any]:
    """A row as NeMo-Gym's agents post it."""
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "2 + 2?"}]},
        "response": {"id": "r", "output": [said], "usage": {"total_tokens": 1e3}},
        **fields,
    }


BODIES: dict[str, Any] = {
    "/get_reward": lambda text: {"query": [f"Q{text}"], "prompts": ["Q"], "labels": ["4"]},
    "/slime": lambda text: {"prompt": "Q", "response": text, "label": "4"},
    "/slime/parts": lambda text: {"prompt": "Q", "response": text, "label": "4"},
    "/llamafactory": lambda text: {"model": "model", "messages": [text]},
    "/verify": row,
}
JUDGING = [form for form in load_formats(()) if form.path in BODIES]


@pytest.mark.parametrize("form", JUDGING, ids=lambda form: form.path)
@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [("fail", 503, "timeout"), ("slow here", 422, "timeout"), ("refuse", 422, "invalid_input")],
)
def test_a_failed_judge_is_an_error_and_never_a_number(
    form: Format, text: str, status: int, kind: str
) -> None:
    found, answer, _ = ask(form, BODIES[form.path](text))
    assert found == status
    assert set(answer) == {"error"}
    assert answer["error"]["kind"] == kind


@pytest.mark.parametrize("form", JUDGING, ids=lambda form: form.path)
@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"query": NaN}', b"{,"])
def test_what_is_not_json_is_refused(form: Format, body: bytes) -> None:
    status, answer, asked = ask(form, body)
    assert status == 400
    assert answer["error"]["kind"] == "invalid_input"
    assert asked == []


@pytest.mark.parametrize("form", JUDGING, ids=lambda form: form.path)
@pytest.mark.parametrize("body", [1, "text", {}, {"query": 1}, {"messages": [1]}, {"response": 1}])
def test_what_lacks_its_fields_is_refused(form: Format, body: Any) -> None:
    status, answer, asked = ask(form, body)
    assert (status, asked) == (422, [])
    assert set(answer) == {"error"}


def test_what_is_nested_too_deep_is_refused() -> None:
    body = b'{"query": [""], "prompts": [""], "labels": [' + b"[" * 100_000
    assert ask(OpenRLHF(), body)[0] == 400


# OpenRLHF


def test_openrlhf_judges_completions() -> None:
    status, answer, [first, second] = ask(
        OpenRLHF(),
        {
            "query": ["<s>2 + 2?\n4</s>", "<|im_start|>user\nHi<|im_end|>\nyes<|im_end|>"],
            "prompts": ["2 + 2?\n", "<|im_start|>user\nHi<|im_end|>\n"],
            "labels": ["4", ""],
        },
    )
    assert status == 200
    assert answer == {"rewards": [1.0, 3.0], "scores": [1.0, 3.0], "extra_logs": {}}
    assert (first.prompt, first.completion, first.answer) == ("2 + 2?\n", "4", "4")
    assert (second.completion, second.answer) == ("yes", None)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"query": ["a b"], "prompts": ["c"], "labels": [""]}, "query[0]"),
        ({"query": ["a b"]}, "prompts"),
        ({"query": ["a", "b"], "prompts": ["a"], "labels": ["", ""]}, "found 2, 1, 2"),
        ({"query": ["a"] * (MAX_ITEMS + 1), "prompts": ["a"] * (MAX_ITEMS + 1)}, "at most"),
    ],
)
def test_openrlhf_refuses_what_it_cannot_split(body: dict[str, Any], named: str) -> None:
    status, answer, asked = ask(OpenRLHF(), body)
    assert (status, asked) == (422, [])
    assert named in answer["error"]["message"]


def test_one_failed_sample_fails_the_list() -> None:
    body = {"query": ["Qfail", "Qgood", "Qfail"], "prompts": ["Q"] * 3, "labels": [""] * 3}
    status, answer, _ = ask(OpenRLHF(), body)
    assert status == 503
    assert answer["error"]["message"] == "2 of 3 failed, first: no answer in time"


LONG = "Of the following, which is the largest moon of the planet Saturn? Say it briefly."


@pytest.mark.parametrize(
    ("query", "prompt", "completion"),
    [
        ("Why?Because.", "Why?", "Because."),
        ("Why? Why? no", "Why?", " Why? no"),  # only the first is the prompt's own
        ("<s>Why?Because.</s><pad><pad>", "Why?", "Because."),
        ("<pad><pad><pad><s>Why?no", "Why?", "no"),
        ("<s><s>Why?no", "<s>Why?", "no"),
        ("Who , me ?no", "Who, me?", "no"),  # cleaned-up spaces
        ("Who, me?no", " Who,  me?", "no"),
        ("caf\u00e9?no", "cafe\u0301?", "no"),  # composed by the tokenizer
        (LONG[8:] + "Titan", LONG, "Titan"),  # only the prompt's end was kept
        ("Because.", "Why?", None),
        ("I ask: Why? Because.", "Why?", None),
        ("Titan. " + LONG + "Io", LONG, None),  # repeated by the policy
        ("Wh", "Why?", None),
        ("anything</s>", "", "anything"),
    ],
)
def test_completions_are_cut_out_or_refused(
    query: str, prompt: str, completion: str | None
) -> None:
    assert extract_completion(query, prompt) == completion


texts = st.text(alphabet=st.sampled_from("ab \n<>|s/é?"), max_size=40)


@given(texts, texts, st.sampled_from(["", "</s>", "<|im_end|>\n"]))
def test_a_prompt_that_is_there_is_cut_off(prompt: str, completion: str, end: str) -> None:
    assert extract_completion(prompt + completion + end, prompt) == strip_end_tokens(
        completion + end
    )


def test_splitting_is_quick_on_hostile_texts() -> None:
    prompt = "ab" * 50_000
    assert extract_completion(("ab" * 40_000 + "c") * 3, "x" + prompt) is None
    assert extract_completion("<pad>" * 100_000, "x" * 65) is None
    assert strip_end_tokens("<pad>" * 100_000) == strip_end_tokens("</s>" * 100_000) == ""
    assert strip_end_tokens("Use <s>old</s>") == "Use <s>old</s>"


# slime


def test_slime_answers_a_sample_with_a_number_and_a_group_with_a_list() -> None:
    body = {"prompt": "Q", "response": "four", "label": {"x": 1}}
    status, answer, [request] = ask(Slime(), body)
    assert (status, answer) == (200, 4.0)
    assert (request.prompt, request.completion, request.answer) == ("Q", "four", {"x": 1})
    assert ask(Slime(), [body, {**body, "response": "a", "label": None}])[:2] == (200, [4.0, 1.0])
    assert ask(Slime(), [])[:2] == (200, [])
    assert ask(SlimeWithParts(), body)[1] == {"score": 4.0, "length": 4.0, "style": None}


# LLaMA-Factory


def test_llamafactory_judges_whole_texts() -> None:
    body = {"model": "model", "messages": ["2 + 2? four</s>", "b"]}
    status, answer, [first, _] = ask(LlamaFactory(), body)
    assert (status, answer) == (200, {"model": "model", "scores": [11.0, 1.0]})
    assert (first.prompt, first.completion) == (None, "2 + 2? four")


# NeMo-Gym


def test_nemo_gym_mark_says_by_every_means_that_the_reward_is_none() -> None:
    sent = row("fail", instance_config={"task": "keep"})
    status, answer, _ = ask(NemoGymMarked(), sent)
    assert status == 200
    assert answer["_ng_failure_class"] == "judge_failed"
    assert answer["mask_sample"] is True
    assert answer["instance_config"] == {"task": "keep", "mask_sample": True}
    assert answer["failure_kind"] == "judge_failed"
    assert (
        answer["failure_reason"]
        == answer["_ng_failure_judge_error"]
        == "timeout: no answer in time"
    )
    assert answer["response"] == sent["response"]


def test_nemo_gym_seeds_nothing() -> None:
    assert ask(NemoGymSession(), row())[:2] == (200, {})


def test_nemo_gyms_group_is_named_by_id_and_attempt() -> None:
    sent = row(_ng_group_id="g", _ng_group_attempt=2, _ng_rollout_index=3)
    status, answer, [request] = ask(NemoGym(), sent)
    assert (status, answer) == (200, {**sent, "reward": 4.0})
    assert isinstance(request, GroupRequest)
    assert (request.group_id, request.request_id) == ("g#2", "3")
    assert request.metadata == {"opening_turns": 1}


def test_nemo_gyms_mark_has_a_name_and_takes_the_place_at_its_path() -> None:
    formats = load_formats(["nemo-gym-marked"])
    [verify] = [form for form in formats if form.path == "/verify"]
    assert isinstance(verify, NemoGymMarked)
    assert len(formats) == len(load_formats(()))
    with refuses("--format"):
        load_formats(["nemo-gym-mark"])


numbers = st.floats(-5, 5) | st.integers(-5, 5)


@given(st.lists(st.tuples(st.integers(0, 2), numbers, st.booleans()), max_size=12))
def test_a_failed_judges_row_is_in_no_metric(given: list[tuple[int, float, bool]]) -> None:
    """However many rows with the placeholder 0.0 there are, the numbers are those without them."""
    rows = [
        {
            "_ng_task_index": task,
            "_ng_rollout_index": place,
            "reward": 0.0 if failed else reward,
            **({"_ng_failure_class": "judge_failed"} if failed else {}),
        }
        for place, (task, reward, failed) in enumerate(given)
    ]
    status, found, asked = ask(NemoGymMetrics(), {"verify_responses": rows})
    without = aggregate_metrics([one for one in rows if "_ng_failure_class" not in one])
    missing = found["agent_metrics"].pop("judge/missing_frac", 0.0)
    assert (status, asked, found) == (200, [], json.loads(json.dumps(without)))
    assert missing == pytest.approx(sum(one[2] for one in given) / max(len(given), 1))


# Formats of one's own


class OwnFormat(Format):
    path = "/own"

    def requests(self, body: bytes) -> list[JudgeRequest]:
        return [JudgeRequest("p", body.decode())]

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:
        return responses[0].score


def test_a_format_of_ones_own_is_added_to_those_that_ship() -> None:
    *shipped, own = load_formats([f"{__name__}:OwnFormat"])
    assert [one.path for one in shipped] == [one.path for one in load_formats(())]
    assert ask(own, b"four")[:2] == (200, 4.0)


@pytest.mark.parametrize("name", ["Judge", "ask", "Missing"])
def test_what_is_no_format_is_refused_by_its_name(name: str) -> None:
    with refuses("--format"):
        load_formats([f"{__name__}:{name}"])
