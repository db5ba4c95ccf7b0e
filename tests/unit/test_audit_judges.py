"""An audit of what the judges of a run said: planted defects, and runs where nothing is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rows import write_jsonl

from adjudge.audit.report import AuditReport, make_audit
from adjudge.checks.check import Finding
from adjudge.checks.judges import JUDGE_CHECKS
from adjudge.judges.asking import JudgeCall
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


def make_run(folder: Path, change: Callable[[Case], None], samples: int = 32) -> AuditReport:
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
    write_jsonl(folder / "rewards.jsonl", rows)
    return make_audit([folder])


def found_by_judges(report: AuditReport) -> list[tuple[str, Finding]]:
    """The findings of the checks of judges, worst first."""
    names = {check.name for check in JUDGE_CHECKS}
    found = ((one.name.partition(".")[0], finding) for one, finding in report.findings)
    return [(name, finding) for name, finding in found if name in names]


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


def contradict_itself(case: Case) -> None:
    case.said |= {"reason": f"The result {case.index + 10} is right.", "score": 5}
    if case.index % 7 == 0:
        case.said["score"] = 0


def turn_round(case: Case) -> None:
    case.said["score"] = 5 - case.said["score"]


def say_the_same_in_groups(case: Case) -> None:
    case.said["score"] = case.index // 4 % 5


PLANTED = [
    (repair, "repaired", "all of these are 3."),
    (answer_from_a_cache, "sources", "judge-1b (cache) in 12 of 32, mean "),
    (prefer_the_first, "orders", "32 of 32 pairs change with the order; the first place is pref"),
    (cut_the_answer, "answer_shown", "has only a part of it in 8 of 32 samples"),
    (hide_the_answer, "answer_shown", "has nothing of the answer in 32 of 32 samples"),
    (state_a_score, "stated_scores", "8 of 32 answers state a score themselves; their mean"),
    (contradict_itself, "same_reasons", "5 of 32 scores are far from what the same"),
    (turn_round, "against_environment", "is the scale turned round?"),
    (say_the_same_in_groups, "flat_groups", "In 8 of 8 groups all scores are equal"),
]


@pytest.mark.parametrize(("change", "kind", "text"), PLANTED, ids=lambda one: str(one)[:20])
def test_a_planted_defect_is_found(
    tmp_path: Path, change: Callable[[Case], None], kind: str, text: str
) -> None:
    (name, finding), *more = found_by_judges(make_run(tmp_path / "run", change))
    assert name == kind
    assert {one for one, _ in more} <= {"flat_groups"}
    assert text in finding.sentence
    assert finding.rows


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    """Also of a judge without skill: chance gives no direction and no repeated reason."""

    def change(case: Case) -> None:
        if case.index == 5:
            case.said = {"kind": "timeout", "error": "late"}
            case.calls = [{"reply": None, "kind": "timeout"}]

    report = make_run(tmp_path / "run", change)
    assert found_by_judges(report) == []
    assert "orders.quality" in [one.name for one in report.in_state("not_applicable")]
    for seed in range(6):
        rng = random.Random(seed)

        def guess(case: Case, rng: random.Random = rng) -> None:
            case.said["score"] = rng.randint(0, 5)

        assert found_by_judges(make_run(tmp_path / str(seed), guess)) == []


def test_a_folder_without_transcripts_is_checked_without_prompts(tmp_path: Path) -> None:
    make_run(tmp_path / "run", turn_round)
    (tmp_path / "run" / "transcripts.sqlite").unlink()
    report = make_audit([tmp_path / "run"])
    assert [name for name, _ in found_by_judges(report)] == ["against_environment"]
    skipped = [one.name for one in report.in_state("not_applicable")]
    assert {"answer_shown.quality", "stated_scores.quality"} <= set(skipped)


def test_an_answer_is_looked_for_as_a_judge_sees_it(tmp_path: Path) -> None:
    """Without its reasoning, in JSON, with other spaces."""

    def change(case: Case) -> None:
        text = f'It is "{case.index}".\n' + "So it is. " * 9
        case.answer = f"<think>Hm, {'let me see. ' * 20}</think>{text}"
        case.shown = json.dumps({"answer": text}) if case.index % 2 else text.replace(" ", "  ")

    assert found_by_judges(make_run(tmp_path / "run", change)) == []
