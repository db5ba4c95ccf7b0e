"""Harbor's trials, and trajectories of agents in its interchange format (ATIF).

A trial is a folder: ``result.json`` has what Harbor's verifier paid and what failed, the
conversation is in ``agent/trajectory.json``. The verifier's reward is the environment's, where
Harbor itself calls it valid: whatever number stands beside a sandbox or a model's server that
failed, that run is broken; where the verifier failed, the rollout is there and has no reward.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from adjudge.errors import RolloutError
from adjudge.intake.conversation import Message, assistant_message, message_text, tool_message
from adjudge.rollouts.formats.base import RolloutFormat, Row, shape
from adjudge.rollouts.formats.fields import (
    Record,
    answered_columns,
    as_id,
    as_object,
    as_objects,
    as_text,
    digest_prompt,
    group_name,
    make_row,
    tool_calls,
)

_TRAJECTORY = "agent/trajectory.json"
_MOST_BYTES = 256 << 20

# By the names of Harbor 0.25's error policy; any other failure is not the agent's doing.
_AGENT_ENDED = {
    "AgentTimeoutError", "ContextWindowExceededError", "OutputTokenExceededError",
    "ContextLengthExceededError", "OutputLengthExceededError", "AgentSafetyRefusalError",
    "ContentPolicyViolationError",
}  # fmt: skip
_VERIFIER_FAILED = {
    "VerifierTimeoutError", "RewardFileNotFoundError", "RewardFileEmptyError",
    "VerifierOutputParseError",
}  # fmt: skip


# A trial: {task_name, trial_name, task_checksum, agent_info, verifier_result, exception_info, …}


_is_trial = shape(
    trial_name=object, task_checksum=object, agent_info=object, verifier_result=object
)


def _join_trajectory(file: Path, record: Record) -> Record:
    """The trial with the conversation that stands beside it."""
    path = file.parent / _TRAJECTORY
    if not path.is_file():
        return record
    if path.stat().st_size > _MOST_BYTES:
        raise RolloutError(f"{_TRAJECTORY} has more than {_MOST_BYTES >> 20} MB")
    try:
        trajectory = msgspec.json.decode(path.read_bytes())
    except (msgspec.MsgspecError, RecursionError, OSError) as error:
        raise RolloutError(f"{_TRAJECTORY} cannot be read: {error}") from None
    return {**record, "trajectory": trajectory}


def _convert_trial(record: Record) -> Iterator[Row]:
    failures = _list_failures(record)
    broken = [name for name in failures if name not in _AGENT_ENDED | _VERIFIER_FAILED]
    if broken:
        raise RolloutError(f"the run failed: {broken[0]}: {failures[broken[0]]:.200}")
    trajectory = as_object(record.get("trajectory"))
    if not trajectory:
        raise RolloutError(f"the trial has no {_TRAJECTORY} beside it, so nothing can be judged")
    rewards = as_object(as_object(record.get("verifier_result")).get("rewards"))
    paid = rewards if _VERIFIER_FAILED.isdisjoint(failures) else {}
    [row] = _convert_trajectory(trajectory)
    task = as_text(record.get("task_name"))
    yield row | make_row(
        group=group_name(as_text(record.get("source")), task),
        env_reward=next(iter(paid.values())) if len(paid) == 1 else paid.get("reward"),
        reward_components=dict(paid) or None,
        task_id=task,
        trial=as_text(record.get("trial_name")),
        termination_reason=next(iter(failures), None),
    )


def _list_failures(record: Record) -> dict[str, str]:
    """Messages of what failed by its name, of the trial and then of its steps."""
    parts = [record, *as_objects(record.get("step_results"))]
    found = [as_object(part.get("exception_info")) for part in parts]
    return {
        as_text(one.get("exception_type")) or "unknown": as_text(one.get("exception_message")) or ""
        for one in found
        if one
    }


# A trajectory: {schema_version: "ATIF-v1.8", agent, steps: [{source, message, tool_calls, …}]}


def _is_trajectory(record: Record) -> bool:
    return _has_steps(record) and record["schema_version"].startswith("ATIF-")


_has_steps = shape(schema_version=str, steps=list)


def _belongs_to_trial(file: Path, record: Record) -> Record | None:
    """A trial's own trajectory is read with the trial."""
    of_trial = file.parent.name == "agent" and (file.parent.parent / "result.json").is_file()
    return None if of_trial else record


def _convert_trajectory(record: Record) -> Iterator[Row]:
    messages = [
        message for step in as_objects(record.get("steps")) for message in _step_messages(step)
    ]
    agent = as_object(record.get("agent"))
    opening = [message for message in messages if message["role"] == "user"][:1]
    yield make_row(
        **answered_columns(messages),
        group=group_name(digest_prompt(opening)) if opening else None,
        agent=as_text(agent.get("name")),
        agent_model=as_text(agent.get("model_name")),
        trajectory_id=as_id(record.get("trajectory_id")) or as_id(record.get("session_id")),
    )


def _step_messages(step: Record) -> Iterator[Message]:
    source, text = step.get("source"), message_text(step.get("message"))
    said: Message = {"role": "system" if source == "system" else "user", "content": text}
    calls = tool_calls(step.get("tool_calls"), "tool_call_id", "function_name")
    if source == "agent":
        said = assistant_message(text or None, calls, as_text(step.get("reasoning_content")))
    yield said
    known = {call["id"] for call in said.get("tool_calls", ())}
    for one in as_objects(as_object(step.get("observation")).get("results")):
        answered, content = as_id(one.get("source_call_id")), one.get("content")
        if answered in known:
            yield tool_message(answered, content)
        else:  # an agent that acts by its text reads the terminal as the next message
            yield {"role": "user", "content": message_text(content)}


HARBOR_FORMATS: tuple[RolloutFormat, ...] = (
    RolloutFormat("harbor", "Harbor trial", _is_trial, _convert_trial, join=_join_trajectory),
    RolloutFormat(
        "atif",
        "agent trajectory (ATIF)",
        _is_trajectory,
        _convert_trajectory,
        join=_belongs_to_trial,
    ),
)
