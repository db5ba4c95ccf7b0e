"""Samples of evaluation harnesses: Inspect, lm-evaluation-harness and Harbor.

A trial of Harbor is a folder: ``result.json`` has what Harbor's verifier paid and what failed, the
conversation is in ``agent/trajectory.json`` (ATIF). The verifier's reward is the environment's,
where Harbor itself calls it valid: whatever number stands beside a sandbox or a model's server that
failed, that run is broken; where the verifier failed, the rollout is there and has no reward.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from adjudge.errors import RolloutError
from adjudge.intake.columns import as_id, as_object
from adjudge.intake.conversation import read_messages
from adjudge.intake.parts import (
    Message,
    assistant_message,
    message_text,
    read_tool_call,
    tool_message,
)
from adjudge.messages import last_question
from adjudge.rollouts.fields import (
    SAMPLE_FIELDS,
    Record,
    RolloutFormat,
    Row,
    add_fields,
    answered_columns,
    as_objects,
    as_text,
    completion_row,
    describe_error,
    digest_prompt,
    group_name,
    is_number,
    make_row,
    pick_fields,
    shape,
    split_reasoning,
)

# Inspect: a sample (a member of an .eval file), or a whole .json log {version, eval, samples: […]}


def _is_inspect(record: Record) -> bool:
    if isinstance(record.get("eval"), Mapping):
        named = "task" in record["eval"] and "version" in record
        return named and isinstance(record.get("status"), str)
    return (
        isinstance(record.get("epoch"), int)
        and {"id", "input", "target"} <= record.keys()
        and "choices" in as_object(record.get("output"))
        and (isinstance(record.get("messages"), list) or "message_refs" in record)
    )


def _split_inspect(record: Record) -> list[Record] | None:
    if not isinstance(record.get("eval"), Mapping):
        return None
    if not isinstance(record.get("samples"), list):
        error = record.get("error")
        raise RolloutError(
            f"the log has no samples (status {as_text(record.get('status'))}"
            + (f": {describe_error(error)})" if error is not None else ")")
        )
    task = as_text(as_object(record["eval"]).get("task"))
    return [{**sample, "task": task} for sample in as_objects(record["samples"])]


def _convert_inspect(sample: Record) -> Iterator[Row]:
    if sample.get("error") is not None:
        raise RolloutError(f"the sample failed: {describe_error(sample['error'])}")
    if sample.get("invalidation") is not None:
        reason = as_object(sample["invalidation"]).get("reason")
        raise RolloutError(f"the sample was marked invalid: {describe_error(reason)}")
    if "messages" not in sample and "message_refs" in sample:
        raise RolloutError("the sample is stored in chunks, which are not read")
    if attachments := as_object(sample.get("attachments")):
        try:
            sample = _put_attachments(sample, attachments)
        except RecursionError:
            raise RolloutError("the sample is nested too deeply") from None
    messages = _inspect_messages(sample.get("messages"))
    output = as_object(sample.get("output"))
    choice = as_object(next(iter(as_objects(output.get("choices"))), {}).get("message"))
    response = (
        as_text(output.get("completion")) or split_reasoning(choice.get("content"))[0] or None
    )
    if not messages and response is None:
        raise RolloutError("the sample has neither messages nor an output")
    listed = as_object(sample.get("scores")) or {"score": sample.get("score")}  # in old logs: one
    scores = {name: as_object(score) for name, score in listed.items() if as_object(score)}
    values = list(scores.values())
    name = as_id(sample.get("id"))
    question = _inspect_input(sample.get("input"))
    yield make_row(
        messages=messages or None,
        prompt=question,
        response=response,
        reference=_one_or_all(sample.get("target")),
        # Ids are counted from 1 in each data set, whose name a sample does not have.
        group=group_name(digest_prompt(question), name),
        env_reward=_score_number(values[0].get("value")) if len(values) == 1 else None,
        sample_id=name,
        model=as_text(output.get("model")),
        **pick_fields(sample, "epoch", "choices"),
        scores={name: _score_value(score) for name, score in scores.items()} or None,
        scored_answer=as_text(values[0].get("answer")) if len(values) == 1 else None,
        limit=as_text(as_object(sample.get("limit")).get("type")),
        metadata=as_object(sample.get("metadata")) or None,
        task=as_text(sample.get("task")),
    )


_SCORE_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_SCORE_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def _score_number(value: Any) -> float | None:
    """A score as Inspect's own ``value_to_float`` reads it; ``None`` for NaN, its "not scored"."""
    if isinstance(value, str):
        value = _SCORE_LETTERS.get(value, _SCORE_WORDS.get(value.lower(), value))
        with suppress(ValueError):
            value = float(value)
    return float(value) if is_number(value) else None


def _score_value(score: Record) -> Any:
    """A score as a number where it is one; several in an object, say, as they stand."""
    value = score.get("value")
    number = _score_number(value)
    return value if number is None and not isinstance(value, float) else number


def _one_or_all(target: Any) -> Any:
    """A target as reference: a text, or several; none where it is empty."""
    if isinstance(target, list) and len(target) == 1:
        target = target[0]
    return target if target or is_number(target) else None


_ATTACHMENT = "attachment://"


def _put_attachments(value: Any, attachments: Record) -> Any:
    """A part of a sample with its attachments in the places of their addresses."""
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        return as_text(attachments.get(value.removeprefix(_ATTACHMENT))) or value
    if isinstance(value, list):
        return [_put_attachments(one, attachments) for one in value]
    if isinstance(value, Mapping):
        return {name: _put_attachments(one, attachments) for name, one in value.items()}
    return value


def _inspect_input(given: Any) -> str | None:
    """The sample's own question: a text, or the last message of the user."""
    return given if isinstance(given, str) else last_question(_inspect_messages(given))


def _inspect_messages(given: Any) -> list[Message]:
    kept = ("role", "content", "tool_calls", "tool_call_id")
    turns = [{key: one[key] for key in kept if key in one} for one in as_objects(given)]
    for turn, one in zip(turns, as_objects(given), strict=True):
        if not turn.get("content") and (failure := as_object(one.get("error")).get("message")):
            turn["content"] = failure
    return read_messages(turns, "messages")


# lm-evaluation-harness: {doc_id, doc, target, arguments, resps, filtered_resps, filter, METRIC: …}

_is_lm_eval = shape(
    doc=object, target=object, arguments=(Mapping, list), resps=list, filtered_resps=object
)
_NO_METRICS = {
    *("doc", "target", "arguments", "resps", "filtered_resps", *SAMPLE_FIELDS, "sample"),
    *("doc_id", "filter", "metrics", "doc_hash", "prompt_hash", "target_hash"),
}


def _convert_lm_eval(record: Record) -> Iterator[Row]:
    requests = record.get("resps")
    texts = requests[0] if isinstance(requests, list) and len(requests) == 1 else []
    texts = texts if isinstance(texts, list) else [texts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise RolloutError("resps: are no texts for one prompt (of choices, likelihoods alone)")
    metrics = _lm_eval_metrics(record)
    given = record.get("arguments")
    first: Any = next(iter(given.values() if isinstance(given, Mapping) else given or ()), {})
    values = list(first.values()) if isinstance(first, Mapping) else first  # lists: before 0.4.3
    context = values[0] if isinstance(values, list) and values else record.get("input")
    if isinstance(context, list) and len(context) == 1:
        context = context[0]
    context = as_text(context)  # perhaps of JSON: a conversation for the template of a server
    common = make_row(
        reference=_one_or_all(_lm_eval_target(record.get("target"))),
        group=_lm_eval_group(record),
        **pick_fields(record, "doc_id", "doc"),
        filter=as_text(record.get("filter")),
        **metrics,
    )
    kept = record.get("filtered_resps")
    for number, text in enumerate(texts):
        row = {**common, **completion_row(context, text)}
        if len(texts) > 1:  # a metric is of all of them
            row["sample"] = number
        else:
            add_fields(row, env_reward=_lm_eval_reward(metrics))
            if isinstance(kept, list) and len(kept) == 1:
                add_fields(row, filtered_response=as_text(kept[0]))
        yield row


def _lm_eval_target(target: Any) -> Any:
    """A target; several texts, which the harness writes as Python does, as a list again."""
    if isinstance(target, str) and target.startswith(("['", '["')) and len(target) < 100_000:
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            texts = ast.literal_eval(target)
            if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
                return texts
    return target


def _lm_eval_group(record: Record) -> str | None:
    """One document under one filter: each filter repeats all documents, with metrics of its own."""
    document, chosen = as_text(record.get("doc_hash")), as_text(record.get("filter"))
    if document is None:
        return None
    return document[:16] if chosen in (None, "none") else f"{document[:16]} {chosen}"


def _lm_eval_metrics(record: Record) -> Row:
    """The columns of metrics that are numbers; a corpus metric has parts that are none alone."""
    listed = record.get("metrics")
    names = listed if isinstance(listed, list) else record
    return {
        name: record[name]
        for name in names
        if isinstance(name, str) and name not in _NO_METRICS and is_number(record.get(name))
    }


_MAIN_METRICS = ("acc", "exact_match", "prompt_level_strict_acc")
_LOWER_IS_BETTER = ("perplexity", "bits_per_byte", "brier", "bias", "error", "loss")


def _lm_eval_reward(metrics: Row) -> float | None:
    """``acc`` or ``exact_match``, or the only metric, unless lower is better."""
    names = [name for name in _MAIN_METRICS if name in metrics]
    if not names and len(metrics) == 1:
        names = [name for name in metrics if not any(part in name for part in _LOWER_IS_BETTER)]
    return float(metrics[names[0]]) if names else None


# Harbor

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
    calls = [read_tool_call(one, "tool_calls") for one in as_objects(step.get("tool_calls"))]
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


HARBOR_FORMATS = (
    RolloutFormat("harbor", "Harbor trial", _is_trial, _convert_trial, join=_join_trajectory),
    RolloutFormat(
        *("atif", "agent trajectory (ATIF)", _is_trajectory, _convert_trajectory),
        join=_belongs_to_trial,
    ),
)

EVALUATION_FORMATS = (
    RolloutFormat(
        *("inspect", "Inspect log", _is_inspect, _convert_inspect),
        own=("messages",),
        parts=("samples", _split_inspect),
    ),
    RolloutFormat("lm-eval", "lm-evaluation-harness samples", _is_lm_eval, _convert_lm_eval),
)
"""No record is in two of them."""
