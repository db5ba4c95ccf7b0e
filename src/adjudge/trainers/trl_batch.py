"""TRL's arguments of a reward function as samples and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from adjudge.errors import ConfigError
from adjudge.messages import first_question, last_answer, prompt_messages
from adjudge.trainers.adapter import ROLLOUT_FIELD_ERROR, Adapter
from adjudge.trainers.progress import TrainerProgress
from adjudge.trainers.trl_environments import read_environment_rewards
from adjudge.types import RewardSample


class TrlBatch:
    """One call of a reward function, as TRL makes it.

    ``given`` are its other keyword arguments: lists with an entry per completion are dataset
    columns. ``trainer`` is the trainer whose bound methods ``log_metric`` and ``log_extra`` are,
    or ``None``; it is only read here. ``of_a_trainer`` is whether a trainer calls, seen or
    not, and no rollout process with one group at a time. ``step`` is its training step, if known.
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
        self.step: int | None = getattr(given.get("trainer_state"), "global_step", None)
        self._environments: Sequence[Any] | None = given.get("environments")
        self._environment_rewards: list[Any] | None = None
        self._columns: dict[str, Sequence[Any]] = {
            name: values
            for name, values in given.items()
            if name != "environments"
            and isinstance(values, list | tuple)
            and len(values) == len(prompts)
        }

    async def read_environments(self) -> None:
        """Ask the environments for their rewards, which become ``env_reward``."""
        if self._environments is not None:
            self._environment_rewards = await read_environment_rewards(self._environments)

    @property
    def progress(self) -> TrainerProgress:
        """Where the trainer is: its step is the count of updates."""
        training = getattr(getattr(self.trainer, "model", None), "training", True)
        return TrainerProgress(self.step, self.step, evaluating=not training)

    def samples(self, groups: Sequence[str], adapter: Adapter) -> list[RewardSample]:
        """The completions as samples, with the fields that ``adapter`` selects.

        Raises :class:`ConfigError` for a column that the dataset does not have.
        """
        fields, conversations = self._fields(adapter), self._rollout_messages(adapter.columns)
        ends = _end_tokens(self.trainer)
        places: dict[str, int] = {}
        found = []
        for index, group in enumerate(groups):
            extra = {name: values[index] for name, values in fields.items()}
            if (finish := self._finish_reason(index, ends)) is not None:
                extra["finish_reason"] = finish
            place = places[group] = places.get(group, -1) + 1
            if conversations is None:
                prompt, completion = self.prompts[index], self.completions[index]
                found.append(adapter.make_sample(index, place, prompt, completion, extra))
            else:
                turns = conversations[index]
                question, answer = first_question(turns), last_answer(turns) or ""
                found.append(RewardSample(index, place, question, answer, turns, extra))
        return found

    def _rollout_messages(self, columns: Mapping[str, str]) -> list[list[dict[str, Any]]] | None:
        """The conversations of a trainer with a ``rollout_func``; ``None`` for any other.

        Its completions hold the environment's text beside the policy's, and only it can tell them
        apart: by ``messages``, or by a mask of the policy's tokens.
        """
        if getattr(self.trainer, "rollout_func", None) is None:
            if "messages" in columns:
                raise ConfigError(ROLLOUT_FIELD_ERROR.format("messages"))
            return None
        dataset = getattr(getattr(self.trainer, "train_dataset", None), "column_names", None)
        messages = None
        if "messages" in columns or "messages" not in (dataset or ()):
            messages = self._columns.get(columns.get("messages", "messages"))
        # TRL 1.16 takes env_mask away before rewards are asked for; others may leave it.
        mask = self._columns.get("tool_mask", self._columns.get("env_mask"))
        if messages is not None:
            return [_conversation(*both) for both in zip(self.prompts, messages, strict=True)]
        if mask is not None and self.completion_ids is not None:
            decode = self.trainer.processing_class.decode
            tokens = zip(self.prompts, self.completion_ids, mask, strict=True)
            return [_turns_by_mask(*one, decode) for one in tokens]
        raise ConfigError(
            "rollout_func: its completions may hold an environment's text, which would be judged "
            "as the policy's. Let it return 'messages' too, a list of role and content for each "
            "completion (columns={'messages': NAME} where the dataset has such a column); or "
            "'tool_mask', 1 for each token of the policy, because TRL does not pass 'env_mask' on."
        )

    def _fields(self, adapter: Adapter) -> dict[str, Sequence[Any]]:
        """What samples get beside the rollout itself, by field."""
        fields = adapter.select_fields(self._columns)
        if self._environment_rewards is not None:
            fields.setdefault("env_reward", self._environment_rewards)
        return fields

    def _finish_reason(self, index: int, ends: Collection[int]) -> str | None:
        ids = None if self.completion_ids is None else self.completion_ids[index]
        if not ends or ids is None or len(ids) == 0:
            return None
        return "stop" if int(ids[-1]) in ends else "length"


@dataclass(frozen=True)
class GroupLayout:
    """``groups[i]`` names completion *i*'s group; ``broken`` says why one may be incomplete."""

    groups: list[str]
    broken: str | None = None


def find_group_layout(batch: TrlBatch) -> GroupLayout | None:
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
        return GroupLayout(groups)
    return GroupLayout(
        groups,
        f"a group straddles processes: num_generations is {size}, and process {rank} has "
        f"completions {start} to {start + count - 1} of the batch",
    )


def find_future_straddling(config: Any) -> str | None:
    """Why groups will straddle processes under ``config``, a ``GRPOConfig`` or ``RLOOConfig``.

    A process gets ``per_device_train_batch_size`` × ``steps_per_generation`` completions at a time,
    and ``per_device_eval_batch_size`` where the trainer evaluates. ``None`` where none will.
    """
    processes = int(getattr(config, "world_size", 1))
    steps = getattr(config, "steps_per_generation", None) or config.gradient_accumulation_steps
    shares = [(config.per_device_train_batch_size * steps, "num_generations")]
    if str(getattr(config.eval_strategy, "value", config.eval_strategy)) != "no":
        shares.append((config.per_device_eval_batch_size, "num_generations_eval"))
    for count, key in shares:
        size = getattr(config, key, None) or config.num_generations
        if processes > 1 and count % size:
            return (
                f"a group will straddle processes: {key} is {size}, and each of {processes} "
                f"processes has {count} completions of a batch"
            )
    return None


def group_equal_prompts(prompts: Sequence[Any]) -> GroupLayout:
    """Groups of equal prompts side by side, for callers that do not say ``num_generations``.

    Online DPO gives all its prompts, and then all of them once more: these groups are pairs.
    """
    half = len(prompts) // 2
    if len(prompts) > 2 and list(prompts[:half]) == list(prompts[half:]):
        names: dict[str, str] = {}
        return _equal_sizes([names.setdefault(repr(prompt), str(len(names))) for prompt in prompts])
    groups: list[str] = []
    for index, prompt in enumerate(prompts):
        same = index > 0 and prompt == prompts[index - 1]
        groups.append(groups[-1] if same else str(index))
    return _equal_sizes(groups)


def _equal_sizes(groups: list[str]) -> GroupLayout:
    sizes = sorted(set(Counter(groups).values()))
    broken = f"groups of equal prompts have different sizes ({sizes[:5]})"
    return GroupLayout(groups, broken if len(sizes) > 1 else None)


def _end_tokens(trainer: Any) -> Collection[int]:
    ends = getattr(trainer, "eos_token_ids", None) or getattr(trainer, "eos_token_id", None)
    if isinstance(ends, int):
        return {ends}
    return set(ends or ())


def _conversation(prompt: Any, messages: Any) -> list[dict[str, Any]]:
    """What a ``rollout_func`` told, after the prompt where it begins with the policy's turn."""
    if not isinstance(messages, list) or not all(
        isinstance(one, dict) and "role" in one for one in messages
    ):
        raise ConfigError(
            "rollout_func: 'messages' must be a list of {'role': …, 'content': …} for each "
            f"completion (found a {type(messages).__name__})"
        )
    if messages and messages[0]["role"] == "assistant":
        return [*prompt_messages(prompt), *messages]
    return messages


def _turns_by_mask(
    prompt: Any, ids: Sequence[int], mask: Sequence[int], decode: Callable[..., str]
) -> list[dict[str, Any]]:
    """The turns of a completion: the policy's where the mask is 1, the environment's where 0."""
    if len(mask) != len(ids):
        raise ConfigError(
            f"rollout_func: a mask must have an entry for each of {len(ids)} tokens "
            f"(found {len(mask)})"
        )
    turns = prompt_messages(prompt)
    for own, tokens in groupby(zip(ids, mask, strict=True), key=lambda token: bool(token[1])):
        text = decode([token for token, _ in tokens], skip_special_tokens=True)
        turns.append({"role": "assistant" if own else "user", "content": text})
    return turns
