"""Rows of published data sets as rows of judge training; all rows here are made up."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rows import DATA, assistant, system, user, write_jsonl

from adjudge.datasets.rows import MAX_PAIRS_PER_PROMPT, Preference, render_transcript, split_answers
from adjudge.errors import ConfigError
from adjudge.judge_evaluation.benchmarks.readers import read_benchmark
from adjudge_lab.judge_training.row_files import (
    find_format,
    holds_preferences,
    read_comparisons,
    read_preferences,
    read_ratings,
)


def lines(folder: Path, *rows: Any) -> list[Path]:
    return [write_jsonl(folder / "rows.jsonl", rows)]


def steer(prompt: str, response: str, helpfulness: Any) -> dict[str, Any]:
    other = {"correctness": 4, "coherence": 4, "complexity": 1, "verbosity": 1}
    return {"prompt": prompt, "response": response, "helpfulness": helpfulness} | other


def bench(**change: Any) -> dict[str, Any]:
    row = {"id": "17", "prompt": "2+2?", "chosen": ["4"], "rejected": ["3", "5", "22"]}
    counts = {"num_correct": 1, "num_incorrect": 3, "total_completions": 4, "models": ["m"] * 4}
    return row | counts | {"subset": "Math", "additional_metadata": {"category": None}} | change


LLMBAR = {"input": "Name a tree.", "output_1": "Oak.", "output_2": "Trout.", "label": 1}
HH: dict[str, Any] = {
    "chosen": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Bye\n\nAssistant: Goodbye!",
    "rejected": "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Bye\n\nAssistant: No.",
}


PARTS = {"role": "user", "content": [{"type": "text", "text": "2+2?"}]}


def answers(row: Preference) -> tuple[Any, Any]:
    return row.chosen[-1]["content"], row.rejected[-1]["content"]


JUDGEBENCH = {
    "pair_id": "p",
    "source": "mmlu-pro-law",
    "question": "2+2?",
    "response_A": "5",
    "response_B": "4",
    "label": "B>A",
}


def test_formats_are_known_by_their_columns(tmp_path: Path) -> None:
    assert find_format(lines(tmp_path, steer("p", "r", 1))) == "helpsteer2"
    assert find_format(lines(tmp_path, bench())) == "rewardbench2"
    assert find_format(lines(tmp_path, {"chosen": ["4"], "rejected": ["3"], "subset": "Math"}))
    assert find_format(lines(tmp_path, LLMBAR)) == "llmbar"
    assert find_format(lines(tmp_path, JUDGEBENCH)) == "judgebench"
    assert find_format(lines(tmp_path, HH)) == "preference"
    assert holds_preferences(lines(tmp_path, HH))
    assert holds_preferences(lines(tmp_path, steer("p", "r", 1)))
    assert not holds_preferences(lines(tmp_path, LLMBAR))


@pytest.mark.parametrize(
    "row",
    [
        LLMBAR | {"subset": "Natural", "id": 7},
        JUDGEBENCH,
        HH,
        {"prompt": "2+2?", "chosen": "4", "rejected": "5", "margin": 2},
        {"prompt": [{"role": "user", "content": "2+2?"}], "chosen": "4", "rejected": "[5"},
        {
            "chosen": [PARTS, assistant("4")],
            "rejected": json.dumps([PARTS, assistant("5")]),
        },
        bench(rejected=["3", "5", "22"]),
    ],
)
def test_who_trains_and_who_evaluates_reads_the_same(tmp_path: Path, row: Any) -> None:
    paths = lines(tmp_path, row)
    rows = read_preferences(paths).require_usable()
    [item] = read_benchmark(paths).items
    pairs = [(shown[-1]["content"] for shown in split_answers(row)[1]) for row in rows]
    if len(item.answers) > 2:
        assert [tuple(pair) for pair in pairs] == [("4", "3"), ("4", "5"), ("4", "22")]
        assert item.texts == ["4", "3", "5", "22"]
        return
    [pair] = map(list, pairs)
    assert item.texts == (pair if item.label == "A" else pair[::-1])
    assert render_transcript(item.prompt) == render_transcript(split_answers(rows[0])[0])
    assert (rows[0].subset or "rows", rows[0].margin) == (item.subset, item.margin)


Q, R, S = user("q"), assistant("r"), assistant("s")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rejected": [Q, R]}, "rejected: found the same as chosen"),
        ({"rejected": [Q]}, "rejected[-1].role"),
        ({"chosen": [Q]}, "chosen[-1].role"),
        ({"rejected": None}, "rejected: found nothing"),
        ({"rejected": [user("?"), S]}, "rejected: found another beginning"),
        ({"rejected": [system("s"), Q, S]}, "rejected: found another beginning"),
        ({"rejected": "[1"}, "rejected: found"),
        ({"rejected": "Human: q"}, "rejected: found"),
        ({"margin": -1}, "margin: found -1; allowed: a finite number, 0 or more"),
        ({"margin": "big"}, "margin: found text of 3 characters"),
        ({"margin": True}, "margin: found True"),
        ({"margin": 10**400}, "margin: found a very large number"),
        ({"subset": 3}, "subset: found 3"),
    ],
)
def test_what_is_no_preference_is_none_for_either(
    tmp_path: Path, change: Any, complaint: str
) -> None:
    good = {"chosen": [Q, R], "rejected": [Q, S], "margin": 1}
    paths = lines(tmp_path, good, good | change)
    trained, evaluated = read_preferences(paths), read_benchmark(paths)
    assert trained.problems.first[0].reason.startswith(complaint)
    assert len(trained.rows) == len(evaluated.items) == 1
    assert [str(one) for one in trained.problems.first] == [str(one) for one in evaluated.problems]


def test_an_empty_answer_is_judged_but_not_trained_on(tmp_path: Path) -> None:
    for row in (LLMBAR | {"output_2": ""}, {"prompt": "q", "chosen": "r", "rejected": " "}):
        paths = lines(tmp_path, row)
        assert len(read_benchmark(paths).items) == 1
        assert read_preferences(paths).problems.first[0].found == "no text"


def test_answers_to_one_prompt_are_paired_with_the_difference_as_margin(tmp_path: Path) -> None:
    rows = [
        steer("p", "low", 1),
        steer("q", "x", 2),
        steer("p", "high", 4),
        steer("q", "y", 2),
        steer("z", "alone", 3),
    ]
    found = read_preferences(lines(tmp_path, *rows))
    [pair] = found.rows
    assert (*answers(pair), pair.margin) == ("high", "low", 3.0)
    assert [(p.where[-1], p.key, p.found) for p in found.problems.first] == [
        ("2", "helpfulness", "2 for both answers"),
        ("5", "prompt", "no other answer to it"),
    ]


def test_a_flood_of_answers_to_one_prompt_is_refused(tmp_path: Path) -> None:
    rows = [steer("p", f"r{n}", n % 5) for n in range(MAX_PAIRS_PER_PROMPT)]
    found = read_preferences(lines(tmp_path, *rows))
    assert not found.rows
    assert found.problems.first[0].found == "1,000 answers to it"


def test_each_correct_answer_is_paired_with_each_wrong_one(tmp_path: Path) -> None:
    ties = bench(id="tied:3", subset="Ties", chosen=["a", "b"], rejected=["x", "y"])
    rows = read_preferences(
        lines(tmp_path, bench(), ties | {"num_correct": 2, "num_incorrect": 2})
    ).require_usable()
    assert [answers(row) for row in rows[:3]] == [("4", "3"), ("4", "5"), ("4", "22")]
    assert [answers(row) for row in rows[3:]] == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert [row.subset for row in rows] == ["Math"] * 3 + ["Ties"] * 4


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (steer("p", "r", 5), "helpfulness: found 5"),
        (steer("p", " ", 1), "response: found no text"),
        (steer("a\n<extra_id_1>User\nb", "r", 1), "turn 1 of another speaker; allowed: Assistant"),
        (steer("a\n<extra_id_1>Assistant\nb", "r", 1), "found 2 turns; allowed: turns with a text"),
        (steer("a\n<extra_id_1>Assistant", "r", 1), "turn 1 of another speaker"),
        (steer("a\n<extra_id_1>Assistant\n\n<extra_id_1>User\nb", "r", 1), "found 3 turns"),
        (bench(chosen="4"), "chosen: found text of 1 characters; allowed: a list"),
        (bench(rejected=[]), "rejected: found a list of 0"),
        (bench(num_correct=2), "num_correct: found 2; allowed: 1, as chosen has"),
        (bench(rejected=["3", "5"]), "num_incorrect: found 3; allowed: 2, as rejected has"),
        (bench(rejected=["3", None, "5"]), r"rejected\[1\]: found nothing; allowed: text"),
        (bench(rejected=["3", "4", "5"]), "rejected: found the same as chosen"),
        (bench(subset=3), "subset: found 3"),
        (bench(chosen=["4"] * 600, num_correct=600), "chosen: found 1,800 pairs"),
        *[(LLMBAR | {"label": one}, "label: .*allowed: 1, 2") for one in (0, "1", None, True)],
        *[
            (HH | {"chosen": text}, complaint)
            for text, complaint in (
                ("\n\nAssistant: Hi", "two turns of Assistant in a row|another beginning"),
                ("\n\nHuman: Hi\n\nHuman: Hi\n\nAssistant: x", "two turns of Human in a row"),
                ("\n\nHuman: Hi\n\nAssistant: ", "a turn without text"),
                ("\n\nHuman: Hi\n\nAssistant: x\n\nHuman: y", r"chosen\[-1\].role"),
                ("Human: Hi\n\nAssistant: x", "another beginning"),
                ("Hi\n\nHuman: Hi\n\nAssistant: x", "prompt: found nothing"),
                (None, "chosen: found nothing"),
            )
        ],
    ],
)
def test_broken_rows_are_named_and_give_no_pair_at_all(
    tmp_path: Path, row: Any, complaint: str
) -> None:
    read = read_ratings if "helpfulness" in row else read_preferences
    found = read(lines(tmp_path, row))
    assert not found.rows
    with pytest.raises(ConfigError, match=f"rows.jsonl:1: .*({complaint})"):
        found.require_usable()


def test_kinds_that_a_format_has_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ratings cannot .*found llmbar; allowed: helpsteer2"):
        read_ratings(lines(tmp_path, LLMBAR))
    with pytest.raises(ConfigError, match="comparisons .*rewardbench2; allowed: llmbar, judgebe"):
        read_comparisons(lines(tmp_path, bench()))


@pytest.mark.parametrize(
    ("name", "pairs", "problem"),
    [
        ("helpsteer2-preference", [("4.", "5.", None)], ""),
        ("helpsteer3", [("4.", "5.", None)], "overall_preference: found a tie"),
        ("arena", [("Oak.", "Trout.", None)], "winner: found a tie"),
        ("ultrafeedback", [("Hello!", "No.", 7.0)], ""),
    ],
)
def test_preferences_of_further_formats(name: str, pairs: list[Any], problem: str) -> None:
    paths = list((DATA / name).iterdir())
    assert find_format(paths) == name
    found = read_preferences(paths)
    assert [(*answers(row), row.margin) for row in found.rows] == pairs
    assert [one.reason.startswith(problem) for one in found.problems.first] == [True] * bool(
        problem
    )


def test_preferences_of_conversations(tmp_path: Path) -> None:
    a, b = ([user("2+2?"), assistant(answer)] for answer in "45")
    rows = [
        {"conversation_a": a, "conversation_b": b, "winner": winner}
        for winner in ("model_a", "tie (bothbad)")
    ]
    paths = lines(tmp_path, *rows)
    assert find_format(paths) == "arena-conversations"
    found = read_preferences(paths)
    assert [answers(row) for row in found.rows] == [("4", "5")]
    assert [one.reason[:7] for one in found.problems.first] == ["winner:"]


def test_all_pairs_of_one_prompt_are_drawn_together(tmp_path: Path) -> None:
    rated = [{"response": text, "overall_score": n} for n, text in enumerate("abc")]
    found = read_benchmark(lines(tmp_path, {"instruction": "q", "completions": rated}))
    assert found.kind == "preference"
    items = found.items
    assert [item.texts for item in items] == [["b", "a"], ["c", "a"], ["c", "b"]]
    assert [item.margin for item in items] == [1.0, 2.0, 1.0]
    assert len({item.cluster for item in items}) == 1
    assert len({item.id for item in items}) == 3
    rows = [steer("q", text, n) for n, text in enumerate("abc")]
    found = read_benchmark(lines(tmp_path, *rows, steer("alone", "d", 1)))
    assert [item.texts for item in found.items] == [["b", "a"], ["c", "a"], ["c", "b"]]
    assert [one.reason[:16] for one in found.problems] == ["prompt: found no"]
