"""Traces of calls to models: OpenTelemetry's spans, LangSmith's runs and Langfuse's traces.

A trace of an agent has a span for each call, and the later calls begin with the earlier ones: the
longest conversation is the sample. Where another span of the trace is no beginning of it, the trace
is refused: nobody says which of the two is the rollout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from adjudge.errors import RolloutError
from adjudge.intake.conversation import Message, looks_like_messages, read_messages
from adjudge.rollouts.formats.base import RolloutFormat, Row
from adjudge.rollouts.formats.chat import answered_columns
from adjudge.rollouts.formats.columns import list_columns
from adjudge.rollouts.formats.completions import completion_row
from adjudge.rollouts.formats.fields import (
    Record,
    add_fields,
    as_id,
    as_object,
    as_objects,
    as_text,
    describe_error,
    each_row,
    is_number,
    read_json,
)
from adjudge.rollouts.formats.logs import read_lines, split_lines


class _Call(NamedTuple):
    """What a span asked and what came back, as far as it says that."""

    name: str
    before: Any
    after: Any


def _join_calls(calls: Sequence[_Call]) -> _Call:
    """The longest conversation of a trace's calls, from what the first of them asked on.

    Raises :class:`RolloutError` where another call is no beginning of it.
    """
    if len(calls) == 1:
        return calls[0]
    calls = [_Call(one.name, _as_turns(one.before, "user"), _as_turns(one.after)) for one in calls]
    talks = [(call, _said(call.before), _said(call.after)) for call in calls]
    sizes = [len(before) + len(after) for _, before, after in talks]
    longest, before, after = talks[max(range(len(talks)), key=lambda place: (sizes[place], place))]
    whole = [*before, *after]
    for call, asked, answered in talks:
        ends = (whole[len(asked) : len(asked) + 1], whole[-1:])
        if call is longest or (asked == whole[: len(asked)] and answered[-1:] in ends):
            continue
        raise RolloutError(
            f"the spans {call.name!r} and {longest.name!r} of one trace have different "
            "conversations, and none is the beginning of the other. Write a file with the one to "
            "judge."
        )
    first = min(len(asked) for _, asked, _ in talks)
    if first == len(before):
        return longest
    turns = [*longest.before, *longest.after]
    told = [place for place, turn in enumerate(turns) if turn["role"] not in _INSTRUCTIONS]
    return _Call(longest.name, turns[: told[first]], turns[told[first] :])


_INSTRUCTIONS = ("system", "developer")


def _as_turns(side: Any, role: str = "assistant") -> list[Message]:
    return [{"role": role, "content": side}] if isinstance(side, str) else side


def _said(side: Sequence[Message]) -> list[Any]:
    """What messages say, without what differs between the records of one message."""
    said = []
    for message in side:
        calls = [as_object(call.get("function")) for call in message.get("tool_calls") or ()]
        made = [(call.get("name"), read_json(call.get("arguments"))) for call in calls]
        if message["role"] not in _INSTRUCTIONS:
            said.append((message["role"], message.get("content") or "", made))
    return said


def _call_row(call: _Call) -> Row:
    """The row of what was asked and answered; an answer may begin with what was asked."""
    before, after = call.before, call.after
    if isinstance(after, list):
        if isinstance(before, list) and _said(after)[: len(_said(before))] == _said(before):
            return dict(answered_columns(after)) if len(after) > len(before) else {}
        if after and after[0]["role"] != "assistant":
            return dict(answered_columns(after))
    return completion_row(before, after)


# OpenTelemetry: {resourceSpans: [{scopeSpans: [{spans: […]}]}]}, a span a line, or its attributes

_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
_SYSTEM = "gen_ai.system_instructions"
_DETAILS, _EVALUATION = "gen_ai.client.inference.operation.details", "gen_ai.evaluation.result"
_PREFIXES = (
    ("gen_ai.prompt.", "gen_ai.completion."),
    ("llm.input_messages.", "llm.output_messages."),
)
"""Where messages are in attributes of their own: OpenLLMetry's and OpenInference's."""

_RESOURCES = ("resourceSpans", "resource_spans", "batches")
_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")


def _is_telemetry(record: Record) -> bool:
    resources = [one for key in _RESOURCES for one in as_objects(record.get(key))]
    names = [*_read_attributes(record.get("attributes")), *record]
    return any(scope in one for one in resources for scope in _SCOPES) or any(
        f"{name}".removeprefix("attributes.").startswith(("gen_ai.", "llm.input_messages"))
        for name in names
    )


def _list_spans(record: Record) -> Iterator[Record]:
    resources = [one for key in _RESOURCES for one in as_objects(record.get(key))]
    if not resources:
        yield record
    for resource in resources:
        for scope in (one for key in _SCOPES for one in as_objects(resource.get(key))):
            yield from as_objects(scope.get("spans"))


def _read_attributes(given: Any) -> dict[str, Any]:
    """Attributes by their full names, whether they are listed, nested, or plain."""
    if isinstance(given, Mapping):
        flat = {key: one for key, one in given.items() if key not in ("gen_ai", "llm")}
        for outer in given.keys() - flat.keys():
            flat |= _flatten(outer, given[outer])
        return flat
    return {
        one["key"]: _read_value(one.get("value"))
        for one in as_objects(given)
        if as_text(one.get("key"))
    }


def _flatten(name: str, value: Any, depth: int = 4) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not depth:
        return {name: value}
    inner = (_flatten(f"{name}.{key}", one, depth - 1) for key, one in value.items())
    return {key: one for flat in inner for key, one in flat.items()}


def _read_value(value: Any) -> Any:
    """A value of OTLP's JSON, which is wrapped in its type."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return value
    [(kind, inner)] = value.items()
    if kind in ("arrayValue", "array_value"):
        return [_read_value(one) for one in as_objects(as_object(inner).get("values"))]
    if kind in ("kvlistValue", "kvlist_value"):
        return _read_attributes(as_object(inner).get("values"))
    return inner


_NO_ID = "without id"
_MODELS = ("gen_ai.response.model", "gen_ai.request.model")


class _Span(NamedTuple):
    name: str
    start: str
    attributes: Record
    error: str | None
    scores: Record


def _read_span(span: Record) -> tuple[str | None, _Span]:
    """A span and the id of its trace."""
    attributes = _read_attributes(span.get("attributes"))
    beside = {key.removeprefix("attributes."): one for key, one in span.items() if "." in key}
    attributes = {**beside, **attributes}  # columns of a table
    scores: dict[str, Any] = {}
    for event in as_objects(span.get("events")):
        found = _read_attributes(event.get("attributes"))
        if event.get("name") == _DETAILS:
            attributes = {**found, **attributes}
        elif event.get("name") == _EVALUATION:
            name = as_text(found.get("gen_ai.evaluation.name")) or "score"
            scores[name] = found.get("gen_ai.evaluation.score.value")
    status = as_object(span.get("status"))
    code = status.get("code", status.get("status_code", span.get("status")))
    failed = code == 2 or (isinstance(code, str) and code.upper().endswith("ERROR"))
    error = status.get("message") or status.get("description") or attributes.get("error.type")
    start = as_id(span.get("startTimeUnixNano", span.get("start_time"))) or ""
    ids = {**span, **{f"context.{key}": one for key, one in as_object(span.get("context")).items()}}
    trace = next((ids[key] for key in _TRACE_IDS if key in ids), None)
    broken = describe_error(error) if failed else None
    return as_id(trace), _Span(as_text(span.get("name")) or "", start, attributes, broken, scores)


_TRACE_IDS = ("traceId", "trace_id", "context.trace_id")


def _split_traces(lines: Sequence[Record]) -> list[list[int]]:
    """By trace; lines that hold many spans are together, since a trace may be in several."""
    names: list[str | None] = []
    for place, line in enumerate(lines):
        trace = _read_span(line)[0] or f"{place}"
        names.append("" if any(as_objects(line.get(key)) for key in _RESOURCES) else trace)
    return split_lines(names)


def _convert_telemetry(record: Record) -> Iterator[Row | RolloutError]:
    traces: dict[str, list[_Span]] = {}
    for line in read_lines(record):
        for span in _list_spans(line):
            trace, found = _read_span(span)
            traces.setdefault(trace or f"{_NO_ID} {len(traces)}", []).append(found)
    of_models = {name: spans for name, spans in traces.items() if any(map(_is_of_model, spans))}
    if not of_models:
        raise RolloutError("has no span with attributes gen_ai.*: no model was called")
    for name, spans in of_models.items():
        try:
            yield from _trace_rows(name, sorted(spans, key=lambda one: (len(one.start), one.start)))
        except RolloutError as error:
            yield RolloutError(f"trace {name}: {error}")


def _is_of_model(span: _Span) -> bool:
    return any(name.startswith(("gen_ai.", "llm.")) for name in span.attributes)


def _trace_rows(trace: str, spans: Sequence[_Span]) -> Iterator[Row | RolloutError]:
    calls = {span.name: span for span in spans}
    found = [(span, call) for span in spans if (call := _read_call(span)) is not None]
    asked = [one for one in spans if _is_of_model(one) and "gen_ai.tool.name" not in one.attributes]
    last = asked[-1] if asked else spans[-1]
    if last.error is not None and (not found or found[-1][0] is not last):
        raise RolloutError(f"the run failed: {last.error}")
    if not found:
        raise RolloutError(
            f"has no {_OUTPUT}: what was said was not recorded (spans: {list_columns(calls)})"
        )
    if found[-1][0].error is not None:
        raise RolloutError(f"the run failed: {found[-1][0].error}")
    call = _join_calls([one for _, one in found])
    scores = {name: one for each in spans for name, one in each.scores.items()}
    numbers = [one for one in scores.values() if is_number(one)]
    models = (each.attributes.get(key) for each in spans[::-1] for key in _MODELS)
    fields = {
        "env_reward": numbers[0] if len(numbers) == 1 else None,
        "evaluations": scores or None,
        "trace_id": None if trace.startswith(_NO_ID) else trace,
        "model": next(filter(None, map(as_text, models)), None),
    }
    choices = call.after
    if len(choices) == 1 or any(one["role"] != "assistant" for one in choices):
        yield add_fields(_call_row(call), **fields)
        return
    yield from each_row(
        _OUTPUT, choices, lambda choice: add_fields(completion_row(call.before, [choice]), **fields)
    )


def _read_call(span: _Span) -> _Call | None:
    values = span.attributes
    before, after = values.get(_INPUT), values.get(_OUTPUT)
    for asked, answered in _PREFIXES:
        before = _list_flat(values, asked) if before is None else before
        after = _list_flat(values, answered) if after is None else after
    if not after:
        return None
    messages = read_messages(before, _INPUT) if before else []
    system = values.get(_SYSTEM)
    if system and not any(message["role"] == "system" for message in messages):
        system = read_json(system) if (as_text(system) or "")[:1] == "[" else system
        messages = [*read_messages([{"role": "system", "content": system}], _SYSTEM), *messages]
    return _Call(span.name, messages, read_messages(after, _OUTPUT))


def _list_flat(values: Record, prefix: str) -> list[Message] | None:
    """Messages of which each value is an attribute: ``gen_ai.prompt.0.content``."""
    messages: list[Message] = []
    for one in _list_numbered(values, prefix):
        message: Message = {
            key: one[key] for key in ("role", "content", "tool_call_id") if key in one
        }
        if calls := _list_numbered(one, "tool_calls."):
            message["tool_calls"] = [
                {key.rpartition(".")[2]: part for key, part in call.items()} for call in calls
            ]
        parts = [part.get("message_content.text") for part in _list_numbered(one, "contents.")]
        messages.append({"content": parts or None, **message})
    return messages or None


def _list_numbered(values: Record, prefix: str) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for place, one in enumerate(as_objects(values.get(prefix[:-1]))):  # a list of such messages
        found[place] = {f"{key}".removeprefix("message."): part for key, part in one.items()}
    for name, value in values.items():
        number, dot, rest = name.removeprefix(prefix).partition(".")
        if name.startswith(prefix) and dot and number.isdecimal() and len(number) < 8:
            found.setdefault(int(number), {})[rest.removeprefix("message.")] = value
    return [found[number] for number in sorted(found)]


# LangSmith: {id, run_type, inputs, outputs, error, trace_id, parent_run_id, feedback_stats}

_SIDE_KEYS = (
    *("messages", "input", "question", "query", "prompt", "output", "answer", "response"),
    *("content", "text", "result", "completion"),
)


def _read_side(value: Any, name: str) -> Any:
    """What was asked or answered: a text or a list of messages; raises :class:`RolloutError`."""
    if isinstance(value, Mapping):
        return _read_object(value, name)
    if not isinstance(value, str):
        return read_messages(value, name)
    with suppress(msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        found = msgspec.json.decode(value) if value.lstrip()[:1] in ("[", "{") else None
        if looks_like_messages(found) or not {"messages", "role"}.isdisjoint(as_object(found)):
            return _read_side(found, name)
    return value


def _read_object(value: Record, name: str) -> Any:
    for key in ("generations", "choices"):  # of one prompt, and of these the first
        made = value.get(key)
        made = made[0] if isinstance(made, list) and made and isinstance(made[0], list) else made
        for one in as_objects(made):
            if len(as_objects(made)) > 1:
                raise RolloutError(f"{name}.{key}: has several answers, and no row has one alone")
            said = one.get("message") or {"role": "assistant", "content": one.get("text")}
            return read_messages([said], f"{name}.{key}")
    if looks_like_messages([value]):
        return read_messages([value], name)
    keys = [key for key in _SIDE_KEYS if value.get(key) is not None]
    keys = keys if keys or len(value) != 1 else list(value)
    key = keys[0] if len(keys) == 1 or keys[:1] == ["messages"] else ""
    inner = value.get(key)
    inner = [inner] if isinstance(inner, Mapping) and looks_like_messages([inner]) else inner
    if not isinstance(inner, str | list):
        found = list_columns(map(str, value))
        raise RolloutError(f"{name}: is neither text nor messages (found keys {found})")
    return _read_side(inner, f"{name}.{key}")


def _is_run(record: Record) -> bool:
    return isinstance(record.get("run_type"), str) and {"inputs", "outputs"} <= record.keys()


def _run_name(run: Record) -> str | None:
    return as_id(run.get("trace_id")) or as_id(run.get("id"))


def _split_runs(lines: Sequence[Record]) -> list[list[int]]:
    return split_lines(_run_name(run) or f"{place}" for place, run in enumerate(lines))


def _convert_runs(record: Record) -> Iterator[Row]:
    runs = read_lines(record)
    roots = [run for run in runs if run.get("parent_run_id") is None]
    chosen = roots or [run for run in runs if run.get("run_type") == "llm"]
    if not chosen:
        raise RolloutError("has neither its first run nor a run of a model")
    for run in chosen:
        if run.get("error"):
            raise RolloutError(f"the run failed: {describe_error(run['error'])}")
    calls = [
        _Call(
            as_text(run.get("name")) or "",
            _read_side(read_json(run.get("inputs")), "inputs"),
            _read_side(read_json(run.get("outputs")), "outputs"),
        )
        for run in chosen
    ]
    call = _join_calls(calls) if len(calls) > 1 else calls[0]
    stats = {
        key: as_object(one).get("avg")
        for run in runs
        for key, one in as_object(run.get("feedback_stats")).items()
    }
    yield _scored_row(call, stats, trace_id=_run_name(chosen[0]))


def _scored_row(call: _Call, scores: Record, **fields: Any) -> Row:
    numbers = {name: one for name, one in scores.items() if is_number(one)}
    reward = next(iter(numbers.values())) if len(numbers) == 1 else None
    return add_fields(_call_row(call), env_reward=reward, scores=numbers or None, **fields)


# Langfuse: {id, name, input, output, scores: [{name, value}], …}

_LANGFUSE_KEYS = ("htmlPath", "observations", "bookmarked")


def _is_langfuse(record: Record) -> bool:
    if not {"id", "input", "output"} <= record.keys() or "traceId" in record:
        return False
    scores = as_objects(record.get("scores"))
    return bool(scores and all({"name", "value"} <= one.keys() for one in scores)) or any(
        key in record for key in _LANGFUSE_KEYS
    )


def _read_sides(record: Record) -> tuple[Any, Any]:
    if record.get("level") == "ERROR":
        raise RolloutError(f"the run failed: {describe_error(record.get('statusMessage'))}")
    return _read_side(record.get("input"), "input"), _read_side(record.get("output"), "output")


def _convert_langfuse(record: Record) -> Iterator[Row]:
    call = _Call("", *_read_sides(record))
    given = as_objects(record.get("scores"))
    scores = {as_text(one.get("name")) or "": one.get("value") for one in given}
    for name, value in as_object(record.get("scores")).items():  # as the page exports them
        scores[name] = value[0] if isinstance(value, list) and len(value) == 1 else value
    yield _scored_row(call, scores, id=as_id(record["id"]), name=as_text(record.get("name")))


def _is_observation(record: Record) -> bool:
    return {"id", "traceId", "type", "input", "output"} <= record.keys()


def _split_observations(lines: Sequence[Record]) -> list[list[int]]:
    return split_lines(
        as_id(one.get("traceId")) if one.get("type") == "GENERATION" else None for one in lines
    )


def _convert_observations(record: Record) -> Iterator[Row]:
    lines = read_lines(record)
    calls = [_Call(as_text(one.get("name")) or "", *_read_sides(one)) for one in lines]
    yield _scored_row(_join_calls(calls), {}, trace_id=as_id(lines[0].get("traceId")))


TELEMETRY_FORMATS = (
    RolloutFormat(
        "opentelemetry",
        "OpenTelemetry spans",
        _is_telemetry,
        _convert_telemetry,
        conversations=_split_traces,
    ),
    RolloutFormat("langsmith", "LangSmith runs", _is_run, _convert_runs, conversations=_split_runs),
    RolloutFormat("langfuse", "Langfuse traces", _is_langfuse, _convert_langfuse),
    RolloutFormat(
        "langfuse-observations",
        "Langfuse observations",
        _is_observation,
        _convert_observations,
        conversations=_split_observations,
    ),
)
"""No record is in two of them."""
