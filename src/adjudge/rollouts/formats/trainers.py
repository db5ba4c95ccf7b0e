"""Rollouts that trainers dump: verl, TRL, ms-swift, AReaL, slime, OpenRLHF.

Field names are those of the trainers' sources. ``group`` is the trainer's id where a dump has one;
else the step with a digest of the whole prompt, so that the same prompt in two steps is two groups.
A dump without steps and ids has no ``group``: equal prompts are one, as in any file. ``env_reward``
is the number that the trainer learned from. Rewards of several functions, whose weights no dump
has, are columns of their own, of which the file's reading chooses one or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.columns import RewardColumns, find_reward
from adjudge.messages import parse_conversation
from adjudge.rollouts.formats.base import RolloutFormat, Row
from adjudge.rollouts.formats.completions import completion_row
from adjudge.rollouts.formats.fields import (
    Record,
    add_extras,
    add_fields,
    digest_prompt,
    each_row,
    group_name,
    is_number,
)
from adjudge.rollouts.formats.traces import TRACE_FORMATS


def _has_texts(record: Record, *names: str) -> bool:
    return all(isinstance(record.get(name), str) for name in names)


def _is_text_or_chat(value: Any) -> bool:
    return isinstance(value, str | list)


def _sample_row(
    record: Record, *used: str, texts: tuple[str, str] = ("prompt", "completion"), **fields: Any
) -> Row:
    """A row of prompt and completion, the columns ``texts``, with ``fields`` and the other columns.

    ``used``: columns that the fields are made of.
    """
    row = completion_row(*map(record.__getitem__, texts))
    return add_extras(add_fields(row, **fields), record, *texts, *used)


def _matches_verl(record: Record) -> bool:
    return _has_texts(record, "input", "output") and {"score", "step"} <= record.keys()


def _convert_verl(record: Record) -> Iterator[Row]:
    """``{step}.jsonl``: of rollouts and of validation, whose ``reward`` is ``score`` again.

    verl 0.9 has ``uid``, ``{prompt}_{session}_{output}``; 0.6 has none. ``input`` is decoded
    without special tokens.
    """
    if parse_conversation(record.get("messages")) is not None:  # a reward function's extra column
        row: Row = {"messages": record["messages"]}
    else:
        row = completion_row(record["input"], record["output"])
    uid = record.get("uid")
    prompt = _verl_prompt(uid) if isinstance(uid, str) else digest_prompt(record["input"])
    group = group_name(record["step"], prompt)
    add_fields(row, group=group, reference=record.get("gts"), env_reward=record["score"])
    yield add_extras(row, record, "input", "output", "gts")


def _verl_prompt(uid: str) -> str:
    prompt, *places = uid.rsplit("_", 2)
    whole = len(places) == 2 and all(place.isdecimal() for place in places)
    return prompt if whole else uid


def _matches_trl(record: Record) -> bool:
    if not all(_is_text_or_chat(record.get(name)) for name in ("prompt", "completion")):
        return False
    # Distillation logs nothing else; with rewards there are advantages.
    step = record.get("step")
    counted = is_number(step) or (isinstance(step, str) and step.isdecimal())
    return counted and ("advantage" in record or len(record) == 3)


def _convert_trl(record: Record) -> Iterator[Row]:
    """``completions/completions_00005.parquet``: a column for each reward function."""
    group = group_name(record["step"], digest_prompt(record["prompt"]))
    yield _sample_row(record, group=group, env_reward=record.get("env_reward"))


_SWIFT_STEPS = ("step", "gen_step")


def _matches_swift(record: Record) -> bool:
    if _has_texts(record, "prompt", "completion"):  # with Ray, a line is a sample
        return is_number(record.get("gen_step")) and "step" not in record
    lists = [record.get(name) for name in ("prompt", "completion")]
    steps = any(isinstance(record.get(name), list) for name in _SWIFT_STEPS)
    return steps and all(isinstance(one, list) and len(one) == len(lists[0] or ()) for one in lists)


def _convert_swift(record: Record) -> Iterator[Row | RolloutError]:
    """``completions.jsonl``: a line is a step, whose columns are lists, or a sample."""
    if isinstance(record["completion"], str):
        yield _swift_row(record)
        return
    yield from each_row("completion", _split_swift(record), _swift_row)


def _split_swift(record: Record) -> list[Record]:
    if isinstance(record["completion"], str):
        return [record]
    count = len(record["completion"])
    columns = {
        name: values
        for name, values in record.items()
        if isinstance(values, list) and len(values) == count
    }
    return [{name: columns[name][place] for name in columns} for place in range(count)]


def _swift_row(sample: Record) -> Row:
    step = next((sample[name] for name in _SWIFT_STEPS if name in sample), None)
    step = int(step) if isinstance(step, str) and step.isdecimal() and len(step) < 10 else step
    named: Row = {"reference": sample.get("solution"), "env_reward": sample.get("env_reward")}
    group = group_name(step, digest_prompt(sample["prompt"]))
    return _sample_row(sample, "solution", "gen_step", group=group, step=step, **named)


def _matches_areal(record: Record) -> bool:
    version = {"task_id", "sample_idx", "reward", "tail_version"} <= record.keys()
    return version and _has_texts(record, "prompt", "completion")


def _convert_areal(record: Record) -> Iterator[Row]:
    """``rollout/VERSION/TASK.jsonl``, a group in each; or several, where ranks count alike.

    Answers to one prompt end in different versions of the weights. ``original_reward`` is there
    where ``reward`` was replaced by its distance from the mean of the group.
    """
    group = group_name(record["task_id"], digest_prompt(record["prompt"]))
    reward = record.get("original_reward", record["reward"])
    yield _sample_row(record, group=group, env_reward=reward)


_SLIME_FAILED = ("pending", "aborted", "failed")


def _matches_slime(record: Record) -> bool:
    samples = record.get("samples")
    if isinstance(samples, list) and "rollout_id" in record:
        return bool(samples) and all(isinstance(one, dict) and _is_slime(one) for one in samples)
    return _is_slime(record)


def _is_slime(record: Record) -> bool:
    content = _is_text_or_chat(record.get("prompt")) and isinstance(record.get("response"), str)
    return content and {"group_index", "label", "reward", "status"} <= record.keys()


def _convert_slime(record: Record) -> Iterator[Row | RolloutError]:
    """A sample of slime or miles, or a dump as a document: ``{"rollout_id": …, "samples": […]}``.

    ``rollout_id`` is the step there; in a sample it is the id of one rollout.
    """
    if "samples" not in record:
        yield _slime_row(record, record.get("step"))
        return
    step = record["rollout_id"]
    yield from each_row("samples", _split_slime(record), lambda sample: _slime_row(sample, step))


def _split_slime(record: Record) -> list[Record]:
    samples: list[Record] = record.get("samples", [record])
    return samples


def _slime_row(sample: Record, step: Any) -> Row:
    status, reward = sample["status"], sample["reward"]
    if status in _SLIME_FAILED:
        raise RolloutError(f"the rollout did not end (its status is {status!r})")
    row = completion_row(sample["prompt"], sample["response"])
    group = group_name(step, sample["group_index"])
    if group is None and step is not None:  # a sample of an evaluation
        group = group_name(step, digest_prompt(sample["prompt"]))
    add_fields(row, group=group, reference=sample["label"], step=step)
    kept = ("status", "metadata", "response_length", "remove_sample", "rollout_id")
    add_extras(row, {name: sample[name] for name in kept if name in sample})
    if isinstance(reward, Mapping):  # --reward-key says which is the reward, and is not dumped
        return add_extras(row, reward) | {"reward": reward}
    return add_fields(row, env_reward=reward)


def _find_slime_reward(samples: Sequence[Record]) -> RewardColumns:
    rewards = [one["reward"] for one in samples if isinstance(one["reward"], Mapping)]
    found = find_reward(rewards, ())
    others = tuple(f"reward.{name}" for name in found.others)
    return found._replace(column=found.column and f"reward.{found.column}", others=others)


def _matches_openrlhf(record: Record) -> bool:
    return _has_texts(record, "input", "output") and "reward" in record and len(record) == 3


def _convert_openrlhf(record: Record) -> Iterator[Row]:
    """A line of ``batch_inference --eval_task rm``; OpenRLHF's trainers dump no samples."""
    yield _sample_row(record, texts=("input", "output"), env_reward=record["reward"])


def _matches_run_folder(record: Record) -> bool:
    return {"index", "group", "reward", "missing", "reward_info"} <= record.keys()


def _convert_run_folder(_: Record) -> Iterable[Row]:
    raise RolloutError(
        "is a line of a run folder's rewards.jsonl, which has rewards and no texts. Give the file "
        "that adjudge grade graded."
    )


_NO_REWARDS = frozenset(
    {
        *("step", "gen_step", "advantage", "advantages", "entropy", "num_turns"),
        *("prompt", "completion", "solution"),
    }
)
"""Columns of TRL's and ms-swift's completions that are no rewards; every other number may be."""

TRAINER_FORMATS: tuple[RolloutFormat, ...] = (
    RolloutFormat(
        "verl-rollouts", "verl rollout dump", _matches_verl, _convert_verl, own=("messages",)
    ),
    RolloutFormat(
        *("ms-swift-completions", "ms-swift completions", _matches_swift, _convert_swift),
        parts=_split_swift,
        reward=partial(find_reward, beside=_NO_REWARDS),
    ),
    RolloutFormat("areal-rollouts", "AReaL rollouts", _matches_areal, _convert_areal),
    RolloutFormat(
        *("trl-completions", "TRL completions", _matches_trl, _convert_trl),
        reward=partial(find_reward, beside=_NO_REWARDS),
    ),
    RolloutFormat(
        *("slime-samples", "slime or miles samples", _matches_slime, _convert_slime),
        own=("response",),
        parts=_split_slime,
        reward=_find_slime_reward,
    ),
    *TRACE_FORMATS,
    RolloutFormat(
        "adjudge-rewards", "rewards of a run folder", _matches_run_folder, _convert_run_folder
    ),
    RolloutFormat("openrlhf-inference", "OpenRLHF outputs", _matches_openrlhf, _convert_openrlhf),
)
"""Dumps of trainers and of their environments; no record matches two."""
