"""How far a policy has gone from another: KL(π ‖ π₀), estimated from what π said.

An episode's divergence is Σ log π(t) / π₀(t) over the tokens that the policy drew, in expectation.
Taken here is, at each of these tokens, the expectation over what could have been drawn there, the
KL of the two next-token distributions given what came before:

    Σₜ Σᵥ π(v | <t) · log(π(v | <t) / π₀(v | <t)).

The mean over episodes is the same, the variance is no larger, and no term is below 0 (the
Rao-Blackwellised estimator of Amini, Vieira and Cotterell, arXiv 2504.10637).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

__all__ = ["Said", "divergences"]

_MOST_TOKENS = 1 << 14
"""How many tokens are read together: the models remember something of each."""

_MOST_LOGITS = 1 << 26
"""How many numbers of one model's logits are held at a time: 256 MiB in float32."""


class Said(Protocol):
    """The tokens of one episode; ``turns`` of a token is −1 where the policy was told it."""

    prompt: list[int]
    completion: list[int]
    turns: list[int]


def divergences(
    policy: Any, reference: Any, said: Sequence[Said], *, most_logits: int = _MOST_LOGITS
) -> list[float | None]:
    """The estimate for each of ``said``, in nats; ``None`` where the policy drew nothing.

    ``policy`` and ``reference`` are causal language models of transformers over one vocabulary. The
    distributions are those of temperature 1, whatever temperature the tokens were drawn at; at
    another the estimate is one about what was said rather than about what π would say. Memory is
    that of the models' caches and ``most_logits`` numbers a model. Sequences are read together and
    piece by piece; how they are cut changes nothing but rounding.
    """
    import torch  # noqa: PLC0415

    found: list[float | None] = [None] * len(said)
    was_training = policy.training, reference.training
    policy.eval()
    reference.eval()
    try:
        with torch.no_grad():
            for places in _together(said):
                rows = _batch(policy, reference, [said[place] for place in places], most_logits)
                for place, value in zip(places, rows, strict=True):
                    found[place] = value
    finally:
        policy.train(was_training[0])
        reference.train(was_training[1])
    return found


def _together(said: Sequence[Said]) -> Iterator[list[int]]:
    """Places of texts of about one length, of those in which the policy drew something."""
    sizes = {
        place: len(one.prompt) + len(one.completion)
        for place, one in enumerate(said)
        if any(turn >= 0 for turn in one.turns)
    }
    batch: list[int] = []
    for place in sorted(sizes, key=lambda place: sizes[place]):
        if batch and (len(batch) + 1) * sizes[place] > _MOST_TOKENS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _batch(policy: Any, reference: Any, said: Sequence[Said], most_logits: int) -> list[float]:
    """The estimates for episodes that are read together."""
    import torch  # noqa: PLC0415

    texts = [[*one.prompt, *one.completion] for one in said]
    width = max(map(len, texts))
    # What stands right of a text is read by nobody, so any token may stand there.
    ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    counts = torch.zeros((len(said), width), dtype=torch.bool)  # by the token that comes before
    for row, one in enumerate(said):
        for place, turn in enumerate(one.turns, start=len(one.prompt) - 1):
            counts[row, place] = turn >= 0
    vocabulary = int(policy.config.get_text_config().vocab_size)
    step = max(1, most_logits // (len(said) * vocabulary))
    total = torch.zeros(len(said), dtype=torch.float64)
    pieces = zip(_logits(policy, ids, step), _logits(reference, ids, step), strict=True)
    for number, (own, other) in enumerate(pieces):
        wanted = counts[:, number * step : (number + 1) * step]
        rows = wanted.nonzero()[:, 0]
        values = _kl(own[wanted.to(own.device)], other[wanted.to(other.device)].to(own.device))
        total.index_add_(0, rows, values.double().cpu())
    return [float(value) for value in total]


def _logits(model: Any, ids: Any, step: int) -> Iterator[Any]:
    """What ``model`` says after each token, ``step`` of them at a time; it remembers the others."""
    import torch  # noqa: PLC0415

    ids = ids.to(model.device)
    # A trainer puts 16 bits around the policy's own forward, and their rounding would be a distance
    # from the reference.
    read = getattr(model, "_original_forward", model)
    cache = None
    for start in range(0, ids.shape[1], step):
        piece = ids[:, start : start + step]
        seen = torch.ones((len(ids), start + piece.shape[1]), dtype=torch.long, device=ids.device)
        said = read(piece, attention_mask=seen, past_key_values=cache, use_cache=True)
        cache = said.past_key_values
        yield said.logits


def _kl(own: Any, other: Any) -> Any:
    """KL between rows of logits; what ``own`` never says counts 0."""
    import torch  # noqa: PLC0415

    own, other = own.float().log_softmax(-1), other.float().log_softmax(-1)
    chance = own.exp()
    return torch.where(chance > 0, chance * (own - other), 0.0).sum(-1)
