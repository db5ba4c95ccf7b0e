import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.refusals import refuses

from adjudge.datasets.files import read_rows
from adjudge.errors import ConfigError, RolloutError
from adjudge.intake.rollouts import compute_prompt_key
from adjudge.rollouts.recognition import check_mapping
from adjudge.rollouts.samples import SampleReader, sample_from_row
from adjudge.types import Sample

CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
CHAT = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "why?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "x"},
    {"role": "assistant", "content": "because"},
]


def lines(folder: Path, *rows: Any) -> Path:
    path = folder / "rollouts.jsonl"
    path.write_bytes(
        b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in rows)
    )
    return path


def test_rows_become_samples(tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        {"messages": CHAT, "reward": 1, "task_id": 7, "lang": "en"},
        {"prompt": "p", "response": "r", "reference": {"a": 1}},
    )
    mapping = {"env_reward": "reward", "group": "task_id"}
    [first, second] = [sample for _, sample in SampleReader([path], mapping).read()]
    assert isinstance(first, Sample)
    assert (first.prompt, first.response) == ("why?", "because")
    assert (first.env_reward, first.group) == (1.0, "7")
    assert first.extra == {"lang": "en", "reward": 1, "task_id": 7, "env_reward": 1.0}
    assert isinstance(second, Sample)
    assert (second.env_reward, second.group) == (None, None)
    assert second.reference == {"a": 1}


def test_indices_count_all_rows_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one = lines(tmp_path, {"response": "a"}, b"{torn\n", {"response": "b"})
    two = lines(tmp_path / "b", b"\n", {"response": "c"})
    found = list(SampleReader([one, two]).read())
    assert [getattr(s, "original_index", None) for _, s in found] == [0, None, 2, 3]
    assert [where.rpartition(":")[2] for where, _ in found] == ["1", "2", "3", "2"]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (b"[1, 2]\n", "not one JSON object per line"),
        (b'{"a": ' * 100_000 + b"\n", "nested too deeply"),
        ({"messages": "[" * 100_000}, "text but not JSON"),
        ({"response": 7}, "'response' must be text, got int: 7"),
        ({"response": "r", "prompt": 7}, "'prompt' must be text"),
        ({"response": "r", "group": [1]}, "'group' must be"),
        ({"response": "r", "env_reward": "high"}, "'env_reward' must be a finite number"),
        (b'{"response": "r", "env_reward": 1e400}\n', "range"),
    ],
)
def test_broken_rows_say_what_is_wrong(tmp_path: Path, row: Any, complaint: str) -> None:
    [(where, error)] = SampleReader([lines(tmp_path, row)]).read()
    assert isinstance(error, RolloutError)
    assert str(error).startswith(where)
    assert complaint in str(error)


def test_columns_that_say_nothing_are_one_message(tmp_path: Path) -> None:
    path = lines(tmp_path, {"x": 1, "y": "a"})
    with pytest.raises(ConfigError, match=r"rollouts.jsonl: is in no known format.*columns: x, y"):
        list(SampleReader([path]).read())
    [(_, error)] = SampleReader([path], {"messages": "x"}).read()
    assert "messages: must be a list" in str(error)


def test_damage_that_can_be_read_is_read(tmp_path: Path) -> None:
    whole = json.dumps({"response": "r"}).encode()
    path = lines(tmp_path, b"\x00" * 1000 + whole + b"\r\n", b"\xef\xbb\xbf" + whole + b"\n",
                 b'{"response": "half \\ud83d emoji, whole \\ud83d\\ude00"}')  # fmt: skip
    responses = [s.response for _, s in SampleReader([path]).read() if isinstance(s, Sample)]
    assert responses == ["r", "r", "half ? emoji, whole 😀"]


def test_messages_and_prompts_as_trainers_store_them() -> None:
    row = {"messages": json.dumps(CHAT), "prompt": CHAT[:2]}
    sample = sample_from_row(row, 0)
    assert sample.messages == [CHAT[0], {"role": "user", "content": "why?"}, *CHAT[2:]]
    assert (sample.prompt, sample.opening_turns) == ("why?", 2)
    assert sample_from_row({"response": CHAT[4:]}, 0).response == "because"


def test_a_column_that_no_row_has_is_a_typing_error(tmp_path: Path) -> None:
    path = lines(tmp_path, {"response": "r", "reward": 1}, {"response": "r"})
    check_mapping(read_rows([path]), {"env_reward": "reward", "response": "response"})
    with refuses("--map"):
        check_mapping(read_rows([path]), {"env_reward": "rewrd"})


def test_odd_values_that_mean_nothing_or_break_the_row() -> None:
    row: dict[str, Any] = {"response": "r", "group": float("nan"), "env_reward": float("nan")}
    sample = sample_from_row(row, 0)
    assert (sample.group, sample.env_reward) == (None, None)
    assert sample_from_row({"response": "r", "env_reward": Decimal("0.5")}, 0).env_reward == 0.5
    with pytest.raises(RolloutError, match="finite"):
        sample_from_row({"response": "r", "env_reward": 10**5000}, 0)
    assert compute_prompt_key(sample) is None
