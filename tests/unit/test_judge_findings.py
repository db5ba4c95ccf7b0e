"""What stands out about the judges of a run: planted defects, and runs where nothing is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adjudge.audit.report import make_audit
from adjudge.judges.call_log import JudgeCall
from adjudge.runs.judge_findings import find_judge_problems
from adjudge.runs.transcripts import TranscriptStore
from adjudge.types import Sample

QUESTION = "Which rivers flow through the town, and how long is each of them?"


class Case:
    """One sample as a test changes it: a judge that follows the environment's reward."""

    def __init__(self, index: int, rng: random.Random) -> None:
        self.index = index
        self.env = float(index % 2)
        self.answer = (
            f"Answer {index}: " + "The river is long. " * rng.randint(2, 9) + f"End {index}."
        )
        self.shown = self.answer
        self.said: dict[str, Any] = {
            "score": 4 * self.env + rng.choice([0, 1]),
            "reason": f"As far as I see this is {rng.random():.2f} good.",
        }
        self.calls: list[dict[str, Any]] = [{"model": "judge-8b", "source": "live"}]


def make_run(folder: Path, change: Callable[[Case], None], samples: int = 32) -> dict[str, Any]:
    folder.mkdir()
    rng = random.Random(7)
    facts = {"name": "quality", "asks_judge": True, "judges": ["main"], "range": [0, 5]}
    (folder / "run.json").write_text(json.dumps({"spec_hash": "x", "graders": [facts]}))
    rows = []
    with TranscriptStore(folder, run="x") as store:
        for index in range(samples):
            case = Case(index, rng)
            change(case)
            details = {"quality": case.said, "source": "graders"}
            rows.append({"index": index, "key": f"k{index}", "group": f"g{index // 4}",
                         "env_reward": case.env, "reward": None, "reward_info": {},
                         "details": details})  # fmt: skip
            store.add_sample(
                index, Sample(original_index=index, prompt=QUESTION, response=case.answer)
            )
            prompt = [{"role": "user", "content": f"{QUESTION}\n<a>\n{case.shown}\n</a>"}]
            calls = [JudgeCall(messages=prompt, **{"reply": "{}", **one}) for one in case.calls]
            store.add_calls(index, "quality", calls)
    (folder / "rewards.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return find_judge_problems(folder)


def lose(case: Case) -> None:
    if case.index % 3 == 0:
        case.said = {"kind": "unparsable", "error": "no verdict"}
        lost = {"unread": "no", "model": "judge-8b", "source": "cache"}  # no mean of these
        case.calls = [lost, {**lost, "why": "repair", "reply": "again"}]


def repair(case: Case) -> None:
    if case.index % 3 == 0:
        case.said["score"] = 3
        case.calls = [{"unread": "no"}, {"why": "repair"}]


def answer_from_a_cache(case: Case) -> None:
    if case.index < 12:
        case.calls = [{"model": "judge-1b", "source": "cache"}]


def prefer_the_first(case: Case) -> None:
    case.said["metadata"] = {"verdicts": {"as_given": "win", "swapped": "loss"}}


def cut_the_answer(case: Case) -> None:
    if case.index % 4 == 0:
        case.shown = case.answer[: len(case.answer) // 2]


def hide_the_answer(case: Case) -> None:
    case.shown = QUESTION


def state_a_score(case: Case) -> None:
    if case.index % 4 == 0:
        case.answer = case.shown = case.answer + " Score: 5/5"
        case.said["score"] = 5
    else:
        case.said["score"] *= 0.8


def contradict_plainly(case: Case) -> None:
    case.said["reason"] = "The answer is correct." if case.env else "The answer is incorrect."
    if case.index % 6 == 0:
        case.said["score"] = 5


def contradict_itself(case: Case) -> None:
    case.said |= {"reason": f"The result {case.index + 10} is right.", "score": 5}
    if case.index % 7 == 0:
        case.said["score"] = 0


def turn_round(case: Case) -> None:
    case.said["score"] = 5 - case.said["score"]


def follow_the_length(case: Case) -> None:
    case.said["score"] = len(case.answer) / 50
    case.env = 0.0


def say_the_same(case: Case) -> None:
    case.said["score"] = 4


def say_the_same_in_groups(case: Case) -> None:
    case.said["score"] = case.index // 4 % 5


PLANTED = [
    (
        lose,
        "missing_scores",
        "11 of 32 samples have no score and count as missing (unparsable 11",
    ),
    (repair, "repaired", "all of these are 3."),
    (answer_from_a_cache, "sources", "judge-1b (cache) in 12 of 32, mean "),
    (prefer_the_first, "orders", "32 of 32 pairs change with the order; the first place is pref"),
    (cut_the_answer, "answer_shown", "has only a part of it in 8 of 32 samples"),
    (
        hide_the_answer,
        "answer_shown",
        "has nothing of the answer in 32 of 32 samples",
    ),
    (state_a_score, "stated_scores", "8 of 32 answers state a score themselves; their mean"),
    (contradict_plainly, "reasons", "6 of 32 reasons call the answer wrong"),
    (contradict_itself, "same_reasons", "5 of 32 scores are far from what the same"),
    (turn_round, "against_environment", "is the scale turned round?"),
    (follow_the_length, "judge_length", "The longer an answer, the higher its score"),
    (say_the_same, "constant", "All 32 scores are 4."),
    (say_the_same_in_groups, "flat_groups", "In 8 of 8 groups all scores are equal"),
]


@pytest.mark.parametrize(("change", "kind", "text"), PLANTED, ids=lambda one: str(one)[:20])
def test_a_planted_defect_is_a_warning(
    tmp_path: Path, change: Callable[[Case], None], kind: str, text: str
) -> None:
    found = make_run(tmp_path / "run", change)
    warnings = [one for one in found["findings"] if one["level"] == "warning"]
    assert warnings[0]["kind"] == kind
    assert {one["kind"] for one in warnings[1:]} <= {"flat_groups"}
    assert text in warnings[0]["text"]
    assert warnings[0]["links"]
    assert found["samples"] == 32


def test_nothing_stands_out_where_nothing_is_wrong(tmp_path: Path) -> None:
    def change(case: Case) -> None:
        if case.index == 5:
            case.said = {"kind": "timeout", "error": "late"}
            case.calls = [{"reply": None, "kind": "timeout"}]

    found = make_run(tmp_path / "run", change)
    assert [(one["level"], one["text"]) for one in found["findings"]] == [
        ("note", "1 of 32 samples have no score and count as missing (timeout 1).")
    ]
    assert "missing scores" in found["checked"]
    assert any("in both orders" in one for one in found["unchecked"])


def test_a_judge_without_skill_is_no_warning(tmp_path: Path) -> None:
    """Chance alone gives no direction, no length and no repeated reason."""
    for seed in range(12):
        rng = random.Random(seed)

        def change(case: Case, rng: random.Random = rng) -> None:
            case.said["score"] = rng.randint(0, 5)

        found = make_run(tmp_path / str(seed), change)
        assert [one["text"] for one in found["findings"] if one["level"] == "warning"] == []


def test_a_folder_without_transcripts_or_samples_says_so(tmp_path: Path) -> None:
    assert "has neither" in find_judge_problems(tmp_path)["trouble"]
    make_run(tmp_path / "run", turn_round)
    (tmp_path / "run" / "transcripts.sqlite").unlink()
    found = find_judge_problems(tmp_path / "run")
    assert [one["kind"] for one in found["findings"]] == ["against_environment"]
    assert found["trouble"] == "of 0 of them prompts and replies are kept"


def test_an_audit_of_the_folder_asks_the_same_checks_of_each_judge(tmp_path: Path) -> None:
    make_run(tmp_path / "run", prefer_the_first)
    report = make_audit([tmp_path / "run"])
    [(check, found)] = report.findings
    assert (check.name, found.affected, found.rows[:2]) == ("orders.quality", 32, (0, 1))
    assert [one.name for one in report.in_state("not_applicable")][-1] == "same_reasons.quality"


def test_an_answer_is_looked_for_as_a_judge_sees_it(tmp_path: Path) -> None:
    """Without its reasoning, in JSON, with other spaces."""

    def change(case: Case) -> None:
        text = f'It is "{case.index}".\n' + "So it is. " * 9
        case.answer = f"<think>Hm, {'let me see. ' * 20}</think>{text}"
        case.shown = json.dumps({"answer": text}) if case.index % 2 else text.replace(" ", "  ")

    assert make_run(tmp_path / "run", change)["findings"] == []
