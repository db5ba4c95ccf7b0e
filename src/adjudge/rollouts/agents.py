"""Rollouts of agents: tau-bench and tau2-bench; SWE-agent, mini-SWE-agent, and tables of them.

A run that broke is an error, whatever number stands beside it: tau-bench writes reward 0.0 for an
exception. A run that used up its steps, its time or its money is a rollout that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adjudge.errors import RolloutError
from adjudge.intake.columns import as_id, as_object
from adjudge.intake.conversation import read_messages
from adjudge.intake.parts import Message, assistant_message, message_text, tool_call, tool_message
from adjudge.rollouts.fields import (
    Record,
    RolloutFormat,
    Row,
    answered_columns,
    are_objects,
    as_objects,
    as_text,
    at,
    describe_error,
    digest_prompt,
    group_name,
    make_row,
    pick_fields,
    read_json,
    shape,
    split_reasoning,
)

# tau-bench: {task_id, trial, reward, info: {task, source, user_cost, reward_info}, traj}


_is_tau_bench = shape(
    traj=list, info=Mapping, trial=object, reward=(int, float), task_id=(int, str)
)


def _convert_tau_bench(record: Record) -> Iterator[Row]:
    if (error := at(record, "info.error")) is not None:
        raise RolloutError(f"the run failed: {describe_error(error)}")
    instruction = as_text(at(record, "info.task.instruction"))
    yield make_row(
        **answered_columns([dict(message) for message in as_objects(record.get("traj"))]),
        # Each environment counts its tasks from 0.
        group=group_name(digest_prompt(instruction), record.get("task_id")),
        env_reward=record.get("reward"),
        **pick_fields(record, "task_id", "trial"),
        instruction=instruction,
        outputs=at(record, "info.task.outputs"),
        reference_tool_calls=_reference_calls(at(record, "info.task.actions"), "kwargs"),
        user_cost=at(record, "info.user_cost"),
    )


def _reference_calls(actions: Any, arguments: str) -> list[Row] | None:
    """The calls that solve the task, the agent's own, as graders of tool calls read them."""
    if not isinstance(actions, list):
        return None
    return [
        {"name": action.get("name"), "arguments": action.get(arguments)}
        for action in as_objects(actions)
        if action.get("requestor") in (None, "assistant") and action.get("name") != "respond"
    ]


# tau2-bench: {info, tasks, simulations: […]}; or a file for each simulation beside that document


def _is_tau2_bench(record: Record) -> bool:
    if "tasks" in record:
        runs = (record.get("simulations"), record.get("simulation_index"))
        return are_objects(record["tasks"]) and any(are_objects(run) for run in runs)
    return (
        isinstance(record.get("termination_reason"), str)
        and {"trial", "duration"} <= record.keys()
        and isinstance(record.get("reward_info", 0), Mapping | None)
        and as_id(record.get("task_id")) is not None
    )


_TASK, _RUN = "its task", "its run"


def _split_tau2_bench(record: Record) -> list[Record] | None:
    if "tasks" not in record:
        return None
    if not isinstance(record.get("simulations"), list):
        raise RolloutError("holds no simulations: they are files in the folder simulations/")
    tasks = {as_id(task.get("id")): task for task in as_objects(record["tasks"])}
    return [
        {**one, _TASK: tasks.get(as_id(one.get("task_id"))), _RUN: record.get("info")}
        for one in as_objects(record["simulations"])
    ]


_TAU2_BROKEN = ("infrastructure_error", "unexpected_error", "user_error")
"""Why a simulation ended that the agent did not end: its user broke the protocol, say."""


def _convert_tau2_bench(simulation: Record) -> Iterator[Row]:
    task, info = as_object(simulation.get(_TASK)), as_object(simulation.get(_RUN))
    ended = as_text(simulation.get("termination_reason"))
    if ended in _TAU2_BROKEN:
        reason = describe_error(at(simulation, "info.error"))
        raise RolloutError(f"the run failed ({ended}): {reason}")
    if simulation.get("messages") is None and simulation.get("ticks") is not None:
        raise RolloutError("is a spoken conversation in ticks, which is not read")
    messages = _tau2_messages(simulation.get("messages"))
    domain = as_text(at(info, "environment_info.domain_name"))
    policy = as_text(simulation.get("policy")) or as_text(at(info, "environment_info.policy"))
    actions = at(task, "evaluation_criteria.actions")
    asked = (message["content"] for message in messages if message["role"] == "user")
    yield make_row(
        **answered_columns(messages),
        prompt=next(asked, None),  # the agent greets first
        group=group_name(domain or digest_prompt(policy), simulation.get("task_id")),
        env_reward=at(simulation, "reward_info.reward"),
        **pick_fields(simulation, "task_id", "trial", "seed"),
        termination_reason=ended,
        reward_breakdown=at(simulation, "reward_info.reward_breakdown"),
        **pick_fields(simulation, "agent_cost", "user_cost", "duration"),
        agent_model=as_text(at(info, "agent_info.llm")),
        domain=domain,
        policy=policy,
        reference_tool_calls=_reference_calls(actions, "arguments"),
    )


def _tau2_messages(given: Any) -> list[Message]:
    """What the agent saw and did: the user's own calls and their results never reached it."""
    turns: list[Row] = []
    for outer in as_objects(given):
        together = outer.get("tool_messages")
        for message in [outer] if together is None else as_objects(together):
            turn: Row = {key: message[key] for key in ("role", "content") if key in message}
            if message.get("role") == "tool":
                turn["tool_call_id"] = message.get("id")
            if message.get("role") == "assistant":
                turn["tool_calls"] = message.get("tool_calls")
            own_call = message.get("role") == "user" and message.get("tool_calls")
            own_result = message.get("role") == "tool" and message.get("requestor") == "user"
            if not own_result and (turn.get("content") or not own_call):
                turns.append(turn)
    return read_messages(turns, "messages")


# SWE-agent: {environment, trajectory: [steps], history: [messages], info, replay_config}


_has_steps = shape(trajectory=list, info=Mapping, history=list)


def _is_swe_agent(record: Record) -> bool:
    steps = record.get("trajectory")
    return _has_steps(record) and are_objects(steps) and all("action" in step for step in steps)


_BROKEN_RUNS = ("exit_api", "exit_environment_error", "exit_error")
"""Exit statuses of runs that the agent did not end, and that had no patch to submit."""


def _convert_swe_agent(record: Record) -> Iterator[Row]:
    info = as_object(record.get("info"))
    row = _instance_row(
        _swe_agent_turns(as_objects(record.get("history"))),
        _instance_id(record.get("replay_config")),
        info.get("resolved", record.get("resolved")),
        *_check_ended(info),
        model_stats=info.get("model_stats"),
        swe_agent_version=as_text(info.get("swe_agent_version")),
        environment=as_text(record.get("environment")),
    )
    yield {"group": record[_FILE], **row} if _FILE in record else row


_FILE = "name of the file"


def _name_task(file: Path, record: Record) -> Record:
    """The record with its file's name, which is the task's where the record does not say it."""
    return {**record, _FILE: file.stem}


ShellTurn = tuple[Message, Sequence[str]]
"""A message, and its commands where it made no tool calls."""


def _instance_row(
    turns: Iterable[ShellTurn],
    instance: str | None,
    resolved: Any,
    status: str | None,
    submission: str | None,
    **others: Any,
) -> Row:
    """The columns of an attempt at an instance of SWE-bench."""
    if status in _BROKEN_RUNS and submission is None:
        raise RolloutError(f"the run failed (exit_status {status})")
    named = {"group": instance, "instance_id": instance, "env_reward": resolved}
    named |= {"exit_status": status, "submission": submission}
    return make_row(**answered_columns(_shell_messages(turns)), **named, **others)


def _check_ended(info: Record) -> tuple[str, str | None]:
    """Exit status and patch; raises :class:`RolloutError` for a run that was cut off."""
    status = as_text(info.get("exit_status"))
    if status is None:
        raise RolloutError("the run did not end: it has no exit_status")
    return status, as_text(info.get("submission"))


def _instance_id(config: Any) -> str | None:
    """The task's name in the run's configuration, an object or its JSON (from version 1.1 on)."""
    return as_id(at(read_json(config), "problem_statement.id"))


def _swe_agent_turns(history: Sequence[Record]) -> Iterator[ShellTurn]:
    """The conversation without demonstrations and what SWE-agent says in the agent's name.

    Without function calling an action is a command to the shell, whose output comes in the user's
    role: it becomes a call of ``bash`` and its result. The text beside it is then the thought.
    """
    for place, item in enumerate(history):
        content, action = message_text(item.get("content")), as_text(item.get("action"))
        if item.get("is_demo"):
            continue
        if item.get("role") != "assistant":
            yield _answer(item, content, item.get("tool_call_ids"))
        elif place >= len(history) - 2 and _is_exit_notice(content, action):
            break
        else:
            reasoning = split_reasoning(item.get("thinking_blocks"))[1]
            calls = as_objects(item.get("tool_calls"))
            commands = [action] if action and not calls else []
            said = as_text(item.get("thought")) or content if commands else content
            yield assistant_message(said or None, calls, reasoning), commands


def _is_exit_notice(content: str, action: str | None) -> bool:
    """Whether a turn near the end is SWE-agent's own, such as "Exit due to cost limit"."""
    return content.startswith("Exit") and (action is None or action.startswith("exit_"))


def _answer(item: Record, content: str, call_ids: Any = None) -> ShellTurn:
    """A message that is not the assistant's; ``call_ids`` name the call that it answers."""
    if isinstance(call_ids, list) and call_ids:
        return tool_message(call_ids[0], content), ()
    return {"role": as_text(item.get("role")) or "user", "content": content}, ()


def _shell_messages(turns: Iterable[ShellTurn]) -> list[Message]:
    """The messages of an agent at a shell; an output in the user's role answers its command."""
    messages: list[Message] = []
    unanswered: list[Message] = []
    commands_before = 0
    for message, commands in turns:
        if message.get("role") == "assistant":
            unanswered = [
                tool_call(f"command_{number}", "bash", {"command": command})
                for number, command in enumerate(commands, start=commands_before + 1)
            ]
            commands_before += len(commands)
            messages.append(message | ({"tool_calls": [*unanswered]} if commands else {}))
        elif unanswered and "tool_call_id" not in message:
            messages.append(tool_message(unanswered.pop(0)["id"], message["content"]))
        else:
            messages.append(message)
    return messages


# Tables of SWE trajectories: {instance_id, trajectory: [messages], exit_status, resolved}


def _is_swe_row(record: Record) -> bool:
    outcomes = [record[name] for name in ("resolved", "target") if name in record]
    if not (_is_instance(record) and outcomes and isinstance(outcomes[0], int | float | None)):
        return False
    return "role" in as_object(record["trajectory"][0]) if record["trajectory"] else False


_is_instance = shape(instance_id=str, trajectory=list)


def _convert_swe_row(record: Record) -> Iterator[Row]:
    yield _instance_row(
        ((dict(step), ()) for step in as_objects(record.get("trajectory"))),
        as_id(record.get("instance_id")),
        record.get("resolved" if "resolved" in record else "target"),
        as_text(record.get("exit_status")),
        as_text(record.get("model_patch")) or as_text(record.get("generated_patch")),
        model=as_text(record.get("model_name")) or as_text(record.get("model")),
        trajectory_id=as_id(record.get("trajectory_id")),
        repo=as_text(record.get("repo")),
    )


# mini-SWE-agent: {info, messages, trajectory_format, instance_id}


def _is_mini_swe_agent(record: Record) -> bool:
    if not _has_info(record):
        return False
    version = record.get("trajectory_format")
    if isinstance(version, str):
        return version.startswith("mini-swe-agent")
    return "exit_status" in record["info"] and "model_stats" in record["info"]


_has_info = shape(messages=list, info=Mapping)


def _convert_mini_swe_agent(record: Record) -> Iterator[Row]:
    info, given = as_object(record.get("info")), as_objects(record.get("messages"))
    last = as_object(given[-1].get("extra")) if given else {}
    if info.get("traceback") is not None or last.get("traceback") is not None:
        reason = info.get("exception_str") or last.get("exception_str") or info.get("exit_status")
        raise RolloutError(f"the run failed: {describe_error(reason)}")
    yield _instance_row(
        _mini_turns(given),
        as_id(record.get("instance_id")),
        info.get("resolved", record.get("resolved")),
        *_check_ended(info),
        model_stats=info.get("model_stats"),
        model=as_text(at(info, "config.model.model_name")),
        mini_version=as_text(info.get("mini_version")),
    )


def _mini_turns(given: Sequence[Record]) -> Iterator[ShellTurn]:
    """Messages of all its models: tool calls, the Responses API, and commands in a code block."""
    for message in given:
        role = message.get("role")
        if message.get("object") == "response":
            yield from ((one, ()) for one in read_messages(message.get("output"), "output"))
        elif message.get("type") == "function_call_output":
            yield tool_message(message.get("call_id"), message_text(message.get("output"))), ()
        elif role == "assistant":
            text, thought = split_reasoning(message.get("content"))
            reasoning = as_text(message.get("reasoning_content")) or thought
            calls = as_objects(message.get("tool_calls"))
            commands = [] if calls else _mini_commands(text, as_object(message.get("extra")))
            yield assistant_message(text or None, calls, reasoning), commands
        elif role != "exit":  # how the run ended, which the info says too
            call = message.get("tool_call_id")
            yield _answer(message, message_text(message.get("content")), [call] if call else None)


_FENCE, _FENCE_END = "```bash\n", "\n```"


def _mini_commands(text: str, extra: Record) -> list[str]:
    """The commands of a turn, as version 2 lists them; version 1 runs the only code block."""
    if "actions" in extra:
        listed = (as_text(action.get("command")) for action in as_objects(extra["actions"]))
        return [command for command in listed if command]
    blocks = text.split(_FENCE)
    if len(blocks) != 2 or _FENCE_END not in blocks[1]:
        return []
    return [blocks[1].partition(_FENCE_END)[0].strip()]


AGENT_FORMATS = (
    RolloutFormat("tau-bench", "tau-bench results", _is_tau_bench, _convert_tau_bench),
    RolloutFormat(
        *("tau2-bench", "tau2-bench results", _is_tau2_bench, _convert_tau2_bench),
        own=("messages",),
        parts=("simulations", _split_tau2_bench),
    ),
    RolloutFormat(
        "mini-swe-agent",
        "mini-SWE-agent trajectory",
        _is_mini_swe_agent,
        _convert_mini_swe_agent,
        own=("messages",),
    ),
    RolloutFormat(
        "swe-agent", "SWE-agent trajectory", _is_swe_agent, _convert_swe_agent, join=_name_task
    ),
    RolloutFormat("swe-rows", "table of SWE trajectories", _is_swe_row, _convert_swe_row),
)
"""No record is in two of them."""
