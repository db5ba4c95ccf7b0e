"""Who wrote what in a rollout, its parts as a ``Sample``, and what its group is known by.

Where a door separates prompt and completion, all of the prompt comes before the policy
(:func:`read_rollout`). A conversation alone does not say which of its assistant's turns are the
policy's (:func:`read_conversation`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from adjudge.errors import Fields, Metadata, RolloutError
from adjudge.intake.columns import read_env_reward
from adjudge.intake.conversation import looks_like_messages, read_messages
from adjudge.intake.rendered import opens_thinking, read_rendered_prompt
from adjudge.messages import content_text, last_question, prompt_messages
from adjudge.text import LAST_SIGNS, THINK_OPEN, mark_thinking, strip_end_tokens
from adjudge.types import Sample

Turns = list[Metadata]


class RolloutParts(NamedTuple):
    """The parts of a sample that come from the rollout; see :class:`~adjudge.types.Sample`."""

    prompt: str | None
    response: str | None
    messages: Turns | None
    opening_turns: int | None


_RENDERED_ENDS = ("t", ">", "]")
"""What a prompt may end with that a chat template rendered: the assistant's role, or a tag."""


def is_plain(prompt: object, completion: object) -> bool:
    """Whether both are texts of which nothing is to be read: most rows of files are such."""
    return (
        prompt.__class__ is str
        and completion.__class__ is str
        and not prompt.rstrip().endswith(_RENDERED_ENDS)
        and not completion.rstrip().endswith(LAST_SIGNS)
        and prompt[:1] != "["
        and "THINK]" not in completion
    )


def read_rollout(prompt: Any, completion: Any, *, thinks: bool | None = None) -> RolloutParts:
    """What a policy made of a prompt; each is a text or a list of chat messages.

    A prompt that a chat template rendered is read back into its messages where that is certain,
    and tokens that end an answer are no part of it. ``thinks``: whether the template opens the
    thinking; where it is not said the end of a text prompt tells. Raises
    :class:`~adjudge.errors.RolloutError` for what is neither text nor messages, and for messages
    without a turn of the assistant.

    >>> talk = [{"role": "user", "content": "2 + 2?"}]
    >>> call = {"role": "assistant", "tool_calls": [{"name": "add", "arguments": "{}"}]}
    >>> read_rollout(talk, [call, {"role": "tool", "content": "4"}]).response
    ''
    """
    if not thinks and is_plain(prompt, completion):
        return RolloutParts(prompt, completion, None, None)
    before: Turns | None = None
    if isinstance(prompt, str):
        thinks = opens_thinking(prompt) if thinks is None else thinks
        if looks_like_messages(prompt):
            before, completion = read_messages(prompt, "prompt"), _decode_turns(completion)
        else:
            before = read_rendered_prompt(prompt)
    elif prompt is not None:
        before = read_messages(prompt, "prompt")
    if isinstance(completion, str):
        response = mark_thinking(strip_end_tokens(completion), bool(thinks))
        if before is None:
            return RolloutParts(prompt, response, None, None)
        answer = [{"role": "assistant", "content": response}]
    else:
        answer = read_messages(completion, "completion")
        if thinks:
            answer = [_mark_turn(turn) for turn in answer]
        if (said := last_said(answer)) is None:
            raise RolloutError("completion: has no turn of the assistant: nothing was answered")
        response = said
        if before is None:
            before = prompt_messages(prompt) if isinstance(prompt, str) else []
    return RolloutParts(last_question(before), response, [*before, *answer], len(before))


def _decode_turns(completion: object) -> object:
    """A completion beside a prompt that is JSON: they are a table's columns of JSON.

    Beside any other prompt, JSON is what the policy wrote.
    """
    if not isinstance(completion, str):
        return completion
    listed = completion if completion.lstrip()[:1] != "{" else f"[{completion}]"
    return read_messages(listed, "completion") if looks_like_messages(listed) else completion


def read_conversation(messages: Sequence[object], opening_turns: int | None = None) -> RolloutParts:
    """A rollout that is one conversation; ``opening_turns`` of it come before the policy.

    Without that number the response is the assistant's last turn; it is ``None`` where the policy
    has no turn. The prompt is what the user asked
    before the assistant's first turn where tools are called, as agents do, and else before its
    last: the turns of a dialogue that come before that are most often its prompt.
    """
    if opening_turns is not None:
        before = read_messages(messages[:opening_turns], "messages")
        said = read_messages(messages[opening_turns:], "messages")
        return RolloutParts(last_question(before), last_said(said), [*before, *said], len(before))
    turns = read_messages(messages, "messages")
    last = _last_turn(turns)
    if last is None:
        return RolloutParts(last_question(turns), None, turns, None)
    start = first_turn(turns) if any(map(_calls_tools, turns)) else last
    question = last_question(turns[:start])
    question = last_question(turns[:last]) if question is None else question  # the agent greets
    return RolloutParts(question, last_said(turns), turns, None)


def first_turn(messages: Sequence[Fields]) -> int:
    """Where the assistant speaks first; the number of messages where it never does."""
    roles = (place for place, one in enumerate(messages) if one.get("role") == "assistant")
    return next(roles, len(messages))


def last_said(turns: Sequence[Fields]) -> str | None:
    """The text of the policy's last turn, ``""`` where it calls a tool; ``None`` without a turn."""
    last = _last_turn(turns)
    if last is None:
        return None
    turn = turns[last]
    if _calls_tools(turn):
        return ""
    return mark_thinking(content_text(turn.get("content")))


def _calls_tools(turn: Fields) -> bool:
    return bool(turn.get("tool_calls") or turn.get("function_call"))


def _last_turn(turns: Sequence[Fields]) -> int | None:
    for place in range(len(turns) - 1, -1, -1):
        if turns[place].get("role") == "assistant":
            return place
    return None


def _mark_turn(turn: Metadata) -> Metadata:
    """A turn of the policy whose thinking the template opened and nobody took out."""
    content = turn.get("content")
    if turn.get("role") != "assistant" or not isinstance(content, str):
        return turn
    if turn.get("reasoning_content") or turn.get("reasoning") or not content:
        return turn
    return {**turn, "content": mark_thinking(content, opened=True)}


class ThinkingWatch:
    """Says once that some texts are read as plain although the policy seems to think.

    A turn that ends its thinking and never began it shows that a template opens the thinking. A
    turn without a tag was then perhaps cut inside its thinking; the text does not show it.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say: Callable[[str], None] | None = say
        self._closed = self._plain = False

    def see(self, response: str) -> None:
        """Look at the next response."""
        if "think>" not in response:
            if self._plain:
                return  # as in most rows
            self._plain = True
        elif THINK_OPEN not in response:
            self._closed = True
        if self._closed and self._plain and self._say is not None:
            self._say(
                "response: some end a thinking that they do not begin, so the chat template begins "
                "it; others have no tag at all and are read as plain text, though their thinking "
                "may have been cut. Give prompts as the template rendered them, or responses with "
                "their opening <think>."
            )
            self._say = None


def make_sample(
    index: int,
    place: int,
    prompt: object,
    completion: object,
    extra: Fields,
    *,
    thinks: bool | None = None,
) -> Sample:
    """A rollout from a door that separates prompt and completion (:func:`.read_rollout`).

    ``index`` in the batch, ``place`` in the group. A completion that is ``None`` was lost; one that
    cannot be read has no reward either, and its ``problem`` says why.
    """
    if completion is None:
        text = prompt if isinstance(prompt, str) else None
        return Sample(index, place, text, None, None, extra, is_lost=True)
    try:
        rollout = read_rollout(prompt, completion, thinks=thinks)
        if "env_reward" in extra:
            extra = {**extra, "env_reward": read_env_reward(extra["env_reward"])}
    except RolloutError as error:
        return Sample(index, place, extra=extra, is_lost=True, problem=str(error))
    return sample_of_rollout(index, place, rollout, extra)


def sample_of_rollout(index: int, place: int, rollout: RolloutParts, extra: Fields) -> Sample:
    """A rollout that was read, with its other fields."""
    prompt, response, messages, opening_turns = rollout
    return Sample(index, place, prompt, response, messages, extra, opening_turns=opening_turns)


_BESIDE = ("tools", "images", "image")
"""Columns that stand before the policy although no message has them."""


def compute_prompt_key(sample: Sample) -> str | None:
    """The key that answers to the same prompt share, when no column names the prompt.

    All that comes before the policy: every turn, tools and images. Where it is not known which
    turns do, the turns before the assistant's first; without turns the prompt's text. ``None`` for
    a sample that has neither: it is like no other.
    """
    opening: object = sample.prompt or None
    if sample.messages:
        turns = sample.opening_turns
        turns = first_turn(sample.messages) if turns is None else turns
        opening = sample.messages[:turns] or opening
    if opening is None:
        return None
    beside = {name: sample.extra[name] for name in _BESIDE if sample.extra.get(name)}
    if isinstance(opening, str) and not beside:
        return opening
    return _encode([opening, beside] if beside else opening)


def compute_divergence(sample: Sample) -> tuple[str, str] | None:
    """How a conversation of which no opening is known goes on after its opening.

    The assistant's first turn, and what the user says next. Two rollouts of one prompt may agree in
    the first; where the user then says different things, the first was perhaps no turn of the
    policy, and they are no answers to one prompt. ``None`` where no user speaks again.
    """
    if sample.opening_turns is not None or not sample.messages:
        return None
    start = first_turn(sample.messages)
    for place in range(start + 1, len(sample.messages)):
        if sample.messages[place].get("role") == "user":
            return _encode(sample.messages[start:place]), _encode(sample.messages[place])
    return None


def _encode(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=repr, order="deterministic").decode()
    except UnicodeEncodeError:  # a lone surrogate: only escapes can write it
        return json.dumps(value, sort_keys=True, default=repr)
