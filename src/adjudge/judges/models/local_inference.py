"""Replies and scores of local models, computed in batches by one thread.

Questions come from any thread and event loop. Generative judges reply with text; scalar judges
give one number per conversation, from a model's single output.
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import msgspec

from adjudge.engine.loop import SerialThread
from adjudge.errors import ConfigError, ErrorKind, GradingFailure, Metadata
from adjudge.judges.base import ScalarReading, TokenLogprobs
from adjudge.judges.models.local_loading import LoadedModel, apply_chat_template, convert_to_turns
from adjudge.types import Message

_log = logging.getLogger("adjudge")

WAIT_S, LOT = 0.005, 8

PADDING = 256
"""Tokens of padding in a batch at most."""

BatchFunction = Callable[[list[Any]], Iterator[tuple[int, Any]]]
"""Answers (or failures) with their questions' places, in any order, as they come."""

_Asked = tuple[Any, concurrent.futures.Future[Any]]
"""A question, and who waits for its answer."""


class BatchQueue:
    """Collects what is asked while the thread is busy, and gives it to ``answer`` at once.

    A lot is taken when ``size`` questions wait or the oldest has waited :data:`WAIT_S`, and is at
    most :data:`LOT` batches: so many are sorted by length before they are computed.
    """

    def __init__(self, answer: BatchFunction, *, size: int) -> None:
        self._answer, self._size = answer, size
        self._waiting: SimpleQueue[_Asked] = SimpleQueue()
        self.thread = SerialThread("adjudge-local")

    def ask(self, question: object) -> concurrent.futures.Future[Any]:
        """The answer to come; its exception is the question's ``GradingFailure``.

        Cancelling it before its lot is taken takes the question back.
        """
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._waiting.put((question, future))
        self.thread.submit(self._work)
        return future

    def close(self) -> None:
        """Take no more; who waits is told so."""
        self.thread.close()
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()[1].cancel()

    def _work(self) -> None:
        """Answer what waits, unless it was in the lot of an earlier question."""
        lot = [one for one in self._take_lot() if one[1].set_running_or_notify_cancel()]
        if not lot:
            return
        error: Exception = GradingFailure(ErrorKind.BUG, "the local model gave no answer")
        try:
            for place, said in self._answer([question for question, _ in lot]):
                if isinstance(said, GradingFailure):
                    lot[place][1].set_exception(said)
                else:
                    lot[place][1].set_result(said)
        except ConfigError as wrong:
            error = wrong
        except BaseException as broken:  # noqa: BLE001  (the model has failed all of these)
            error = _model_failure(broken)
        for _, future in lot:
            if not future.done():
                future.set_exception(error)

    def _take_lot(self) -> list[_Asked]:
        lot: list[_Asked] = []
        end = time.monotonic() + WAIT_S
        with suppress(Empty):
            lot.append(self._waiting.get_nowait())
            while len(lot) < LOT * self._size:
                left = end - time.monotonic() if len(lot) < self._size else 0.0
                lot.append(self._waiting.get(timeout=max(left, 0.0)))
        return lot


def _model_failure(error: BaseException) -> GradingFailure:
    """What went wrong by type and place; its words may hold what was judged."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    said = f"the local model failed: {type(error).__name__}{at}"
    _log.error("%s", said)
    return GradingFailure(ErrorKind.SERVER_ERROR, said)


def batch_by_length(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Places in batches of at most ``size``, like lengths together, the longest first.

    The longest first, so that memory runs out at once if it does. A batch ends early where the
    padding of its shorter members would come to more than :data:`PADDING` tokens: computing those
    costs more than another pass.

    >>> batch_by_length([3, 9, 4, 8, 1], 2)
    [[1, 3], [2, 0], [4]]
    >>> batch_by_length([600, 590, 20, 10], 4)
    [[0, 1], [2, 3]]
    """
    batches: list[list[int]] = []
    padding = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        padding += lengths[batches[-1][0]] - lengths[place] if batches else 0
        if not batches or len(batches[-1]) == size or padding > PADDING:
            batches.append([])
            padding = 0
        batches[-1].append(place)
    return batches


@dataclass
class _Encoded:
    """A question as tokens, and their types where the model has some."""

    place: int
    ids: list[int]
    types: list[int] | None = None
    truncated: int = 0


_Answer = TypeVar("_Answer")


def _compute_or_split(
    compute: Callable[[list[_Encoded]], list[_Answer]], batch: list[_Encoded], limit: str
) -> Iterator[tuple[int, _Answer | GradingFailure]]:
    """A batch's answers; in halves where memory does not suffice. ``limit``: what lowers it."""
    import torch  # noqa: PLC0415

    try:
        found = compute(batch)
    except torch.OutOfMemoryError:
        found = None
    if found is not None:
        yield from zip((one.place for one in batch), found, strict=True)
        return
    torch.cuda.empty_cache()
    if len(batch) == 1:
        message = f"{len(batch[0].ids)} tokens do not fit into memory; lower {limit}"
        yield batch[0].place, GradingFailure(ErrorKind.UNSUPPORTED, message, {"suspect": True})
        return
    half = len(batch) // 2
    yield from _compute_or_split(compute, batch[:half], limit)
    yield from _compute_or_split(compute, batch[half:], limit)


_TOP = 20


class TemplateOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Further arguments of the chat template."""

    chat_template_kwargs: Metadata = {}


class LocalSampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a reply is drawn; temperature 0 takes the likeliest token always."""

    temperature: float = 0.0
    top_p: float | None = None
    max_tokens: int = 512
    extra_body: TemplateOptions = TemplateOptions()


class ChatQuestion(msgspec.Struct, frozen=True):
    """One question."""

    messages: Sequence[Message]
    sampling: LocalSampling
    choices: tuple[str, ...] = ()
    logprobs: bool = False


class ChatAnswer(msgspec.Struct, frozen=True):
    """One reply; ``ended``: by itself, not by its length limit."""

    text: str
    ended: bool
    input_tokens: int
    output_tokens: int
    logprobs: list[TokenLogprobs] | None


def generate_answers(
    loaded: LoadedModel, questions: list[ChatQuestion], size: int
) -> Iterator[tuple[int, ChatAnswer | GradingFailure]]:
    """Each question's reply; those that are drawn alike are generated together."""
    alike: dict[Any, list[_Encoded]] = defaultdict(list)
    for place, asked in enumerate(questions):
        try:
            one = _Encoded(place, _encode_prompt(loaded, asked))
        except GradingFailure as failure:
            yield place, failure
        else:
            drawn = msgspec.structs.replace(asked.sampling, extra_body=TemplateOptions())
            alike[repr(drawn), asked.choices, asked.logprobs].append(one)
    for group in alike.values():
        for places in batch_by_length([len(one.ids) for one in group], size):
            batch = [group[place] for place in places]
            generate = partial(_generate, loaded, questions[batch[0].place])
            yield from _compute_or_split(generate, batch, "max_tokens")


def _encode_prompt(loaded: LoadedModel, asked: ChatQuestion) -> list[int]:
    turns = convert_to_turns(asked.messages, loaded.special)
    ids = apply_chat_template(
        loaded.tokenizer, turns, reply=True, **asked.sampling.extra_body.chat_template_kwargs
    )
    needed = len(ids) + asked.sampling.max_tokens
    if loaded.length is not None and needed > loaded.length:
        # A question that is cut asks something else.
        raise GradingFailure(
            ErrorKind.TOO_LONG,
            f"the prompt's {len(ids)} tokens and max_tokens {asked.sampling.max_tokens} exceed the "
            f"model's {loaded.length}",
        )
    return ids


def _generate(loaded: LoadedModel, asked: ChatQuestion, batch: list[_Encoded]) -> list[ChatAnswer]:
    import torch  # noqa: PLC0415

    ends = _end_tokens(loaded)
    longest = max(len(one.ids) for one in batch)
    filler = loaded.tokenizer.pad_token_id
    filler = ends[0] if filler is None else filler
    # On the left: what is generated stands right after each prompt.
    before = [longest - len(one.ids) for one in batch]
    ids = [[filler] * n + one.ids for n, one in zip(before, batch, strict=True)]
    mask = [[0] * n + [1] * len(one.ids) for n, one in zip(before, batch, strict=True)]
    allowed = _allowed_tokens(loaded, asked.choices, ends[0])
    with torch.inference_mode():
        made = loaded.model.generate(
            input_ids=torch.tensor(ids, device=loaded.device),
            attention_mask=torch.tensor(mask, device=loaded.device),
            generation_config=_generation_config(asked, ends, filler),
            prefix_allowed_tokens_fn=(lambda _, row: allowed(row[longest:].tolist()))
            if asked.choices
            else None,
        )
    tokenizer, answers = loaded.tokenizer, []
    rows = made.sequences[:, longest:].tolist()
    for place, (one, row) in enumerate(zip(batch, rows, strict=True)):
        stop = next((at for at, token in enumerate(row) if token in ends), None)
        kept = row if stop is None else row[:stop]
        logprobs = None
        if asked.logprobs:
            logprobs = [
                _token_logprobs(tokenizer, made.logits[at][place], token, allowed(kept[:at]))
                for at, token in enumerate(kept)
            ]
        answers.append(
            ChatAnswer(
                text=tokenizer.decode(kept, skip_special_tokens=True),
                ended=stop is not None,
                input_tokens=len(one.ids),
                output_tokens=len(kept) + (stop is not None),
                logprobs=logprobs,
            )
        )
    return answers


def _end_tokens(loaded: LoadedModel) -> list[int]:
    """The tokens that end a reply, the tokenizer's own first."""
    own = loaded.model.generation_config.eos_token_id
    ends = own if isinstance(own, list) else [own]
    found = dict.fromkeys([loaded.tokenizer.eos_token_id, *ends])
    return [end for end in found if end is not None] or [0]


def _generation_config(asked: ChatQuestion, ends: list[int], filler: int) -> Any:
    """The sampling that was asked for, and nothing of the model's own defaults."""
    import transformers  # noqa: PLC0415

    how = asked.sampling
    options: Metadata = {"do_sample": how.temperature > 0}
    if how.temperature > 0:
        options |= {"temperature": how.temperature, "top_k": 0}
        options |= {"top_p": 1.0 if how.top_p is None else how.top_p}
    return transformers.GenerationConfig(
        max_new_tokens=how.max_tokens,
        eos_token_id=ends,
        pad_token_id=filler,
        return_dict_in_generate=True,
        output_logits=asked.logprobs,
        **options,
    )


def _allowed_tokens(
    loaded: LoadedModel, choices: Sequence[str], end: int
) -> Callable[[list[int]], list[int]]:
    """Which tokens may follow what was generated so far; without choices, none: that is any."""
    spelt = [
        [*loaded.tokenizer(choice, add_special_tokens=False).input_ids, end] for choice in choices
    ]

    def following(so_far: list[int]) -> list[int]:
        n = len(so_far)
        found = {ids[n] for ids in spelt if len(ids) > n and ids[:n] == so_far}
        return sorted(found) or ([end] if choices else [])

    return following


def _token_logprobs(tokenizer: Any, logits: Any, token: int, allowed: list[int]) -> TokenLogprobs:
    """The model's own distribution at one token, over the ``allowed`` ones; temperature 1."""
    import torch  # noqa: PLC0415

    logits = logits.float()
    if allowed:
        masked = torch.full_like(logits, float("-inf"))
        masked[allowed] = logits[allowed]
        logits = masked
    logs = torch.log_softmax(logits, dim=-1)
    best = torch.topk(logs, min(_TOP, len(allowed) if allowed else _TOP, logs.shape[-1]))
    top: dict[str, float] = {}
    for log, at in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        top.setdefault(tokenizer.decode([at]), log)  # several tokens may read the same
    return TokenLogprobs(tokenizer.decode([token]), float(logs[token]), top)


_Conversation = Sequence[Message]


def score_conversations(
    loaded: LoadedModel, questions: list[_Conversation], size: int
) -> Iterator[tuple[int, ScalarReading | GradingFailure]]:
    """Each conversation's reading, in batches of ``size`` of like length, padded on the right.

    What is too long loses tokens from its beginning, the first one kept if it is the beginning
    mark: the score is read off the end.
    """
    encoded = []
    for place, messages in enumerate(questions):
        try:
            encoded.append(_encode_messages(loaded, place, messages))
        except GradingFailure as failure:
            yield place, failure
    if loaded.model.config.get_text_config().pad_token_id is None:
        size = 1  # the model could not tell where a shorter text ends
    for places in batch_by_length([len(one.ids) for one in encoded], size):
        batch = [encoded[place] for place in places]
        yield from _compute_or_split(partial(_compute_scores, loaded), batch, "max_length")


def _encode_messages(loaded: LoadedModel, place: int, messages: _Conversation) -> _Encoded:
    tokenizer, limit = loaded.tokenizer, loaded.length
    turns = convert_to_turns(messages, loaded.special)
    if not tokenizer.chat_template:
        return _encode_pair(loaded, place, turns)
    ids = apply_chat_template(tokenizer, turns, reply=False)
    over = 0 if limit is None else max(len(ids) - limit, 0)
    if over:
        kept = [ids[0]] if ids[0] == tokenizer.bos_token_id else []
        ids = kept + ids[len(kept) + over :]
    return _Encoded(place, ids, None, over)


def _encode_pair(loaded: LoadedModel, place: int, turns: list[dict[str, str]]) -> _Encoded:
    """Prompt and completion as two texts, for models without a chat template."""
    if [turn["role"] for turn in turns] != ["user", "assistant"]:
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            "this judge has no chat template: it takes a prompt and a completion only",
        )
    texts = [turn["content"] for turn in turns]
    whole = loaded.tokenizer(*texts)
    over = 0 if loaded.length is None else max(len(whole.input_ids) - loaded.length, 0)
    if over:
        whole = loaded.tokenizer(*texts, truncation="longest_first", max_length=loaded.length)
    return _Encoded(place, whole.input_ids, whole.get("token_type_ids"), over)


def _compute_scores(loaded: LoadedModel, batch: list[_Encoded]) -> list[ScalarReading]:
    import torch  # noqa: PLC0415

    pad = loaded.model.config.get_text_config().pad_token_id
    longest = max(len(one.ids) for one in batch)

    def padded(row: list[int], filler: int) -> list[int]:
        return row + [filler] * (longest - len(row))

    rows = {
        "input_ids": [padded(one.ids, pad or 0) for one in batch],
        "attention_mask": [padded([1] * len(one.ids), 0) for one in batch],
    }
    if batch[0].types is not None:
        rows["token_type_ids"] = [padded(one.types or [], 0) for one in batch]
    tensors = {name: torch.tensor(row, device=loaded.device) for name, row in rows.items()}
    with torch.inference_mode():
        logits = loaded.model(**tensors).logits
    scores: list[float] = logits[:, 0].float().tolist()
    return [
        ScalarReading(score, len(one.ids), one.truncated)
        for one, score in zip(batch, scores, strict=True)
    ]
