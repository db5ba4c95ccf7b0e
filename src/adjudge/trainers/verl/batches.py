"""verl's ``DataProto`` as samples and groups, with their chat messages.

A sample gets ``prompt``, ``response`` and ``messages`` as in every door (:mod:`adjudge.intake`):
before the policy stands ``raw_prompt``, else the prompt's tokens decoded. It gets ``reference``
(``reward_model.ground_truth``), ``finish_reason``, the fields of ``extra_info`` and of a tool loop,
and every other column of ``non_tensor_batch`` by its name.

verl's tool loop keeps its messages to itself. They are rebuilt from the prompt's conversation
(``raw_prompt``, with ``data.return_raw_chat=True``), the response's tokens, and the mask that
tells the policy's tokens (1) from what came back (0). Turns are the runs of that mask; calls and
results are read from ``<tool_call>`` and ``<tool_response>`` tags (Hermes, Qwen). No column says
which loop ran, and a rollout that ends in its first call has the turns and the mask of one without
tools. So a response of one turn has calls only where the run or the row offers tools.

A loop of one's own may put them into ``extra_fields["extras"]``, as
:class:`~adjudge.trainers.verl.JudgeToolAgentLoop` does. A dataset's column ``messages`` is not
read. verl 0.9.1's reward loop has no mask; rollouts of
:class:`~adjudge.trainers.verl.JudgeAgentLoopManager` bring it (:data:`MASK_COLUMN`).
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure, RolloutError
from adjudge.intake.columns import ReferenceChoice, as_object, find_finish_reason, without_arrays
from adjudge.intake.parts import assistant_message, message_text, tool_call
from adjudge.intake.rendered import ThinkTokens, decode_prompt, opens_thinking
from adjudge.intake.rollouts import first_turn, make_sample
from adjudge.messages import parse_conversation
from adjudge.text import END_TOKENS, final_text
from adjudge.types import Sample

_log = logging.getLogger("adjudge")
DecodeTokens = Callable[[Sequence[int]], str]


def rebuild_turns(
    ids: Sequence[int],
    mask: Sequence[int] | None,
    turns: int | None,
    decode: DecodeTokens,
    tools: bool = False,
) -> list[dict[str, Any]]:
    """The turns of a response of the tokens ``ids``.

    ``mask`` is over ``ids``; without one, and with more than two ``turns`` in the conversation,
    nobody can tell the policy's words from a tool's. In the last turn ``<tool_call>`` tags are a
    call only where ``tools`` were offered or a tool answered before; else they are words. Raises
    ``GradingFailure(invalid_input)``.
    """
    if mask is None and turns is not None and turns > 2:
        raise _unreadable_messages(f"{turns} turns, and no response_mask to tell them apart")
    messages: list[dict[str, Any]] = []
    start, calls = 0, 0
    for own, run in groupby(mask or [1] * max(1, len(ids)), key=bool):
        end = start + len(list(run))
        said = decode(ids[start:end])
        if not own:
            messages += _tool_messages(said, messages[-1] if messages else {})
        elif tools or end < len(ids) or any(one["role"] == "tool" for one in messages):
            messages.append(_assistant_message(said, calls, answered=end < len(ids)))
            calls += len(messages[-1].get("tool_calls", ()))
        else:
            messages.append(assistant_message(said))
        start = end
    return messages


def _assistant_message(text: str, calls_before: int, *, answered: bool) -> dict[str, Any]:
    """One assistant message; a ``<tool_call>`` that is no call stays text.

    So does one in thinking, unless something came back from it.
    """
    calls: list[dict[str, Any]] = []
    spoken = text if answered else final_text(text) or ""
    words, *parts = spoken.split("<tool_call>")
    words = text.removesuffix(spoken) + words
    for part in parts:
        inside, closed, after = part.partition("</tool_call>")
        said: Any = None
        if closed:
            with suppress(msgspec.MsgspecError, RecursionError):
                said = msgspec.json.decode(inside.strip())
        if isinstance(said, dict) and isinstance(said.get("name"), str):
            number = f"call_{calls_before + len(calls)}"
            calls.append(tool_call(number, said["name"], said.get("arguments")))
            words += after
        else:
            words += f"<tool_call>{part}"
    return assistant_message(words.strip() if calls else words, calls)


def _tool_messages(text: str, turn: dict[str, Any]) -> list[dict[str, Any]]:
    """What came back: results of tools in the order of the turn's calls, else a user's words."""
    if not turn:
        raise _unreadable_messages("the response_mask begins with words that are not the policy's")
    calls = turn.get("tool_calls", ())
    parts = [part.partition("</tool_response>") for part in text.split("<tool_response>")[1:]]
    results = [inside.strip() for inside, closed, _ in parts if closed]
    if not results and calls:
        raise _unreadable_messages("what came back from tools has no <tool_response> tags")
    if not results:
        return [{"role": "user", "content": _TEMPLATE_LINES.sub("", text).strip()}]
    messages: list[dict[str, Any]] = [{"role": "tool", "content": one} for one in results]
    for message, call in zip(messages, calls, strict=False):
        message["tool_call_id"] = call["id"]
    return messages


_TEMPLATE_LINES = re.compile(r"\A\s*user\s|\sassistant\s*\Z")
"""What a chat template leaves of its own around a user's turn, without special tokens."""


def _unreadable_messages(why: str) -> GradingFailure:
    return GradingFailure(
        ErrorKind.INVALID_INPUT,
        f"the messages of a rollout cannot be rebuilt: {why}; let your agent loop put "
        "{'messages': …} into extra_fields['extras'] (or, in verl 0.9.1, let rollouts be made by "
        "adjudge.trainers.verl.JudgeAgentLoopManager)",
    )


MASK_COLUMN = "judge_response_mask"
"""The column in which rollouts of verl 0.9.1 bring their response mask to reward actors."""

OUTPUTS_COLUMN = "judge_outputs"
"""The column that says of how many outputs of one rollout a row is the last."""

# Columns that are about the rollout itself, or of use to verl only.
_NOT_FIELDS = {
    MASK_COLUMN, OUTPUTS_COLUMN, "details", "extra_info", "judge_group_size", "judge_metrics",
    "messages", "prompt_len", "raw_prompt",
    "raw_prompt_ids", "response_len", "reward_extra_info", "reward_model", "tool_extra_fields",
    "tools_kwargs", "uid", "__num_turns__",
}  # fmt: skip


@dataclass
class BatchRows:
    """A batch: samples, their groups, data sources, and ``last``, the token of each reward.

    ``last`` is the last valid token; an empty response has none, and its reward stands on the last
    (padding) token, where verl's masks hide it from everything but sums over a row.
    """

    samples: list[Sample]
    groups: list[str]
    sources: list[str]
    last: list[int]


class RowReader:
    """Reads batches with a tokenizer; ``source_key`` is verl's ``data.reward_fn_key``.

    ``limit``: how many tokens a response may have; 0: as many as the batch has room for.
    ``tools``: the run offers tools; else only rows that have ``tools_kwargs`` do.
    """

    def __init__(
        self, tokenizer: Any, source_key: str = "data_source", limit: int = 0, tools: bool = False
    ) -> None:
        self.tokenizer, self.source_key = tokenizer, source_key
        self.limit, self.tools = limit, tools
        self._tokens = ThinkTokens(tokenizer)
        self._ends = _find_end_tokens(tokenizer)
        self._references = ReferenceChoice(_log.warning, "Put it into reward_model.ground_truth.")

    def read(self, data: Any) -> BatchRows:
        """All rows of ``data``; never raises on a row's account."""
        responses = data.batch["responses"]
        width = responses.shape[-1]
        valid = data.batch["attention_mask"][:, -width:].sum(dim=-1).tolist()
        ids = [row[:length] for row, length in zip(responses.tolist(), valid, strict=True)]
        columns: dict[str, list[Any]] = {
            name: list(map(without_arrays, column))
            for name, column in data.non_tensor_batch.items()
            if not name.startswith("multi_modal")  # images, of which no grader sees the tensors
        }
        prompts, groups = _prompt_ids(data), self.groups(data)
        masks = data.batch.get("response_mask", None)
        masks = None if masks is None else masks.tolist()
        members: dict[str, int] = defaultdict(int)
        samples = []
        for place, group in enumerate(groups):
            own = {name: column[place] for name, column in columns.items()}
            own_mask = own.get(MASK_COLUMN) if masks is None else masks[place][: valid[place]]
            extra = self._extra(own)
            self._references.set(extra)
            if ended := find_finish_reason(ids[place], self._ends, self.limit or width):
                extra["finish_reason"] = ended
            sample = self._sample(own, extra, prompts[place], ids[place], own_mask)
            sample.original_index, sample.group_index = place, members[group]
            samples.append(sample)
            members[group] += 1
        last = [length - 1 if length else width - 1 for length in valid]
        return BatchRows(samples, groups, self.sources(data), last)

    def groups(self, data: Any) -> list[str]:
        """Each row's group: its ``uid``, else its prompt's tokens."""
        uids = data.non_tensor_batch.get("uid")
        if uids is not None:
            return [str(uid) for uid in uids]
        return [",".join(map(str, ids)) for ids in _prompt_ids(data)]

    def sources(self, data: Any) -> list[str]:
        """Each row's data source; ``unknown`` without that column, as verl has it."""
        found = data.non_tensor_batch.get(self.source_key)
        return ["unknown"] * len(data) if found is None else [str(source) for source in found]

    def _extra(self, own: dict[str, Any]) -> dict[str, Any]:
        extra = {name: value for name, value in own.items() if name not in _NOT_FIELDS}
        if isinstance(found := own.get("extra_info"), dict):
            extra.update(found)
        extra.update(_loop_fields(own))
        extra.pop("messages", None)
        if isinstance(model := own.get("reward_model"), dict) and "ground_truth" in model:
            extra["reference"] = extra["ground_truth"] = model["ground_truth"]
        if own.get("__num_turns__") is not None:
            extra["num_turns"] = own["__num_turns__"]
        return extra

    def _sample(
        self,
        own: dict[str, Any],
        extra: dict[str, Any],
        prompt: Sequence[int],
        ids: Sequence[int],
        mask: Sequence[int] | None,
    ) -> Sample:
        """The rollout's own parts; without a conversation where nobody can tell its turns apart."""
        opening = parse_conversation(own.get("raw_prompt"))
        given = parse_conversation(_loop_fields(own).get("messages"))
        # The end of the prompt, special tokens included, may open the policy's thinking.
        thinks = opens_thinking(self.tokenizer.decode(prompt[-8:], skip_special_tokens=False))
        if given is not None:
            start = len(opening or ())
            said = [_role_and_text(one) for one in given[:start]]
            if not start or said != [_role_and_text(one) for one in opening or ()]:
                start = first_turn(given)
            return make_sample(0, 0, given[:start], given[start:], extra, thinks=thinks)
        tools = self.tools or any(as_object(extra.get("tools_kwargs")).values())
        try:
            turns = rebuild_turns(ids, mask, own.get("__num_turns__"), self._tokens.decode, tools)
        except GradingFailure as failure:
            return Sample(extra=extra, is_lost=True, problem=str(failure))
        before: Any = decode_prompt(self.tokenizer, prompt) if opening is None else opening
        if opening is None and len(turns) == 1 and "tool_calls" not in turns[0]:
            return make_sample(0, 0, before, turns[0]["content"], extra, thinks=thinks)
        sample = make_sample(0, 0, before, turns, extra, thinks=thinks)
        if own.get(OUTPUTS_COLUMN, 1) > 1:  # the last of several outputs is not all it said
            sample.messages = sample.opening_turns = None
        return sample


def _role_and_text(message: Mapping[str, Any]) -> tuple[Any, Any]:
    content = message.get("content")
    with suppress(RolloutError):  # it is said where the row's sample is made
        content = message_text(content)
    return message.get("role"), content


def _find_end_tokens(tokenizer: Any) -> set[int]:
    """All tokens that end a turn: the tokenizer's own, and those that chat templates use."""
    known = getattr(tokenizer, "all_special_tokens", None) or ()
    found = {tokenizer.convert_tokens_to_ids(token) for token in known if token in END_TOKENS}
    return (found - {tokenizer.pad_token_id} | {tokenizer.eos_token_id}) - {None}


def _loop_fields(own: dict[str, Any]) -> dict[str, Any]:
    """What an agent loop put into its output's ``extra_fields``, and into ``extras`` there.

    In batches of 0.6.1 each of ``extra_fields`` is a column beside the number of turns. Of the
    dataset such a batch has only the columns of rewards, and ``extras`` is none of them.
    """
    found = own.get("tool_extra_fields")
    if found is None and "__num_turns__" in own:
        found = {"extras": own.get("extras")}
    if not isinstance(found, dict):
        return {}
    inner = found.get("extras")
    rest = {name: value for name, value in found.items() if name != "extras"}
    return {**rest, **inner} if isinstance(inner, dict) else rest


def last_output(data: Any) -> Any:
    """The last row of ``data``, without padding where its lengths are known.

    verl 0.9.1 pads the outputs of one rollout each as a whole, so that attention masks of several
    do not line up with prompts and responses; ``prompt_len`` and ``response_len`` tell.
    """
    import numpy as np  # noqa: PLC0415  (verl's)

    row = data[-1:]
    if len(data) == 1 or not {"prompt_len", "response_len"} <= row.non_tensor_batch.keys():
        return row
    prompt, response = (int(row.non_tensor_batch[key][0]) for key in ("prompt_len", "response_len"))
    tensors = {
        "prompts": row.batch["prompts"][:, :prompt],
        "responses": row.batch["responses"][:, :response],
        "attention_mask": row.batch["attention_mask"][:, : prompt + response],
    }
    columns = {**row.non_tensor_batch, OUTPUTS_COLUMN: np.array([len(data)])}
    return type(data).from_dict(tensors=tensors, non_tensors=columns)


def _prompt_ids(data: Any) -> list[list[int]]:
    """The tokens of each row's prompt, without padding."""
    prompts = data.batch["prompts"]
    mask = data.batch["attention_mask"][:, : prompts.shape[-1]].bool()
    return [row[own].tolist() for row, own in zip(prompts, mask, strict=True)]
