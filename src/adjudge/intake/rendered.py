"""Texts that a chat template rendered: a prompt's messages, and the tokens that end an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Named one by one: a policy's own markup (`</answer>`, a tool call's closing tag) must stay.
PAD_TOKENS = ("<pad>", "<|pad|>", "[PAD]", "<|endoftext|>", "<|finetune_right_pad_id|>", "<unk>")
END_TOKENS = (
    *PAD_TOKENS,
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
    "<|user|>",  # where GLM stops
    "<|observation|>",
)


LAST_SIGNS = tuple({token[-1] for token in END_TOKENS})


def strip_end_tokens(text: str) -> str:
    """``text`` without the end-of-turn and padding tokens after its last word.

    >>> strip_end_tokens("It is <b>four</b>.<|im_end|><|endoftext|>")
    'It is <b>four</b>.'
    """
    if not text.rstrip().endswith(END_TOKENS):
        return text
    end, opened = len(text), text.find("<s>")
    while True:
        last = end
        while last and text[last - 1].isspace():
            last -= 1
        token = next((one for one in END_TOKENS if text.endswith(one, 0, last)), None)
        if token is None or (token.startswith("</") and 0 <= opened < last):
            return text[:end]  # markup that was opened, or no token
        end = last - len(token)


_TEMPLATES = (
    ("<|im_start|>", "\n", "<|im_end|>"),
    ("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"),
)
"""What begins a message, ends its role and ends the message: ChatML (Qwen) and Llama 3."""

_LONGEST_TAIL = 96
"""Characters that hold the assistant's role and what templates write after it."""

_ROLES = ("system", "user", "assistant", "tool")
_THINKING = ("", "<think>", "<think></think>")
"""What templates write after the assistant's role, without white space."""


def read_rendered_prompt(text: str) -> list[dict[str, Any]] | None:
    r"""The messages of a prompt that a chat template rendered.

    ``None`` where the text could be another prompt's, too. Trainers that decode tokens without the
    special ones leave ``system``, ``user`` and ``assistant`` on lines of their own; such a prompt
    is read where each of them is there once.

    >>> read_rendered_prompt("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
    [{'role': 'user', 'content': 'Why?'}]
    >>> read_rendered_prompt("system\nBe brief.\nuser\nWhy?\nassistant\n")[1]
    {'role': 'user', 'content': 'Why?'}
    """
    if "assistant" not in text[-_LONGEST_TAIL:]:
        return None
    for opening, middle, ending in _TEMPLATES:
        if opening in text:
            return _split_rendered(text, opening, middle, ending)
    return _split_bare(text)


def decode_prompt(tokenizer: Any, ids: Sequence[int]) -> str:
    """A prompt's text: with special tokens where they name the role of each turn, else without."""
    whole: str = tokenizer.decode(ids, skip_special_tokens=False)
    if read_rendered_prompt(whole) is not None:
        return whole
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def _split_rendered(
    text: str, opening: str, middle: str, ending: str
) -> list[dict[str, Any]] | None:
    head, *parts = text.split(opening)
    role, _, rest = parts.pop().partition(middle)
    if head.strip() not in ("", "<|begin_of_text|>") or role != "assistant":
        return None
    if "".join(rest.split()) not in _THINKING or not parts:
        return None
    messages = []
    for part in parts:
        role, found, rest = part.partition(middle)
        content, end, after = rest.partition(ending)
        if role not in _ROLES or not found or not end or after.strip():
            return None
        messages.append({"role": role, "content": content})
    return messages


_BARE_ROLES = (["user"], ["system", "user"])


def _split_bare(text: str) -> list[dict[str, Any]] | None:
    asked, found, rest = text.rpartition("\nassistant\n")
    if not found or "".join(rest.split()) not in _THINKING:
        return None
    lines = asked.split("\n")
    roles = [place for place, line in enumerate(lines) if line in _ROLES]
    if roles[:1] != [0] or [lines[place] for place in roles] not in _BARE_ROLES:
        return None
    return [
        {"role": lines[start], "content": "\n".join(lines[start + 1 : end])}
        for start, end in zip(roles, [*roles[1:], len(lines)], strict=True)
    ]
