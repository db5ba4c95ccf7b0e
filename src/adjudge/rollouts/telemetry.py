"""Traces of calls to models: OpenTelemetry's spans, LangSmith's runs and Langfuse's traces.

A trace of an agent has a span for each call, and the later calls begin with the earlier ones: the
longest conversation is the sample. Where another span of the trace is no beginning of it, the trace
is refused: nobody says which of the two is the rollout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from adjudge.errors import RolloutError
from adjudge.intake.columns import as_id, as_object
from adjudge.intake.conversation import looks_like_messages, read_messages
from adjudge.intake.parts import Message
from adjudge.rollouts.columns import find_column, list_columns
from adjudge.rollouts.fields import (
    Record,
    Row,
    add_extras,
    add_fields,
    answered_columns,
    as_objects,
    completion_row,
    describe_error,
    is_number,
    read_json,
    shape,
)
from adjudge.rollouts.logs import log_format, read_lines
from adjudge.types import MISSING, get_path


class _Call(NamedTuple):
    """What a span asked and what came back: texts or messages."""

    name: str
    before: Any
    after: Any


_INSTRUCTIONS = ("system", "developer")


def _as_turns(side: Any, role: str) -> list[Message]:
    return [{"role": role, "content": side}] if isinstance(side, str) else side


def _list_words(side: Any, role: str) -> list[Any]:
    """What a side says, without what differs between the records of one message."""
    said = []
    for message in _as_turns(side, role):
        calls = [as_object(call.get("function")) for call in message.get("tool_calls") or ()]
        made = [(call.get("name"), read_json(call.get("arguments"))) for call in calls]
        if message["role"] not in _INSTRUCTIONS:
            said.append((message["role"], message.get("content") or "", made))
    return said


def _join_calls(calls: Sequence[_Call]) -> Row:
    """The row of a trace's longest conversation, from what the first of its calls asked on.

    Raises :class:`RolloutError` where another call is no beginning of it.
    """
    sides = [
        (one, _list_words(one.before, "user"), _list_words(one.after, "assistant")) for one in calls
    ]
    longest, asked, answered = max(reversed(sides), key=lambda one: len(one[1]) + len(one[2]))
    whole = [*asked, *answered]
    for call, before, after in sides:
        if not after or after == before:
            raise RolloutError(f"{call.name}: nothing was answered")
        if before != whole[: len(before)] or after[-1] not in whole[len(before) :]:
            raise RolloutError(
                f"the spans {call.name!r} and {longest.name!r} of one trace have different "
                "conversations, and none is the beginning of the other. Write a file with the "
                "one to judge."
            )
    before, after = longest.before, longest.after
    first = min(len(before) for _, before, _ in sides)
    if first < len(asked):
        turns = [*_as_turns(before, "user"), *_as_turns(after, "assistant")]
        spoken = [at for at, turn in enumerate(turns) if turn["role"] not in _INSTRUCTIONS]
        before, after = turns[: spoken[first]], turns[spoken[first] :]
    elif isinstance(after, list) and (
        asked == answered[: len(asked)] or answered[0][0] != "assistant"
    ):
        return dict(answered_columns(after))  # an answer that begins with what was asked
    return completion_row(before, after)


def _scored_row(row: Row, scores: Record, **fields: Any) -> Row:
    numbers = {name: one for name, one in scores.items() if is_number(one)}
    reward = next(iter(numbers.values())) if len(numbers) == 1 else None
    return add_fields(row, env_reward=reward, scores=numbers or None, **fields)


# OpenTelemetry: {resourceSpans: [{scopeSpans: [{spans: […]}]}]}, or a span a line

_INPUTS = ("gen_ai.input.messages", "gen_ai.prompt", "llm.input_messages")
_OUTPUTS = ("gen_ai.output.messages", "gen_ai.completion", "llm.output_messages")
"""The attributes of the conventions, of OpenLLMetry and of OpenInference."""

_SYSTEM = "gen_ai.system_instructions"
_DETAILS, _EVALUATION = "gen_ai.client.inference.operation.details", "gen_ai.evaluation.result"


def _is_telemetry(record: Record) -> bool:
    resources = as_objects(record.get("resourceSpans"))
    return any("scopeSpans" in one for one in resources) or _is_of_model(_read_span(record))


def _is_of_model(span: Record) -> bool:
    return any(f"{name}".startswith(("gen_ai", "llm.input_messages")) for name in span) or (
        "input_messages" in as_object(span.get("llm"))
    )


def _read_span(span: Record) -> Record:
    """A span with its attributes beside its own keys; a table has a column for each attribute."""
    found = {f"{name}".removeprefix("attributes."): value for name, value in span.items()}
    found = {**_read_attributes(span.get("attributes")), **found}
    for event in as_objects(span.get("events")):
        if event.get("name") == _DETAILS:
            found = {**_read_attributes(event.get("attributes")), **found}
    return found


def _read_attributes(given: Any) -> Record:
    """Attributes by their names; OTLP's JSON lists them, each value wrapped in its type."""
    listed = (one for one in as_objects(given) if as_id(one.get("key")))
    return as_object(given) or {one["key"]: _read_value(one.get("value")) for one in listed}


def _read_value(value: Any) -> Any:
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    [(kind, inner)] = value.items()
    if kind == "arrayValue":
        return [_read_value(one) for one in as_objects(as_object(inner).get("values"))]
    return _read_attributes(as_object(inner).get("values")) if kind == "kvlistValue" else inner


def _trace_of(span: Record) -> str:
    """The name of a span's trace; empty for lines of many spans: a trace may be in several."""
    names = ("traceId", "trace_id", "context.trace_id")
    return next(filter(None, (as_id(get_path(span, one)) for one in names)), "")


def _convert_telemetry(record: Record) -> Iterator[Row | RolloutError]:
    traces: dict[str | int, list[Record]] = {}
    for line in read_lines(record):
        spans = [line]
        for key in ("resourceSpans", "scopeSpans", "spans") if "resourceSpans" in line else ():
            spans = [inner for one in spans for inner in as_objects(one.get(key))]
        for span in map(_read_span, spans):
            traces.setdefault(_trace_of(span) or len(traces), []).append(span)
    of_models = {name: spans for name, spans in traces.items() if any(map(_is_of_model, spans))}
    if not of_models:
        raise RolloutError("has no span with attributes gen_ai.*: no model was called")
    for name, spans in of_models.items():
        try:
            yield from _trace_rows(name if isinstance(name, str) else None, spans)
        except RolloutError as error:
            yield RolloutError(f"trace {name}: {error}")


def _trace_rows(trace: str | None, spans: Sequence[Record]) -> Iterator[Row]:
    starts = ("startTimeUnixNano", "start_time")  # nanoseconds in digits; an ISO time
    spans = sorted(spans, key=lambda one: [as_id(one.get(name)) or "" for name in starts])
    asked = [one for one in spans if _is_of_model(one) and "gen_ai.tool.name" not in one]
    last = (asked or spans)[-1]
    status = as_object(last.get("status"))
    code = status.get("code", status.get("status_code", last.get("status_code")))
    if code == 2 or (isinstance(code, str) and code.upper().endswith("ERROR")):
        reason = status.get("message") or status.get("description")
        raise RolloutError(f"the run failed: {describe_error(reason or status)}")
    calls = [call for one in spans if (call := _read_call(one)) is not None]
    if not calls:
        raise RolloutError(f"has no {_OUTPUTS[0]}: what was said was not recorded")
    scores: dict[str, Any] = {}
    for event in (event for span in spans for event in as_objects(span.get("events"))):
        if event.get("name") == _EVALUATION:
            one = _read_attributes(event.get("attributes"))
            name = as_id(one.get("gen_ai.evaluation.name")) or "score"
            scores[name] = one.get("gen_ai.evaluation.score.value")
    first, model = calls[0], as_id(get_path(last, "gen_ai.request.model"))
    is_list = len(calls) == 1 and all(one["role"] == "assistant" for one in first.after)
    for after in [[choice] for choice in first.after] if is_list else [first.after]:
        row = _join_calls([first._replace(after=after), *calls[1:]])
        yield _scored_row(row, scores, trace_id=trace, model=model)


def _read_call(span: Record) -> _Call | None:
    before, after = (_find_messages(span, names) for names in (_INPUTS, _OUTPUTS))
    if not after:
        return None
    messages = read_messages(before, _INPUTS[0]) if before else []
    system = read_json(get_path(span, _SYSTEM))
    if isinstance(system, str | list) and not any(one["role"] == "system" for one in messages):
        messages = [*read_messages([{"role": "system", "content": system}], _SYSTEM), *messages]
    return _Call(as_id(span.get("name")) or "", messages, read_messages(after, _OUTPUTS[0]))


def _find_messages(span: Record, names: Sequence[str]) -> Any:
    """Messages as one attribute, or with an attribute for each value: ``gen_ai.prompt.0.role``."""
    found = [get_path(span, name) for name in names]
    found += [_list_numbered(span, name) for name in names]
    return next((one for one in found if one is not MISSING and one), None)


_PLACE = r"\.(\d{1,6})\.(?:message\.)?(?:tool_calls\.(\d+)\.(?:[a-z_]+\.)*)?([a-z_]+)"


def _list_numbered(span: Record, name: str) -> list[Message]:
    talk: dict[int, Message] = {}
    calls: dict[int, dict[str, Message]] = {}
    for path, value in span.items():
        if found := re.fullmatch(re.escape(name) + _PLACE, path):
            place, call, key = int(found[1]), found[2], found[3]
            turn = talk.setdefault(place, {})
            called = calls.setdefault(place, {})
            (turn if call is None else called.setdefault(call, {}))[key] = value
    return [
        {**talk[place], "tool_calls": [*calls[place].values()] or None} for place in sorted(talk)
    ]


# LangSmith: {id, run_type, inputs, outputs, error, trace_id, parent_run_id, feedback_stats}


def _read_sides(record: Record, asked: str, answered: str, error: Any) -> _Call:
    """What was asked and answered: texts or messages; raises :class:`RolloutError`."""
    if error:
        raise RolloutError(f"the run failed: {describe_error(error)}")
    before = _read_side(record.get(asked), asked, "prompt")
    after = _read_side(record.get(answered), answered, "response")
    return _Call(as_id(record.get("name")) or "", before, after)


def _read_side(value: Any, name: str, field: str) -> Any:
    given = read_json(value)
    if isinstance(value, str) and not _has_messages(given):
        return value
    if isinstance(given, Mapping) and not _has_messages(given):
        made = given.get("generations", given.get("choices"))
        made = made[0] if isinstance(made, list) and made and isinstance(made[0], list) else made
        if len(answers := as_objects(made)) > 1:
            raise RolloutError(f"{name}: has {len(answers)} answers, and no row has one alone")
        if answers:
            text = {"role": "assistant", "content": answers[0].get("text")}
            return read_messages([answers[0].get("message") or text], name)
        key = find_column(given, field) or (next(iter(given)) if len(given) == 1 else "")
        inner = get_path(given, key)
        if not (isinstance(inner, str) or _has_messages(inner)):
            found = list_columns(map(str, given))
            raise RolloutError(f"{name}: is neither text nor messages (found keys {found})")
        return _read_side(inner, f"{name}.{key}", field)
    return read_messages([given] if looks_like_messages([given]) else given, name)


def _has_messages(value: Any) -> bool:
    """Whether a value is messages, one of them, or a state of them."""
    return "messages" in as_object(value) or any(map(looks_like_messages, (value, [value])))


_is_run = shape(run_type=str, inputs=object, outputs=object)


def _run_name(run: Record) -> str | None:
    return as_id(run.get("trace_id")) or as_id(run.get("id"))


def _convert_runs(record: Record) -> Iterator[Row]:
    runs = read_lines(record)
    roots = [run for run in runs if run.get("parent_run_id") is None]
    chosen = roots or [run for run in runs if run.get("run_type") == "llm"]
    if not chosen:
        raise RolloutError("has neither its first run nor a run of a model")
    stats = [one for run in runs for one in as_object(run.get("feedback_stats")).items()]
    scores = {key: as_object(one).get("avg") for key, one in stats}
    calls = [_read_sides(run, "inputs", "outputs", run.get("error")) for run in chosen]
    yield _scored_row(_join_calls(calls), scores, trace_id=_run_name(chosen[0]))


# Langfuse: traces {id, name, input, output, scores: [{name, value}], …}, or what a trace observed


_LANGFUSE = {"traceId", "observations", "htmlPath", "bookmarked"}


def _is_langfuse(record: Record) -> bool:
    scores = as_objects(record.get("scores"))
    is_scored = bool(scores) and all({"name", "value"} <= one.keys() for one in scores)
    is_trace = {"id", "input", "output"} <= record.keys()
    return is_trace and (is_scored or not _LANGFUSE.isdisjoint(record))


def _langfuse_trace(record: Record) -> str | None:
    is_call = record.get("type", "GENERATION") == "GENERATION"  # of tools: in the calls' messages
    return as_id(record.get("traceId", record["id"])) if is_call else None


def _convert_langfuse(record: Record) -> Iterator[Row]:
    lines = read_lines(record)
    scores: dict[str, Any] = {}
    calls: list[_Call] = []
    for line in lines:
        failed = line.get("level") == "ERROR" and (line.get("statusMessage") or "no reason")
        calls.append(_read_sides(line, "input", "output", failed))
        listed = as_objects(line.get("scores"))
        scores |= {as_id(one.get("name")) or "": one.get("value") for one in listed}
        for name, value in as_object(line.get("scores")).items():  # as the page exports them
            scores[name] = value[0] if isinstance(value, list) and len(value) == 1 else value
    yield add_extras(_scored_row(_join_calls(calls), scores), lines[-1], "input", "output")


TELEMETRY_FORMATS = (
    log_format(
        _trace_of, "opentelemetry", "OpenTelemetry spans", _is_telemetry, _convert_telemetry
    ),
    log_format(_run_name, "langsmith", "LangSmith runs", _is_run, _convert_runs),
    log_format(_langfuse_trace, "langfuse", "Langfuse traces", _is_langfuse, _convert_langfuse),
)
"""No record is in two of them."""
