"""Made-up tokens and their made-up log-probabilities."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["logprobs_of", "reply_tokens", "tokens"]

_TOKEN = re.compile(r"\d+|[^\W\d]+|\s+|[^\w\s]")
_CHOSEN = 0.75
_NEIGHBOUR = 0.1


def tokens(text: str) -> list[str]:
    """``text`` in words, numbers, marks and runs of white space, which join to it again.

    >>> tokens('{"score": 12}')
    ['{', '"', 'score', '"', ':', ' ', '12', '}']
    """
    return _TOKEN.findall(text)


def reply_tokens(text: str, choices: Sequence[str] | None) -> list[str]:
    """The tokens of a reply; a choice is one token, as where decoding is masked to choices."""
    if choices and text in choices:
        return [text]
    return tokens(text)


def logprobs_of(
    pieces: Sequence[str], shown: int, choices: Sequence[str] | None
) -> list[dict[str, Any]]:
    """OpenAI's ``logprobs.content`` for ``pieces``, with up to ``shown`` alternatives each."""
    items = []
    for piece in pieces:
        likely = _likely(piece, choices)
        top = [_logprob(token, p) for token, p in list(likely.items())[:shown]]
        items.append(_logprob(piece, likely[piece]) | {"top_logprobs": top})
    return items


def _logprob(token: str, probability: float) -> dict[str, Any]:
    encoded = list(token.encode("utf-8", "surrogatepass"))
    return {"token": token, "logprob": math.log(probability), "bytes": encoded}


def _likely(piece: str, choices: Sequence[str] | None) -> dict[str, float]:
    """Made-up probabilities, the token's own first.

    Over choices they sum to 1; a number shares with its two neighbours; a word stands alone.
    """
    if choices and piece in choices:
        others = [choice for choice in dict.fromkeys(choices) if choice != piece]
        if not others:
            return {piece: 1.0}
        return {piece: _CHOSEN} | dict.fromkeys(others, (1 - _CHOSEN) / len(others))
    if piece.isascii() and piece.isdigit() and len(piece) < 16:
        number = int(piece)
        near = {str(one): _NEIGHBOUR for one in (number - 1, number + 1) if one >= 0}
        near.pop(piece, None)
        return {piece: 1 - sum(near.values())} | near
    return {piece: 0.95}
