"""Every self-made dump under tests/data/rollouts is read without a flag, up to rewards."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.e2e.helpers.command import invoke
from tests.rows import DATA as DUMPS, NAMED

from adjudge.datasets.files import find_files, read_rows
from adjudge.errors import ConfigError, RolloutError
from adjudge.judges import discovery
from adjudge.rollouts.fields import RolloutFormat
from adjudge.rollouts.recognition import FileReading, find_reading
from adjudge.rollouts.samples import SampleReader, sample_from_row

FILES = find_files([DUMPS])
RECORDS = [
    ("atif" if file.name == "trajectory.json" else file.relative_to(DUMPS).parts[0], record)
    for file in FILES
    for _, record in read_rows([file])
    if isinstance(record, dict)
]
OF_FORMATS = [
    (NAMED[name], record)
    for name, record in RECORDS
    if name in NAMED and NAMED[name].conversations is None
]
for file in FILES:  # logs: the lines of a conversation are one record
    form = NAMED.get(file.relative_to(DUMPS).parts[0])
    if form is not None and form.conversations is not None:
        talks = FileReading(form).join_lines(read_rows([file]))
        OF_FORMATS += [(form, record) for _, record in talks if isinstance(record, dict)]


@pytest.fixture(autouse=True)
def no_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_BASE_URL", *(f"{one.upper()}_API_KEY" for one in discovery._MODEL_OF_KEY)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(discovery.find_judge, "__defaults__", ((),))


def test_there_is_a_dump_of_every_format() -> None:
    read = set()
    for file in FILES:
        reader = SampleReader([file], {})
        list(reader.read())
        read |= {one.format.name for one in reader.readings.values() if one.format}
    assert {one.name for one in NAMED.values()} - read == set()
    assert len(NAMED) >= 30


def test_a_record_is_of_its_own_format_alone() -> None:
    for name, record in RECORDS:
        found = [one.name for one in NAMED.values() if one.matches(record)]
        is_log = name in NAMED and NAMED[name].conversations is not None
        assert found == [name] * (name in NAMED) or (is_log and not found)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(DUMPS)))
def test_the_first_spec_grades_it(file: Path) -> None:
    done = invoke("init", file, "--json")
    if done.exit_code:
        assert "no usable row" in done.output, done.output  # failures only, or a batch's requests
        return
    command = shlex.split(json.loads(done.stdout)["command"])[1:]
    assert "--map" not in command
    done = invoke(*command, "--json", "-o", "out")
    summary = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])
    assert done.exit_code in (0, 1, 2)  # 2: failed samples are broken rows
    if done.exit_code == 1:  # in a dump this small perhaps no rollout has two tool calls
        assert summary["missing"]["by_kind"].keys() == {"not_applicable"}
        assert "loop" in summary["graders"]


CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
OWN_ROWS: list[dict[str, Any]] = [
    {"prompt": "p", "completion": "c", "step": 3, "reward": 1.0},
    {"prompt": "p", "completion": ["a", "b"], "step": [1, 1]},
    {"prompt": "p", "completions": ["a", "b"], "scores": [1, 0]},
    {"input": "p", "output": "o", "score": 1.0},
    {"instruction": "i", "input": "p", "output": "o"},
    {"instruction": "i", "completions": ["a", "b"], "output": "c"},
    {"trajectory": CHAT, "instance_id": "x", "target": "gold"},
    {"trajectory": CHAT, "info": {}, "history": "none"},
    {"traj": CHAT, "reward": 1.0, "task_id": 3, "answer": "gold"},
    {"id": 1, "input": "q", "target": "a", "output": "x", "epoch": 1},
    {"eval": {"name": "x"}, "status": "ok", "version": 2, "prompt": "p", "completion": "c"},
    {"custom_id": "a", "result": {"type": "ok"}, "output": "o"},
    {"custom_id": "a", "body": {"x": 1}, "url": "http://x", "output": "o"},
    {"custom_id": "a", "params": {"temperature": 1}, "completion": "c"},
    {"task": {"name": "x"}, "traces": ["t"], "output": "r", "prompt": "p"},
    {"tasks": ["a"], "simulations": ["b"], "prompt": "p", "completion": "c"},
    {"samples": [], "rollout_id": 1, "prompt": "p", "completion": "c"},
    {"prompt": "p", "completion": "c"},
    {"input": "p", "output": "c"},
    {"id": 1, "question": "q", "answer": "a"},
    {"chosen": 3, "rejected": 4},
    {"instruction": "q", "completions": "text"},
]


@pytest.mark.parametrize("row", OWN_ROWS, ids=",".join)
def test_rows_of_ones_own_are_of_no_format(row: dict[str, Any]) -> None:
    """Some of their columns are named as a format's are."""
    with suppress(ConfigError):  # no column looks like a response
        assert find_reading([row], {}).format is None


def test_results_of_a_batch_are_joined_with_their_requests(tmp_path: Path) -> None:
    """In any order, and in one folder; a result without request has no prompt."""
    batch = DUMPS / "batches"
    files = [batch / "openai_output.jsonl", batch / "openai_requests.jsonl"]
    for inputs in (files, files[::-1]):
        samples = list(SampleReader(inputs, {}))
        assert samples[0].prompt == "When is high water?"
        assert [one.group for one in samples][:2] == ["a16edc8904fbf6fa", "tide-2"]
        assert samples[1].prompt is None
    anthropic = tmp_path / "requests.jsonl"
    asked = {"system": "Be brief.", "messages": [{"role": "user", "content": "Which tide?"}]}
    results = batch / "anthropic_results.jsonl"
    [first, *_] = SampleReader([results], {})
    anthropic.write_text(json.dumps({"custom_id": first.group, "params": asked}) + "\n")
    [joined, *_] = SampleReader([results, anthropic], {})
    assert joined.prompt == "Which tide?"
    assert joined.messages is not None
    assert [one["role"] for one in joined.messages] == ["system", "user", "assistant"]


def test_the_page_names_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "grading.md").read_text()
    assert [one.title for one in NAMED.values() if one.title not in page] == []


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ROWS = st.dictionaries(st.text(max_size=8), SCALARS, max_size=2)
JSON = SCALARS | ROWS | st.lists(SCALARS | ROWS, max_size=2)
KEYS = sorted({key for _, record in RECORDS for key in record})


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of each value inside."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    return [path, *(one for key, item in inner for one in places(item, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of ``value`` with ``new`` at ``path``; without the place where ``new`` is ``...``."""
    copy = value.copy()
    if len(path) > 1:
        copy[path[0]] = replaced(value[path[0]], path[1:], new)
    elif new is ...:
        del copy[path[0]]
    else:
        copy[path[0]] = new
    return copy


def read_or_refuse(form: RolloutFormat, record: dict[str, Any]) -> None:
    """Its rows are samples or ``RolloutError``, and the record stays as it is."""
    before = repr(record)
    assert form.matches(record) in (True, False)
    with suppress(RolloutError):
        for _, row in FileReading(form).places(record, 0):
            if not isinstance(row, RolloutError):
                sample_from_row(row, 0)
    assert repr(record) == before


@given(st.data())
def test_any_record_is_read_or_refused(data: st.DataObject) -> None:
    """Any values under keys of a record, and keys of others."""
    form, record = data.draw(st.sampled_from(OF_FORMATS))
    keys = st.sampled_from(sorted(record)) | st.sampled_from(KEYS)
    read_or_refuse(form, data.draw(st.dictionaries(keys, JSON)))


@given(st.data())
def test_a_damaged_record_is_read_or_refused(data: st.DataObject) -> None:
    """A real layout with one value, anywhere in it, exchanged for another, or lost."""
    form, record = data.draw(st.sampled_from(OF_FORMATS))
    place = data.draw(st.sampled_from(places(record)[1:]))
    read_or_refuse(form, replaced(record, place, data.draw(JSON | st.just(...))))


def test_deep_nesting_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for form, record in OF_FORMATS:
        for place in places(record)[1:]:
            with suppress(RolloutError):
                for _, row in FileReading(form).places(replaced(record, place, deep), 0):
                    if not isinstance(row, RolloutError):
                        sample_from_row(row, 0)
