"""TRL's trainers: a reward spec as one reward function of ``GRPOTrainer`` and ``RLOOTrainer``.

``reward_funcs=make_reward("reward.toml")`` in Python; where only a dotted path fits (``trl grpo``,
YAML), ``adjudge.trainers.trl.reward`` with the spec's file in ``ADJUDGE_SPEC``. A missing reward
is ``None``, which TRL leaves out of its group's mean and deviation.

What a sample gets: ``prompt`` (the text, or the last user message before the assistant's first),
``response`` (the text, or the last assistant message with text), ``messages`` (prompt and
completion, conversational form only), ``finish_reason`` (``length`` or ``stop`` where the trainer's
end tokens are known), and every dataset column under its own name, except ``prompt``, ``response``,
``messages`` and ``finish_reason``: those are about the rollout. ``reference`` is the column of that
name, else the first there is of ``ground_truth``, ``answer``, ``solution``. ``env_reward`` is the
column, else the attribute ``env_reward`` of the sample's environment.

Where the trainer has a ``rollout_func``, which may mix an environment's text into completions,
``prompt``, ``response`` and ``messages`` come from the ``messages`` that it returns, else from its
mask (``tool_mask``); with neither it is refused.

What TRL makes of a missing reward is read off its code. TRL before 1.6 adds up rewards with
``nansum``, which makes ``None`` a 0: a failed judge counts as a bad answer and shifts its whole
group. ``OnlineDPOTrainer`` does so in every version. What is exact there is done here.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from types import FunctionType
from typing import Any

from adjudge.engine.loop import run_blocking
from adjudge.errors import ConfigError
from adjudge.messages import first_question, last_answer, prompt_messages
from adjudge.rewards.spec import RewardSpec
from adjudge.trainers.scoring import SPEC_VARIABLE, Scorer, ScorerResult
from adjudge.types import RewardResult, RewardSample

_log = logging.getLogger("adjudge")

Rewards = list[float | None]

_NAME = "adjudge"


def make_reward(
    spec: RewardSpec | Path | str | None = None,
    *,
    name: str = _NAME,
    columns: Mapping[str, str] | None = None,
) -> Callable[..., Coroutine[Any, Any, Rewards]]:
    """A reward function for ``reward_funcs=``: one plain ``async def`` called ``name``.

    ``spec`` is an object or a file, by default the file that ``ADJUDGE_SPEC`` names. ``name`` tells
    several functions of one trainer apart, in ``rewards/NAME/mean`` and, where it is not the
    default, in ``judge/NAME/…``. ``columns`` names the dataset column of a field
    (``{"reference": "target"}``); see the module for what a sample gets
    without it.

    The function returns a float per completion, ``None`` for a missing one. It raises
    :class:`~adjudge.errors.JudgeUnavailable`, :class:`~adjudge.errors.JudgeAuthError`, under
    policy ``raise`` :class:`~adjudge.errors.MissingRewardError`, and
    :class:`~adjudge.errors.ConfigError`, also where the spec compares the samples of a group and a
    group straddles processes. This one raises :class:`~adjudge.errors.ConfigError`.
    """
    adapter = _Adapter(Scorer(spec), columns, name)

    async def scored(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **given: Any,
    ) -> Rewards:
        return await adapter.rewards(TrlBatch(prompts, completions, completion_ids, given))

    scored.__name__ = scored.__qualname__ = name
    scored.__doc__ = f"Rewards of {adapter.scorer.spec.where}; None is missing."
    return scored


async def reward(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]] | None = None,
    **given: Any,
) -> Rewards:
    """``adjudge.trainers.trl.reward``: :func:`make_reward` of the file in ``ADJUDGE_SPEC``.

    The spec is loaded at the first call, so a wrong one shows after the first generation.
    """
    adapter = _from_environment(os.environ.get(SPEC_VARIABLE))
    return await adapter.rewards(TrlBatch(prompts, completions, completion_ids, given))


# What TRL logs it under; the qualified name stays, because pickle looks it up.
reward.__name__ = _NAME


class PicklableReward:
    """:func:`make_reward` for trainers that pickle reward functions, or do not await them.

    A plain callable. ``AsyncGRPOTrainer`` pickles it and calls it with one whole group, in a thread
    of its rollout process, without a logger; under ``sample_rate`` each call draws anew, so the
    whole group is judged, or none of it. ``OnlineDPOTrainer`` calls it with pairs, and counts a
    missing reward as 0: it needs ``missing.policy = "raise"``. Returns and raises what
    :func:`make_reward`'s function does.
    """

    def __init__(
        self,
        spec: RewardSpec | Path | str | None = None,
        *,
        name: str = _NAME,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.__name__ = name
        self._adapter = _Adapter(Scorer(spec), columns, name)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **given: Any,
    ) -> Rewards:
        """The rewards of one group, or of a trainer's batch; ``None`` is missing."""
        batch = TrlBatch(prompts, completions, completion_ids, given)
        group = None if batch.of_a_trainer else GroupLayout(["0"] * len(prompts))
        return run_blocking(self._adapter.rewards(batch, group))


@cache
def _from_environment(path: str | None) -> _Adapter:
    return _Adapter(Scorer(path), None, _NAME)


class _Adapter:
    """From TRL's arguments to its list of rewards; holds what was already warned about."""

    def __init__(self, scorer: Scorer, columns: Mapping[str, str] | None, name: str) -> None:
        self.scorer, self._name = scorer, name
        self._prefix = "judge/" if name == _NAME else f"judge/{name}/"
        self._columns = check_columns(columns)
        self._warned: set[str] = set()

    async def rewards(self, batch: TrlBatch, layout: GroupLayout | None = None) -> Rewards:
        """Score one call of the trainer and log what it offers to log."""
        if layout is None:
            layout = find_group_layout(batch) or group_equal_prompts(batch.prompts)
        spec, zeros = self.scorer.spec, detect_zero_filling(batch)
        if zeros is not None:
            zeros.check(spec, layout)
        self._check_groups(layout)
        self._check_trainer(batch.trainer)
        samples = batch.samples(layout.groups, self._columns)
        scored = await self.scorer.ascore(
            samples, layout.groups, whole_groups=layout.broken is None
        )
        self._log(batch, scored)
        return scored.rewards if zeros is None else zeros.exact(scored.rewards, layout, spec)

    def _check_groups(self, layout: GroupLayout) -> None:
        """Refuse incomplete groups where the spec compares the samples of a group."""
        compares = self.scorer.compares_groups
        if compares is None or layout.broken is None:
            return
        raise ConfigError(
            f"{self.scorer.spec.where}: {compares} needs whole groups, but {layout.broken}. Make "
            "per_device_train_batch_size × steps_per_generation a multiple of num_generations "
            "(and per_device_eval_batch_size one of num_generations_eval), or use a spec that "
            "judges each sample by itself."
        )

    def _check_trainer(self, trainer: Any) -> None:
        """Warn once of settings that turn what the spec says into something else."""
        names = list(getattr(trainer, "reward_func_names", ()))
        if names.count(self._name) > 1:
            self._warn(
                f"{names.count(self._name)} reward functions are called {self._name!r}, so TRL "
                "logs them as one. Give each a name=… of its own."
            )
        functions = getattr(trainer, "reward_funcs", None)
        aggregation = getattr(trainer, "multi_objective_aggregation", "sum_then_normalize")
        if functions and len(functions) > 1 and aggregation == "sum_then_normalize":
            self._warn(
                "there are other reward functions beside adjudge's, and TRL's sum counts a missing "
                "reward as 0 there. Make them graders of the spec (weight 0 reports only), or set "
                "multi_objective_aggregation='normalize_then_sum'."
            )
        scale = getattr(trainer, "scale_rewards", "none")
        if self.scorer.spec.reward.group == "z_score" and scale in ("group", "batch"):
            self._warn(
                f"rewards are divided by a deviation twice: reward.group = 'z_score' in the spec, "
                f"and scale_rewards={scale!r} in the trainer. Set scale_rewards='none' or group = "
                "'none'."
            )

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s: %s", self.scorer.spec.where, message)

    def _log(self, batch: TrlBatch, scored: ScorerResult) -> None:
        """Metrics to the run's log; parts, and why it is missing, beside each completion."""
        results, prefix = scored.results, self._prefix
        if batch.log_metric is not None:
            for key, value in scored.metrics.items():
                batch.log_metric(prefix + key.removeprefix("judge/"), value)
        if batch.log_extra is not None:
            for key in self.scorer.info_keys:
                batch.log_extra(prefix + key, [one.reward_info[key] for one in results])
            batch.log_extra(prefix + "missing", [_missing(one) for one in results])


def _missing(result: RewardResult) -> str:
    return "" if result.missing is None else str(result.missing.kind)


# --- TRL's arguments as samples and groups ------------------------------------------------------

_ROLLOUT_FIELDS = {"prompt", "response", "messages", "finish_reason"}
_ROLLOUT_FIELD_ERROR = (
    "columns: {!r} comes from the rollout, not from the dataset. Use another field, such as "
    "'reference' or 'env_reward', or 'messages' where the trainer has a rollout_func."
)
_REFERENCES = ("reference", "ground_truth", "answer", "solution")


class TrlBatch:
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
        fields, conversations = self._fields(columns), self._rollout_messages(columns)
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
                found.append(_sample(index, place, prompt, completion, extra))
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
                raise ConfigError(_ROLLOUT_FIELD_ERROR.format("messages"))
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

    def _fields(self, columns: Mapping[str, str]) -> dict[str, Sequence[Any]]:
        """What samples get beside the rollout itself, by field."""
        fields = {n: values for n, values in self._columns.items() if n not in _ROLLOUT_FIELDS}
        for field, column in columns.items():
            if column not in self._columns:
                has = ", ".join(sorted(self._columns)) or "no columns beside the prompt"
                raise ConfigError(
                    f"columns: the dataset has no column for {field!r} (found {column!r}; "
                    f"allowed: {has})"
                )
            if field != "messages":
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


def check_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """``columns`` as a dict; raises :class:`ConfigError` for a field that the rollout gives.

    ``messages`` may be what a ``rollout_func`` returns, which shows when a trainer calls.
    """
    for field in columns or {}:
        if field in _ROLLOUT_FIELDS and field != "messages":
            raise ConfigError(_ROLLOUT_FIELD_ERROR.format(field))
    return dict(columns or {})


def _end_tokens(trainer: Any) -> Collection[int]:
    ends = getattr(trainer, "eos_token_ids", None) or getattr(trainer, "eos_token_id", None)
    if isinstance(ends, int):
        return {ends}
    return set(ends or ())


def _sample(
    index: int, place: int, prompt: Any, completion: Any, extra: dict[str, Any]
) -> RewardSample:
    opening = prompt if isinstance(prompt, list) else None
    said = completion if isinstance(completion, list) else None
    messages = None if said is None else [*(opening or []), *said]
    return RewardSample(
        index,
        place,
        prompt if isinstance(prompt, str) else first_question(opening),
        completion if isinstance(completion, str) else last_answer(said) or "",
        messages,
        extra,
    )


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


# --- trainers that count a missing reward as 0 --------------------------------------------------


@dataclass(frozen=True)
class ZeroFilling:
    """A trainer, ``who``, that counts a missing reward as 0.

    Exact all the same is a group that is missing as a whole, where ``keeps_groups_apart``, and the
    mean of the group in the place of the missing ones, where ``only_centres`` too.
    """

    who: str
    keeps_groups_apart: bool
    only_centres: bool

    def check(self, spec: RewardSpec, layout: GroupLayout) -> None:
        """Refuse a spec whose missing rewards would become 0; raises :class:`ConfigError`."""
        missing = spec.missing
        largest = max(Counter(layout.groups).values(), default=0)
        exact = missing.policy == "raise" or (self.only_centres and layout.broken is None)
        if self.keeps_groups_apart:
            whole = missing.policy == "drop_group" and missing.min_valid >= largest
            exact = exact or whole or missing.policy == "fallback"
        if exact:
            return
        allowed = ["'raise'"]
        if self.keeps_groups_apart:
            allowed += [f"'drop_group' with min_valid = {largest}", "'fallback'"]
        raise ConfigError(
            f"{spec.where}: missing.policy: does not hold under {self.who}, which counts a missing "
            "reward as 0, so that a failed judge looks like a bad answer "
            f"(found {missing.policy!r}; allowed here: {', '.join(allowed)}). Use one of these, or "
            "GRPOTrainer or RLOOTrainer of trl >= 1.6, which leave a missing reward out of its "
            "group. GRPOTrainer of 1.0 and later is exact with scale_rewards='none' too."
        )

    def exact(
        self, rewards: Sequence[float | None], layout: GroupLayout, spec: RewardSpec
    ) -> list[float | None]:
        """Rewards that make the advantages what they are without the missing ones.

        Raises :class:`ConfigError` where no rewards do.
        """
        found = list(rewards)
        groups: dict[str, list[int]] = defaultdict(list)
        for place, group in enumerate(layout.groups):
            groups[group].append(place)
        for places in groups.values():
            present = [one for place in places if (one := rewards[place]) is not None]
            if len(present) == len(places) or (not present and self.keeps_groups_apart):
                continue
            if not (present and self.only_centres):
                raise ConfigError(
                    f"{spec.where}: {len(places) - len(present)} of {len(places)} rewards of a "
                    f"group are missing, and {self.who} would count them as 0. Use GRPOTrainer or "
                    "RLOOTrainer of trl >= 1.6, which leave them out, or missing.policy = 'raise'."
                )
            mean = sum(present) / len(present)
            for place in places:
                found[place] = mean if rewards[place] is None else rewards[place]
        return found


def detect_zero_filling(batch: TrlBatch) -> ZeroFilling | None:
    """How the caller treats missing rewards; ``None`` where nothing says that it makes them 0.

    A trainer that cannot be seen through its loggers is one of those that are imported.
    """
    trainer = batch.trainer
    if trainer is None:
        who = _imported_zero_filling_trainer(batch.of_a_trainer)
        return None if who is None else ZeroFilling(who, False, False)
    if not _adds_up_missing(type(trainer)):
        return None
    scale = getattr(trainer, "scale_rewards", None)
    aggregation = getattr(trainer, "multi_objective_aggregation", "sum_then_normalize")
    apart = scale in ("group", "none") and aggregation == "sum_then_normalize"
    alone = len(getattr(trainer, "reward_funcs", ())) == 1
    return ZeroFilling(_describe_trainer(type(trainer)), apart, apart and alone and scale == "none")


@cache
def _imported_zero_filling_trainer(of_a_trainer: bool) -> str | None:
    """A class of TRL in this process that adds up missing rewards.

    Trainers say their state to reward functions; the rollout process of AsyncGRPO does not.
    """
    for name, module in sorted(sys.modules.items()):
        if name.startswith("trl.") and ("async_grpo" in name) != of_a_trainer:
            for one in list(vars(module).values()):
                if inspect.isclass(one) and one.__module__ == name and _adds_up_missing(one):
                    return _describe_trainer(one)
    return None


def _describe_trainer(trainer: type) -> str:
    version = getattr(sys.modules.get("trl"), "__version__", None)
    return f"{trainer.__name__} of TRL {version}" if version else trainer.__name__


def _adds_up_missing(trainer: type) -> bool:
    """Whether a method of it does so."""
    if trainer not in _trainer_cache:
        _trainer_cache[trainer] = any(map(_is_bare_sum, _methods(trainer)))
    return _trainer_cache[trainer]


_trainer_cache: dict[type, bool] = {}


def _is_bare_sum(method: FunctionType) -> bool:
    """Whether it sums reward functions with NaN as 0, and never looks for it again.

    TRL 1.6 and later set the rewards and then the advantages of such rows apart (``isnan``,
    ``nan_to_num``); before 0.20 ``isnan`` serves a warning only, which names ``nan_row_idx``.
    """
    code = method.__code__
    names = {*code.co_names, *code.co_varnames, *code.co_cellvars}
    if "nansum" not in names or not names & {"reward_funcs", "reward_weights"}:
        return False
    return "nan_to_num" not in names and ("isnan" not in names or "nan_row_idx" in names)


def _methods(trainer: type) -> Iterator[FunctionType]:
    """The methods that run: a base's only where it is not replaced, or called by ``super``."""
    replaced: set[str] = set()
    for base in trainer.__mro__:
        for name, value in vars(base).items():
            method = inspect.unwrap(value) if callable(value) else value
            if name not in replaced and isinstance(method, FunctionType):
                yield method
                if "super" not in method.__code__.co_names:
                    replaced.add(name)
