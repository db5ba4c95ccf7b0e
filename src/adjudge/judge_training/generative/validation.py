"""What a judge says of held-out questions when it writes what it holds likeliest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from typing import Any

from adjudge.judge_training.data.rows import RATINGS
from adjudge.judge_training.generative.questions import Form, Question
from adjudge.judge_training.generative.rewarding import Judged, measures_of, rewards_of
from adjudge.judge_training.material import Encoded
from adjudge.judges.local.batches import by_length
from adjudge.verdicts import Unread, Verdict

__all__ = ["CHOICE", "Validation", "choice_of", "ends_of", "greedy_replies", "spoken_reply"]

Autocast = Callable[[], Any]

CHOICE = {
    "pointwise": "lowest mean error, a reply without a verdict counted as the largest",
    "pairwise": "most comparisons right in both orders",
}
"""By what the best step is chosen."""


class Validation:
    """Held-out questions and how a judge is asked them.

    ``most``: tokens of a reply; ``size``: prompts at once. ``opened``: the chat template opens the
    thinking.
    """

    def __init__(
        self,
        questions: Encoded[Question],
        form: Form,
        *,
        most: int,
        size: int,
        opened: bool,
    ) -> None:
        self.questions = questions.rows
        self.form = form
        self._prompts = [sides[0] for sides in questions.ids]
        self._most, self._size, self._opened = most, size, opened

    def judged(self, model: Any, tokenizer: Any, autocast: Autocast) -> list[Judged]:
        """Each question with the judge's likeliest reply, read."""
        replies = greedy_replies(
            model, tokenizer, self._prompts, most=self._most, size=self._size, autocast=autocast
        )
        return [
            Judged(question, [self.form.read(text, opened=self._opened, cut=cut)])
            for question, (text, cut) in zip(self.questions, replies, strict=True)
        ]

    def metrics(self, judged: Sequence[Judged]) -> dict[str, float]:
        """:func:`measures_of`, the mean reward, and what the best step is chosen by."""
        rewards = [one for row in rewards_of(judged, self.form) for one in row]
        found = {**measures_of(judged, self.form), "reward_mean": fsum(rewards) / len(rewards)}
        name = "both_right" if self.form.mode == "pairwise" else "error_or_unread"
        return {**found, name: abs(choice_of(judged, self.form))}

    def subsets(self, judged: Sequence[Judged]) -> dict[str, dict[str, Any]]:
        """By subset: how many questions, and ``unread`` and ``accuracy`` as in :meth:`metrics`."""
        parts: dict[str, list[Judged]] = {}
        for one in judged:
            parts.setdefault(one.question.subset or "all", []).append(one)
        found: dict[str, dict[str, Any]] = {}
        for name, part in sorted(parts.items()):
            measured = measures_of(part, self.form)
            of_read: dict[str, Any] = {
                key: measured[key] for key in ("unread", "accuracy") if key in measured
            }
            found[name] = {"rows": len(part), **of_read}
        return found


def choice_of(judged: Sequence[Judged], form: Form) -> float:
    """The measure that the best step has most of; :data:`CHOICE` says which.

    Pointwise it is minus the mean error, where a reply without a verdict counts 4; pairwise the
    share of comparisons that are right in both orders, which one without a verdict is not.
    """
    if form.mode == "pointwise":
        return -fsum(_error(one) for one in judged) / len(judged)
    right: dict[int, bool] = {}
    for one in judged:
        reply = one.replies[0]
        hit = isinstance(reply, Verdict) and reply.value == one.question.label
        right[one.question.row] = right.get(one.question.row, True) and hit
    return sum(right.values()) / len(right)


def _error(one: Judged) -> float:
    reply = one.replies[0]
    if isinstance(reply, Unread):
        return float(RATINGS[-1])
    return float(abs(reply.value - int(one.question.label)))


def greedy_replies(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    most: int,
    size: int,
    autocast: Autocast,
) -> list[tuple[str, bool]]:
    """The likeliest reply to each prompt, at most ``most`` tokens, and whether it was cut there.

    Prompts of like length are asked together, ``size`` at once. Draws nothing at random.
    """
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    ends = ends_of(model, tokenizer)
    pad = tokenizer.pad_token_id
    settings = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=most, eos_token_id=sorted(ends), pad_token_id=pad
    )
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    found: list[tuple[str, bool]] = [("", True)] * len(prompts)
    for places in by_length([len(prompt) for prompt in prompts], size):
        longest = max(len(prompts[place]) for place in places)
        gaps = [longest - len(prompts[place]) for place in places]
        ids = [[pad] * gap + [*prompts[p]] for gap, p in zip(gaps, places, strict=True)]
        mask = [[0] * gap + [1] * (longest - gap) for gap in gaps]
        with torch.inference_mode(), autocast():
            said = model.generate(
                input_ids=torch.tensor(ids, device=device),
                attention_mask=torch.tensor(mask, device=device),
                generation_config=settings,
            )
        for place, tokens in zip(places, said[:, longest:].tolist(), strict=True):
            found[place] = spoken_reply(tokenizer, tokens, ends)
    model.train(was_training)
    return found


def ends_of(model: Any, tokenizer: Any) -> set[int]:
    """The tokens that end a judge's turn."""
    known = model.generation_config.eos_token_id
    many = known if isinstance(known, list) else [known]
    return {one for one in [*many, tokenizer.eos_token_id] if one is not None}


def spoken_reply(tokenizer: Any, tokens: Sequence[int], ends: set[int]) -> tuple[str, bool]:
    """The text of a reply up to the token that ends it, and whether there was none: it was cut."""
    end = next((place for place, one in enumerate(tokens) if one in ends), None)
    text: str = tokenizer.decode(tokens[:end], skip_special_tokens=False)
    return text, end is None
