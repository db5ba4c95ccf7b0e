"""What `init`, `grade` and `audit` say that they took of a file: the same words in all three."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.helpers.command import invoke
from tests.rows import write_jsonl
from tests.unit.test_init import bare_machine  # noqa: F401  (a fixture)

from adjudge import RewardSpec

RULE = '[[graders]]\nname = "long"\ntype = "length_penalty"\n\n[missing]\nmax_missing = 1.0\n'
LONG = "one two three four five six seven eight nine ten"
SAID = [{"role": "user", "content": "q"}, {"role": "assistant", "content": LONG}]
TALK = [*SAID, {"role": "user", "content": "it is open"}, {"role": "assistant", "content": "done"}]


@pytest.fixture(autouse=True)
def rule(bare_machine: None) -> None:  # noqa: F811
    Path("rule.toml").write_text(RULE)


def run(*arguments: str) -> str:
    return invoke(*arguments, COLUMNS="500").output


def block(said: str) -> list[str]:
    """The lines about the input: from `read as` on, with notes."""
    lines = [line.rstrip() for line in said.splitlines()]
    first = next(n for n, line in enumerate(lines) if line.startswith("read as "))
    last = first + 1
    while last < len(lines) and lines[last].startswith(("  ", "note: ")):
        last += 1
    return [" ".join(line.split()) for line in lines[first:last]]


def say(rows: list[dict[str, Any]], *maps: str) -> list[str]:
    """What all three commands say of a file of ``rows``."""
    write_jsonl(Path("rows.jsonl"), rows)
    Path("reward.toml").unlink(missing_ok=True)
    options = [part for one in maps for part in ("-m", one)]
    blocks = [
        block(run("init", "rows.jsonl", *options)),
        block(run("grade", "rows.jsonl", "-s", "rule.toml", "-q", "-o", "graded", *options)),
        block(run("audit", "rows.jsonl", "-q", "-o", "audited", *options)),
    ]
    assert blocks[0] == blocks[1] == blocks[2]
    return blocks[0]


NO_PROMPT = "no prompt in this file: graders that ask about a question will see none"
PAIR = {"prompt": "p", "response": LONG}

TABLE: list[tuple[list[dict[str, Any]], list[str], list[str], list[str]]] = [
    (
        [{"question": "p", "output": LONG, "gold": "x", "score": 1, "task_id": "a", "note": "n"}],
        ["response from output", "prompt from question", "reference from gold",
         "reward from score", "group column task_id", "other columns note"],
        [],
        ["no prompt", "no reward column"],
    ),
    ([{"messages": SAID, "reward": 1}], ["messages in all samples", "reference none"], [], []),
    ([{"response": LONG, "reward": 1}], ["prompt none"], [NO_PROMPT], ["no reward column"]),
    (
        [{**PAIR, "overall_score": 3.5, "year": 2020, "row_id": 1, "tokens": 9, "words": "x"}],
        ["reward none"],
        ["no reward column was found. Columns of numbers that may be one: overall_score, year."],
        ["row_id.", "tokens.", NO_PROMPT],
    ),
    (
        [{**PAIR, "pass_at_1": 0.5, "idx": n, "api_duration": n, "done": n % 2} for n in range(20)],
        [],
        ["Columns of numbers that may be one: done."],
        [],
    ),
    ([{**PAIR, "info": {"acc": 1}}], [], ["Choose with -m env_reward=info.acc"], []),
    ([PAIR], ["reward none"], [], ["no reward column"]),
    ([{**PAIR, "gold": 4}], ["reference from gold"], [], ["no reward column"]),
    (
        [{**PAIR, "reward": {"fluency": 0.1, "score": 1}}],
        [],
        ["reward: ", "'reward.score'"],
        ["no reward column"],
    ),
    (
        [{**PAIR, "answer": "x"}, PAIR, {**PAIR, "gold": "y"}, PAIR],
        ["reference from answer, gold; 2 of 4 samples have none"],
        [],
        [],
    ),
    (
        [{**PAIR, "answer": "x", "solution": "y"}] * 2,
        ["reference from answer", "other columns solution"],
        ["'solution' is another, which is passed over."],
        [],
    ),
    ([{**PAIR, "response": ""}] * 2 + [PAIR], ["response 2 of 3 samples have none"],
     ["2 of 3 responses are empty."], []),
    ([{**PAIR, "response": ""}, PAIR], ["response 1 of 2 samples have none"],
     [], ["responses are empty"]),
    ([PAIR, {"x": 1}], ["broken rows 1; rows.jsonl:2: "], [], []),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "lines", "notes", "unsaid"), TABLE)
def test_three_commands_say_the_same(
    rows: list[dict[str, Any]], lines: list[str], notes: list[str], unsaid: list[str]
) -> None:
    maps = ["group=task_id"] if "task_id" in rows[0] else []
    said = say(rows, *maps)
    assert said[0] == "read as columns by name"
    for line in lines:
        assert any(one.startswith(line) for one in said), said
    noted = " ".join(one for one in said if one.startswith("note: "))
    assert all(note in noted for note in notes), said
    assert not any(note in noted for note in unsaid), said


@pytest.mark.parametrize(
    ("column", "ids", "noted"),
    [
        ("group_id", [0, 0, 1, 1], True),
        ("task_id", ["a", "b", "a", "b"], True),
        ("uid", [0, 1, 2, 3], False),  # of the samples
        ("group_id", ["a", "a", "a", "a"], False),  # as the prompts say
    ],
)
def test_a_column_that_tells_equal_prompts_apart_is_not_passed_over_in_silence(
    column: str, ids: list[Any], noted: bool
) -> None:
    rows = [json.dumps({**PAIR, column: one}) for one in ids]
    Path("rows.jsonl").write_text("\n".join(rows))
    for command in (["grade", "-s", "rule.toml", "-o", "g"], ["audit", "-o", "a"]):
        said = run(command[0], "rows.jsonl", *command[1:], "-q")
        assert (f"-m group={column}" in said) is noted


def test_json_has_the_same() -> None:
    say([{"output": LONG, "score": 1}])
    made = json.loads(run("init", "rows.jsonl", "-o", "again.toml", "--json"))["input"]
    graded = json.loads(run("grade", "rows.jsonl", "-s", "rule.toml", "--json", "-q", "-o", "g"))
    audited = json.loads(run("audit", "rows.jsonl", "--json", "-q", "-o", "a"))
    assert made == graded["input"] == audited["input"]
    assert made["columns"]["response"] == ["output"]
    assert made["have"]["prompt"] == 0
    assert NO_PROMPT in made["notes"][0]


def test_an_estimate_says_it_too() -> None:
    Path("rows.jsonl").write_text(json.dumps({"response": LONG}) + "\n")
    assert NO_PROMPT in run("grade", "rows.jsonl", "-s", "rule.toml", "--dry-run")


@pytest.mark.parametrize(
    ("row", "shows", "asks"),
    [
        ({"prompt": "p", "response": LONG}, None, True),
        ({"response": LONG}, None, False),
        ({"messages": SAID}, None, True),
        ({"messages": TALK}, "trajectory", True),
        ({"messages": TALK, "opening_turns": 3}, None, True),
    ],
)
def test_init_asks_about_what_is_there(
    monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], shows: str | None, asks: bool
) -> None:
    """No judge is asked about a question that nobody has, and an agent's whole text is judged."""
    monkeypatch.setenv("GROQ_API_KEY", "k")
    say([row])
    [rubric] = [one for one in RewardSpec.load(Path("reward.toml")).graders if one.type == "rubric"]
    settings = rubric.model_extra or {}
    assert settings.get("show") == shows
    assert any("the user asked" in one["criterion"] for one in settings["criteria"]) == asks


def test_an_audit_blames_no_run_for_texts_that_were_not_read() -> None:
    rows = [{"prompt": f"p {n // 4}", "response": "", "reward": n % 2} for n in range(40)]
    say(rows)
    found = json.loads(Path("audited/audit.json").read_text())
    [one] = [check for check in found["checks"] if check["name"] == "degenerate"]
    assert (one["state"], one["severity"]) == ("found", "medium")
    assert "a column that was not read" in one["sentence"]
