"""Scalar judges: one number per conversation, from a model's single output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.local.batches import by_length
from adjudge.judges.local.conversation import templated, turns_of
from adjudge.judges.local.loading import Loaded

__all__ = ["Reading", "answers"]


class Reading(msgspec.Struct, frozen=True):
    """What a scalar judge said: its output, and how many tokens it read and was not shown."""

    score: float
    tokens: int
    truncated: int


@dataclass
class _Encoded:
    place: int
    ids: list[int]
    types: list[int] | None
    truncated: int


Conversation = Sequence[Mapping[str, Any]]


def answers(
    loaded: Loaded, questions: list[Conversation], size: int
) -> Iterator[tuple[int, Reading | GradingFailure]]:
    """Each conversation's reading, in batches of ``size`` of like length, padded on the right.

    What is too long loses tokens from its beginning, the first one kept if it is the beginning
    mark: the score is read off the end.
    """
    encoded = []
    for place, messages in enumerate(questions):
        try:
            encoded.append(_encoded(loaded, place, messages))
        except GradingFailure as failure:
            yield place, failure
    if loaded.model.config.get_text_config().pad_token_id is None:
        size = 1  # the model could not tell where a shorter text ends
    for places in by_length([len(one.ids) for one in encoded], size):
        yield from _tried(loaded, [encoded[place] for place in places])


def _encoded(loaded: Loaded, place: int, messages: Conversation) -> _Encoded:
    tokenizer, limit = loaded.tokenizer, loaded.length
    turns = turns_of(messages, loaded.special)
    if not tokenizer.chat_template:
        return _pair(loaded, place, turns)
    ids = templated(tokenizer, turns, reply=False)
    over = 0 if limit is None else max(len(ids) - limit, 0)
    if over:
        kept = [ids[0]] if ids[0] == tokenizer.bos_token_id else []
        ids = kept + ids[len(kept) + over :]
    return _Encoded(place, ids, None, over)


def _pair(loaded: Loaded, place: int, turns: list[dict[str, str]]) -> _Encoded:
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


def _tried(loaded: Loaded, batch: list[_Encoded]) -> Iterator[tuple[int, Reading | GradingFailure]]:
    """A batch; in halves where memory does not suffice."""
    import torch  # noqa: PLC0415

    try:
        scores = _scores(loaded, batch)
    except torch.OutOfMemoryError:
        scores = None
    if scores is not None:
        for one, score in zip(batch, scores, strict=True):
            yield one.place, Reading(score, len(one.ids), one.truncated)
        return
    torch.cuda.empty_cache()
    if len(batch) == 1:
        message = f"{len(batch[0].ids)} tokens do not fit into memory; lower max_length"
        yield batch[0].place, GradingFailure(ErrorKind.UNSUPPORTED, message, {"suspect": True})
        return
    half = len(batch) // 2
    yield from _tried(loaded, batch[:half])
    yield from _tried(loaded, batch[half:])


def _scores(loaded: Loaded, batch: list[_Encoded]) -> list[float]:
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
    found: list[float] = logits[:, 0].float().tolist()
    return found
