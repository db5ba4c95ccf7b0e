"""A model of this process as the policy: conversations as tokens, replies drawn in batches.

The episodes live on the engine's loop, the model belongs to the thread that calls
:meth:`LocalPlayer.run`. A batch is generated when every lane waits for a reply, so the same
episodes make the same batches; a reply that is complete leaves its batch at once.

A conversation is kept as the tokens that the policy read and wrote. A later turn adds the tokens of
what was said in between; nothing is ever encoded again, because decoding and encoding need not come
back to the tokens that were drawn.
"""

from __future__ import annotations

import asyncio
import queue
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from adjudge.engine.loop import Job
from adjudge.errors import ConfigError, ErrorKind, GradingFailure
from adjudge.judges.models.local_loading import get_control_tokens
from adjudge.prompts.control_tokens import break_control_tokens
from adjudge_lab.environments import OutOfContext, Policy
from adjudge_lab.rl.episodes import Lane, OpenLanes
from adjudge_lab.rl.runfile import RunFile

OnReplyEnd = Callable[[int, list[int], list[float]], None]
"""Hears of a row's tokens and their log-probabilities when its reply is complete."""


def draw_replies(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
    on_end: OnReplyEnd,
) -> None:
    """Draw one reply to each of ``prompts``; the end token belongs to a reply that has one.

    Log-probabilities are of softmax(logits / ``temperature``), nothing cut off, as a trainer
    computes them. The same ``seed`` and batch draw the same.
    """
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    device = model.device
    width = max(map(len, prompts))
    pad = tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(one)) + list(one) for one in prompts], device=device)
    mask = torch.tensor(
        [[0] * (width - len(one)) + [1] * len(one) for one in prompts], device=device
    )
    draw = _GumbelSampler(len(prompts), temperature, seed, tokenizer.eos_token_id, on_end, device)
    plain = transformers.GenerationConfig(
        do_sample=False,
        max_new_tokens=max_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=pad,
        bos_token_id=None,
    )
    was_training, own = model.training, model.generation_config
    model.eval()
    # What a model says of its generation (a penalty for repeats, say) would be filled in, and the
    # draws would not be from what is trained.
    model.generation_config = plain
    try:
        with torch.no_grad():
            model.generate(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=_read_shared_prompts(model, prompts, ids, mask),
                logits_processor=transformers.LogitsProcessorList([draw]),
                generation_config=plain,
            )
    finally:
        model.train(was_training)
        model.generation_config = own
    draw.finish()


def _read_shared_prompts(model: Any, prompts: Sequence[Sequence[int]], ids: Any, mask: Any) -> Any:
    """The model's cache after all but the last token of each prompt, equal prompts read once.

    A group has one prompt, which is else read once a reply. ``None`` where all are different, and
    for models with a cache that is not made of keys and values alone.
    """
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    rows = {tuple(prompt): row for row, prompt in enumerate(prompts)}
    if len(rows) == len(prompts) or ids.shape[1] < 2:
        return None
    first = torch.tensor(list(rows.values()), device=ids.device)
    seen = mask[first, :-1]
    read = model(
        input_ids=ids[first, :-1],
        attention_mask=seen,
        position_ids=(seen.cumsum(-1) - 1).clamp_min(0),
        use_cache=True,
        logits_to_keep=1,
    )
    # Mamba has another memory, by another name.
    cache: Any = getattr(read, "past_key_values", None)
    layers = getattr(cache, "layers", None)
    plain = transformers.cache_utils.DynamicLayer
    if not layers or any(type(layer) is not plain for layer in layers):
        return None
    place = {prompt: at for at, prompt in enumerate(rows)}
    cache.batch_select_indices(
        torch.tensor([place[tuple(prompt)] for prompt in prompts], device=ids.device)
    )
    return cache


class _GumbelSampler:
    """Draws by the Gumbel trick: the largest of log-probability + noise is a fair draw.

    So a greedy search over what this returns takes the drawn token; its log-probability is known
    on the spot.
    """

    def __init__(
        self, rows: int, temperature: float, seed: int, end: int, on_end: OnReplyEnd, device: Any
    ) -> None:
        import torch  # noqa: PLC0415

        self._torch = torch
        self._noise = torch.Generator(device=device)
        self._noise.manual_seed(seed)
        self._temperature, self._end, self._on_end = temperature, end, on_end
        self._ids: list[list[int]] = [[] for _ in range(rows)]
        self._logprobs: list[list[float]] = [[] for _ in range(rows)]
        self._going = [True] * rows

    def __call__(self, _input_ids: Any, scores: Any) -> Any:
        torch = self._torch
        logprobs = torch.log_softmax(scores.float() / self._temperature, dim=-1)
        noise = torch.empty_like(logprobs).exponential_(generator=self._noise)
        noisy = logprobs - noise.clamp_min_(1e-20).log_()
        drawn = noisy.argmax(dim=-1)
        of_drawn = logprobs.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        for row, (token, value) in enumerate(zip(drawn.tolist(), of_drawn.tolist(), strict=True)):
            if self._going[row]:
                self._ids[row].append(token)
                self._logprobs[row].append(value)
                if token == self._end:
                    self._hand_over(row)
        return noisy

    def finish(self) -> None:
        """Hand over the replies that ran out of tokens."""
        for row, going in enumerate(self._going):
            if going:
                self._hand_over(row)

    def _hand_over(self, row: int) -> None:
        self._going[row] = False
        self._on_end(row, self._ids[row], self._logprobs[row])


_EXAMPLE_QUESTION = {"role": "user", "content": "?"}
_EXAMPLE_REPLY = {"role": "assistant", "content": "!"}
_TRUSTED_ROLES = ("system", "developer", "assistant")
"""Roles of what a task says of its own: instructions, and words put into the policy's mouth."""


class ChatCodec:
    """Chat messages to tokens, by a tokenizer's own template.

    What an environment says (messages of ``user`` and ``tool``) is text, whatever it looks like: a
    control token of the tokenizer in it is broken up, so that a page that was fetched cannot end
    its turn and begin the policy's. ``own_prompts``: the opening messages are data of the user's
    own, a dataset, and stay as they are.

    Raises :class:`~adjudge.errors.ConfigError` for a template with turns that do not end with
    the tokenizer's end token: generation would not stop where a turn does.
    """

    def __init__(self, tokenizer: Any, *, own_prompts: bool = False) -> None:
        self._tokenizer = tokenizer
        self._control_tokens = get_control_tokens(tokenizer)
        self._own_prompts = own_prompts
        self.end: int = tokenizer.eos_token_id
        # What the template puts after a reply's end token belongs to the next turn.
        said = self._text([_EXAMPLE_QUESTION, _EXAMPLE_REPLY])
        _, ends, self._tail = said.rpartition(tokenizer.eos_token)
        if not ends:
            raise ConfigError(
                "the model's chat template does not end a turn with the tokenizer's eos_token "
                f"(found {tokenizer.eos_token!r}). Set eos_token to the token that ends a turn."
            )
        self._before = said

    def opening(self, messages: Sequence[Any]) -> list[int]:
        """A conversation's first tokens, up to where the policy speaks."""
        said = messages if self._own_prompts else self._as_text(messages)
        return self._encode(self._text(said, speak=True))

    def between(self, messages: Sequence[Any]) -> list[int]:
        """The tokens between a reply's end token and the next reply: ``messages``.

        Raises ``GradingFailure(unsupported)`` for a template that writes earlier turns anew.
        """
        whole = self._text(
            [_EXAMPLE_QUESTION, _EXAMPLE_REPLY, *self._as_text(messages)], speak=True
        )
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
            if turn.get("role") in _TRUSTED_ROLES or "content" not in turn
            else {**turn, "content": self._parted(turn["content"])}
            for turn in messages
        ]

    def _parted(self, content: Any) -> Any:
        if isinstance(content, str):
            return break_control_tokens(content, self._control_tokens)
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


class TokenConversation:
    """One episode's tokens: ``prompt``, then ``completion``.

    Each token of the completion has an entry in ``logprobs`` (as the policy drew it) and in
    ``turns`` (the reply it belongs to). A token that the policy only read has 0 and −1.
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

    def next_prompt(self, messages: Sequence[Any], room: int) -> list[int]:
        """The tokens after which the policy speaks next, with ``room`` for its reply.

        Raises :class:`~adjudge_lab.environments.OutOfContext`, and ``GradingFailure(unsupported)``
        where the history is not the one that there was.
        """
        turns = [(turn.get("role"), turn.get("content")) for turn in messages]
        if self._asked and turns == self._seen:  # the same once more, before there was a reply
            return [*self.prompt, *self.completion]
        if self._asked or turns[: len(self._seen)] != self._seen:
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
        self._seen, self._asked = turns, True
        if self.replies:
            self._add(added, [0.0] * len(added), -1)
        else:
            self.prompt = added
        return [*self.prompt, *self.completion]

    def add_reply(self, ids: Sequence[int], logprobs: Sequence[float]) -> str:
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


_T = TypeVar("_T")

_LINGER_S = 0.02
"""How long a batch waits for a task app's other episodes: they come over a network."""


@dataclass
class _ReplyRequest:
    """A place that writes next: the tokens before its reply, and who waits for it."""

    place: int
    ids: list[int]
    reply: Future[tuple[list[int], list[float]]]


class _End(Enum):
    """What else the player hears: a lane has no more episodes, or the job is done."""

    LANE = "lane"
    JOB = "job"


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
        self._most = _context_length(model)
        self._events: queue.SimpleQueue[_ReplyRequest | _End] = queue.SimpleQueue()
        self.conversations: dict[int, TokenConversation] = {}
        self.reseed("")

    @classmethod
    def for_run(cls, run: RunFile, model: Any, tokenizer: Any) -> LocalPlayer:
        """The policy of ``run``, which speaks as its file says."""
        return cls(
            model,
            tokenizer,
            max_tokens=run.rollout.max_tokens,
            temperature=run.rollout.temperature,
            seed=run.training.seed,
            linger_s=None if run.services.task_url is None else _LINGER_S,
            own_prompts=run.rollout.dataset is not None,
        )

    def reseed(self, name: str) -> None:
        """Begin the draws that belong to ``name``: the same ones for the same seed."""
        self._draws = random.Random(f"draws {self._seed} {name}")  # noqa: S311  (no secret)

    def run(self, job: Callable[[OpenLanes], Coroutine[Any, Any, _T]]) -> _T:
        """Run ``job`` on the engine's loop; generate here, in the caller's thread, until it ends.

        Ctrl-C, and what generation raises, end the job.
        """
        self.conversations = {}
        self._events = queue.SimpleQueue()
        self._open = 0
        running = Job(job(self._lanes))
        running.done.add_done_callback(lambda _: self._events.put(_End.JOB))
        try:
            self._serve()
        except BaseException:
            running.cancel()
            raise
        result: _T = running.done.result()
        return result

    def _lanes(self, count: int) -> Sequence[Lane]:
        self._open += count
        return [_LocalLane(self, self._events) for _ in range(count)]

    def conversation(self, place: int) -> TokenConversation:
        """A new conversation for the episode at ``place``."""
        self.conversations[place] = TokenConversation(self._codec, self._most)
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
        waiting: list[_ReplyRequest] = []
        while True:
            try:
                event = self._events.get(timeout=self._linger_s if waiting else None)
            except queue.Empty:
                self._generate(waiting)
                waiting = []
                continue
            if event is _End.JOB:
                return
            if isinstance(event, _ReplyRequest):
                waiting.append(event)
            else:
                self._open -= 1
            if waiting and len(waiting) >= self._open:
                self._generate(waiting)
                waiting = []

    def _generate(self, asked: list[_ReplyRequest]) -> None:
        """Replies to all of ``asked``, in one batch."""
        asked.sort(key=lambda one: one.place)

        def ended(row: int, ids: list[int], logprobs: list[float]) -> None:
            reply = asked[row].reply
            if reply.set_running_or_notify_cancel():
                reply.set_result((ids, logprobs))

        draw_replies(
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
            ids = conversation.next_prompt(messages, self._player.max_tokens)
            reply: Future[tuple[list[int], list[float]]] = Future()
            self._events.put(_ReplyRequest(place, ids, reply))
            return conversation.add_reply(*await asyncio.wrap_future(reply))

        return speak

    def close(self) -> None:
        """The batch need not wait for this lane."""
        self._events.put(_End.LANE)


def _context_length(model: Any) -> int | None:
    """How many tokens the model can read, as far as it says."""
    found = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if found is None else int(found)
