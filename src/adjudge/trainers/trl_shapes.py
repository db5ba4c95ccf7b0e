"""TRL's arguments as samples and groups.

What a sample gets: ``prompt`` (the text, or the last user message before the assistant's first),
``response`` (the text, or the last assistant message with text), ``messages`` (prompt and
completion, conversational form only), ``finish_reason`` (``length`` or ``stop`` where the trainer's
end tokens are known), and every dataset column under its own name, except ``prompt``, ``response``,
``messages`` and ``finish_reason``: those are about the rollout. ``reference`` is the column of that
name, else the first there is of ``ground_truth``, ``answer``, ``solution``. ``env_reward`` is the
column, else the attribute ``env_reward`` of the sample's environment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adjudge.errors import ConfigError
from adjudge.rewards.samples import RewardSample
from adjudge.rollouts.messages import content_text

__all__ = ["Batch", "Layout", "alike", "check_columns", "layout_of"]

_OF_THE_ROLLOUT = {"prompt", "response", "messages", "finish_reason"}
_REFERENCES = ("reference", "ground_truth", "answer", "solution")


class Batch:
    """One call of a reward function, as TRL makes it.

    ``given`` are its other keyword arguments: lists with an entry per completion are dataset
    columns. ``trainer`` is the trainer whose bound methods ``log_metric`` and ``log_extra`` are,
    or ``None``; it is read, never changed. ``of_a_trainer`` is whether a trainer calls, seen or
    not, and no rollout process with one group at a time.
    """

    def __init__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None,
        given: Mapping[str, Any],
    ) -> None:
        self.prompts, self.completions, self.completion_ids = prompts, completions, completion_ids
        self.log_metric: Callable[[str, float], None] | None = given.get("log_metric")
        self.log_extra: Callable[[str, list[Any]], None] | None = given.get("log_extra")
        self.trainer: Any = getattr(self.log_metric, "__self__", None)
        self.of_a_trainer = "trainer_state" in given
        self._environments = given.get("environments")
        self._columns: dict[str, Sequence[Any]] = {
            name: values
            for name, values in given.items()
            if name != "environments"
            and isinstance(values, list | tuple)
            and len(values) == len(prompts)
        }

    def samples(self, groups: Sequence[str], columns: Mapping[str, str]) -> list[RewardSample]:
        """The completions as samples; ``columns`` names the dataset column of a field.

        Raises :class:`ConfigError` for a column that the dataset does not have.
        """
        fields = self._fields(columns)
        ends = _end_tokens(self.trainer)
        places: dict[str, int] = {}
        found = []
        for index, group in enumerate(groups):
            extra = {name: values[index] for name, values in fields.items()}
            if (finish := self._finish_reason(index, ends)) is not None:
                extra["finish_reason"] = finish
            place = places[group] = places.get(group, -1) + 1
            found.append(_sample(index, place, self.prompts[index], self.completions[index], extra))
        return found

    def _fields(self, columns: Mapping[str, str]) -> dict[str, Sequence[Any]]:
        """What samples get beside the rollout itself, by field."""
        fields = {n: values for n, values in self._columns.items() if n not in _OF_THE_ROLLOUT}
        for field, column in columns.items():
            if column not in self._columns:
                has = ", ".join(sorted(self._columns)) or "no columns beside the prompt"
                raise ConfigError(
                    f"columns: {field!r} is to come from {column!r}, which the dataset does not "
                    f"have (it has {has})"
                )
            fields[field] = self._columns[column]
        for name in _REFERENCES:
            if name in fields:
                fields.setdefault("reference", fields[name])
        if "env_reward" not in fields and self._environments is not None:
            fields["env_reward"] = [getattr(e, "env_reward", None) for e in self._environments]
        return fields

    def _finish_reason(self, index: int, ends: Collection[int]) -> str | None:
        ids = None if self.completion_ids is None else self.completion_ids[index]
        if not ends or ids is None or len(ids) == 0:
            return None
        return "stop" if int(ids[-1]) in ends else "length"


@dataclass(frozen=True)
class Layout:
    """``groups[i]`` names completion *i*'s group; ``broken`` says why one may be incomplete."""

    groups: list[str]
    broken: str | None = None


def layout_of(batch: Batch) -> Layout | None:
    """The groups of this process by place in the whole batch; ``None`` without a trainer.

    TRL compares blocks of ``num_generations`` of the batch that all processes hold together.
    """
    trainer = batch.trainer
    training = getattr(getattr(trainer, "model", None), "training", True)
    size = getattr(trainer, "num_generations" if training else "num_generations_eval", None)
    if not isinstance(size, int) or size < 1:
        return None
    rank = getattr(getattr(trainer, "accelerator", None), "process_index", 0)
    count = len(batch.prompts)
    start = rank * count
    groups = [str(place // size) for place in range(start, start + count)]
    if start % size == 0 and count % size == 0:
        return Layout(groups)
    return Layout(
        groups,
        f"a group straddles processes: num_generations is {size}, and process {rank} has "
        f"completions {start} to {start + count - 1} of the batch",
    )


def alike(prompts: Sequence[Any]) -> Layout:
    """Groups of equal prompts side by side, for callers that do not say ``num_generations``.

    Online DPO gives all its prompts, and then all of them once more: these groups are pairs.
    """
    half = len(prompts) // 2
    if len(prompts) > 2 and list(prompts[:half]) == list(prompts[half:]):
        names: dict[str, str] = {}
        return _even([names.setdefault(repr(prompt), str(len(names))) for prompt in prompts])
    groups: list[str] = []
    for index, prompt in enumerate(prompts):
        same = index > 0 and prompt == prompts[index - 1]
        groups.append(groups[-1] if same else str(index))
    return _even(groups)


def _even(groups: list[str]) -> Layout:
    sizes = sorted(set(Counter(groups).values()))
    broken = f"groups of equal prompts have different sizes ({sizes[:5]})"
    return Layout(groups, broken if len(sizes) > 1 else None)


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """``columns`` as a dict; raises :class:`ConfigError` for a field that the rollout gives."""
    for field in columns or {}:
        if field in _OF_THE_ROLLOUT:
            raise ConfigError(
                f"columns: {field!r} comes from the rollout, not from the dataset; allowed is any "
                "other field, such as 'reference' or 'env_reward'"
            )
    return dict(columns or {})


def _end_tokens(trainer: Any) -> Collection[int]:
    ends = getattr(trainer, "eos_token_ids", None) or getattr(trainer, "eos_token_id", None)
    if isinstance(ends, int):
        return {ends}
    return set(ends or ())


def _sample(
    index: int, place: int, prompt: Any, completion: Any, extra: dict[str, Any]
) -> RewardSample:
    opening, said = _messages(prompt), _messages(completion)
    messages = None if said is None else [*(opening or []), *said]
    return RewardSample(
        index,
        place,
        prompt if isinstance(prompt, str) else _question(opening),
        completion if isinstance(completion, str) else _answer(said),
        messages,
        extra,
    )


def _messages(value: Any) -> list[dict[str, Any]] | None:
    return value if isinstance(value, list) else None


def _question(messages: list[dict[str, Any]] | None) -> str | None:
    """The last message of the user before the assistant's first."""
    question = None
    for message in messages or []:
        if message.get("role") == "assistant":
            break
        if message.get("role") == "user":
            question = content_text(message.get("content"))
    return question


def _answer(messages: list[dict[str, Any]] | None) -> str:
    """The last text of the assistant; an empty completion has said nothing."""
    for message in reversed(messages or []):
        if message.get("role") == "assistant" and (text := content_text(message.get("content"))):
            return text
    return ""
