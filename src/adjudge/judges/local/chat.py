"""Generative judges: replies of a language model, made in batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from adjudge.errors import ErrorKind, GradingFailure
from adjudge.judges.base import TokenLogprobs
from adjudge.judges.local.batches import by_length
from adjudge.judges.local.conversation import templated, turns_of
from adjudge.judges.local.loading import Loaded

__all__ = ["Asked", "Said", "Sampling", "answers"]

_TOP = 20


class Sampling(msgspec.Struct, frozen=True):
    """How a reply is drawn; temperature 0 takes the likeliest token always."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int = 512


class Asked(msgspec.Struct, frozen=True):
    """One question; ``template`` are further arguments of the chat template."""

    messages: Sequence[Mapping[str, Any]]
    sampling: Sampling
    choices: tuple[str, ...] = ()
    logprobs: bool = False
    template: Mapping[str, Any] = {}


class Said(msgspec.Struct, frozen=True):
    """One reply; ``ended``: by itself, not by its length limit."""

    text: str
    ended: bool
    input_tokens: int
    output_tokens: int
    logprobs: list[TokenLogprobs] | None


@dataclass
class _Encoded:
    place: int
    ids: list[int]


def answers(
    loaded: Loaded, questions: list[Asked], size: int
) -> Iterator[tuple[int, Said | GradingFailure]]:
    """Each question's reply; those that are drawn alike are generated together."""
    alike: dict[Any, list[_Encoded]] = defaultdict(list)
    for place, asked in enumerate(questions):
        try:
            one = _Encoded(place, _prompt(loaded, asked))
        except GradingFailure as failure:
            yield place, failure
        else:
            alike[asked.sampling, asked.choices, asked.logprobs].append(one)
    for group in alike.values():
        for places in by_length([len(one.ids) for one in group], size):
            batch = [group[place] for place in places]
            yield from _tried(loaded, questions[batch[0].place], batch)


def _prompt(loaded: Loaded, asked: Asked) -> list[int]:
    turns = turns_of(asked.messages, loaded.special)
    ids = templated(loaded.tokenizer, turns, reply=True, **asked.template)
    needed = len(ids) + asked.sampling.max_tokens
    if loaded.length is not None and needed > loaded.length:
        # A question that is cut asks something else.
        raise GradingFailure(
            ErrorKind.INVALID_INPUT,
            f"the prompt's {len(ids)} tokens and max_tokens {asked.sampling.max_tokens} exceed the "
            f"model's {loaded.length}",
            {"suspect": True},
        )
    return ids


def _tried(
    loaded: Loaded, asked: Asked, batch: list[_Encoded]
) -> Iterator[tuple[int, Said | GradingFailure]]:
    """A batch; in halves where memory does not suffice."""
    import torch  # noqa: PLC0415

    try:
        said = _generated(loaded, asked, batch)
    except torch.OutOfMemoryError:
        said = None
    if said is not None:
        yield from zip((one.place for one in batch), said, strict=True)
        return
    torch.cuda.empty_cache()
    if len(batch) == 1:
        message = f"{len(batch[0].ids)} tokens do not fit into memory; lower max_tokens"
        yield batch[0].place, GradingFailure(ErrorKind.UNSUPPORTED, message, {"suspect": True})
        return
    half = len(batch) // 2
    yield from _tried(loaded, asked, batch[:half])
    yield from _tried(loaded, asked, batch[half:])


def _generated(loaded: Loaded, asked: Asked, batch: list[_Encoded]) -> list[Said]:
    import torch  # noqa: PLC0415

    ends = _ends(loaded)
    longest = max(len(one.ids) for one in batch)
    filler = loaded.tokenizer.pad_token_id
    filler = ends[0] if filler is None else filler
    # On the left: what is generated stands right after each prompt.
    before = [longest - len(one.ids) for one in batch]
    ids = [[filler] * n + one.ids for n, one in zip(before, batch, strict=True)]
    mask = [[0] * n + [1] * len(one.ids) for n, one in zip(before, batch, strict=True)]
    allowed = _allowed(loaded, asked.choices, ends[0])
    with torch.inference_mode():
        made = loaded.model.generate(
            input_ids=torch.tensor(ids, device=loaded.device),
            attention_mask=torch.tensor(mask, device=loaded.device),
            generation_config=_config(asked, ends, filler),
            prefix_allowed_tokens_fn=None
            if allowed is None
            else lambda _, row: allowed(row[longest:].tolist()),
        )
    rows = made.sequences[:, longest:].tolist()
    return [
        _said(loaded, asked, one, row, ends, place, made.logits, allowed)
        for place, (one, row) in enumerate(zip(batch, rows, strict=True))
    ]


def _ends(loaded: Loaded) -> list[int]:
    """The tokens that end a reply, the tokenizer's own first."""
    own = loaded.model.generation_config.eos_token_id
    ends = own if isinstance(own, list) else [own]
    found = dict.fromkeys([loaded.tokenizer.eos_token_id, *ends])
    return [end for end in found if end is not None] or [0]


def _config(asked: Asked, ends: list[int], filler: int) -> Any:
    """The sampling that was asked for, and nothing of the model's own defaults."""
    import transformers  # noqa: PLC0415

    how = asked.sampling
    options: dict[str, Any] = {"do_sample": how.temperature > 0}
    if how.temperature > 0:
        options |= {"temperature": how.temperature, "top_k": how.top_k or 0}
        options |= {"top_p": 1.0 if how.top_p is None else how.top_p}
        options |= {} if how.min_p is None else {"min_p": how.min_p}
    return transformers.GenerationConfig(
        max_new_tokens=how.max_tokens,
        eos_token_id=ends,
        pad_token_id=filler,
        return_dict_in_generate=True,
        output_logits=asked.logprobs,
        **options,
    )


def _allowed(
    loaded: Loaded, choices: Sequence[str], end: int
) -> Callable[[list[int]], list[int]] | None:
    """Which tokens may follow what was generated so far; ``None``: any."""
    if not choices:
        return None
    spelt = [
        [*loaded.tokenizer(choice, add_special_tokens=False).input_ids, end] for choice in choices
    ]

    def following(so_far: list[int]) -> list[int]:
        n = len(so_far)
        return sorted({ids[n] for ids in spelt if len(ids) > n and ids[:n] == so_far}) or [end]

    return following


def _said(
    loaded: Loaded,
    asked: Asked,
    one: _Encoded,
    row: list[int],
    ends: list[int],
    place: int,
    logits: Sequence[Any] | None,
    allowed: Callable[[list[int]], list[int]] | None,
) -> Said:
    stop = next((at for at, token in enumerate(row) if token in ends), None)
    kept = row if stop is None else row[:stop]
    tokenizer = loaded.tokenizer
    found = None
    if asked.logprobs and logits is not None:
        found = [
            _logprobs(tokenizer, logits[at][place], token, allowed and allowed(kept[:at]))
            for at, token in enumerate(kept)
        ]
    return Said(
        text=tokenizer.decode(kept, skip_special_tokens=True),
        ended=stop is not None,
        input_tokens=len(one.ids),
        output_tokens=len(kept) + (stop is not None),
        logprobs=found,
    )


def _logprobs(
    tokenizer: Any, logits: Any, token: int, allowed: Sequence[int] | None
) -> TokenLogprobs:
    """The model's own distribution at one token, over the ``allowed`` ones; temperature 1."""
    import torch  # noqa: PLC0415

    logits = logits.float()
    if allowed:
        masked = torch.full_like(logits, float("-inf"))
        masked[list(allowed)] = logits[list(allowed)]
        logits = masked
    logs = torch.log_softmax(logits, dim=-1)
    best = torch.topk(logs, min(_TOP, len(allowed) if allowed else _TOP, logs.shape[-1]))
    top: dict[str, float] = {}
    for log, at in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        top.setdefault(tokenizer.decode([at]), log)  # several tokens may read the same
    return TokenLogprobs(tokenizer.decode([token]), float(logs[token]), top)
