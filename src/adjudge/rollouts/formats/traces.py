"""Rollouts that were played in an environment: verifiers, prime-rl and NeMo-Gym.

An environment's rollout has a conversation, a reward with its parts, and errors. One that failed
has a reward of 0 in the dump, which nobody gave: it comes as ``RolloutError``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.conversation import read_messages
from adjudge.intake.rollouts import last_said
from adjudge.messages import last_question
from adjudge.rollouts.formats.base import RolloutFormat, Row
from adjudge.rollouts.formats.chat import request_messages
from adjudge.rollouts.formats.completions import completion_row
from adjudge.rollouts.formats.fields import (
    Record,
    add_extras,
    add_fields,
    are_objects,
    as_object,
    describe_error,
    digest_prompt,
    each_row,
    group_name,
    is_number,
)


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


def _convert_traces(record: Record) -> Iterator[Row | RolloutError]:
    """``traces.jsonl`` of verifiers from 0.2 and of prime-rl: a line a trace, or an episode.

    An episode has a trace for each agent; samples of one group are those of the same agent.
    """
    if "nodes" in record:
        yield _trace_row(record, {})
        return
    traces = record["traces"]
    if record.get("errors") and not record.get("ok"):
        raise _failed(record["errors"])
    if not traces:
        raise RolloutError("no agent left a trace")
    yield from each_row("traces", traces, lambda trace: _trace_row(as_object(trace), record))


def _trace_row(trace: Record, episode: Record) -> Row:
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
    work = as_object(as_object(episode.get("run") or trace.get("run")).get("work"))
    several = len(episode.get("traces", ())) > 1
    agent = as_object(trace.get("agent")).get("name") if several else None
    key = as_object(episode.get("group")).get("id") or _task_name(task, data)
    named = {"group": group_name(work.get("step"), agent, key), "step": work.get("step")}
    add_fields(row, prompt=question, reference=data.get("answer"), **named, agent=agent)
    add_fields(row, env_reward=_add_rewards(row, as_object(trace.get("rewards"))))
    add_extras(row, as_object(trace.get("metrics")))
    kept = ("id", "stop_condition", "is_timeout", "is_truncated")
    return add_extras(row, {name: trace[name] for name in kept if name in trace})


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
    agent = as_object(record.get("agent_ref")).get("name")
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


TRACE_FORMATS: tuple[RolloutFormat, ...] = (
    RolloutFormat("verifiers-results", "verifiers results", _matches_results, _convert_results),
    RolloutFormat("verifiers-traces", "verifiers traces", _matches_traces, _convert_traces),
    RolloutFormat("nemo-gym-rollouts", "NeMo-Gym rollouts", _matches_nemo_gym, _convert_nemo_gym),
)
"""Dumps of environments, of which no record matches two."""
