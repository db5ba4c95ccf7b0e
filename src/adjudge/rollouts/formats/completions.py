"""A prompt and its completion as a row; and prompts that a chat template rendered."""

from __future__ import annotations

from typing import Any

from adjudge.errors import RolloutError
from adjudge.messages import last_answer, last_question, prompt_messages
from adjudge.rollouts.formats.base import Row
from adjudge.rollouts.formats.chat import Message, read_messages


def completion_row(prompt: Any, completion: Any) -> Row:
    """A prompt and what answers it as a row; each is a text or a list of messages.

    A conversation becomes ``messages``, of which ``prompt`` is the last question before the answer
    and ``response`` the last text of the answer. A text that a chat template rendered is read back
    into its messages where that is certain. Raises :class:`RolloutError` for anything else.
    """
    if not isinstance(completion, str | list | tuple):
        found = "" if completion is None else f" (found {type(completion).__name__})"
        raise RolloutError(f"there is no response{found}")
    if prompt is None and isinstance(completion, str):
        return {"response": completion}
    chat = None
    if isinstance(prompt, str):
        if (rendered := read_rendered_prompt(prompt)) is not None:
            chat, ending = rendered
            if ending and isinstance(completion, str):
                text, ended, after = completion.rpartition(ending)
                completion = text if ended and not after.strip() else completion
        elif isinstance(completion, str):
            return {"prompt": prompt, "response": completion}
        else:
            chat = prompt_messages(prompt)
    elif prompt is not None:
        chat = read_messages(prompt, "prompt")
    return conversation_row(chat or [], completion)


def conversation_row(before: list[Message], completion: Any) -> Row:
    """The row of messages and the answer that follows them; raises :class:`RolloutError`."""
    if isinstance(completion, str):
        answer = [{"role": "assistant", "content": completion}]
    else:
        answer = read_messages(completion, "completion")
    row = {"messages": [*before, *answer], "response": last_answer(answer) or ""}
    question = last_question(before)
    return row if question is None else {**row, "prompt": question}


_TEMPLATES = (
    ("<|im_start|>", "\n", "<|im_end|>"),
    ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
)
"""What begins a message, ends its role and ends the message: ChatML (Qwen) and Llama 3."""

_ROLES = ("system", "user", "assistant", "tool")
_THINKING = ("", "<think>\n", "<think>\n\n</think>\n\n")
"""What templates write after the assistant's role."""


def read_rendered_prompt(text: str) -> tuple[list[Message], str] | None:
    r"""The messages of a prompt that a chat template rendered, and what ends a message there.

    ``None`` where the text could be another prompt's, too. Trainers that decode tokens without the
    special ones leave ``system``, ``user`` and ``assistant`` on lines of their own; such a prompt
    is read where each of them is there once.

    >>> read_rendered_prompt("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
    ([{'role': 'user', 'content': 'Why?'}], '<|im_end|>')
    >>> read_rendered_prompt("system\nBe brief.\nuser\nWhy?\nassistant\n")[0][1]
    {'role': 'user', 'content': 'Why?'}
    """
    for opening, middle, ending in _TEMPLATES:
        if opening in text:
            messages = _split_rendered(text, opening, middle, ending)
            return None if messages is None else (messages, ending)
    messages = _split_bare(text)
    return None if messages is None else (messages, "")


def _split_rendered(text: str, opening: str, middle: str, ending: str) -> list[Message] | None:
    head, *parts = text.split(opening)
    role, _, rest = parts.pop().partition(middle)
    if head.strip() not in ("", "<|begin_of_text|>") or role != "assistant":
        return None
    if rest not in _THINKING or not parts:
        return None
    messages = []
    for part in parts:
        role, found, rest = part.partition(middle)
        content, end, after = rest.partition(ending)
        if role not in _ROLES or not found or not end or after.strip():
            return None
        messages.append({"role": role, "content": content})
    return messages


def _split_bare(text: str) -> list[Message] | None:
    for thinking in _THINKING:
        if text.endswith("\nassistant\n" + thinking):
            lines = text.removesuffix("\nassistant\n" + thinking).split("\n")
            break
    else:
        return None
    roles = [place for place, line in enumerate(lines) if line in _ROLES]
    if (
        not roles
        or roles[0] != 0
        or [lines[place] for place in roles]
        not in (
            ["user"],
            ["system", "user"],
        )
    ):
        return None
    return [
        {"role": lines[start], "content": "\n".join(lines[start + 1 : end])}
        for start, end in zip(roles, [*roles[1:], len(lines)], strict=True)
    ]
