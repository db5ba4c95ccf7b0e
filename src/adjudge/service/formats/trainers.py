"""The wire formats of trainers: bytes in, a status and bytes out.

OpenRLHF's remote reward: ``--reward.remote_url http://HOST:8888/get_reward``. Version 0.11 sends
one rollout per request, asks again five times a second apart, and then goes on without a reward,
which ends the training step with an error. It has no way to leave one out. Its texts are decoded
with their special tokens, out of which the completions are cut.

slime's remote reward model: ``--rm-type remote_rm --rm-url http://HOST:8888/slime``. Its client
asks again ten times with growing pauses and then raises, which ends the run. A reward that is left
out does not exist there: a sample with ``remove_sample`` still counts in its group.

LLaMA-Factory's reward API, for PPO: ``reward_model_type: api`` and
``reward_model: http://HOST:8888/llamafactory``. Its client neither asks again nor looks at the
status: an answer without ``scores`` ends the run with ``KeyError: 'scores'``.

NeMo-Gym: this service as the resources server that an agent posts ``/verify`` to; items of OpenAI's
Responses API become chat messages, which graders of agents read. An error's status is raised by
Gym's agent; NeMo-RL then runs the rollout again (five times), and Gym's own collector stops. Gym
has a mark for a failed judge, a row with ``reward`` 0.0 and ``_ng_failure_class``, and its
collector keeps marked rows out of the results. NeMo-RL does not: it masks the row's loss, but the
0.0 still counts in the group's mean (checked September 2026). So the mark is only for collecting:
``NemoGym(mark_failures=True)``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from adjudge.messages import content_text, last_answer
from adjudge.service.formats.base import (
    Format,
    ReferenceLabel,
    ScoreFunction,
    invalid_request,
    label_to_answer,
)
from adjudge.service.requests import decode_body
from adjudge.wire import ErrorInfo, JudgeRequest, JudgeResponse

# Named one by one: a policy's own markup (`</answer>`, a tool call's closing tag) must stay.
_PADS = ("<pad>", "<|pad|>", "[PAD]", "<|endoftext|>", "<|finetune_right_pad_id|>", "<unk>")
_ENDS = (
    *_PADS,
    "</s>",
    "<eos>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|eot|>",
    "<end_of_turn>",
    "<turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|endofassistant|>",
    "<｜end▁of▁sentence｜>",
)
_BEGINS = re.compile(
    "|".join(
        re.escape(token)
        for token in (
            *_PADS,
            "</s>",
            "<s>",
            "<bos>",
            "<|begin_of_text|>",
            "<|startoftext|>",
            "<|im_end|>",
            "<BOS_TOKEN>",
            "[BOS]",
            "<｜begin▁of▁sentence｜>",
        )
    )
)
_WORD = re.compile(r"\S+")
_ANCHOR = 64  # characters that show a shortened prompt's end
_TRIES = 16


def strip_end_tokens(text: str) -> str:
    """``text`` without the end-of-turn and padding tokens after its last word.

    >>> strip_end_tokens("It is <b>four</b>.<|im_end|><|endoftext|>")
    'It is <b>four</b>.'
    """
    end = len(text)
    while True:
        last = end
        while last and text[last - 1].isspace():
            last -= 1
        token = next((one for one in _ENDS if text.endswith(one, 0, last)), None)
        if token is None:
            return text[:end]
        end = last - len(token)


def extract_completion(query: str, prompt: str) -> str | None:
    r"""What follows ``prompt`` in ``query``; ``None`` where it cannot be told for certain.

    Decoding may have put a token before the prompt, normalised it, changed its white space, or
    kept only its end (a prompt longer than the policy takes). Never looks for the prompt further
    in, where the policy may have repeated it.

    >>> extract_completion("<s>2 + 2?\n4</s>", "2 + 2?\n")
    '4'
    """
    starts = list(_starts(query))
    composed = unicodedata.normalize("NFC", prompt), unicodedata.normalize("NFKC", prompt)
    forms = list(dict.fromkeys([prompt, *composed]))
    for start in starts:
        for form in forms:
            if query.startswith(form, start):
                return strip_end_tokens(query[start + len(form) :])
    for start in starts:
        for form in forms:
            end = _loose_end(query, start, form)
            if end is None:
                end = _shortened_end(query, start, form)
            if end is not None:
                return strip_end_tokens(query[end:])
    return None


def _starts(query: str) -> Iterator[int]:
    """Where the prompt may begin: at once, after one special token, after all of them."""
    yield 0
    end, seen = 0, 0
    while (token := _BEGINS.match(query, end)) is not None:
        end, seen = token.end(), seen + 1
        if seen == 1:
            yield end
    if seen > 1:
        yield end


def _loose_end(query: str, start: int, prompt: str) -> int | None:
    """Where the prompt ends when white space does not count."""
    wanted = "".join(prompt.split())
    done = 0
    if not wanted:
        return None
    for word in _WORD.finditer(query, start):
        text = word.group()
        left = len(wanted) - done
        if len(text) >= left:
            return word.start() + left if text.startswith(wanted[done:]) else None
        if not wanted.startswith(text, done):
            return None
        done += len(text)
    return None


def _shortened_end(query: str, start: int, prompt: str) -> int | None:
    """Where the prompt ends when only its end is there; ``None`` also where that is in doubt."""
    if len(prompt) <= _ANCHOR:
        return None
    anchor, at, found = prompt[-_ANCHOR:], start, None
    for _ in range(_TRIES):
        at = query.find(anchor, at, start + len(prompt))
        if at < 0:
            return found
        if prompt.endswith(query[start : at + _ANCHOR]):
            if found is not None:
                return None
            found = at + _ANCHOR
        at += 1
    return None


class _OpenRLHFRequest(msgspec.Struct):
    """``query`` is prompt and completion as decoded tokens, special ones included."""

    query: list[str]
    prompts: list[str] | None = None
    labels: list[ReferenceLabel] | None = None


_openrlhf_decoder = msgspec.json.Decoder(_OpenRLHFRequest)


class OpenRLHF(Format):
    """``{"query": […], "prompts": […], "labels": […]}`` to ``{"rewards": […], "scores": […]}``."""

    path = "/get_reward"
    trainer = "OpenRLHF"

    def requests(self, body: bytes) -> list[JudgeRequest]:
        """The completions cut out of the texts; what cannot be cut is refused, never guessed."""
        asked = decode_body(_openrlhf_decoder, body)
        n = len(asked.query)
        prompts, labels = asked.prompts, asked.labels or [None] * n
        if prompts is None:
            raise invalid_request(
                "prompts: is missing. Send the prompts, so that each completion can be cut out"
            )
        if len(prompts) != n or len(labels) != n:
            raise invalid_request(
                "query, prompts, labels: must have the same length "
                f"(found {n}, {len(prompts)}, {len(labels)})"
            )
        return [
            _openrlhf_request(place, *one)
            for place, one in enumerate(zip(asked.query, prompts, labels, strict=True))
        ]

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:  # noqa: ARG002  (hook)
        """Rewards, and the same as scores, which dynamic filtering reads."""
        rewards = [one.score for one in responses]
        return {"rewards": rewards, "scores": rewards, "extra_logs": {}}


def _openrlhf_request(place: int, query: str, prompt: str, label: ReferenceLabel) -> JudgeRequest:
    completion = extract_completion(query, prompt)
    if completion is None:
        raise invalid_request(
            f"query[{place}]: does not begin with its prompt, so the completion cannot be cut out. "
            "Send in prompts the text that was tokenised"
        )
    return JudgeRequest(prompt, completion, label_to_answer(label))


class _SlimeSample(msgspec.Struct):
    """One rollout; ``prompt`` is text, or chat messages where no template was applied."""

    response: str
    prompt: str | list[dict[str, Any]] = ""
    label: ReferenceLabel = None


_slime_decoder = msgspec.json.Decoder(_SlimeSample | list[_SlimeSample])


class Slime(Format):
    """``{"prompt", "response", "label"}`` to a number; a list of them to a list of numbers.

    slime itself sends single samples; the list is for a ``--group-rm`` function of one's own.
    """

    path = "/slime"
    trainer = "slime"

    def requests(self, body: bytes) -> list[JudgeRequest]:
        """One, or those of a group."""
        asked: _SlimeSample | list[_SlimeSample] = decode_body(_slime_decoder, body)
        return [_slime_request(one) for one in (asked if isinstance(asked, list) else [asked])]

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:
        """A number for an object, a list for a list."""
        rewards = [self._reward(one) for one in responses]
        return rewards if body.lstrip()[:1] == b"[" else rewards[0]

    def _reward(self, response: JudgeResponse) -> Any:
        return response.score


class SlimeWithParts(Slime):
    """The same with an object for a number, for ``--reward-key score``: with the graders'."""

    path = "/slime/parts"

    def _reward(self, response: JudgeResponse) -> Any:
        return {**(response.detailed_scores or {}), "score": response.score}


def _slime_request(sample: _SlimeSample) -> JudgeRequest:
    reference = label_to_answer(sample.label)
    if isinstance(sample.prompt, str):
        return JudgeRequest(sample.prompt, sample.response, reference)
    asked = [m for m in sample.prompt if m.get("role") == "user"]
    prompt = "\n\n".join(content_text(message.get("content")) for message in asked)
    messages = [*sample.prompt, {"role": "assistant", "content": sample.response}]
    return JudgeRequest(prompt, sample.response, reference, messages=messages)


class _LlamaFactoryRequest(msgspec.Struct):
    """``messages`` are whole texts, prompt and completion as decoded tokens."""

    messages: list[str]


_llamafactory_decoder = msgspec.json.Decoder(_LlamaFactoryRequest)


class LlamaFactory(Format):
    """``{"model": …, "messages": [text, …]}`` to ``{"scores": […]}``.

    The texts say nowhere where the prompt ends, and a policy may write any marker itself, so each
    is judged whole: as ``completion``, with an empty ``prompt``.
    """

    path = "/llamafactory"
    trainer = "LLaMA-Factory"

    def requests(self, body: bytes) -> list[JudgeRequest]:
        """The whole texts."""
        return [
            JudgeRequest("", strip_end_tokens(text))
            for text in decode_body(_llamafactory_decoder, body).messages
        ]

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:  # noqa: ARG002  (hook)
        """Scores in the texts' order."""
        return {"model": "model", "scores": [one.score for one in responses]}


_ROLES = {"developer": "system"}


def chat_messages(items: str | Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages, tool calls and their results, in order; reasoning is left out.

    >>> chat_messages([{"role": "developer", "content": [{"type": "input_text", "text": "hi"}]}])
    [{'role': 'system', 'content': 'hi'}]
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type") or "message"
        if kind == "message" and isinstance(item.get("role"), str):
            role = _ROLES.get(item["role"], item["role"])
            messages.append({"role": role, "content": content_text(item.get("content"))})
        elif kind == "function_call":
            _add_tool_call(messages, item)
        elif kind == "function_call_output":
            output = content_text(item.get("output"))
            called = str(item.get("call_id") or "")
            messages.append({"role": "tool", "tool_call_id": called, "content": output})
    return messages


def _add_tool_call(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """A call of the turn that the last message is, else of a turn without text."""
    function = {"name": str(item.get("name")), "arguments": str(item.get("arguments") or "")}
    call = {"id": str(item.get("call_id") or ""), "type": "function", "function": function}
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def user_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """What the user said, turns apart by an empty line."""
    said = [m["content"] for m in messages if m["role"] == "user" and m["content"]]
    return "\n\n".join(said)


_REFERENCES = ("expected_answer", "reference", "ground_truth", "answer", "label", "solution")
# What an earlier verification left in a row that is verified again.
_VERDICT = (
    "reward",
    "mask_sample",
    "failure_kind",
    "failure_reason",
    "_ng_failure_class",
    "_ng_failure_judge_error",
    "_ng_failure_terminal",
)
_NOT_FIELDS = {*_VERDICT, "responses_create_params", "response", "verifier_metadata", "agent_ref"}


class _NemoInput(msgspec.Struct):
    input: str | list[dict[str, Any]] = ""


class _NemoOutput(msgspec.Struct):
    output: list[dict[str, Any]] = []


class _NemoRow(msgspec.Struct):
    """A row of the dataset with the policy's response."""

    responses_create_params: _NemoInput
    response: _NemoOutput


_nemo_decoder = msgspec.json.Decoder(_NemoRow)
_row_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode_row = msgspec.json.encode


class NemoGym(Format):
    """``{"responses_create_params", "response", …}`` to the same with ``reward``.

    The row's other fields, and those in ``verifier_metadata``, are the sample's; the first there is
    of ``expected_answer``, ``reference``, ``ground_truth``, ``answer``, ``label`` is the reference.
    ``mark_failures``: a failed judge is Gym's own mark instead of an error.
    """

    path = "/verify"
    trainer = "NeMo-Gym"

    def __init__(self, *, mark_failures: bool = False) -> None:
        self.mark_failures = mark_failures

    def requests(self, body: bytes) -> list[JudgeRequest]:
        """The one rollout."""
        asked = decode_body(_nemo_decoder, body)
        before = chat_messages(asked.responses_create_params.input)
        after = chat_messages(asked.response.output)
        fields = _row_fields(decode_body(_row_decoder, body))
        reference = next((fields[name] for name in _REFERENCES if name in fields), None)
        return [
            JudgeRequest(
                user_text(before),
                last_answer(after) or "",
                label_to_answer(reference),
                metadata=fields or None,
                messages=[*before, *after],
            )
        ]

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:
        """The row as it came, to the byte, with its reward."""
        row = _without_verdict(_row_decoder.decode(body))
        return {**row, "reward": responses[0].score}

    def failed(self, body: bytes, failure: ErrorInfo) -> tuple[int, bytes]:
        """An error, or the mark."""
        if not self.mark_failures:
            return super().failed(body, failure)
        said = f"{failure.kind}: {failure.message}"
        row = _without_verdict(_row_decoder.decode(body))
        config = _read_object(row.get("instance_config"))
        marked = {
            **row,
            "reward": 0.0,  # Gym wants a number; what it means is said by all the others
            "mask_sample": True,
            "failure_kind": "judge_failed",
            "failure_reason": said,
            "instance_config": {**config, "mask_sample": True},
            "_ng_failure_class": "judge_failed",
            "_ng_failure_judge_error": said,
        }
        return 200, _encode_row(marked)


class NemoGymSession(Format):
    """``/seed_session``, which Gym's agents post before each rollout: nothing to prepare."""

    path = "/seed_session"
    trainer = "NeMo-Gym"

    async def answer(self, body: bytes, score: ScoreFunction) -> tuple[int, bytes]:  # noqa: ARG002  (hook)
        """Always ``{}``."""
        return 200, b"{}"

    def requests(self, body: bytes) -> list[JudgeRequest]:  # noqa: ARG002  (hook)
        """None."""
        return []

    def reply(self, body: bytes, responses: Sequence[JudgeResponse]) -> Any:  # noqa: ARG002  (hook)
        """Nothing."""
        return {}


def _without_verdict(row: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _VERDICT}


def _row_fields(row: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """The sample's own fields: those of the verifier's metadata below the row's."""
    own = {
        name: msgspec.json.decode(value)
        for name, value in row.items()
        if name not in _NOT_FIELDS and not name.startswith("_ng_")
    }
    return {**_read_object(row.get("verifier_metadata")), **own}


def _read_object(value: msgspec.Raw | None) -> dict[str, Any]:
    found = None if value is None else msgspec.json.decode(value)
    return found if isinstance(found, dict) else {}
