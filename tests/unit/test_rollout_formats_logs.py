"""Logs of agents, traces of calls, and conversations under names of providers and frameworks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rows import DATA

from adjudge.rollouts.samples import SampleReader

ASKED = "How many boats are there?"
SHORT = "How many boats?"
COUNT = "Count the boats in harbour.txt."
MEND = "Mend the test in a.py."

# Letters of the roles: s(ystem), u(ser), a(ssistant), A(ssistant that calls), t(ool).
SAMPLES: dict[str, list[Any]] = {
    "claude-code/session.jsonl": [(COUNT, "There are 3 boats.", "uAtta", 1, None)],
    "claude-code/stream.jsonl": [(None, "One boat.", "Ata", 0, None)],
    "claude-code/failed.jsonl": ["the run failed: API Error: 401"],
    "codex/rollout-2026-03-01.jsonl": [(ASKED, "One boat: oak.", "uuAta", 2, None)],
    "codex/former.jsonl": [(ASKED, "One.", "uAta", 1, None)],
    "codex/stream.jsonl": [(None, "One boat.", "Ata", 0, None)],
    "codex/failed.jsonl": ["the run failed: usage limit reached"],
    "gemini-cli/session-2026.json": [(ASKED, "One boat.", "uAta", 1, None)],
    "message-lines/transcript.json": [(ASKED, "One boat.", "uAta", 1, None)],
    "message-lines/talks.jsonl": [("2 + 2?", "4", "sua", 2, None), ("2 + 3?", "5", "sua", 2, None)],
    "openhands/output.jsonl": [
        (MEND, "The test passes.", "suAttAta", 2, 1.0),
        (MEND, "The test passes.", "uAta", 1, 0.0),
        (MEND, "The test passes.", "suAtta", 2, None),
        "history.0: must be an event (found list",
        "the run failed: Maximum retries",
    ],
    "openhands-trajectory/saved.json": [(MEND, "The test passes.", "suAttAta", 2, None)],
    "opentelemetry/otlp.json": [
        (ASKED, "One boat.", "suAta", 2, 1.0),
        "trace t2: the run failed: 429",
        "trace t3: the spans 'chat m'",
    ],
    "opentelemetry/spans.jsonl": [
        (ASKED, "One boat.", "ua", 1, None),
        (ASKED, "Two boats.", "ua", 1, None),
        (ASKED, "One.", "ua", 1, None),
        (ASKED, "", "uA", 1, None),
    ],
    "opentelemetry/flat.jsonl": [(ASKED, "One boat.", "sua", 2, None)],
    "langsmith/runs.jsonl": [
        (SHORT, "One.", "sua", 2, 1.0),
        (SHORT, "One boat.", "uAta", 1, None),
        (SHORT, "Two.", "", None, None),
        "the run failed: TimeoutError",
    ],
    "langfuse/traces.jsonl": [
        (SHORT, "One.", "ua", 1, 1.0),
        (SHORT, "Two.", "", None, None),
        (SHORT, '{"boats": 1}', "ua", 1, None),
        (SHORT, "One.", "", None, 0.5),
        "input: is neither text nor messages (found keys a, b)",
    ],
    "langfuse/observations.jsonl": [(SHORT, "One.", "uAta", 1, None)],
    "request-response/log.jsonl": [
        (SHORT, "One.", "sua", 2, 1.0),
        (SHORT, "One.", "ua", 1, None),
        (SHORT, "Two.", "ua", 1, None),
        (SHORT, "One.", "sua", 2, None),
        (SHORT, "One.", "sua", 2, None),
        "response.candidates: one has no content",
    ],
    "requests/contents.jsonl": [(SHORT, "One.", "suAta", None, 0.5)],
    "langgraph-states/states.jsonl": [(SHORT, "One.", "ua", None, None), "next: is a checkpoint"],
    "art-trajectories/rows.jsonl": [(SHORT, "One.", "uaua", 3, 0.25)],
}


def shown(file: Path) -> list[Any]:
    """Prompt, response, roles, turns before the policy and reward of each sample, or why not."""
    found: list[Any] = []
    for where, sample in SampleReader([file], {}).read():
        assert where.startswith(f"{file}:")
        if isinstance(sample, Exception):
            found.append(str(sample).partition(": ")[2])
            continue
        turns = sample.messages or []
        roles = (t["role"][0].upper() if t.get("tool_calls") else t["role"][0] for t in turns)
        reward = sample.extra.get("env_reward")
        turns_before = sample.opening_turns
        found.append((sample.prompt, sample.response, "".join(roles), turns_before, reward))
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_gives_its_samples(name: str) -> None:
    found = shown(DATA / name)
    for one, wanted in zip(found, SAMPLES[name], strict=True):
        if isinstance(wanted, str):
            assert isinstance(one, str)
            assert one.startswith(wanted)
        else:
            assert one == wanted


def said(kind: str, text: str, **others: Any) -> dict[str, Any]:
    return {"type": kind, "message": {"role": kind, "content": text}, **others}


def run(name: str, asked: Any, answered: Any, **others: Any) -> dict[str, Any]:
    made = {"id": name, "trace_id": "t", "run_type": "llm", "inputs": asked, "outputs": answered}
    return {**made, "name": name, **others}


USER, REPLY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
SYSTEM = {"role": "system", "content": "s"}
CALL = {"traceId": "t", "type": "GENERATION"}
DETAILS = "gen_ai.client.inference.operation.details"
SAID = {
    "gen_ai.system_instructions": [{"type": "text", "content": "s"}],
    "gen_ai.input.messages": [USER],
    "gen_ai.output.messages": [REPLY],
}
LINES: list[tuple[str, list[dict[str, Any]], list[Any]]] = [
    (
        "lines of two sessions, of which a third goes on with the first",
        [
            said("user", "q", uuid="1", sessionId="a"),
            said("user", "p", uuid="2", sessionId="b"),
            said("assistant", "of b", uuid="3", parentUuid="2", sessionId="b"),
            said("assistant", "of a", uuid="4", parentUuid="1", sessionId="c"),
            {"type": "a-new-kind", "sessionId": "a", "text": "of no account"},
        ],
        [("q", "of a", "ua", 1, None), ("p", "of b", "ua", 1, None)],
    ),
    (
        "a session of Gemini CLI by lines, one of them written twice",
        [
            {"sessionId": "s", "projectHash": "h", "kind": "main"},
            {"id": "1", "type": "user", "content": [{"text": "q"}]},
            {"id": "2", "type": "gemini", "content": ""},
            {"$set": {"lastUpdated": "now"}},
            {"id": "2", "type": "gemini", "content": "a"},
        ],
        [("q", "a", "ua", 1, None)],
    ),
    (
        "a subagent's own file",
        [
            said("user", "q", uuid="1", sessionId="a", isSidechain=True),
            said("assistant", "a", uuid="2", sessionId="a", isSidechain=True),
        ],
        [("q", "a", "ua", 1, None)],
    ),
    (
        "an unknown kind of line that has a message",
        [said("user", "q", uuid="1"), said("oracle", "a", uuid="2")],
        ["lines.1.role: must be a known one (found keys role, content, role "],
    ),
    (
        "only titles",
        [{"type": "summary", "summary": "s", "leafUuid": "1"}],
        ["has no message of the assistant"],
    ),
    (
        "several conversations that no column tells apart",
        [SYSTEM, USER, REPLY] * 2,
        ["role: an answer is first, or a system message after one"],
    ),
    ("questions without answers", [USER, USER], ["has no message of the assistant"]),
    (
        "calls of one trace: the longest begins as the others do",
        [
            run("x", {"messages": [USER]}, {"messages": [USER, REPLY]}),
            run("y", {"messages": [USER, REPLY, USER]}, {"messages": [REPLY]}),
        ],
        [("q", "a", "uaua", 1, None)],
    ),
    (
        "calls of one trace with different conversations",
        [
            run("x", {"messages": [USER]}, {"messages": [REPLY]}),
            run("y", {"messages": [{**USER, "content": "p"}]}, {"messages": [REPLY]}),
        ],
        ["the spans 'x' and 'y' of one trace"],
    ),
    (
        "a request of Gemini's without a role, and the response as a text",
        [{"contents": [{"parts": [{"text": "q"}]}], "response": "a", "correct": True}],
        [("q", "a", "ua", 1, 1.0)],
    ),
    (
        "a request and a response as JSON texts",
        [
            {
                "request": json.dumps({"messages": [USER]}),
                "response": json.dumps(
                    {"content": [{"type": "text", "text": "a"}], "stop_reason": "x"}
                ),
            }
        ],
        [("q", "a", "ua", 1, None)],
    ),
    ("answers alone", [REPLY, REPLY], ["role: an answer is first, or a system message after one"]),
    (
        "attributes of OpenInference in each other",
        [
            {
                "context": {"trace_id": "t"},
                "attributes": {
                    "llm": {
                        "input_messages": [{"message": USER}],
                        "output_messages": [{"message": REPLY}],
                    }
                },
            }
        ],
        [("q", "a", "ua", 1, None)],
    ),
    (
        "attributes of OpenInference as columns of a table",
        [
            {
                "context.trace_id": "t",
                "attributes.llm.input_messages": [{"message.role": "user", "message.content": "q"}],
                "attributes.llm.output_messages": [{"message.role": "x", "message.content": "a"}],
            }
        ],
        ["trace t: gen_ai.input.messages.0.role: must be a known one (found keys message.role"],
    ),
    (
        "observations of Langfuse with texts, of which the second has what was said before",
        [
            {**CALL, "id": "1", "input": [USER], "output": "a"},
            {**CALL, "id": "2", "input": [SYSTEM, USER, REPLY, USER], "output": "b"},
        ],
        [("q", "b", "suaua", 2, None)],
    ),
    (
        "a message that was passed on, and nothing else",
        [run("x", {"messages": [USER, REPLY, USER]}, {"messages": [USER, REPLY, USER]})],
        ["x: nothing was answered"],
    ),
    (
        "a response without a message",
        [
            {"request": {"messages": [USER]}, "response": {"message": "no quota"}},
            {"request": {"messages": [USER]}, "response": {"role": "assistant"}},
        ],
        ["response.0: has no content"] * 2,
    ),
    (
        "a run with several answers",
        [run("x", {"input": "q"}, {"generations": [[{"text": "a"}, {"text": "b"}]]})],
        ["outputs: has 2 answers, and no row has one alone"],
    ),
    (
        "spans without a trace, of which one has its messages in the event of details",
        [
            {"attributes": {"gen_ai.input.messages": [USER], "gen_ai.output.messages": [REPLY]}},
            {
                "attributes": {"gen_ai.request.model": "m"},
                "events": [{"name": DETAILS, "attributes": SAID}],
            },
        ],
        [("q", "a", "ua", 1, None), ("q", "a", "sua", 2, None)],
    ),
    (
        "a span of which the messages were not recorded",
        [{"name": "chat", "traceId": "t", "attributes": {"gen_ai.request.model": "m"}}],
        ["trace t: has no gen_ai.output.messages"],
    ),
]


@pytest.mark.parametrize(("lines", "wanted"), [case[1:] for case in LINES], ids=lambda _: "")
def test_lines_become_conversations(tmp_path: Path, lines: Any, wanted: Any) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = shown(file)
    for one, due in zip(found, wanted, strict=True):
        assert one.startswith(due) if isinstance(due, str) else one == due


def test_a_column_beside_a_trace_can_be_mapped(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    trace = {"id": "1", "input": "q", "output": "a", "bookmarked": False, "metadata": {"due": "a"}}
    file.write_text(json.dumps(trace) + "\n")
    [sample] = SampleReader([file], {"reference": "metadata.due"})
    assert sample.extra["reference"] == "a"
