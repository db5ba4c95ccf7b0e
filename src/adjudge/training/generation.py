"""A model of this process as the policy: what its lanes ask is generated together.

The episodes live on the engine's loop, the model belongs to the thread that calls
:meth:`LocalPlayer.run`. A batch is generated when every lane waits for a reply, so the same
episodes make the same batches; a reply that is complete leaves its batch at once.
"""

from __future__ import annotations

import asyncio
import queue
import random
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from adjudge.engine.loop import start
from adjudge.environments import Policy
from adjudge.training.conversation import ChatCodec, Conversation
from adjudge.training.playing import Lane, Lanes

__all__ = ["LocalPlayer"]

T = TypeVar("T")


@dataclass
class _Asked:
    """A place whose turn it is: the tokens before its reply, and who waits for it."""

    place: int
    ids: list[int]
    reply: Future[tuple[list[int], list[float]]]


@dataclass
class _Closed:
    """A lane has no more episodes."""


@dataclass
class _Over:
    """The job is done."""


class LocalPlayer:
    """``model`` (of transformers) speaks, at most ``max_tokens`` a reply, at ``temperature``.

    ``seed`` decides the draws, together with what :meth:`reseed` names. ``linger_s``: how long a
    batch waits for lanes that are still busy elsewhere; ``None``: until all ask.
    ``own_prompts``: see :class:`.conversation.ChatCodec`. ``conversations`` are those of the last
    :meth:`run`, by place.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        seed: int = 0,
        linger_s: float | None = None,
        own_prompts: bool = False,
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._codec = ChatCodec(tokenizer, own_prompts=own_prompts)
        self._max_tokens, self._temperature = max_tokens, temperature
        self._linger_s = linger_s
        self._seed = seed
        self._most = _context(model)
        self._events: queue.SimpleQueue[_Asked | _Closed | _Over] = queue.SimpleQueue()
        self.conversations: dict[int, Conversation] = {}
        self.reseed("")

    def reseed(self, name: str) -> None:
        """Begin the draws that belong to ``name``: the same ones for the same seed."""
        self._draws = random.Random(f"draws {self._seed} {name}")  # noqa: S311  (no secret)

    def run(self, job: Callable[[Lanes], Coroutine[Any, Any, T]]) -> T:
        """Run ``job`` on the engine's loop; generate here, in the caller's thread, until it ends.

        Ctrl-C, and what generation raises, end the job.
        """
        self.conversations = {}
        self._events = queue.SimpleQueue()
        self._open = 0
        running = start(job(self._lanes))
        running.done.add_done_callback(lambda _: self._events.put(_Over()))
        try:
            self._serve()
        except BaseException:
            running.cancel()
            raise
        result: T = running.done.result()
        return result

    def _lanes(self, count: int) -> Sequence[Lane]:
        self._open += count
        return [_LocalLane(self, self._events) for _ in range(count)]

    def conversation(self, place: int) -> Conversation:
        """A new conversation for the episode at ``place``."""
        self.conversations[place] = Conversation(self._codec, self._most)
        return self.conversations[place]

    def opening(self, messages: Sequence[Any]) -> list[int]:
        """The tokens of ``messages``, up to where the policy speaks."""
        return self._codec.opening(messages)

    @property
    def end(self) -> int:
        """The token that ends a reply."""
        return self._codec.end

    @property
    def max_tokens(self) -> int:
        """The longest reply."""
        return self._max_tokens

    def _serve(self) -> None:
        waiting: list[_Asked] = []
        while True:
            try:
                event = self._events.get(timeout=self._linger_s if waiting else None)
            except queue.Empty:
                self._generate(waiting)
                waiting = []
                continue
            if isinstance(event, _Over):
                return
            if isinstance(event, _Closed):
                self._open -= 1
            else:
                waiting.append(event)
            if waiting and len(waiting) >= self._open:
                self._generate(waiting)
                waiting = []

    def _generate(self, asked: list[_Asked]) -> None:
        """Replies to all of ``asked``, in one batch."""
        from adjudge.training.sampling import generate  # noqa: PLC0415  (torch)

        asked.sort(key=lambda one: one.place)

        def ended(row: int, ids: list[int], logprobs: list[float]) -> None:
            reply = asked[row].reply
            if reply.set_running_or_notify_cancel():
                reply.set_result((ids, logprobs))

        generate(
            self._model,
            self._tokenizer,
            [one.ids for one in asked],
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            seed=self._draws.getrandbits(63),
            on_end=ended,
        )


class _LocalLane:
    def __init__(self, player: LocalPlayer, events: queue.SimpleQueue[Any]) -> None:
        self._player, self._events = player, events

    def policy(self, place: int) -> Policy:
        """The model, in a conversation of its own."""
        conversation = self._player.conversation(place)

        async def speak(messages: Sequence[Any]) -> str:
            ids = conversation.read(messages, self._player.max_tokens)
            reply: Future[tuple[list[int], list[float]]] = Future()
            self._events.put(_Asked(place, ids, reply))
            return conversation.wrote(*await asyncio.wrap_future(reply))

        return speak

    def close(self) -> None:
        """The batch need not wait for this lane."""
        self._events.put(_Closed())


def _context(model: Any) -> int | None:
    """How many tokens the model can read, as far as it says."""
    found = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if found is None else int(found)
