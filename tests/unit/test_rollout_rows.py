"""Files of other programs: read at once, or refused with their columns and read by options."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke
from tests.rows import DATA, write_jsonl

from adjudge.cli.options import parse_map
from adjudge.errors import ConfigError
from adjudge.rollouts.fields import SAMPLE_FIELDS
from adjudge.rollouts.samples import SampleReader

Q, A, B = "What is 2 + 2?", "It is 4.", "It is 5."
ASK = [{"role": "user", "content": Q}]
TALK = [*ASK, {"role": "assistant", "content": A}]


def read(path: Path, options: str = "") -> SampleReader:
    words = shlex.split(options)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    return SampleReader([path], parse_map([value for _, value in pairs], SAMPLE_FIELDS))


def write(folder: Path, records: Any) -> Path:
    """A list as JSON lines, an object as a document."""
    path = folder / ("rows.jsonl" if isinstance(records, list) else "rows.json")
    lines = records if isinstance(records, list) else [records]
    return write_jsonl(path, lines)


def refusal(path: Path, options: str = "") -> str:
    with pytest.raises(ConfigError) as refused:
        list(read(path, options))
    return str(refused.value)


# What each program writes, cut down; the options that it needs; prompt, response, reward.
OF_PROGRAMS = json.loads((DATA.parent / "rollout_programs.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("program", OF_PROGRAMS)
def test_is_read_at_once_or_refused_and_read_by_options(program: str, tmp_path: Path) -> None:
    case = OF_PROGRAMS[program]
    path, options = write(tmp_path, case["records"]), case.get("options")
    if options or "samples" not in case:
        first = case["records"] if isinstance(case["records"], dict) else case["records"][0]
        assert next(iter(first)) in refusal(path)
    if "samples" not in case:  # nobody's responses: what would be taken for them is something else
        return
    samples = list(read(path, options or ""))
    found = [[one.prompt, one.response, one.env_reward] for one in samples]
    assert found == case["samples"]
    assert len({one.where for one in samples}) == len(samples)


BESIDE: dict[str, tuple[Any, str, list[tuple[Any, str | None]]]] = {
    "the answer above attempts": (
        [{"question": Q, "answer": "4", "samples": [{"text": A}, {"text": B}]}],
        "",
        [("4", "row 0")] * 2,
    ),
    "the lists of a mapped question": (
        [{"ask": Q, "gold": ["4"], "runs": [{"text": A}]}],
        "-m rows=runs -m prompt=ask -m response=text",
        [(["4"], "row 0")],
    ),
    "several names of a reference": (
        [{"sampled": A, "answers": ["4", "four"]}],
        "-m response=sampled -m reference=answers",
        [(["4", "four"], None)],
    ),
    "a label that is a verdict": (
        [{"prompt": Q, "response": A, "label": "FALSE"}],
        "",
        [(None, None)],
    ),
    "lists of conversations": (
        [{"messages": [TALK, TALK], "scores": [1.0, 0.0], "seed": 1}] * 2,
        "-m rows=. -m env_reward=scores",
        [(None, "row 0"), (None, "row 0"), (None, "row 1"), (None, "row 1")],
    ),
    "a task without a prompt": (
        [{"task_id": "a", "code": A}, {"task_id": "a", "code": B}],
        "-m response=code",
        [(None, "a"), (None, "a")],
    ),
    "a task with a prompt": (
        [{"task_id": "a", "prompt": Q, "code": A}],
        "-m response=code",
        [(None, None)],
    ),
}


@pytest.mark.parametrize("kind", BESIDE)
def test_reference_and_group_of_rows(kind: str, tmp_path: Path) -> None:
    records, options, expected = BESIDE[kind]
    samples = list(read(write(tmp_path, records), options))
    assert [(one.reference, one.group) for one in samples] == expected


ATTEMPTS = {
    "ask": Q,
    "gold": "4",
    "reward": 0.5,
    "runs": [{"text": A, "ok": 1}, {"text": B}],
    "texts": [A, B],
}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("-m prompt=ask -m response=runs.text", "-m rows=PATH (found runs"),
        ("-m prompt=ask -m response=runs", "-m rows=runs"),
        ("-m prompt=ask -m messages=runs", "-m rows=runs"),
        ("-m rows=results -m prompt=ask", "ask, gold"),
        ("-m response=textt", "text"),
        ("-m response=texts", "-m rows=texts -m response=texts"),
    ],
)
def test_a_mapped_list_of_objects_is_refused_with_what_it_needs(
    given: str, named: str, tmp_path: Path
) -> None:
    assert named in refusal(write(tmp_path, [ATTEMPTS]), given)


def test_attempts_inherit_the_question_and_are_one_group(tmp_path: Path) -> None:
    path = write(tmp_path, [ATTEMPTS, ATTEMPTS])
    samples = list(read(path, "-m rows=runs -m prompt=ask -m response=text"))
    assert [one.group for one in samples] == ["row 0", "row 0", "row 1", "row 1"]
    assert [one.where.rpartition(":")[2] for one in samples[:2]] == ["1.runs.0", "1.runs.1"]
    # The record's reward is that of all attempts, and no attempt's own.
    assert {(one.prompt, one.reference, one.env_reward) for one in samples} == {(Q, "4", None)}


def test_rows_with_questions_of_their_own_inherit_no_other(tmp_path: Path) -> None:
    run = {"prompt": "Answer: {q}", "score": 0.5, "model": "m", "config": {"seed": 1}}
    rows = [{"question": Q, "output": A, "score": 1}, {"question": "Why?", "output": B, "score": 0}]
    samples = list(read(write(tmp_path, {**run, "rows": rows}), "-m rows=rows"))
    assert [(one.prompt, one.env_reward, one.group) for one in samples] == [
        (Q, 1.0, None),
        ("Why?", 0.0, None),
    ]
    assert samples[0].extra["model"] == "m"
    assert "config" not in samples[0].extra


def test_init_prints_the_command_with_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, {"results": [{"question": Q, "output": A, "score": 1}] * 2})
    done = invoke("init", path.name, "-m", "rows=results", "--json")
    command = json.loads(done.stdout)["command"]
    assert "--map rows=results" in command
    done = invoke(*shlex.split(command)[1:], "-o", "run", "-q")
    assert done.exit_code == 0, done.output
    rows = (tmp_path / "run" / "rewards.jsonl").read_text().splitlines()
    assert [json.loads(row)["where"] for row in rows] == [
        "rows.json:1.results.0",
        "rows.json:1.results.1",
    ]
