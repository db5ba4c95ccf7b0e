"""Rows of judge training from files: what is read, and how each broken row is reported."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from adjudge.datasets.rows import (
    MAX_MESSAGES,
    render_transcript,
)
from adjudge.errors import ConfigError
from adjudge_lab.judge_training.row_files import (
    read_comparisons,
    read_demonstrations,
    read_preferences,
    read_ratings,
)

ASKED = {"role": "user", "content": "Is exercise good for me?"}
GOOD = {"role": "assistant", "content": "Yes: it helps heart, sleep and mood."}
POOR = {"role": "assistant", "content": "It is fine."}
CHOSEN, REJECTED = [ASKED, GOOD], [ASKED, POOR]


def lines(folder: Path, *rows: Any, name: str = "rows.jsonl") -> list[Path]:
    path = folder / name
    path.write_bytes(
        b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in rows)
    )
    return [path]


def parquet(folder: Path, rows: Sequence[dict[str, Any]]) -> list[Path]:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = folder / "train.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return [path]


def test_null_fields_that_parquet_adds_are_left_out(tmp_path: Path) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
        GOOD,
    ]
    [row] = read_demonstrations(parquet(tmp_path, [{"messages": messages}])).require_usable()
    assert row.messages == messages


def test_an_empty_list_of_tool_calls_is_none(tmp_path: Path) -> None:
    filled = [ASKED, {**GOOD, "tool_calls": []}]
    silent = [ASKED, {"role": "assistant", "content": " ", "tool_calls": []}]
    found = read_demonstrations(lines(tmp_path, {"messages": filled}, {"messages": silent}))
    assert [row.messages for row in found.rows] == [[ASKED, GOOD]]
    assert [problem.found for problem in found.problems.first] == ["no text"]


def test_prompts_are_text_or_conversations(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, ASKED]
    prompts = ["[1] is a list", '[{"a": 1}]', turns, json.dumps(turns)]
    paths = lines(tmp_path, *({"prompt": p, "a": "x", "b": "y", "label": "tie"} for p in prompts))
    rows = read_comparisons(paths).require_usable()
    assert [row.prompt for row in rows] == [
        [{"role": "user", "content": "[1] is a list"}],
        [{"role": "user", "content": '[{"a": 1}]'}],
        turns,
        turns,
    ]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (b"{torn\n", "row: found something else .*allowed: a JSON object"),
        ({"messages": None}, "messages: found nothing; allowed: a list of chat messages"),
        ({"messages": "hello"}, "messages: found text of 5 characters"),
        ({"messages": "[" * 100_000}, "messages: found text of 100000 characters"),
        ({"messages": {"role": "user"}}, "messages: found an object of 1"),
        ({"messages": ["hi"]}, r"messages\[0\]: found text of 2 characters"),
        (
            {"messages": [ASKED, {"role": "robot", "content": "x"}]},
            r"messages\[1\].role: found text 'robot'",
        ),
        ({"messages": [ASKED, {"role": "assistant"}]}, r"messages\[1\]: found an object of 1"),
        (
            {"messages": [ASKED, {"role": "assistant", "content": None}]},
            r"messages\[1\].content: found nothing",
        ),
        (
            {"messages": [ASKED, {"role": "assistant", "content": " "}]},
            r"messages\[-1\].content: found no text",
        ),
        ({"messages": [ASKED]}, r"messages\[-1\].role: found text 'user'; allowed: assistant"),
        ({"messages": [GOOD]}, "found no user's message"),
        ({"messages": [ASKED] * (MAX_MESSAGES + 1)}, "messages: found 2001 messages"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
                    GOOD,
                ]
            },
            r"messages\[0\].content: found parts",
        ),
        ({"messages": CHOSEN, "subset": 7}, "subset: found 7; allowed: text"),
    ],
)
def test_broken_demonstrations_are_named(tmp_path: Path, row: Any, complaint: str) -> None:
    whole = {"messages": CHOSEN, "subset": None, "id": "1"}
    found = read_demonstrations(lines(tmp_path, whole, row, whole))
    assert [r.where.rpartition(":")[2] for r in found.rows] == ["1", "3"]
    [problem] = found.problems.first
    assert problem.where == f"{tmp_path / 'rows.jsonl'}:2"
    with pytest.raises(ConfigError, match=complaint):
        found.require_usable()
    assert len(found.require_usable(allow=0.4)) == 2


@pytest.mark.parametrize(
    ("read", "row", "label"),
    [
        *[
            (read_ratings, {"messages": CHOSEN}, one)
            for one in (5, -1, 2.5, True, "3", None, [1], float("nan"), 10**30)
        ],
        *[
            (read_comparisons, {"prompt": "p", "a": "x", "b": "y"}, one)
            for one in ("a", "Tie", "A ", "Answer B", 1, None, ["A"])
        ],
    ],
)
def test_labels_are_exact(tmp_path: Path, read: Any, row: Any, label: Any) -> None:
    good = 1 if read is read_ratings else "B"
    found = read(lines(tmp_path, row | {"label": good}, row | {"label": label}))
    assert [one.label for one in found.rows] == [good]
    assert found.problems.count == 1


def test_texts_of_the_data_are_not_in_messages_of_errors(tmp_path: Path) -> None:
    secret = "sk-secret"
    paths = lines(
        tmp_path,
        {"messages": secret, "label": 1},
        {"messages": [ASKED, {"role": "assistant", "content": {secret: secret}}], "label": 0},
    )
    with pytest.raises(ConfigError) as caught:
        read_ratings(paths).require_usable()
    assert secret not in str(caught.value)


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    paths = lines(tmp_path, {"mesages": CHOSEN, "label": 1})
    with pytest.raises(ConfigError, match="no column for turns"):
        read_demonstrations(paths, messages_key="turns")
    with pytest.raises(
        ConfigError, match=r"no column for messages .columns: mesages, label.. Rename the one"
    ):
        read_demonstrations(paths)
    with pytest.raises(ConfigError, match=r"messages \(or prompt and response\)"):
        read_ratings(paths)


def test_two_usual_columns_are_ambiguous(tmp_path: Path) -> None:
    row = {"question": "p", "query": "q", "a": "x", "b": "y", "label": "A"}
    with pytest.raises(
        ConfigError, match="may be prompt .found question, query.. Rename the one .* prompt"
    ):
        read_comparisons(lines(tmp_path, row))


def test_a_broken_parquet_file_gives_nothing(tmp_path: Path) -> None:
    [path] = parquet(tmp_path, [{"messages": json.dumps(CHOSEN)}] * 5)
    content = path.read_bytes()
    path.write_bytes(content[:40] + b"\xff" * 40 + content[80:])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_demonstrations([path])


def test_files_without_a_row(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0 of 0 rows can be used"):
        read_demonstrations(lines(tmp_path)).require_usable()
    with pytest.raises(ConfigError, match="no such file"):
        read_preferences([tmp_path / "none.parquet"])


def test_calls_of_tools_are_shown_in_a_transcript() -> None:
    calls = [{"function": {"name": "f"}}]
    assert render_transcript([{"role": "assistant", "content": None, "tool_calls": calls}]) == (
        'assistant: \n[{"function":{"name":"f"}}]'
    )
