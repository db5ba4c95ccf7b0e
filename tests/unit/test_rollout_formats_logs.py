"""Logs of agents, traces of calls, and conversations under names of providers and frameworks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rows import DATA, write_jsonl

from adjudge.rollouts.samples import SampleReader

CASES = json.loads((DATA.parent / "rollout_logs.json").read_text(encoding="utf-8"))
"""Of files, and of lines: each sample, as :func:`shown` shows it, or how its error begins.

Letters of the roles: s(ystem), u(ser), a(ssistant), A(ssistant that calls), t(ool).
"""


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


@pytest.mark.parametrize("name", [*CASES["files"], *CASES["lines"]])
def test_files_and_lines_become_conversations(name: str, tmp_path: Path) -> None:
    file, wanted = DATA / name, CASES["files"].get(name)
    if wanted is None:
        file, wanted = tmp_path / "log.jsonl", CASES["lines"][name]["samples"]
        write_jsonl(file, CASES["lines"][name]["lines"])
    for one, due in zip(shown(file), wanted, strict=True):
        assert one.startswith(due) if isinstance(due, str) else [*one] == due


def test_a_column_beside_a_trace_can_be_mapped(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    trace = {"id": "1", "input": "q", "output": "a", "bookmarked": False, "metadata": {"due": "a"}}
    file.write_text(json.dumps(trace) + "\n")
    [sample] = SampleReader([file], {"reference": "metadata.due"})
    assert sample.extra["reference"] == "a"
