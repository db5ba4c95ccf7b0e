"""Texts that a chat template rendered: a prompt's messages, and where thinking begins and ends.

A chat template may open the thinking, so that the turn has no opening tag; a tokenizer may have the
tags as special tokens, so that decoding drops them; Mistral's tags have another form. Here the text
of a turn gets ``<think>`` and ``</think>`` where thinking begins and ends. Where nothing says that
a policy thinks, its text is plain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from adjudge.errors import Fields, Metadata
from adjudge.text import THINK_CLOSE, THINK_OPEN, THINK_TAGS


class Tokenizer(Protocol):
    """What is used of a tokenizer of transformers; one of tests may have less."""

    @property
    def decode(self) -> Callable[..., str]:
        """The text of tokens."""

    @property
    def apply_chat_template(self) -> Callable[..., object]:
        """The text of a conversation, with the options of its template."""

    @property
    def convert_tokens_to_ids(self) -> Callable[[str], int]:
        """The number of a token."""


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


def read_rendered_prompt(text: str) -> list[Metadata] | None:
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


def decode_prompt(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """A prompt's text: with special tokens where they name the role of each turn, else without."""
    whole: str = tokenizer.decode(ids, skip_special_tokens=False)
    if read_rendered_prompt(whole) is not None:
        return whole
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def _split_rendered(text: str, opening: str, middle: str, ending: str) -> list[Metadata] | None:
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


def _split_bare(text: str) -> list[Metadata] | None:
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


_OPENING_TAGS = tuple(tag for tag, usual in THINK_TAGS.items() if usual == THINK_OPEN)


def opens_thinking(prompt: str) -> bool:
    r"""Whether the end of a rendered prompt opens the thinking of the turn that follows.

    >>> opens_thinking("<|im_start|>assistant\n<think>\n")
    True
    """
    return prompt[-32:].rstrip().endswith(_OPENING_TAGS)


def template_opens_thinking(tokenizer: Tokenizer, options: Fields | None = None) -> bool:
    """Whether the tokenizer's chat template does; ``options`` are those of rendering."""
    if not getattr(tokenizer, "chat_template", None):
        return False
    asked = [{"role": "user", "content": "?"}]
    rendered = tokenizer.apply_chat_template(
        asked, tokenize=False, add_generation_prompt=True, **(options or {})
    )
    return isinstance(rendered, str) and opens_thinking(rendered)


class Thinking(NamedTuple):
    """What is known of a policy's thinking: tags that are special tokens, and the template.

    ``opened``: whether the chat template opens it; ``None`` where the prompt's text tells.
    """

    tokens: ThinkTokens | None = None
    opened: bool | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, options: Fields | None = None) -> Thinking:
        """What a tokenizer and its chat template say; ``options`` are those of rendering."""
        return cls(ThinkTokens(tokenizer), template_opens_thinking(tokenizer, options))


class ThinkTokens:
    """Thinking tags that a tokenizer has as special tokens, which decoding leaves out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        names = getattr(tokenizer, "all_special_tokens", None) or ()
        self._tags = {
            int(tokenizer.convert_tokens_to_ids(name)): THINK_TAGS[name]
            for name in names
            if name in THINK_TAGS
        }
        self._decode: Callable[..., str] = getattr(tokenizer, "decode", str)

    def __bool__(self) -> bool:
        return bool(self._tags)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a turn without special tokens, those of thinking excepted."""
        parts: list[str] = []
        start = 0
        for place, token in enumerate(ids):
            if (tag := self._tags.get(int(token))) is not None:
                parts += [self._decode(ids[start:place], skip_special_tokens=True), tag]
                start = place + 1
        return "".join([*parts, self._decode(ids[start:], skip_special_tokens=True)])

    def restore(self, text: str, ids: Sequence[int]) -> str | None:
        """``text``, the end of what ``ids`` say, with the tags in it; ``None`` where it is not.

        ``ids`` may be those of several turns, of which ``text`` is the last.
        """
        whole = self.decode(ids)
        bare = whole
        for tag in (THINK_OPEN, THINK_CLOSE):
            bare = bare.replace(tag, "")
        if bare.strip() == text.strip():
            return whole
        tag = THINK_OPEN if whole.rfind(THINK_OPEN) > whole.rfind(THINK_CLOSE) else THINK_CLOSE
        _, found, last = whole.rpartition(tag)
        if not found:
            return text
        before, is_end, _ = text.rstrip().rpartition(last.strip())
        return f"{before}{tag}{last.strip()}" if last.strip() and is_end else None
