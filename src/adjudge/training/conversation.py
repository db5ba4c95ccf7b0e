"""A conversation as the tokens that the policy read and wrote, turn by turn.

A later turn adds the tokens of what was said in between; nothing is ever encoded again, because
decoding and encoding need not come back to the tokens that were drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adjudge.environments import OutOfContext
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.local.tokenizers import control_tokens_of
from adjudge.prompts.control_tokens import part_tokens

__all__ = ["ChatCodec", "Conversation"]

_ASKED = {"role": "user", "content": "?"}
_SAID = {"role": "assistant", "content": "!"}
_OWN = ("system", "developer", "assistant")
"""Roles of what a task says of its own: instructions, and words put into the policy's mouth."""


class ChatCodec:
    """Chat messages to tokens, by a tokenizer's own template.

    What an environment says (messages of ``user`` and ``tool``) is text, whatever it looks like: a
    control token of the tokenizer in it is broken up, so that a page that was fetched cannot end
    its turn and begin the policy's. ``own_prompts``: the opening messages are data of the user's
    own, a dataset, and stay as they are.

    Raises :class:`~adjudge.errors.ConfigError` for a template whose turns do not end with the
    tokenizer's end token: generation would not stop where a turn does.
    """

    def __init__(self, tokenizer: Any, *, own_prompts: bool = False) -> None:
        self._tokenizer = tokenizer
        self._control_tokens = control_tokens_of(tokenizer)
        self._own_prompts = own_prompts
        self.end: int = tokenizer.eos_token_id
        # What the template puts after a reply's end token belongs to the next turn.
        said = self._text([_ASKED, _SAID])
        _, ends, self._tail = said.rpartition(tokenizer.eos_token)
        if not ends:
            raise ConfigError(
                f"the model's chat template does not end a turn with {tokenizer.eos_token!r}, the "
                "tokenizer's end token; set eos_token to the one that it uses"
            )
        self._before = said

    def opening(self, messages: Sequence[Any]) -> list[int]:
        """A conversation's first tokens, up to where the policy speaks."""
        said = messages if self._own_prompts else self._as_text(messages)
        return self._encode(self._text(said, speak=True))

    def between(self, messages: Sequence[Any]) -> list[int]:
        """What stands between a reply's end token and the next reply: ``messages``.

        Raises ``GradingFailure(unsupported)`` for a template that writes earlier turns anew.
        """
        whole = self._text([_ASKED, _SAID, *self._as_text(messages)], speak=True)
        if not whole.startswith(self._before):
            raise GradingFailure(
                ErrorKind.UNSUPPORTED,
                "the tokenizer's chat template writes earlier turns differently when more follow",
            )
        return self._encode(self._tail + whole[len(self._before) :])

    def text(self, ids: Sequence[int]) -> str:
        """Tokens as text, without control tokens."""
        decoded: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return decoded

    def _as_text(self, messages: Sequence[Any]) -> list[Any]:
        """``messages`` without control tokens in what the environment says."""
        return [
            turn
            if turn.get("role") in _OWN or "content" not in turn
            else {**turn, "content": self._parted(turn["content"])}
            for turn in messages
        ]

    def _parted(self, content: Any) -> Any:
        if isinstance(content, str):
            return part_tokens(content, self._control_tokens)
        if isinstance(content, list):
            return [self._parted(part) for part in content]
        if isinstance(content, Mapping) and isinstance(content.get("text"), str):
            return {**content, "text": self._parted(content["text"])}
        return content

    def _text(self, messages: Sequence[Any], *, speak: bool = False) -> str:
        said: str = self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=speak
        )
        return said

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


class Conversation:
    """One episode's tokens: ``prompt``, then ``completion``.

    Beside each token of the completion stand its entry in ``logprobs`` (as the policy drew it; 0
    where it was told) and in ``turns`` (the reply it belongs to; −1 where it was told).
    """

    def __init__(self, codec: ChatCodec, most: int | None) -> None:
        self._codec, self._most = codec, most
        self._seen: list[tuple[Any, Any]] = []
        self.prompt: list[int] = []
        self.completion: list[int] = []
        self.logprobs: list[float] = []
        self.turns: list[int] = []
        self.replies = 0
        self._asked = False

    def read(self, messages: Sequence[Any], room: int) -> list[int]:
        """The tokens after which the policy speaks next, with ``room`` for its reply.

        Raises :class:`~adjudge.environments.OutOfContext`, and ``GradingFailure(unsupported)``
        where the history is not the one that there was.
        """
        told = [(turn.get("role"), turn.get("content")) for turn in messages]
        if self._asked and told == self._seen:  # the same once more, before there was a reply
            return [*self.prompt, *self.completion]
        if self._asked or told[: len(self._seen)] != self._seen:
            raise GradingFailure(
                ErrorKind.UNSUPPORTED,
                "the conversation was rewritten: what the policy is trained on must be what it "
                "read, turn by turn",
            )
        if not self._seen:
            added = self._codec.opening(messages)
        else:
            added = self._codec.between(messages[len(self._seen) :])
            if self.completion[-1] != self._codec.end:  # the reply was cut off
                added = [self._codec.end, *added]
        if self._most is not None and len(self) + len(added) + room > self._most:
            raise OutOfContext
        self._seen, self._asked = told, True
        if self.replies:
            self._add(added, [0.0] * len(added), -1)
        else:
            self.prompt = added
        return [*self.prompt, *self.completion]

    def wrote(self, ids: Sequence[int], logprobs: Sequence[float]) -> str:
        """The policy's reply, as tokens; its text.

        Raises ``GradingFailure(unsupported)`` for a second reply to what was read once.
        """
        if not self._asked:
            raise GradingFailure(
                ErrorKind.UNSUPPORTED, "the same turn was asked for twice at the same time"
            )
        self._add(ids, logprobs, self.replies)
        self.replies += 1
        self._asked = False
        text = self._codec.text(ids)
        self._seen.append(("assistant", text))
        return text

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)

    def _add(self, ids: Sequence[int], logprobs: Sequence[float], turn: int) -> None:
        self.completion += ids
        self.logprobs += logprobs
        self.turns += [turn] * len(ids)
