"""TRL's arguments of a reward function as samples and groups."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from adjudge.errors import ConfigError
from adjudge.intake.columns import find_finish_reason
from adjudge.intake.rendered import Thinking, ThinkTokens, read_rendered_prompt
from adjudge.intake.rollouts import first_turn
from adjudge.messages import prompt_messages
from adjudge.trainers.adapter import ROLLOUT_FIELD_ERROR, Adapter
from adjudge.trainers.metrics import TrainerProgress
from adjudge.types import Sample

Rewards = list[float | None]
"""A reward for each completion; ``None`` is missing."""

HIDDEN_REWARD = "_adjudge_environment_reward"  # TRL makes tools of names without an underscore


def _check_length(name: str, column: Sequence[Any], completions: Sequence[Any]) -> None:
    if len(column) != len(completions):
        raise ConfigError(
            f"{name}: must have an entry for each completion (found {len(column)}; there are "
            f"{len(completions)} completions)"
        )


class TrlBatch:
    """One call of a reward function, with the arguments that TRL gives it.

    ``given`` are its other keyword arguments: lists with an entry per completion are dataset
    columns. ``trainer`` is the trainer whose bound methods ``log_metric`` and ``log_extra`` are,
    or ``None``; it is only read here. ``of_a_trainer`` is whether a trainer calls, seen or
    not, and no rollout process with one group at a time. ``step`` is its training step, if known.
    """

    def __init__(
        self,
        /,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **given: Any,
    ) -> None:
        self.prompts, self.completions, self.completion_ids = prompts, completions, completion_ids
        self.log_metric: Callable[[str, float], None] | None = given.get("log_metric")
        self.log_extra: Callable[[str, list[Any]], None] | None = given.get("log_extra")
        self.trainer: Any = getattr(self.log_metric, "__self__", None)
        self.of_a_trainer = "trainer_state" in given
        self.step: int | None = getattr(given.get("trainer_state"), "global_step", None)
        self.is_training = bool(getattr(getattr(self.trainer, "model", None), "training", True))
        # The trainer's step is the count of its updates.
        self.progress = TrainerProgress(self.step, self.step, evaluating=not self.is_training)
        self._environments: Sequence[Any] | None = given.get("environments")
        self._environment_rewards: list[Any] | None = None
        self._columns: dict[str, Sequence[Any]] = {}
        _check_length("prompts", prompts, completions)
        for name, values in given.items():
            if name == "environments" or not isinstance(values, list | tuple):
                continue
            if len(values) == len(completions):
                self._columns[name] = values
            elif not self.of_a_trainer:  # a trainer has lists of its own, its tools for one
                _check_length(name, values, completions)

    async def read_environments(self) -> None:
        """Ask the environments for their rewards, which become ``env_reward``."""
        if self._environments is None:
            return
        self._environment_rewards = []
        for environment in self._environments:
            found = getattr(environment, "env_reward", None)
            if (ask := getattr(environment, HIDDEN_REWARD, None)) is not None:
                found = ask()
            found = await found if inspect.isawaitable(found) else found
            self._environment_rewards.append(found)

    def samples(self, groups: Sequence[str], adapter: Adapter, thinking: Thinking) -> list[Sample]:
        """The completions as samples, with the fields that ``adapter`` selects.

        Raises :class:`ConfigError` for a column that the dataset does not have.
        """
        fields = adapter.select_fields(self._columns)
        if self._environment_rewards is not None:
            fields.setdefault("env_reward", self._environment_rewards)
        conversations = self._rollout_messages(adapter.columns, thinking)
        ends, limit = _find_ends(self.trainer)
        places: dict[str, int] = {}
        found = []
        for index, group in enumerate(groups):
            extra = {name: values[index] for name, values in fields.items()}
            ids = () if self.completion_ids is None else self.completion_ids[index]
            if ends and (finish := find_finish_reason(ids, ends, limit)) is not None:
                extra["finish_reason"] = finish
            place = places[group] = places.get(group, -1) + 1
            prompt, completion = self.prompts[index], self.completions[index]
            problem = ""
            if conversations is not None:
                prompt, completion = conversations[index]
            elif thinking.tokens and self.completion_ids is not None:
                completion, problem = _restore_thinking(completion, ids, thinking.tokens)
            thinks = None if isinstance(prompt, str) else thinking.opened
            sample = adapter.make_sample(index, place, prompt, completion, extra, thinks=thinks)
            if problem:
                sample.is_lost, sample.problem = True, problem
            found.append(sample)
        return found

    def _rollout_messages(
        self, columns: Mapping[str, str], thinking: Thinking
    ) -> list[tuple[Any, list[dict[str, Any]]]] | None:
        """Prompts and completions of a trainer with a ``rollout_func``; ``None`` for any other.

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
            return list(map(_conversation, self.prompts, messages))
        if mask is not None and self.completion_ids is not None:
            decode = (thinking.tokens or ThinkTokens(find_tokenizer(self.trainer))).decode
            pairs = zip(self.completion_ids, mask, strict=True)
            turns = [_turns_by_mask(*one, decode) for one in pairs]
            return list(zip(self.prompts, turns, strict=True))
        raise ConfigError(
            "rollout_func: its completions may hold an environment's text, which would be judged "
            "as the policy's. Let it return 'messages' too, a list of role and content for each "
            "completion (columns={'messages': NAME} where the dataset has such a column); or "
            "'tool_mask', 1 for each token of the policy, because TRL does not pass 'env_mask' on."
        )


class GroupLayout(NamedTuple):
    """``groups[i]`` names completion *i*'s group; ``broken`` says why one may be incomplete."""

    groups: list[str]
    broken: str | None = None


def find_group_layout(batch: TrlBatch) -> GroupLayout:
    """The groups of this process by place in the whole batch; of equal prompts without a trainer.

    TRL compares blocks of ``num_generations`` of the batch that all processes hold together.
    """
    trainer = batch.trainer
    key = "num_generations" if batch.is_training else "num_generations_eval"
    size = getattr(trainer, key, None)
    if not isinstance(size, int) or size < 1:
        return group_equal_prompts(batch.prompts)
    rank = getattr(getattr(trainer, "accelerator", None), "process_index", 0)
    count = len(batch.prompts)
    start = rank * count
    groups = [str(place // size) for place in range(start, start + count)]
    broken = (
        f"a group straddles processes: num_generations is {size}, and process {rank} has "
        f"completions {start} to {start + count - 1} of the batch"
    )
    return GroupLayout(groups, broken if start % size or count % size else None)


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
    """Groups of equal prompts, for callers that do not say ``num_generations``.

    Online DPO gives all its prompts, and then all of them once more: these groups are pairs.
    """
    names: dict[str, str] = {}
    groups = [names.setdefault(repr(prompt), str(len(names))) for prompt in prompts]
    sizes = sorted(set(Counter(groups).values()))
    broken = f"groups of equal prompts have different sizes ({sizes[:5]})"
    return GroupLayout(groups, broken if len(sizes) > 1 else None)


def _find_ends(trainer: Any) -> tuple[Collection[int], int | None]:
    """The tokens that end a completion, and how many it may have."""
    ends = getattr(trainer, "eos_token_ids", None) or getattr(trainer, "eos_token_id", None)
    limit = getattr(trainer, "max_completion_length", None)
    limit = limit or getattr(getattr(trainer, "args", None), "max_new_tokens", None)
    return {ends} if isinstance(ends, int) else set(ends or ()), limit


def find_tokenizer(trainer: Any) -> Any:
    """A trainer's tokenizer, that of its processor where it has one."""
    found = getattr(trainer, "processing_class", None)
    return getattr(found, "tokenizer", found)


def _restore_thinking(completion: Any, ids: Sequence[int], tokens: ThinkTokens) -> tuple[Any, str]:
    """A completion with the tags that decoding left out, and why that cannot be done, if so."""
    turn = completion[-1] if isinstance(completion, list) and completion else completion
    is_turn = isinstance(turn, dict)
    if is_turn and (turn.get("role") != "assistant" or turn.get("reasoning_content")):
        return completion, ""
    text = turn.get("content") if is_turn else turn
    if not isinstance(text, str) or (is_turn and turn.get("tool_calls")):
        return completion, ""
    restored = tokens.restore(text, ids)
    if restored is None:
        return completion, (
            "the tags of thinking are special tokens, and the last turn's text is not that of its "
            "tokens, so where its thinking ends is not known"
        )
    return ([*completion[:-1], {**turn, "content": restored}] if is_turn else restored), ""


def _conversation(prompt: Any, messages: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What a ``rollout_func`` returned, as what stands before the policy and what does not."""
    if not isinstance(messages, list) or not all(
        isinstance(one, dict) and "role" in one for one in messages
    ):
        raise ConfigError(
            "rollout_func: 'messages' must be a list of {'role': …, 'content': …} for each "
            f"completion (found a {type(messages).__name__})"
        )
    before = prompt_messages(prompt)
    if isinstance(prompt, str):
        before = read_rendered_prompt(prompt) or before
    if messages and messages[0]["role"] == "assistant":
        return before, messages
    # What it returns is the whole conversation, whose prompt it may have changed.
    asked = before[-1].get("content") if before else None
    same = [place for place, one in enumerate(messages) if one.get("content") == asked]
    end = len(before) if messages[: len(before)] == before else same[0] + 1 if same else None
    end = first_turn(messages) if end is None else end
    return messages[:end], messages[end:]


def _turns_by_mask(
    ids: Sequence[int], mask: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> list[dict[str, Any]]:
    """The turns of a completion: the policy's where the mask is 1, the environment's where 0."""
    if len(mask) != len(ids):
        raise ConfigError(
            f"rollout_func: a mask must have an entry for each of {len(ids)} tokens "
            f"(found {len(mask)})"
        )
    turns = []
    for own, tokens in groupby(zip(ids, mask, strict=True), key=lambda token: bool(token[1])):
        text = decode([token for token, _ in tokens])
        turns.append({"role": "assistant" if own else "user", "content": text})
    return turns
