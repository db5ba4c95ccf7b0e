"""Rollouts that trainers dump (verl, TRL, ms-swift, AReaL, slime), and environments.

Field names are those of the trainers' sources. ``group`` is the trainer's id where a dump has one;
else the step with a digest of the whole prompt, so that the same prompt in two steps is two groups.
A dump without steps and ids has no ``group``: equal prompts are one, as in any file. ``env_reward``
is the number that the trainer learned from. Rewards of several functions, whose weights no dump
has, are columns of their own, of which the file's reading chooses one or none.

A rollout of an environment (verifiers, prime-rl, NeMo-Gym) has a conversation, a reward with its
parts, and errors. One that failed has a reward of 0 in the dump, which nobody gave: it comes as
``RolloutError``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.columns import RewardColumns, as_object, find_reward
from adjudge.intake.conversation import read_messages
from adjudge.intake.rollouts import last_said
from adjudge.messages import last_question, parse_conversation
from adjudge.rollouts.fields import (
    Record,
    RolloutFormat,
    Row,
    add_extras,
    add_fields,
    are_objects,
    at,
    completion_row,
    describe_error,
    digest_prompt,
    group_name,
    is_number,
    request_messages,
    shape,
)


def _sample_row(record: Record, *used: str, **fields: Any) -> Row:
    """A row of prompt and completion, with ``fields`` and the other columns.

    ``used``: columns that the fields are made of.
    """
    row = completion_row(record["prompt"], record["completion"])
    return add_extras(add_fields(row, **fields), record, "prompt", "completion", *used)


_matches_verl = shape(input=str, output=str, score=object, step=object)


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


_is_completion = shape(prompt=(str, list), completion=(str, list))


def _matches_trl(record: Record) -> bool:
    if not _is_completion(record):
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
_has_texts = shape(prompt=str, completion=str)


def _matches_swift(record: Record) -> bool:
    if _has_texts(record):  # with Ray, a line is a sample
        return is_number(record.get("gen_step")) and "step" not in record
    lists = [record.get(name) for name in ("prompt", "completion")]
    steps = any(isinstance(record.get(name), list) for name in _SWIFT_STEPS)
    return steps and all(isinstance(one, list) and len(one) == len(lists[0] or ()) for one in lists)


def _split_swift(record: Record) -> list[Record] | None:
    """``completions.jsonl``: a line is a step, whose columns are lists, or a sample."""
    if isinstance(record["completion"], str):
        return None
    count = len(record["completion"])
    columns = {
        name: values
        for name, values in record.items()
        if isinstance(values, list) and len(values) == count
    }
    return [{name: columns[name][place] for name in columns} for place in range(count)]


def _convert_swift(sample: Record) -> Iterator[Row]:
    step = next((sample[name] for name in _SWIFT_STEPS if name in sample), None)
    step = int(step) if isinstance(step, str) and step.isdecimal() and len(step) < 10 else step
    named: Row = {"reference": sample.get("solution"), "env_reward": sample.get("env_reward")}
    group = group_name(step, digest_prompt(sample["prompt"]))
    yield _sample_row(sample, "solution", "gen_step", group=group, step=step, **named)


_matches_areal = shape(
    **dict.fromkeys(("prompt", "completion"), str),
    **dict.fromkeys(("task_id", "sample_idx", "reward", "tail_version"), object),
)


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


_is_slime = shape(
    prompt=(str, list),
    response=str,
    **dict.fromkeys(("group_index", "label", "reward", "status"), object),
)


def _split_slime(record: Record) -> list[Record] | None:
    """The samples of slime or miles in a dump as a document, or nothing of a sample.

    ``rollout_id`` is the step there; in a sample it is the id of one rollout.
    """
    if "samples" not in record:
        return None
    return [{**sample, "step": record["rollout_id"]} for sample in record["samples"]]


def _convert_slime(sample: Record) -> Iterator[Row]:
    status, reward, step = sample["status"], sample["reward"], sample.get("step")
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
        yield add_extras(row, reward) | {"reward": reward}
    else:
        yield add_fields(row, env_reward=reward)


def _find_slime_reward(samples: Sequence[Record]) -> RewardColumns:
    rewards = [one["reward"] for one in samples if isinstance(one["reward"], Mapping)]
    found = find_reward(rewards, ())
    others = tuple(f"reward.{name}" for name in found.others)
    return found._replace(column=found.column and f"reward.{found.column}", others=others)


_RUN_COLUMNS = ("index", "group", "reward", "missing", "reward_info")
_matches_run_folder = shape(**dict.fromkeys(_RUN_COLUMNS, object))


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


# Environments: verifiers, prime-rl, NeMo-Gym


def _failed(error: Any) -> RolloutError:
    """What a dump says of a rollout that failed; of errors of several attempts the last."""
    last = error[-1] if isinstance(error, list) and error else error
    return RolloutError(f"the rollout failed: {describe_error(last)}")


def _matches_results(record: Record) -> bool:
    if not {"prompt", "completion", "reward"} <= record.keys():
        return False
    named = "example_id" in record or ("id" in record and "task" in record)
    return named and any(name in record for name in ("generation_ms", "timing", "metrics"))


def _convert_results(record: Record) -> Iterator[Row]:
    """``results.jsonl`` of verifiers to 0.1, beside ``metadata.json``; prime-rl's of that time.

    The calls of tools are JSON texts. Metrics stand at the top, too.
    """
    if record.get("error"):
        error = as_object(record["error"])
        reason = error.get("error_chain_repr") or error.get("error") or record["error"]
        raise _failed(reason)
    row = completion_row(record["prompt"], record["completion"])
    example = record.get("example_id", record.get("id"))
    group = group_name(record.get("env_name"), record.get("task"), example)
    reference = record.get("answer") if record.get("answer") != "" else None
    add_fields(row, group=group, reference=reference, env_reward=record["reward"])
    if isinstance(metrics := record.get("metrics"), Mapping):
        add_extras(row, metrics)
    used = ("completion", "answer", "error", "metrics", "timing", "responses")
    yield add_extras(row, record, *used)


def _matches_traces(record: Record) -> bool:
    if not isinstance(record.get("task"), Mapping):
        return False
    if isinstance(record.get("nodes"), list) and isinstance(record.get("rewards"), Mapping):
        return True
    traces = record.get("traces")
    return are_objects(traces) and all("nodes" in trace for trace in traces)


_EPISODE = "its episode"


def _split_traces(record: Record) -> list[Record] | None:
    """``traces.jsonl`` of verifiers from 0.2 and of prime-rl: a line a trace, or an episode.

    An episode has a trace for each agent; samples of one group are those of the same agent.
    """
    if "nodes" in record:
        return None
    traces = record["traces"]
    if record.get("errors") and not record.get("ok"):
        raise _failed(record["errors"])
    if not traces:
        raise RolloutError("no agent left a trace")
    return [{**trace, _EPISODE: record} for trace in traces]


def _convert_traces(trace: Record) -> Iterator[Row]:
    episode = as_object(trace.get(_EPISODE))
    # ``ok``: an attempt failed, but not the last one. Older traces have no such field.
    if trace.get("errors") and not trace.get("ok"):
        raise _failed(trace["errors"])
    path = _last_branch(trace.get("nodes"))
    messages = read_messages([node.get("message") for node in path], "nodes")
    sampled = [place for place, node in enumerate(path) if node.get("sampled")]
    if not sampled:
        raise RolloutError("the rollout has no reply of the policy")
    answers = [messages[place] for place in sampled]
    reply = trace.get("root_reply")
    row: Row = {
        "messages": messages,
        "opening_turns": sampled[0],
        "response": reply if isinstance(reply, str) else last_said(answers) or "",
    }
    task = as_object(trace.get("task"))
    data = as_object(task.get("data", task))
    question = last_question(messages[: sampled[0]])
    if question is None and isinstance(data.get("prompt"), str):
        question = data["prompt"]
    step = at(episode.get("run") or trace.get("run"), "work.step")
    agent = at(trace, "agent.name") if len(episode.get("traces", ())) > 1 else None
    key = at(episode, "group.id") or _task_name(task, data)
    named = {"group": group_name(step, agent, key), "step": step}
    add_fields(row, prompt=question, reference=data.get("answer"), **named, agent=agent)
    add_fields(row, env_reward=_add_rewards(row, as_object(trace.get("rewards"))))
    add_extras(row, as_object(trace.get("metrics")))
    kept = ("id", "stop_condition", "is_timeout", "is_truncated")
    yield add_extras(row, {name: trace[name] for name in kept if name in trace})


def _last_branch(nodes: Any) -> list[Record]:
    """The nodes from the root to the last leaf: the conversation as it ended."""
    if not isinstance(nodes, list) or not all(isinstance(node, Mapping) for node in nodes):
        raise RolloutError("nodes: must be a list of messages")
    if not nodes:
        raise RolloutError("nodes: must not be empty")
    parents = {node.get("parent") for node in nodes if isinstance(node.get("parent"), int)}
    place: Any = max(set(range(len(nodes))) - parents, default=len(nodes) - 1)
    path: list[Record] = []
    while place is not None:
        if not isinstance(place, int) or not 0 <= place < len(nodes) or len(path) == len(nodes):
            raise RolloutError("nodes: a 'parent' is no node before it")
        path.append(nodes[place])
        place = nodes[place].get("parent")
    return path[::-1]


def _task_name(task: Record, data: Record) -> str | None:
    """What tells a task from the others of a run: its key, its hash, its id or its place."""
    found = (task.get("key"), task.get("hash"), data.get("id"), data.get("idx"))
    return next((str(one) for one in found if isinstance(one, str | int)), None)


def _add_rewards(row: Row, rewards: Record) -> float | None:
    """The weighted sum of a trace's rewards, which become columns; ``None`` where one is missing.

    Without its missing part a sum would be another reward.
    """
    values = []
    for name, reward in rewards.items():
        parts = reward if isinstance(reward, Mapping) else {"score": reward}
        score, weight = parts.get("score"), parts.get("weight", 1.0)
        add_extras(row, {name: score})
        if weight != 0:
            both = is_number(score) and is_number(weight)
            values.append(score * weight if both else math.nan)
    return sum(values) if values else None


_FAILURE_CLASS = "_ng_failure_class"


def _matches_nemo_gym(record: Record) -> bool:
    if not isinstance(record.get("responses_create_params"), Mapping):
        return isinstance(record.get(_FAILURE_CLASS), str)
    return isinstance(record.get("response"), Mapping | None) and "response" in record


def _convert_nemo_gym(record: Record) -> Iterator[Row]:
    """A line of ``ng_collect_rollouts``: the question's items, and those of the response.

    Failures stand in ``*_failures.jsonl`` with their class. Task indexes count the lines of one
    input file, so the prompt is in the group's name. What else a line has is the environment's own.
    """
    if isinstance(record.get(_FAILURE_CLASS), str):
        raise _failed(record[_FAILURE_CLASS])
    asked, response = record["responses_create_params"], as_object(record["response"])
    if response.get("error"):
        raise _failed(response["error"])
    before = request_messages(asked, "responses_create_params")
    answer = read_messages(response.get("output", []), "response.output")
    if not answer:
        raise RolloutError("response.output: is empty: no response was made")
    row = completion_row(before, answer)
    agent = at(record, "agent_ref.name")
    group = group_name(agent, digest_prompt(before), record.get("_ng_task_index"))
    # A masked sample is not trained on: its environment failed, whatever its reward is.
    reward = None if record.get("mask_sample") else record.get("reward")
    add_fields(row, group=group, agent=agent, env_reward=reward)
    for name in ("ground_truth", "expected_answer"):  # the last that there is
        add_fields(row, reference=record.get(name))
    used = ["responses_create_params", "response", "expected_answer", "ground_truth", "agent_ref"]
    for name, value in record.items():  # what a judge was asked and answered; captured calls
        if name.startswith("ng_") or (isinstance(value, Mapping) and "_response" in name):
            used.append(name)
    yield add_extras(row, record, *used)


TRAINER_FORMATS: tuple[RolloutFormat, ...] = (
    RolloutFormat(
        "verl-rollouts", "verl rollout dump", _matches_verl, _convert_verl, own=("messages",)
    ),
    RolloutFormat(
        *("ms-swift-completions", "ms-swift completions", _matches_swift, _convert_swift),
        parts=("completion", _split_swift),
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
        parts=("samples", _split_slime),
        reward=_find_slime_reward,
    ),
    RolloutFormat("verifiers-results", "verifiers results", _matches_results, _convert_results),
    RolloutFormat(
        *("verifiers-traces", "verifiers traces", _matches_traces, _convert_traces),
        parts=("traces", _split_traces),
    ),
    RolloutFormat("nemo-gym-rollouts", "NeMo-Gym rollouts", _matches_nemo_gym, _convert_nemo_gym),
    RolloutFormat(
        "adjudge-rewards", "rewards of a run folder", _matches_run_folder, _convert_run_folder
    ),
)
"""Dumps of trainers and of their environments; no record matches two."""
